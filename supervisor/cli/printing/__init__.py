"""The commands of `supervise print`: files that fit a job to this node, a cluster or a service. They print a text, and do nothing else."""
