"""Names the options that would enable knobs and the resume: it finds likely flags in the command and in the script's own parser.

A flag's name proves nothing, so it enables nothing: the card shows the option, and a person who knows the script gives it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.core.model import RESUME
from supervisor.knobs import bindings, declaration
from supervisor.knobs.bindings import SWITCHES, Flag, Override

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from supervisor.knobs.script_analysis import ScriptText

#: The usual names of a knob's flag, without its dashes, in lower case and with "-" for "_"; the clearest name first.
FLAGS: Mapping[str, tuple[str, ...]] = {
    "batch_size": (
        *("micro-batch-size", "per-device-train-batch-size", "per-gpu-train-batch-size", "local-batch-size", "train-batch-size"),
        *("per-device-batch-size", "per-gpu-batch-size", "device-batch-size", "batch-size-per-device", "batch-size-per-gpu"),
        *("per-device-batch", "per-gpu-batch", "micro-batch", "mini-batch-size", "mbs"),
        *("batch-size", "batchsize", "batch", "bsz", "bs", "b"),
    ),
    "grad_accum": (
        *("gradient-accumulation-steps", "gradient-accumulation", "grad-accumulation-steps", "grad-accum-steps", "accumulation-steps"),
        *("accumulate-grad-batches", "grad-accum", "accum-steps", "accum-iter", "accum-freq", "accum", "update-freq"),
    ),
    "num_workers": ("dataloader-num-workers", "num-workers", "loader-workers", "data-workers", "n-workers", "workers", "j"),
    "activation_checkpointing": ("gradient-checkpointing", "activation-checkpointing", "grad-checkpointing", "grad-checkpoint"),
    "cpu_offload": ("cpu-offload", "offload-to-cpu"),
    "mixed_precision": ("bf16", "amp", "mixed-precision", "fp16"),
    "skip_window": ("skip-window",),
    "group_timeout": ("group-timeout", "process-group-timeout", "dist-timeout", "ddp-timeout", "nccl-timeout"),
}
#: In the same form, the usual names of the flag that takes the checkpoint to resume from, and of the switch that has a script find it.
RESUME_FLAGS = (
    *("resume-from-checkpoint", "resume-from", "resume-checkpoint", "resume-ckpt", "resume-path", "resume-file", "resume"),
    *("restore-from", "restore-path", "restore", "load-checkpoint", "load-ckpt"),
)
RESUME_SWITCHES = ("auto-resume", "resume-latest", "resume-training", "resume", "continue-training", "restore")


def options(argv: Sequence[str], text: ScriptText, taken: Collection[str]) -> tuple[tuple[str, str], ...]:
    """Return (knob, option) for each knob outside of `taken` for which the command or the script's parser has a likely flag."""
    options = {name: _of_command(argv, name) or _of_parser(argv, text, name) for name in FLAGS if name not in taken}
    resume = "" if RESUME in taken else _resume_option(argv, text)
    return (*((name, f"--knob {where}") for name, where in options.items() if where), *(((RESUME, resume),) if resume else ()))


def _resume_option(argv: Sequence[str], text: ScriptText) -> str:
    """Return the option that hands the newest checkpoint to the script, or has the script look for it; "" where no flag shows how."""
    given = [head for word in argv if (head := word.partition("=")[0]).startswith("-") and bindings.read(argv, Flag((head,)))]
    for flags, names, option in (
        (given, RESUME_FLAGS, "--resume-args '{} {{resume}}'"),
        (text.options, RESUME_FLAGS, "--resume-args '{} {{resume}}'"),
        (text.switches, RESUME_SWITCHES, "--resume-switch '{}'"),
    ):
        ranked = sorted((rank, flag) for flag in flags if (rank := _place_in(names, flag)) is not None)
        if ranked:
            return option.format(ranked[0][1])
    return ""


def _of_command(argv: Sequence[str], name: str) -> str:
    """Return the declaration for a flag, or a Hydra word, that the command has with a value that the knob can have."""
    if name in SWITCHES:
        return ""  # a switch in the command is on already
    places = [(rank, place) for word in argv for rank, place in _places(word, name)]
    known = [(rank, place) for rank, place in places if declaration.is_value(name, bindings.read(argv, place) or "")]
    if not known:
        return ""
    place = min(known, key=lambda place_row: place_row[0])[1]
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
    """Return how clear the name of a flag is for a knob, 0 the clearest; None if it does not name the knob."""
    return _place_in(FLAGS[name], flag)


def _place_in(names: Sequence[str], flag: str) -> int | None:
    leaf = flag.lstrip("-+").rpartition(".")[2].replace("_", "-").lower()
    return names.index(leaf) if leaf in names else None
