"""The proof that a job's command resumes, as `supervise drill resume` recorded it, and whether it still holds for a start.

    <state_dir>/<job>/nodes/<hostname>/resume-proof.json
    {"t", "subject": {"command", "script", "handover"}, "shown": ["weights", "optimizer", ...], "version": 1}

`command` is the digest of the command's words, `script` the SHA-256 of the script and of the scripts and configurations that the command
names (.py, .sh, JSON, YAML, TOML; the first 16 MiB of each), `handover` how a checkpoint is passed. If one of them differs, the proof is
void. Files that the script imports are not part of it. The drill alone writes the file, and removes it when the same command does not
resume any more.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

import msgspec

from checkpointing.io import durable, staging, typed
from supervisor.core.values import Struct
from supervisor.job.local_time import day_text
from supervisor.knobs import bindings, programs

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from supervisor.config.settings import Settings

FILE_NAME: Final = "resume-proof.json"
_VERSION: Final = 1
_MOST_BYTES: Final = 64 << 10
#: In place of a digest: it proves nothing.
_UNREADABLE: Final = "unreadable"
_MOST_TEXT_BYTES: Final = 16 << 20
_TEXT_SUFFIXES: Final = (".py", ".sh", *bindings.FORMS)
_TESTS: Final = "`supervise drill resume -- CMD` tests it in about a minute"


class ProvenCommand(Struct, frozen=True):
    """The subject of a proof."""

    command: str
    script: str
    handover: str


class ResumeProof(Struct, frozen=True):
    """One proof, as its file holds it."""

    t: float  # Unix seconds
    subject: ProvenCommand
    shown: tuple[str, ...]  # what the drill showed beside the weights
    version: int = _VERSION


def subject_of(settings: Settings, command: Sequence[str], command_digest: str, cwd: Path) -> ProvenCommand:
    """Return what a proof of this command is to hold for."""
    handover = [settings.checkpoints.paths, asdict(settings.knobs.resume), settings.knobs.program, settings.job.resumes_itself]
    return ProvenCommand(command_digest, _digest_of_texts(command, cwd), json.dumps(handover))


def _digest_of_texts(command: Sequence[str], cwd: Path) -> str:
    """Return the SHA-256 of the script and of the scripts and configurations that the command names, in turn."""
    script = programs.locate(command, os.environ.get("PATH"))
    named = [text for word in command for text in (word, word.partition("=")[2]) if text.endswith(_TEXT_SUFFIXES)]
    digest = hashlib.sha256()
    for name in dict.fromkeys((*((script.target,) if script.kind == "file" else ()), *named)):
        try:
            digest.update(durable.read(str(cwd / name), _MOST_TEXT_BYTES))
        except FileNotFoundError:
            digest.update(b"absent")
        except (OSError, ValueError):
            return _UNREADABLE
    return digest.hexdigest()


def write(state: Path, proof: ResumeProof) -> None:
    """Replace the job's proof. Raises OSError."""
    staging.write(str(state / FILE_NAME), msgspec.json.encode(proof) + b"\n")


def remove(state: Path) -> None:
    """Remove the job's proof, if there is one. Raises OSError."""
    (state / FILE_NAME).unlink(missing_ok=True)


def read(state: Path) -> ResumeProof | None:
    """Return the job's proof; None where there is none, or it cannot be read, or another version wrote it."""
    try:
        proof = typed.decoded(durable.read(str(state / FILE_NAME), _MOST_BYTES), ResumeProof)
    except (OSError, ValueError, RecursionError):
        return None
    return proof if proof.version == _VERSION else None


def opening_line(proof: ResumeProof | None, subject: ProvenCommand) -> str:
    """Return the line at a job's start: proven, or unproven and why."""
    if proof is None:
        return f"resume: not tested yet whether this command resumes; {_TESTS}"
    changed = [
        name
        for name, before, now in (
            ("the command", proof.subject.command, subject.command),
            ("the script or a file that the command names", proof.subject.script, subject.script),
            ("how a checkpoint is passed", proof.subject.handover, subject.handover),
        )
        if before != now or now == _UNREADABLE
    ]
    if changed:
        return f"resume: not tested since {' and '.join(changed)} changed (proven on {day_text(proof.t)}); {_TESTS}"
    return f"resume: proven on {day_text(proof.t)} for this command ({', '.join(proof.shown)})"
