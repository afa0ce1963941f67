"""What the tests of a script that resumes by itself share: the script under torchrun, and settings with which checkpoints are seen soon."""

from __future__ import annotations

from pathlib import Path

SCRIPT = str(Path(__file__).parents[1] / "jobs" / "resumes_itself.py")
TRAIN = ["torchrun", "--standalone", "--nproc-per-node=1", SCRIPT]


def fast(place: Path) -> Path:
    """Return a configuration for a test with `short_intervals`: the end waits for the checkpoints, and not for long."""
    config = place / "fast.toml"
    config.write_text("[checkpoints]\nfinish_s = 20\n")
    config.chmod(0o600)
    return config
