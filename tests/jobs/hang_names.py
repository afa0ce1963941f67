"""The names of what hangs.py can do at one step; each is described there."""

from __future__ import annotations

#: Stand still for ever. The first four are made by the loop of hangs.py, the rest by its class Culprit.
HANGS = (
    "fewer",
    "swallowed",
    "loader",
    "stuck_save",
    "one_sided",
    "python_loop",
    "c_loop",
    "c_wait",
    "pipe",
    "fuse",
    "frozen",
)
#: Continue by themselves.
HEALTHY = (
    "none",
    "evaluation_alone",
    "slow_save",
    "slow_load",
    "long_step",
    "inference",
)
