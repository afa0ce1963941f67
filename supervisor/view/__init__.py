"""A job by its journal: one fold of the records, which every reader shares."""
