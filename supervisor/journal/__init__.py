"""The journal: the durable record of a job's events, decisions and state."""
