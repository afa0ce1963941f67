"""The commands `verify`, `latest`, `push` and `restore`, for `python -m checkpointing` and for `supervise checkpoints`."""
