"""The process behind `supervise -- COMMAND`."""
