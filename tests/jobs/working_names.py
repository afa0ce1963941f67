"""The names of what tests/jobs/working.py does, for the tests, which do not import torch."""

WORKS = (
    "evaluation",
    "polling_loader",
    "quiet_queue",
    "progress_thread",
    "child",
    "polled_child",
    "build",
    "download",
    "slow_disk",
    "child_download",
    "sleep",
)
