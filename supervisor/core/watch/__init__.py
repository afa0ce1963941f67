"""The watches while ranks run: hangs, losses, pace."""
