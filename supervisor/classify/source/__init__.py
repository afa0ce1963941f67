"""Finds faults in a training script by its text alone: eight rules, each with the line. Pure: no file is read, no code of a user is run."""
