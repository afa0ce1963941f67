"""Reads the files that the ranks of an attempt write: heartbeats, error files, and logs of saves and loads."""
