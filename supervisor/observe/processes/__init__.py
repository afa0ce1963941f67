"""The processes of an attempt: which there are, which ended, their stacks and core dumps."""
