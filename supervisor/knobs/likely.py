"""Names the options that would enable knobs, with the flags that stand in the command or that the script's own parser has.

A flag's name proves nothing, so that nothing is enabled by it: the card shows the option, and a person who knows the script gives it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.knobs import bindings, declaration
from supervisor.knobs.bindings import SWITCHES, Flag, Override

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from supervisor.knobs.script_analysis import ScriptText

#: What scripts call a knob's flag, without its dashes, in lower case and with "-" for "_"; the clearest name first.
FLAGS: Mapping[str, tuple[str, ...]] = {
    "batch_size": (
        *("micro-batch-size", "per-device-train-batch-size", "per-gpu-train-batch-size", "local-batch-size", "train-batch-size"),
        *("batch-size", "batchsize", "bsz", "bs", "b"),
    ),
    "grad_accum": (
        *("gradient-accumulation-steps", "gradient-accumulation", "grad-accumulation-steps", "grad-accum-steps", "accumulation-steps"),
        *("accumulate-grad-batches", "grad-accum", "accum-steps", "accum-iter", "accum-freq", "accum", "update-freq"),
    ),
    "num_workers": ("dataloader-num-workers", "num-workers", "loader-workers", "data-workers", "n-workers", "workers", "j"),
    "activation_checkpointing": ("gradient-checkpointing", "activation-checkpointing", "grad-checkpointing", "grad-checkpoint"),
    "cpu_offload": ("cpu-offload", "offload-to-cpu"),
    "mixed_precision": ("bf16", "amp", "mixed-precision", "fp16"),
}


def options(argv: Sequence[str], text: ScriptText, taken: Collection[str]) -> tuple[tuple[str, str], ...]:
    """Return (knob, option) for each knob outside of `taken` for which the command or the script's parser has a likely flag."""
    found = {name: _of_command(argv, name) or _of_parser(argv, text, name) for name in FLAGS if name not in taken}
    return tuple((name, f"--knob {where}") for name, where in found.items() if where)


def _of_command(argv: Sequence[str], name: str) -> str:
    """Return the declaration of the flag, or of Hydra's word, that stands in the command with a value that the knob can have."""
    if name in SWITCHES:
        return ""  # what stands there is on already
    places = [(rank, place) for word in argv for rank, place in _places(word, name)]
    known = [(rank, place) for rank, place in places if declaration.is_value(name, bindings.read(argv, place) or "")]
    if not known:
        return ""
    place = min(known, key=lambda found: found[0])[1]
    return f"{name}={bindings.describe(place, '')}"


def _places(word: str, name: str) -> Iterator[tuple[int, Flag | Override]]:
    head = word.partition("=")[0]
    rank = _rank(head, name)
    if rank is None:
        return
    if head.startswith("-"):
        yield rank, Flag((head,))
    elif bindings.OVERRIDE.fullmatch(word) is not None:
        yield rank, Override(head.lstrip("+"))


def _of_parser(argv: Sequence[str], text: ScriptText, name: str) -> str:
    """Return the declaration of a flag of the script's parser that the command leaves out, with the default where that is a number."""
    flags = [flag for flag in (text.switches if name in SWITCHES else text.options) if not bindings.has_flag(argv, flag)]
    ranked = sorted((rank, flag) for flag in flags if (rank := _rank(flag, name)) is not None)
    if not ranked:
        return ""
    flag = ranked[0][1]
    default = text.options.get(flag)
    if name in SWITCHES:
        return f"{name}={flag}"
    is_known = default is not None and declaration.is_value(name, str(default))
    return f"{name}:{default if is_known else 'VALUE'}={flag}"


def _rank(flag: str, name: str) -> int | None:
    """Return how clear the name of a flag is for a knob, 0 the clearest; None where it is another's."""
    leaf = flag.lstrip("-+").rpartition(".")[2].replace("_", "-").lower()
    return FLAGS[name].index(leaf) if leaf in FLAGS[name] else None
