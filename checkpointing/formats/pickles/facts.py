"""What scanner.py finds in a pickle, and the keys that it looks for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

# In the order in which they are believed: what counts optimizer steps for the whole run first.
# global_step: Lightning, DeepSpeed; iter_num: nanoGPT. The others count the whole run in one script, and the epoch in the next.
RUN_KEYS: Final = ("global_step", "iter_num")
STEP_KEYS: Final = (*RUN_KEYS, "step", "iteration", "iter", "num_steps")
LOOSE_KEYS: Final = ("num_steps",)  # as often how many there will be
EPOCH: Final = "epoch"
MOST_KEYS: Final = 64  # of the outermost dictionary; a framework's own are among its first
COUNTED: Final = "optimizer's step"  # a fact that is read from the numbers, by who has them


@dataclass(frozen=True, slots=True)
class Storage:
    """A tensor's storage: the key of its record, its type as "module name", and how many elements it has.

    `begin` and `end`: which elements tensors use, as far as the pickle shows; the others may hold anything. `row`: how many
    elements the last dimension of one of them has. `name`: where the first of them stands in the outermost object ("model.head.weight"),
    "" where that is unknown.
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
    """A tensor with one element: the key of its storage, and which element of that it is."""

    key: str
    offset: int


@dataclass(frozen=True, slots=True)
class PickleScan:
    """What the pickle says: `steps` in the order of STEP_KEYS, the integer `epoch` beside them, `storages` without repetition.

    `keys`: the texts among the keys of the outermost dictionary, at most MOST_KEYS; `numbers` those with an integer, `nones` those
    with None. `facts`: the integers under each of a few keys in any dictionary, `counts` the tensors of one element under STEP_KEYS (Adam
    counts so for each parameter). `dangers` and `unknown`: "module.name" of what it
    would call. `unlisted`: what it would call that is not on the list (policy.may_be_called). `end`: how many bytes the pickle has.
    """

    steps: tuple[tuple[str, int], ...]
    epoch: int | None
    storages: tuple[Storage, ...]
    keys: frozenset[str] = frozenset()
    numbers: tuple[tuple[str, int], ...] = ()
    nones: frozenset[str] = frozenset()
    facts: tuple[tuple[str, frozenset[int]], ...] = ()
    dangers: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    end: int = 0
    counts: tuple[Number, ...] = ()
    unlisted: tuple[str, ...] = ()
