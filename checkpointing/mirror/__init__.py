"""Copies of checkpoints on other storage: upload, listing and restore."""
