"""Runs probes in disposable processes under a deadline."""
