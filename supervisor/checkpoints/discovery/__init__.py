"""Discovers where a job's checkpoints are, and records it for the next supervisor."""
