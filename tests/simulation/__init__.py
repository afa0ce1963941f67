"""Random worlds for the core: jobs, GPUs, checkpoints and faults on a virtual clock, and what must hold whatever happens in them."""
