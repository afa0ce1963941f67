"""Files and directories, read and written so that a crash or a hanging disk does no harm."""
