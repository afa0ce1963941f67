"""What a job that makes no progress is seen to do: looks at its ranks, and what two looks mean (docs/explanation/hangs.md)."""
