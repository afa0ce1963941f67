"""Probes of network interfaces, ports, names and peers."""
