"""Measures the memory of a node's ranks, and forecasts when none will be left."""
