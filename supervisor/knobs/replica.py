"""How many ranks hold one copy of a job's model together (core/replicas.py)."""

from __future__ import annotations

from supervisor.core.values import Struct


class Replica(Struct, frozen=True):
    """size: ranks of one copy of the model. source: what gives it, "" for nothing. unread: a factor that is no number, "" for none."""

    size: int = 1
    source: str = ""
    unread: str = ""


#: Each rank holds the whole model: data parallelism alone, as far as is known.
ONE_RANK = Replica()
