"""The loss watch: rules about numbers that a training prints, their lines, and their strange changes. Pure."""
