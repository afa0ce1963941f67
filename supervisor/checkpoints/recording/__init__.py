"""Verifies and records each checkpoint that appears, and reports the findings."""
