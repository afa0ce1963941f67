"""The formats of directories: one file for each framework's layout, and what several share."""
