"""The metrics of one run, for Prometheus (docs/reference/metrics.md). Nothing in here is imported where metrics are off."""
