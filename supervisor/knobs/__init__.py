"""Knobs: how a command that we did not write is read and changed."""
