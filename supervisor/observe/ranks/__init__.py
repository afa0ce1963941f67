"""What the ranks of an attempt write themselves: heartbeats, error files, and logs of saves and loads."""
