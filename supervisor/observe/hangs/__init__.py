"""What a job that stands still is seen to do: looks at its ranks, and what two looks mean (docs/explanation/hangs.md)."""
