"""Probes of disks and of the paths that the job writes."""
