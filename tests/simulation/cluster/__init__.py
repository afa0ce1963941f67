"""The coordination of several nodes on a virtual clock (docs/many-nodes.md)."""
