"""Probes of GPUs and their driver."""
