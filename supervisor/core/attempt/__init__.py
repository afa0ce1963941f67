"""An attempt: its checkpoint, its start, its progress, its end."""
