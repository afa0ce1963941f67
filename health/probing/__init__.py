"""Runs the probes of health/probes/ in disposable processes under a deadline."""
