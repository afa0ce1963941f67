"""The host of an attempt: its kernel's log and counters, its memory and disks."""
