"""Converts a checkpoint into another format, tensor by tensor: the work of `supervise checkpoints convert`, in a process of its own."""
