"""Which checkpoints and copies are kept, and how the others are removed."""
