"""The commands that print how a job is run on a cluster: a batch script for Slurm, a manifest for Kubernetes."""
