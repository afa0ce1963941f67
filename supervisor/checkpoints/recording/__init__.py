"""Verifies and records each checkpoint that appears, and reports what was found."""
