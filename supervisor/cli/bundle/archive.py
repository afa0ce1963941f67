"""The members of a bundle. Whatever goes in is redacted here, held below the cap, and listed in the manifest.

Members come in the order of their importance. Of a text that is larger than the room left below the cap the end goes in; any other member
that is larger is left out.
"""

from __future__ import annotations

import io
import json
import tarfile
import time
from typing import TYPE_CHECKING, Any, Final, Protocol

from checkpointing.io import staging
from supervisor.classify import redact, secret_forms
from supervisor.classify.logs.text import plain
from supervisor.core.units import bytes_text
from supervisor.core.values import Struct
from supervisor.errors import ExitCode, SuperviseError
from supervisor.journal.records import frame

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from supervisor.classify.redact import KnownSecrets

VERSION: Final = 1
MANIFEST: Final = "MANIFEST.json"
_MARK: Final = secret_forms.MARK.encode()


class AbsentError(Exception):
    """A member that cannot be had; the text says why."""


class MemberForm(Protocol):
    """Turns what a source returned into the bytes of a member, without secrets."""

    def __call__(self, value: Any, known: KnownSecrets) -> bytes:  # noqa: ANN401  bytes, text or JSON, by the form
        """Return the bytes."""
        ...


def text(value: Any, known: KnownSecrets) -> bytes:  # noqa: ANN401
    """Redact text, or bytes of it: without escape sequences, in which a name and its value could be apart."""
    raw = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    redacted = redact.text(plain(raw), known)
    return (redacted + "\n").encode("utf-8", "backslashreplace") if redacted else b""


def document(value: Any, known: KnownSecrets) -> bytes:  # noqa: ANN401
    """Redact a JSON value; it stays JSON."""
    return json.dumps(redact.document(value, known), indent=1).encode("ascii") + b"\n"


def records(value: Any, known: KnownSecrets) -> bytes:  # noqa: ANN401
    """Redact records of the journal; they stay a journal, which `supervise why` reads."""
    return b"".join(frame(json.dumps(redact.document(record, known), separators=(",", ":")).encode("ascii")) for record in value)


class BundleMember(Struct, frozen=True):
    """One file of the bundle. source: where its content comes from. is_cut: only its end is here."""

    name: str
    content: bytes
    source: str
    is_cut: bool

    @property
    def hidden(self) -> int:
        """How many digests stand in it."""
        return self.content.count(_MARK)


class BundleContents:
    """The members so far, of at most `most_bytes` together, and each one that was left out, with the reason."""

    def __init__(self, known: KnownSecrets, most_bytes: int) -> None:
        self._known = known
        self._room = most_bytes
        self.most_bytes = most_bytes
        self.members: list[BundleMember] = []
        self.left_out: list[tuple[str, str]] = []

    def add(self, name: str, source: str, read: Callable[[], Any], form: MemberForm = text, most_bytes: int | None = None) -> None:
        """Add what `read` returns. If it raises, or returns nothing, the member is left out and listed. most_bytes: of this member."""
        try:
            content = form(read(), self._known)
        except (OSError, AbsentError, SuperviseError, ValueError) as error:
            self._leave_out(name, error.strerror or str(error) if isinstance(error, OSError) else str(error))
            return
        room = self._room if most_bytes is None else min(self._room, most_bytes)
        is_cut = len(content) > room
        if is_cut:
            content = _end_of(content, room) if form is text else b""
        if not content:
            self._leave_out(name, f"no room below the cap of {bytes_text(self.most_bytes)}" if is_cut else "it is empty")
            return
        self._room -= len(content)
        self.members.append(BundleMember(name, content, source, is_cut))

    def _leave_out(self, name: str, why: str) -> None:
        self.left_out.append((name, redact.text(why, self._known)))

    def manifest(self, about: dict[str, Any]) -> bytes:
        """Return the list of the bundle's content and of the omitted files."""
        rows = [
            {"name": member.name, "bytes": len(member.content), "digests": member.hidden, "cut": member.is_cut, "source": member.source}
            for member in self.members
        ]
        left = [{"name": name, "why": why} for name, why in self.left_out]
        return document({"v": VERSION, **about, "most_bytes": self.most_bytes, "members": rows, "left_out": left}, self._known)

    def write(self, path: Path, folder: str, about: dict[str, Any]) -> int:
        """Write the bundle, whole or not at all, readable by its owner only. Returns its size. Raises SuperviseError."""
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
            for name, content in ((MANIFEST, self.manifest(about)), *((member.name, member.content) for member in self.members)):
                header = tarfile.TarInfo(f"{folder}/{name}")
                header.size, header.mode, header.mtime = len(content), 0o600, int(time.time())
                tar.addfile(header, io.BytesIO(content))
        try:
            with staging.new_file(str(path), 0o600) as staged:
                with open(staged.fd, "wb", closefd=False) as file:
                    file.write(buffer.getbuffer())
                staging.put(staged, is_replacing=False)
        except FileExistsError as error:
            hint = "Remove it, or name another file with --output."
            raise SuperviseError(f"cannot write the bundle: {path}: it is there already", hint=hint, exit_code=ExitCode.USAGE) from error
        except OSError as error:
            hint = "Name a file in another directory with --output."
            raise SuperviseError(f"cannot write the bundle: {path}: {error.strerror or error}", hint=hint) from error
        return len(buffer.getbuffer())


def _end_of(content: bytes, room: int) -> bytes:
    """Return the last lines that fit."""
    end = content[len(content) - room :]
    return end[end.find(b"\n") + 1 :] if b"\n" in end[:-1] else b""
