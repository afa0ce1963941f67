"""The coordination of several nodes on a virtual clock (docs/explanation/many-nodes.md)."""
