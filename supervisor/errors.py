"""Our one exception, for trouble of the supervisor's own, and our exit codes.

A job's failure is never an exception; it is data (core/model.py).
"""

from __future__ import annotations

import difflib
from enum import IntEnum
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from collections.abc import Iterable


#: For commands that need torch: supervise cannot choose the right build, and the default one brings gigabytes of CUDA libraries.
TORCH_BUILDS: Final = "https://pytorch.org/get-started/locally has the build for this machine"


class ExitCode(IntEnum):
    """Our exit codes, and in Markdown what docs/reference/exit-codes.md says of each. No release changes the meaning of one.

    1 to 63 are the first failed rank's own; 128+n is a signal.
    """

    meaning: str
    remedy: str

    def __new__(cls, code: int, meaning: str, remedy: str) -> Self:
        """Keep the columns of the row beside the code."""
        member = int.__new__(cls, code)
        member._value_ = code
        member.meaning, member.remedy = meaning, remedy
        return member

    DONE = (
        0,
        "the command ended with 0, even if a side service failed, or it hid the failure of a rank, which the last line names then",
        "nothing; after a hidden failure `supervise why`",
    )
    USAGE = (
        64,
        "the command line is wrong (a flag's value counts), or there is no such job, or nothing to read. Nothing was started",
        "correct it",
    )
    DETERMINISTIC = (
        65,
        (
            "the job fails the same way each time, and was given up with the reason; or the nodes have no checkpoint in common; "
            "or the script does not take the checkpoint that it is given, takes another training's, or is led to none by what names its "
            "newest"
        ),
        "correct the job, do not retry",
    )
    BAD_NODE = (
        69,
        (
            "this node is not fit for the job: it is excluded (`supervise nodes`), a GPU failed and nothing may replace it, other "
            "processes hold its memory, its driver does not fit, or no room is left for a checkpoint at the first start of a run (later a "
            "start waits for room). "
            "`supervise doctor`: anything of the node is FAILED, also what would hold no start back"
        ),
        "run it elsewhere, or do what the card says",
    )
    BUG = 70, "an internal error of supervise; one line names the file with the traceback", "report it; a retry may help"
    REQUEUE = (
        75,
        (
            "stopped from outside, or to continue later: after a notice (USR1, USR2); after TERM or HUP if the ranks saved on request; if "
            "the infrastructure failed or a disk stayed full; if the nodes did not agree on a checkpoint in time, or too few were there; "
            "if no checkpoint is here and the mirror did not answer, or the restore failed; if no thread "
            "could be started. `supervise doctor --nodes`: there was no report"
        ),
        "start it again: the run continues",
    )
    CONFIG = (
        78,
        (
            "configuration: a setting, a file that is not trusted, no state directory, no working directory, a journal of another version, "
            "another supervisor that holds the job, ranks that hold no whole number of copies of the model, a GPU that the command names "
            "for a rank and this node does not have, or that a rank asked for and does not see, a mirror with only other jobs' "
            "checkpoints, or a file where one is to be restored. "
            "`supervise checkpoints`: a mirror that cannot be reached, or a target that cannot be written"
        ),
        "correct what the message names",
    )
    HANG = (
        124,
        "the job hung at the same place again, or after its last step, or waits for a file that nobody is left to remove; it was given up",
        "see `supervise why`",
    )


class SuperviseError(Exception):
    """An error for people: the failure, and the command that helps.

    message: "what failed: subject: cause", lower case. hint: an imperative sentence naming the command or setting.
    """

    def __init__(self, message: str, *, hint: str, exit_code: int = ExitCode.CONFIG) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.exit_code = int(exit_code)

    def __str__(self) -> str:
        """Return both, as they are shown."""
        return f"{self.message}\n  {self.hint}"


def nearest(word: str, known: Iterable[str], likeness: float = 0.6) -> str:
    """Return the known name that is nearest to `word`, "" if none is near: a wrong suggestion is worse than none.

    likeness: from 0 to 1 (the same), as difflib has it.
    """
    names = difflib.get_close_matches(word, list(known), n=1, cutoff=likeness)
    return names[0] if names else ""
