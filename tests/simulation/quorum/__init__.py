"""A register by majority on a virtual clock, whatever is lost."""
