"""What the ranks of a node hold of its memory, and when there will be none left."""
