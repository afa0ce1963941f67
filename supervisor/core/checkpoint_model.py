"""The facts of checkpoints, apart from the verified ones (CheckpointRef in model.py): unused, not found, loaded."""

from __future__ import annotations

from enum import StrEnum

from supervisor.core.values import Struct

#: The way of a checkpoint to a script without a known flag.
RESUME_OPTION = "--resume-args '--YOUR-FLAG {resume}'"


class UnusedCheckpoints(Struct, frozen=True):
    """Valid checkpoints at a place that the job saves to, while none was selected: no rank is known to load from that place."""

    pattern: str
    count: int
    newest: str
    step: int | None = None  # of the newest, as in CheckpointRef
    epoch: int | None = None  # likewise
    resume: str = ""  # the option with the script's own flag, "" where none shows

    def __str__(self) -> str:
        """Return where they are, and the options that pass the newest to the script."""
        lie = f"{self.count} checkpoints lie in" if self.count > 1 else "a checkpoint lies in"
        return f"{lie} {self.pattern}: {self.remedy}"

    @property
    def remedy(self) -> str:
        """The options that pass the newest to the script."""
        by_path = f"--checkpoints '{self.pattern}' {self.resume or RESUME_OPTION} hands over the newest"
        by_itself = "if the script finds it by itself: --resumes-itself, or --resume-switch '--YOUR-SWITCH'"
        return by_path if self.resume else f"{by_path}; {by_itself}"


class WithoutTracker(Struct, frozen=True):
    """A whole checkpoint that its framework does not find: the file that names the newest one is missing."""

    newest: str
    tracker: str  # that file
    command: str  # what writes it


class CheckpointOwner(StrEnum):
    """The writer of a checkpoint that ranks loaded, as far as this node knows."""

    OWN = "own"  # this run, or an earlier one of the same job
    NAMED = "named"  # the user's command names this very path
    FOREIGN = "foreign"  # surely neither
    UNKNOWN = "unknown"


class LoadedCheckpoint(Struct, frozen=True):
    """The load of a rank before its first step from a place of this job's checkpoints."""

    path: str  # of the checkpoint, links resolved
    owner: CheckpointOwner
    step: int | None = None  # the greatest in its content and name; known of a foreign one alone
    why: str = ""  # what shows that it is foreign
    replaced: bool = False  # after it the same rank loaded one of this job, of the same kind of name
