"""The pace of a training: which rank its peers wait for, and whether all of it became slower. Read from outside the ranks."""
