"""Looks at the ranks of a job that makes no progress, and what two looks mean (docs/explanation/hangs.md)."""
