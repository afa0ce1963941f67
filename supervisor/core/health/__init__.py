"""The health of this node, before an attempt and while one runs."""
