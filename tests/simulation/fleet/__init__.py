"""A job on 8 to 131,072 GPUs, with the fault rates that were published: what the core makes of weeks of it (docs/explanation/fleet.md)."""
