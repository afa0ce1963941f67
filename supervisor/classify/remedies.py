"""Chooses a person's remedy for a failure: the hints of its cause (core/causes) that the evidence permits. Pure.

A hint names an object: a loader, a remote store, a cache, a GPU. It is given only where the evidence shows that object, because a
remedy for an absent fault costs a person an hour. Two things are a hint's condition: the facts that its text names, `{path}` say, and
the `Condition`s beside that line. Of the alternatives of one line the first that holds is given; a line may give none.

The card, `why`, `supervise classify` and the alerts all have their remedies from here; docs/reference/causes.md lists the table.
"""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import TYPE_CHECKING

from supervisor.classify.expressions import expression
from supervisor.classify.packages import install_text
from supervisor.core.causes import CAUSE_TABLE
from supervisor.core.model import Cause, FailureVerdict, HangKind, Phase
from supervisor.core.values import Struct

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from supervisor.core.causes import Hint

    Holds = Callable[[FailureVerdict], bool]

#: From this share of the GPU or this amount on, memory is worth a hint.
_LEAST_SHARE, _LEAST_BYTES = 0.1, 1 << 30
_INFINIBAND = expression(r"\bibv_|\bmlx\d|NET/IB|InfiniBand|Got completion with error|\bRoCE\b")
_HUB = expression(r"huggingface|\bhf\.co\b|HfHub|LocalEntryNotFound|CAS service|We couldn't connect to 'https://", re.IGNORECASE)
_REFUSED = expression(r"(?i)expired|credential|forbidden|unauthori[sz]ed|access ?denied|signature|\b40[137]\b|\b451\b")
_LOADER_FRAMES = ("torch/utils/data/dataloader.py", "torch/utils/data/_utils/")
_CLIENTS_OF_SERVERS = expression(
    r"vllm_client|/vllm/|/sglang/|init_communicator|weights?_update_group|(?:reward|rollout)_(?:server|client)"
)
_SAVES = expression(r"(?:^|_)save(?:_|$)")
_IN_DOCS = {
    "gpu": "ID",
    "node": "NODE",
    "hang_ranks": "N",
    "hang_code": "FILE:LINE",
    "xid": "N",
    "cache_variable": "VARIABLE",
    "cache_writer": "ATTEMPT",
    "oom_memcg": "CGROUP",
}
_NAMED = expression(r"\{(\w+)\}")


#: Signatures of a loader's own words, that another number of ranks saved.
_OTHER_RANKS = "checkpoint_mismatch.world_size"


class Condition(Struct, frozen=True):
    """Whether the object of a hint was seen. words: after "where" in docs/reference/causes.md."""

    words: str
    holds: Holds


def _fact(verdict: FailureVerdict, name: str) -> str:
    return next((value for key, value in verdict.facts if key == name), "")


def _amount(verdict: FailureVerdict, name: str) -> int:
    text = _fact(verdict, name)
    return int(text) if text.isdigit() else 0


def _much(verdict: FailureVerdict, name: str) -> bool:
    amount, capacity = _amount(verdict, name), _amount(verdict, "capacity")
    return amount >= _LEAST_BYTES or (capacity > 0 and amount >= capacity * _LEAST_SHARE)


def phase_of(verdict: FailureVerdict) -> str:
    """Return the phase of the failed rank, "" if it is not known."""
    return next((fact.text for fact in verdict.because if fact.name == "phase"), "")


def is_in_save(verdict: FailureVerdict) -> bool:
    """Whether the failed rank was saving, and it is not known that another process of it was killed than the rank itself."""
    saves = phase_of(verdict) == Phase.CHECKPOINT or _SAVES.search(_fact(verdict, "function")) is not None
    return saves and _fact(verdict, "killed") != "child"


def has_loader(verdict: FailureVerdict) -> bool:
    """Whether the evidence shows a DataLoader with worker processes in the failed rank."""
    if verdict.cause is Cause.DATALOADER_WORKER or any(
        (f.source, f.name, f.text) == ("heartbeat", "loader", "workers") for f in verdict.because
    ):
        return True
    return any("DataLoader worker" in f.text or any(frame in f.text for frame in _LOADER_FRAMES) for f in verdict.because)


def _says(pattern: re.Pattern[str]) -> Holds:
    """Whether the evidence that the verdict is on has these words."""
    return lambda verdict: any(pattern.search(fact.text) for fact in verdict.because if fact.claim is not None or fact.name == "exception")


def _stands_on(prefix: str) -> Holds:
    """Whether the verdict is on a signature of this name."""
    return lambda verdict: any(fact.claim is not None and fact.name.startswith(prefix) for fact in verdict.because[:2])


def _not(condition: Condition, words: str) -> Condition:
    return Condition(words, lambda verdict: not condition.holds(verdict))


def says_other_ranks(verdict: FailureVerdict) -> bool:
    """Whether a loader reports that another number of ranks (or of replicas, shards, partitions) saved the checkpoint."""
    return verdict.cause is Cause.CHECKPOINT_MISMATCH and any(fact.name.startswith(_OTHER_RANKS) for fact in verdict.because)


_IN_SAVE = Condition("the rank was in a save", is_in_save)
_OWN_SERVICE = Condition("the address is this machine's or of a private network", lambda verdict: bool(_fact(verdict, "own_service")))
#: By the name that a hint's `when` has.
CONDITIONS: Mapping[str, Condition] = MappingProxyType(
    {
        "in_save": _IN_SAVE,
        "not_in_save": _not(_IN_SAVE, "it was in no save"),
        "loader": Condition("a DataLoader with workers was seen", has_loader),
        "others_hold": Condition("others hold a tenth of the GPU or 1 GiB", lambda verdict: _much(verdict, "other_bytes")),
        "in_pieces": Condition(
            "a tenth of the GPU or 1 GiB is reserved and unallocated", lambda verdict: _much(verdict, "reserved_unallocated")
        ),
        "unlimited_gathers": Condition("FSDP gathers without a limit", lambda verdict: any(f.name == "gathers" for f in verdict.because)),
        "of_nccl": Condition("NCCL itself could not allocate", _stands_on("cuda_oom.nccl")),
        "several_nodes": Condition("the job has several nodes", lambda verdict: bool(verdict.node)),
        "over_infiniband": Condition("the evidence is of InfiniBand", _says(_INFINIBAND)),
        "own_service": _OWN_SERVICE,
        "remote": _not(_OWN_SERVICE, "the address is a remote one, or not known"),
        "hub": Condition("the Hugging Face hub is named", _says(_HUB)),
        "refused": Condition("it refused (401, 403, expired)", _says(_REFUSED)),
        "with_a_server": Condition(
            "the code is of a client of a server (vLLM, sglang, a reward model)",
            lambda verdict: _CLIENTS_OF_SERVERS.search(f"{_fact(verdict, 'file')}:{_fact(verdict, 'function')}") is not None,
        ),
        "no_leftovers": Condition("no leftover of a killed save is known", lambda verdict: not _fact(verdict, "leftovers")),
        "unkilled": Condition("a process survives KILL", lambda verdict: bool(_fact(verdict, "pid"))),
        "mismatch": Condition("the ranks wait in different collectives", lambda verdict: _fact(verdict, "hang_kind") == HangKind.MISMATCH),
        "unused": Condition("DDP found parameters without a gradient", _stands_on("ddp_unsynced.unused_parameters")),
        "twice": Condition("DDP found a parameter used twice", _stands_on("ddp_unsynced.ready_twice")),
        "left_early": Condition("the rank left with 0 before the others", lambda verdict: verdict.fingerprint == "left:early"),
        "other_ranks": Condition("the loader says that other ranks saved", says_other_ranks),
        "collectives": Condition("the collectives of the ranks differ", _stands_on("ddp_unsynced.collectives")),
    }
)


def hints(verdict: FailureVerdict) -> tuple[str, ...]:
    """Return what a person does about this failure, the most likely first."""
    return tuple(text for line in CAUSE_TABLE[verdict.cause].hints if (text := _first(line, verdict, _known(verdict))))


def general_hints(verdict: FailureVerdict) -> tuple[str, ...]:
    """Return the hints that name no fact: for a message that may hold no path and no address."""
    return tuple(text for line in CAUSE_TABLE[verdict.cause].hints if (text := _first(line, verdict, {})))


def remedy(verdict: FailureVerdict) -> str:
    """Return the hints as one text, in lower case, without a full stop."""
    return "; ".join(hints(verdict))


def _known(verdict: FailureVerdict) -> dict[str, str]:
    """Return the facts that a hint may name."""
    known = {name: value for name, value in verdict.facts if value}
    known |= {name: value for name, value in (("gpu", verdict.gpu), ("node", verdict.node)) if value}
    install = install_text(known)
    return known | ({"install": install} if install else {})


def _first(line: tuple[Hint, ...], verdict: FailureVerdict, known: Mapping[str, str]) -> str:
    for hint in line:
        if all(name in known for name in hint.names) and all(CONDITIONS[name].holds(verdict) for name in hint.when):
            return hint.text.format_map(known)
    return ""


def documented(cause: Cause) -> str:
    """Return the hints of a cause with their conditions, as docs/reference/causes.md lists them."""
    return "; ".join(" / ".join(_shown(hint) for hint in line) for line in CAUSE_TABLE[cause].hints)


def _shown(hint: Hint) -> str:
    text = _NAMED.sub(lambda match: _IN_DOCS.get(match[1], match[1].replace("_", " ").upper()), hint.text)
    words = " and ".join(CONDITIONS[name].words for name in hint.when)
    return f"{text} (where {words})" if words else text
