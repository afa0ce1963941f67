"""Chooses the cause among candidates: which count, which follow from others, and the verdict."""
