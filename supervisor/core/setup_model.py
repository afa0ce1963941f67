"""The setups of a run's attempts, and their differences: setups, supervise's own changes, held batches."""

from __future__ import annotations

from supervisor.core.model import Change
from supervisor.core.values import Struct


class Setup(Struct, frozen=True):
    """The setup of an attempt, as far as a plan or the nodes that meet can change it between two attempts of one command."""

    attempt: int = 0  # its number, 0: there was none
    overrides: tuple[tuple[str, str], ...] = ()  # of the run's plans
    nodes: int = 1  # in all
    ranks: int = 0  # in all
    gpus: tuple[str, ...] = ()  # UUIDs that its ranks saw; empty: all
    program: tuple[tuple[str, str], ...] = ()  # as in Attempt (core/state.py)


class OwnChange(Struct, frozen=True):
    """The differences of an attempt from the newest one that is known to start, without the user's own (core/attempt/setups.py)."""

    before: Setup  # what that one ran with
    now: Setup  # what this one ran with
    trained: bool  # that one made a step; if not, it is the run's first
    changes: tuple[Change, ...] = ()  # what takes the plans of the run since then back


class HeldBatch(Struct, frozen=True):
    """How an attempt keeps the global batch of its run with the ranks that it has, as one node decided (core/nodes/global_batch.py)."""

    ranks: int = 0  # those with which the run's own values make that batch
    values: tuple[tuple[str, str], ...] = ()  # of batch knobs, for this attempt alone
    text: str = ""  # for people, "" where nothing changed
    kept: bool = True  # False: the global batch is another one
    refused: bool = False  # no attempt may begin so
