"""The supervisor's side of checkpointing: discovery, selection, repair, mirror and restore."""
