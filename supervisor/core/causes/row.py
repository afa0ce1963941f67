"""The row of a cause: its meaning, what proves it, which steps answer it, and what a person does about it. Pure.

A new cause is a member of `Cause` (core/model.py), a row in the file of its subject here, a signature with its sample, and a story
(tests/scenarios/stories). Each difference between causes is a column of the row: no other module lists causes to act on them.
"""

from __future__ import annotations

from enum import StrEnum
from string import Formatter

from supervisor.core.values import Struct


class Family(StrEnum):
    """Causes that share one budget of restarts (core/budget.py)."""

    INFRASTRUCTURE = "infrastructure"
    MEMORY = "memory"
    NATIVE = "native"
    KILLED = "killed"
    PROGRAM = "program"


class Hint(Struct, frozen=True):
    """One thing that a person can do.

    text: an imperative in lower case, with `{name}` for a fact of the verdict. when: names of conditions (classify/remedies.py), all of
    which must hold.
    """

    text: str
    when: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The facts that it names."""
        return tuple(name for _, name, _, _ in Formatter().parse(self.text) if name)


#: The word before a sentence, from which confidence on.
SURENESS = ((0.9, ""), (0.65, "Probably"), (0.0, "Perhaps"))


class CauseRow(Struct, frozen=True):
    """All that is known of a cause before it happens."""

    #: A sentence: `supervise classify` and the card print it.
    meaning: str
    #: The evidence that a verdict of this cause rests on.
    proof: str
    #: The steps that answer it, in order: the first that has a plan is taken, and the last always has one. A step that changes the next
    #: attempt is before `same_place`, which stops: a change that is left is better than a stop. But a GPU is blamed for a crash only
    #: at different places.
    ladder: tuple[str, ...]
    #: For each line of the advice its alternatives. The first whose conditions hold and with known facts is given; a line may give none.
    hints: tuple[tuple[Hint, ...], ...]
    family: Family = Family.PROGRAM
    #: Whether a rank that fails of it breaks the collectives of its peers: their errors are then a consequence ("@breaks_collectives" in
    #: a signature's consequence_of).
    breaks_collectives: bool = True
    #: The least confidence of a verdict of this cause for a plan that changes the job (strategies/consent.py).
    confidence_floor: float = 0.9
    #: The exit code of a run that ends because this cause came again at the same place, or hung it.
    exit_code: int = 65
    #: Whether a verdict of it changes the job, so that a wrong one does harm (classify/judgement/admissible.py).
    changes_job: bool = False
    #: Whether it can end a process by KILL. An error ends it in another way.
    ends_by_kill: bool = False
    #: Whether it may only show that another process failed.
    of_peers: bool = False
    #: Whether it shows itself as a job in which nothing moves.
    stands_still: bool = False
    #: Whether it may pass by itself, though it is not of the infrastructure: a hang, and a host's memory, which others use too.
    may_pass: bool = False
    #: The condition of a restart, in words; "": none.
    waits_for: str = ""
    #: Whether a person must act before it can pass.
    needs_person: bool = False
    #: The timeout of torch's process groups that has passed where this shows and no text names one, in seconds; 0: none has.
    group_timeout_s: float = 0.0
    #: Whether the workers of a DataLoader may have led to it.
    of_workers: bool = False
    #: Whether it is of a program that cannot import something or read its data.
    of_reads: bool = False
    #: Whether it is of where the last save goes to, or comes from.
    of_saves: bool = False
    #: Whether it is a fault of one GPU or of the links between GPUs.
    of_gpu: bool = False
    #: Whether a damaged file of a cache may show as this.
    may_be_of_cache: bool = False
    #: Whether it comes after a training only.
    after_training: bool = False
    #: Whether `meaning` states an observation, and explains nothing: then no word says how sure it is.
    is_seen: bool = False
    #: The subject of a sentence about one failure: the exception, or this fact of the verdict; where it is not known, nothing.
    names: str = "path"

    def sentence(self, confidence: float | None, meaning: str = "") -> str:
        """Return what happened, and before it how sure that is; a sure or observed fact has no word before it.

        meaning: of this failure, where more is known than of the cause.
        """
        text = meaning or self.meaning
        word = "" if self.is_seen or confidence is None else next(word for least, word in SURENESS if confidence >= least)
        is_name = text[1:2].isupper() or not text[:1].isalpha()  # NCCL, DDP, /dev/shm
        return f"{word} {text if is_name else text[:1].lower() + text[1:]}" if word else text


def line(*alternatives: Hint | str) -> tuple[Hint, ...]:
    """Return a line of the advice: its alternatives, of which the first that holds is given."""
    return tuple(Hint(alternative) if isinstance(alternative, str) else alternative for alternative in alternatives)


#: First in a ladder. Those of a machine that is taken away, of a person's Ctrl-C and of a training that was over have none.
GUARDS = ("within_cap", "recurring")
#: The same, where a change of supervise's own may have led to the failure.
SUSPECTS = (*GUARDS, "own_change")
LAST = "restart_within_budget"


#: The ladder for a failure of the program itself.
PROGRAM = ("own_code_before_first_step", "same_place", LAST)
#: The ladder for a program that imports or reads something: a file that is absent now may be there later.
READS = ("raced", "start_again", *PROGRAM)
#: The ladder for an end that may show nothing but an exit code.
OWN_CODE = ("own_code_before_first_step", "same_place", "own_code_at_once", LAST)
#: The ladder for native code that crashed.
NATIVE = (*SUSPECTS, "step_back", "same_place", "same_gpu_twice", LAST)
#: The ladder for a node that does not fit the job.
ENVIRONMENT = ("environment_at_fault", LAST)
