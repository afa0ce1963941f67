"""Where a checkpoint comes from: which job, run and attempt wrote it, and in which order."""
