"""This node's GPUs and health, for one job."""
