"""Probes of the host: processors, memory, limits, processes, clock."""
