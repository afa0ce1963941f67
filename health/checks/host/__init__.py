"""Checks of the host."""
