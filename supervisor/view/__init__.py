"""What a job's journal says of it: one fold of the records, which every reader shares."""
