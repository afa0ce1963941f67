"""Decides which checkpoints and copies are kept, and removes the others."""
