"""The commands that take a command to start, or the settings of one: `run`, `plan`, `config show`."""
