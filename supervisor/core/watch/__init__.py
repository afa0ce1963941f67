"""What is watched while ranks run: hangs, losses, pace."""
