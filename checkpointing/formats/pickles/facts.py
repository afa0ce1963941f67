"""The result of scanning a pickle (scanner.py), and the keys that the scanner looks for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

# In the order of trust: keys that count the optimizer steps of the whole run come first.
# global_step: Lightning, DeepSpeed; iter_num: nanoGPT. The other keys may count the run or the epoch, depending on the script.
RUN_KEYS: Final = ("global_step", "iter_num")
STEP_KEYS: Final = (*RUN_KEYS, "step", "iteration", "iter", "num_steps")
LOOSE_KEYS: Final = ("num_steps",)  # often the planned number of steps, not the current one
# Keys that count epochs. They only describe a checkpoint that has no step, or say that a step counts within an epoch.
# epoch: torch's ImageNet example, Lightning; finished_epoch: minGPT (pytorch/examples, distributed/minGPT-ddp); EPOCHS_RUN: torch's elastic
# tutorial (pytorch/examples, distributed/ddp-tutorial-series/multigpu_torchrun.py); epochs_run: torchtune. A scheduler's `last_epoch`
# counts steps in most scripts.
EPOCH_KEYS: Final = ("epoch", "finished_epoch", "EPOCHS_RUN", "epochs_run")
MOST_KEYS: Final = 64  # of the outermost dictionary; a framework's own keys are among the first
COUNTED: Final = "optimizer's step"  # the name of a fact that is read later from the tensor data


@dataclass(frozen=True, slots=True)
class Storage:
    """A tensor's storage: the key of its record, its type as "module name", and how many elements it has.

    `begin` and `end`: the range of elements that tensors use, as far as the pickle shows; the others may hold anything. `row`: the length
    of the last dimension of one of these tensors. `name`: the path of the first tensor in the outermost object ("model.head.weight"), "" if
    it is unknown.
    """

    key: str
    kind: str
    count: int
    begin: int = 0
    end: int = 0
    row: int = 0
    name: str = ""


@dataclass(frozen=True, slots=True)
class Number:
    """A tensor with one element: the key of its storage, and its offset there in elements."""

    key: str
    offset: int


@dataclass(frozen=True, slots=True)
class PickleScan:
    """The facts of one pickle. "Outermost" is the dictionary that holds all others; calls are written as "module.name"."""

    #: (key, step), in the order of STEP_KEYS.
    steps: tuple[tuple[str, int], ...]
    #: The integer under the first of EPOCH_KEYS, beside the steps.
    epoch: int | None
    #: Without repetition.
    storages: tuple[Storage, ...]
    #: The text keys of the outermost dictionary, at most MOST_KEYS.
    keys: frozenset[str] = frozenset()
    #: (key, value) of the outermost dictionary, for integer values.
    numbers: tuple[tuple[str, int], ...] = ()
    #: The keys of the outermost dictionary whose value is None.
    nones: frozenset[str] = frozenset()
    #: (key, integers under it in any dictionary), for a few keys.
    facts: tuple[tuple[str, frozenset[int]], ...] = ()
    #: Calls that can do harm.
    dangers: tuple[str, ...] = ()
    #: Calls of names that we do not know.
    unknown: tuple[str, ...] = ()
    #: Length of the pickle in bytes.
    end: int = 0
    #: Tensors of one element under STEP_KEYS (Adam counts so for each parameter).
    counts: tuple[Number, ...] = ()
    #: Calls that are not on the list (policy.may_be_called).
    unlisted: tuple[str, ...] = ()
