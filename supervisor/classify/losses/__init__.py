"""The loss watch: rules about numbers that a training prints, the lines in which they stand, and what is strange about them. Pure."""
