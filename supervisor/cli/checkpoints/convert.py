"""`supervise checkpoints convert`: writes a checkpoint in another format, and verifies the target before it gets its name.

This process verifies the source, holds the place of the target, and follows another one, which alone imports torch, reads and writes
(checkpointing/conversion/process.py). The target grows in a directory next to it, which is locked. A process that finds that directory
without a lock finds the leftover of a convert that was killed.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import click

from checkpointing import discover, examine
from checkpointing.io import durable, leftovers
from checkpointing.io.reader import UNLIMITED, Throttle
from checkpointing.io.tree import ReadOptions
from checkpointing.model import Verdict, count_text, first_names, size_text
from checkpointing.retention.aside import size_of
from checkpointing.verification import identity_of, verify
from supervisor.cli import stdio
from supervisor.cli.invocation import json_option
from supervisor.cli.progress import progress
from supervisor.cli.signals import exit_on_signals
from supervisor.errors import ExitCode, SuperviseError
from supervisor.guardian.libc import die_with_parent
from supervisor.report.layout import Fact, FactPage, Tone
from supervisor.report.text import clean

if TYPE_CHECKING:
    from collections.abc import Iterator

    from checkpointing.command_line.progress import ProgressBar
    from checkpointing.model import Identity

_FORMATS: Final = ("torch", "dcp", "safetensors", "hf")
_DTYPES: Final = ("bf16", "fp16", "fp32")
_HINT_DISK: Final = "see to the permissions and the disk of the target's directory"


@click.command()
@click.option("--to", type=click.Choice(_FORMATS), required=True, help="The format to write.")
@click.option("--dtype", type=click.Choice(_DTYPES), help="Change the model's floating-point weights to this type.")
@json_option
@click.argument("source", metavar="SOURCE_PATH")
@click.argument("target", metavar="TARGET_PATH")
def command(*, source: str, target: str, to: str, dtype: str | None, as_json: bool) -> int:
    """Any format of `checkpoints verify` is read: torch, DCP, FSDP rank files, safetensors, Hugging Face, DeepSpeed ZeRO (as full fp32).

    torch and dcp keep all of a checkpoint, safetensors and hf the model's weights. All losses are listed. A damaged source and a target
    that exists are refused; the exit code is 1 if the source is not good.
    """
    click.get_current_context().obj.without_command()
    return convert(source, target, to, dtype or "", as_json=as_json)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the target grows: a private directory next to it that is locked by an open descriptor."""

    directory: str
    fd: int


def convert(source: str, target: str, to: str, dtype: str, *, as_json: bool) -> int:
    """Convert a checkpoint. Returns 0, or 1 for a source that is not good. Raises SuperviseError."""
    target = os.path.abspath(target.rstrip("/") or "/")  # noqa: PTH100 -- plain strings, as the package takes them
    _refuse_target(source, target)
    exit_on_signals()
    with _errors():
        checkpoint = _only_checkpoint(source)
        with progress(wanted=not as_json) as bar:
            identity = _good_identity(checkpoint, bar)
            if identity is None:
                return 1
            with _place_of(target) as place:
                partial = f"{place.directory}/{os.path.basename(target)}"  # noqa: PTH119 -- as above
                answer = _run({"source": checkpoint, "target": partial, "to": to, "dtype": dtype}, place, bar)
                if identity_of(checkpoint) != identity:
                    hint = "let the training end, or convert a checkpoint that it does not write any more"
                    raise SuperviseError(f"the source changed while it was converted: {clean(checkpoint)}", hint=hint)
                durable.rename_exclusive(partial, target)
                durable.sync_directory(os.path.dirname(target))  # noqa: PTH120 -- as above
    _print(checkpoint, target, to, answer, as_json=as_json)
    return 0


def _refuse_target(source: str, target: str) -> None:
    """Raise SuperviseError (64) where the target cannot be made."""
    hint = "name a path that does not exist yet: a convert never overwrites"
    if os.path.lexists(target):
        raise SuperviseError(f"the target exists: {clean(target)}", hint=hint, exit_code=ExitCode.USAGE)
    above = os.path.dirname(target)  # noqa: PTH120 -- plain strings
    if not os.path.isdir(above):  # noqa: PTH112 -- as above
        raise SuperviseError(
            f"the target's directory does not exist: {clean(above)}", hint=f"make it: mkdir -p {clean(above)}", exit_code=ExitCode.USAGE
        )
    if os.path.isdir(source) and f"{os.path.realpath(above)}/".startswith(f"{os.path.realpath(source)}/"):  # noqa: PTH112 -- as above
        raise SuperviseError(
            f"the target lies within the source: {clean(target)}",
            hint="name a path outside: the source must not change",
            exit_code=ExitCode.USAGE,
        )


def _only_checkpoint(source: str) -> str:
    """Return the path of the one checkpoint at a path. Raises SuperviseError (64) for several."""
    paths = discover.checkpoints_in(source)
    if len(paths) > 1:
        hint = f"name one of them: {clean(first_names(paths))}"
        raise SuperviseError(f"the source holds {len(paths)} checkpoints: {clean(source)}", hint=hint, exit_code=ExitCode.USAGE)
    return os.path.abspath(paths[0])  # noqa: PTH100 -- plain strings


def _good_identity(checkpoint: str, bar: ProgressBar) -> Identity | None:
    """Verify the source, and return which content of it is good; None where none is, and then say why.

    Classes that it would call are not a reason to refuse it: none of them is called here.
    """
    identity = identity_of(checkpoint)
    bar.begin("verifying the source", None if identity is None else identity.size)
    verification = examine.concluded(verify(checkpoint, reading=ReadOptions(Throttle(UNLIMITED, taken=bar.advance)), own=True))
    if verification.verdict is Verdict.VERIFIED:
        return verification.identity
    stdio.say(f"not converted: {clean(checkpoint)} is {examine.word(verification.verdict)}: {clean(verification.reason)}")
    stdio.say("  `supervise checkpoints latest DIRECTORY` names the newest good one")
    return None


@contextlib.contextmanager
def _place_of(target: str) -> Iterator[_Place]:
    """Make the directory in which the target grows, and remove it at the end. Raises SuperviseError where another convert has it."""
    above, name = os.path.split(target)
    directory = f"{above}/.{name}.supervise-convert-{leftovers.tag()}"
    _say_others(above, name, directory)
    with contextlib.suppress(FileExistsError):
        os.mkdir(directory, 0o700)  # noqa: PTH102 -- plain strings
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        durable.lock(fd)
        is_ours = durable.is_at(fd, directory)  # its owner may have removed it between two lines
    except BlockingIOError:
        is_ours = False
    if not is_ours:
        os.close(fd)
        hint = "wait for its end, or name another target"
        raise SuperviseError(f"another convert writes this target: {clean(target)}", hint=hint, exit_code=ExitCode.USAGE)
    try:
        for entry in os.listdir(directory):  # noqa: PTH208 -- plain strings
            size = size_text(size_of(f"{directory}/{entry}"))
            _remove(f"{directory}/{entry}")
            stdio.say(f"removed what an interrupted convert left: {clean(directory)}/{clean(entry)} ({size})")
        yield _Place(directory, fd)
    finally:
        _remove(directory)
        os.close(fd)


def _say_others(above: str, name: str, own: str) -> None:
    """Name what a convert of another node left, or still writes: a lock may not be seen from here."""
    for entry in os.listdir(above):  # noqa: PTH208 -- plain strings
        if entry.startswith(f".{name}.supervise-convert-") and f"{above}/{entry}" != own:
            stdio.say(f"{clean(above)}/{clean(entry)} is another node's convert, running or interrupted: it stays")


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):  # noqa: PTH112, PTH114 -- plain strings
        shutil.rmtree(path)
    else:
        os.unlink(path)  # noqa: PTH108 -- as above


def _run(order: dict[str, str], place: _Place, bar: ProgressBar) -> dict[str, Any]:
    """Let a process of its own convert; return its answer. Raises SuperviseError."""
    argv = [sys.executable, "-P", "-m", "checkpointing.conversion.process", json.dumps(order)]
    with (
        os.fdopen(os.memfd_create("stderr"), "w+b") as errors,
        subprocess.Popen(  # noqa: S603 -- our own program
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
            pass_fds=(place.fd,),  # the lock holds as long as it writes
            preexec_fn=die_with_parent,  # noqa: PLW1509 -- one prctl, its symbol resolved before the fork
        ) as process,
    ):
        try:
            assert process.stdout is not None  # noqa: S101 -- says it to the type checker
            answer: dict[str, Any] = {}
            for line in process.stdout:
                answer = json.loads(line)
                if "phase" in answer:
                    bar.at(f"{answer['phase']} the target", answer["done"], answer["total"])
            code = process.wait()
        finally:
            process.kill()
        if "error" in answer:
            raise SuperviseError(f"cannot convert: {clean(answer['error'])}", hint=clean(answer["hint"]))
        if code or "tensors" not in answer:
            errors.seek(0)
            lines = errors.read().decode("utf-8", "backslashreplace").strip().splitlines()
            why = f": {clean(lines[-1])}" if lines else ""
            ended = f"was killed by signal {-code}" if code < 0 else f"ended with {code}"
            hint = "if memory was short (`dmesg`), use a machine with more; else report this line" if code < 0 else "report this line"
            raise SuperviseError(f"cannot convert: the process that converts {ended}{why}", hint=hint)
        return answer


def _print(source: str, target: str, to: str, answer: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        stdio.write_json({"source": source, "target": target, "format": to, **answer}, indent=0)
        return
    content = f"{count_text(answer['tensors'], 'tensor')}, {size_text(answer['bytes'])}"
    facts = [
        Fact("target", target, copied=True),
        Fact("content", content),
        Fact("checked", "read again and equal to the source", Tone.GOOD),
    ]
    facts += [Fact("note", note) for note in answer["notes"]]
    left_out = answer["left_out"] or ["nothing"]
    facts += [Fact("left out" if number == 0 else "", line) for number, line in enumerate(left_out)]
    stdio.show(FactPage(f"converted to {to}", tuple(facts)))


@contextlib.contextmanager
def _errors() -> Iterator[None]:
    """Raise what the disk refuses as a SuperviseError."""
    try:
        yield
    except OSError as error:
        is_there = error.errno == errno.EEXIST
        hint = "name a path that does not exist yet: a convert never overwrites" if is_there else _HINT_DISK
        raise SuperviseError(f"cannot convert: {error}", hint=hint) from error
