"""`supervise checkpoints`."""
