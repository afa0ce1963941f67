"""Refuses knobs of one job that conflict: two at one place, or DeepSpeed's batch half in its file and half elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.errors import ExitCode, SuperviseError
from supervisor.knobs import bindings, config_files
from supervisor.knobs.bindings import Binding, Env, FileKey, Flag, Override, Pair

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from supervisor.knobs.knob_set import BoundKnob


def require_apart(bound: Sequence[BoundKnob], argv: Sequence[str], cwd: Path, exit_code: ExitCode) -> None:
    """Refuse two knobs at one place: halving the one would double the other."""
    taken: dict[tuple[str, ...], BoundKnob] = {}
    for bound_knob in bound:
        for spelling in (spelling for place in bound_knob.places for spelling in _spellings(place, argv, cwd)):
            other = taken.setdefault(spelling, bound_knob)
            if other.knob.name != bound_knob.knob.name:
                raise SuperviseError(
                    f"two knobs at one place: {other.knob.name} and {bound_knob.knob.name} are both {spelling[-1]}",
                    hint=f"Declare each by its own: --knob {other.knob.name}=--flag --knob {bound_knob.knob.name}=--another.",
                    exit_code=exit_code,
                )


def _spellings(place: Binding, argv: Sequence[str], cwd: Path) -> list[tuple[str, ...]]:
    """Return keys that identify a place, one for each way to write it; the last word of a key is for people."""
    match place:
        case Flag():
            return [("flag", name) for name in place.names]
        case Pair():
            return [("pair", f"{place.flag} {place.template}")]
        case Override():
            return [("override", f"{place.key}=")]
        case Env():
            return [("variable", f"${place.name}")]
        case FileKey():
            return [("file", str((cwd / (bindings.read(argv, place) or "")).resolve()), place.key)]
        case _:
            return []


def require_whole_deepspeed(bound: Sequence[BoundKnob], argv: Sequence[str], cwd: Path, exit_code: ExitCode) -> None:
    """Refuse the batch in DeepSpeed's file and the accumulation elsewhere, or the other way, where the file holds both."""
    by_name = {bound_knob.knob.name: bound_knob for bound_knob in bound}
    for name, other in (tuple(bindings.DEEPSPEED_KEYS), tuple(bindings.DEEPSPEED_KEYS)[::-1]):
        here, there = by_name.get(name), by_name.get(other)
        if here is None or there is None or there.knob.counts in {"derived", bindings.PLANNED}:
            continue
        if {here.knob.by, there.knob.by}.isdisjoint({"declared"}):
            continue
        files = {file for place in there.places if isinstance(place, FileKey) and (file := bindings.read(argv, place))}
        for place in here.places:
            file = bindings.read(argv, place) if isinstance(place, FileKey) and place.deepspeed else None
            if file is None or file in files:
                continue
            remedy = _deepspeed_remedy(here.texts[str(cwd / file)], file, other)
            if remedy:
                how = f"{name} is in {file}, by which DeepSpeed goes for {other} too, and {other} is {there.knob.how}"
                raise SuperviseError(
                    f"half of DeepSpeed's batch: {how}",
                    hint=f"Declare {remedy}; where the script wants {there.knob.how} as well, declare both.",
                    exit_code=exit_code,
                )


def require_size_of_plan(bound: Sequence[BoundKnob], likely: Iterable[tuple[str, str]], exit_code: ExitCode) -> None:
    """Refuse a plan for unequal GPUs where nothing says how many samples fit the least memory. likely: of KnobSet."""
    by_name = {bound_knob.knob.name: bound_knob.knob for bound_knob in bound}
    accum, size = by_name.get("grad_accum"), by_name.get("batch_size")
    if accum is not None and accum.counts == bindings.PLANNED and (size is None or size.counts != "gpu"):
        raise SuperviseError(
            f"cannot share the global batch: {accum.how}: no batch_size says how many samples fit the GPU with the least memory",
            hint=f"Declare it: {bindings.option('batch_size', likely)}, or batch_size:8=env:SUPERVISE_JOB_BATCH_SIZE.",
            exit_code=exit_code,
        )


def _deepspeed_remedy(text: str, file: str, other: str) -> str:
    """Return the option that declares the other knob in the file, "" if the file does not hold it."""

    def is_number(key: str) -> bool:
        return (config_files.value_at(text, "json", key) or "").isdecimal()

    if is_number(bindings.DEEPSPEED_KEYS[other]):
        return f"--knob {other}=deepspeed:{file}"
    if other == "grad_accum" and is_number(bindings.DEEPSPEED_TOTAL):
        return f"--knob {other}:derived={file}:{bindings.DEEPSPEED_TOTAL}"
    return ""
