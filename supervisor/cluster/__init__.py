"""How the supervisors of a job's nodes come to one decision (docs/explanation/many-nodes.md)."""
