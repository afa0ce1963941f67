"""Checks: pure functions that judge readings, in families by subject.

A check is a function with `@check(name, subject=, needs=)` above it (health/model.py). The registry finds it in its module.
"""
