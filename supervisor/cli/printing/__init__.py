"""The commands of `supervise print`: files that run a job on a cluster or as a service. They print a text, and do nothing else."""
