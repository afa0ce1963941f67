"""Explains what differs between ranks whose DDP or collectives do not fit together: parameters by name, calls by file and line.

torch names unused parameters only with TORCH_DISTRIBUTED_DEBUG=INFO or DETAIL, else it prints their indices. With DETAIL, each rank of a
mismatch raises at its own call, and its message holds the operations of both ranks (ProcessGroupWrapper.cpp, torch 1.9 to 2.13).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.classify.fingerprint import place_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from supervisor.classify.exceptions import Exceptions
    from supervisor.core.model import Evidence

MISMATCH = "Detected mismatch between collectives on ranks"
#: So many parameters are listed in a sentence.
MOST_LISTED = 8


def call_sites(fields: Mapping[str, str], facts: Iterable[Evidence], exceptions: Exceptions) -> dict[str, str]:
    """Return where both ranks of a mismatch called their operations: call_site and peer_call_site, as far as tracebacks show them."""
    if "peer_operation" not in fields:
        return {}
    names = {fields.get("rank", ""): "call_site", fields.get("peer", ""): "peer_call_site"}
    sites: dict[str, str] = {}
    for fact in facts:
        name = names.get(str(fact.rank), "")
        if not name or name in sites or fact.name not in {"exception", "last_exception"} or MISMATCH not in fact.text:
            continue
        if place := place_of(exceptions.trace(fact)):
            sites[name] = f"{place.path}:{place.line}"
    return sites


def parameters(fields: Mapping[str, str]) -> str:
    """Return the parameters that the evidence names, "" for none: by name, else by index."""
    if names := fields.get("names") or fields.get("parameter"):
        return _listed(names.replace(",", " ").split())
    if indices := fields.get("parameters") or fields.get("index"):
        listed = indices.split()
        return f"{_listed(listed)} ({'their indices' if len(listed) > 1 else 'its index'} in model.parameters())"
    return ""


def _listed(words: list[str]) -> str:
    more = f" and {len(words) - MOST_LISTED} more" if len(words) > MOST_LISTED else ""
    return ", ".join(words[:MOST_LISTED]) + more


def summary(fields: Mapping[str, str]) -> str:
    """Return one sentence on what differs, "" where the evidence does not say it."""
    if "peer_operation" in fields:
        difference = (
            "different collectives" if fields.get("operation") != fields["peer_operation"] else "one collective with different sizes"
        )
        return f"the ranks call {difference}: {_call(fields, '', 'rank')}, {_call(fields, 'peer_', 'peer')}"
    if "names" in fields or "parameters" in fields:
        return f"DDP got no gradient for parameters {parameters(fields)}"
    if "parameter" in fields or "index" in fields:
        return f"DDP got two gradients for one parameter in one step: {parameters(fields)}"
    return ""


def _call(fields: Mapping[str, str], prefix: str, rank: str) -> str:
    shape, site = fields.get(f"{prefix}shape"), fields.get(f"{prefix}call_site")
    of = f" of shape [{shape}]" if shape else ""
    return f"rank {fields.get(rank, '?')} called {fields.get(f'{prefix}operation', '?').lower()}{of}" + (f" at {site}" if site else "")
