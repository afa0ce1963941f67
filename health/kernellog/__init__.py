"""The kernel's log: read properly (device, journal, files), and judged (lines, forms, judge, memory)."""
