"""The journal's records: bytes on one side, values on the other (docs/reference/journal-format.md is the format).

A line that does not check is `Damage`, a value. A journal of another format is an OtherFormatError.

msgspec does the work. The core's values carry no tag, so the name of the class is written beside its fields. When read, it is looked
up in the two closed unions: nothing that a journal holds can name anything else.
"""

from __future__ import annotations

import json
import re
import zlib
from typing import TYPE_CHECKING, Any, get_args

import msgspec

from checkpointing.io import durable, typed
from supervisor.core import actions, events
from supervisor.core.units import timestamp
from supervisor.core.values import Struct, field, replace
from supervisor.errors import ExitCode, SuperviseError
from supervisor.journal.state_json import lean

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from supervisor.core.actions import Action
    from supervisor.core.events import Event

#: The version of the format. It changes with each change that a supervise of the present version would misread.
VERSION = "1"
EVENTS: dict[str, type[Event]] = {c.__name__: c for c in get_args(events.Event)}
ACTIONS: dict[str, type[Action]] = {c.__name__: c for c in get_args(actions.Action)}


class OtherFormatError(SuperviseError):
    """A supervise with another format wrote the journal (78)."""

    def __init__(self, path: Path, version: str) -> None:
        super().__init__(
            f"reading the journal: {path}: another version of supervise wrote it (format {version}; this one reads {VERSION})",
            hint="Read it with that version. The next start here sets it aside and begins a new journal.",
            exit_code=ExitCode.CONFIG,
        )


#: A wall clock this near to `t` is not written again.
SAME_CLOCK_S = 1.0
_OPEN = b'{"crc":"'
_FRAME = re.compile(rb'\{"crc":"([0-9a-f]{8})","len":([0-9]{1,10}),"rec":')


class Header(Struct, frozen=True):
    """The kind of the file. `version` is that of the format."""

    job: str  # its name
    node: str  # its name
    version: str = VERSION  # of the format


class RunBegan(Struct, frozen=True):
    """A supervisor took the job over."""

    run_id: str  # the run's id
    command: tuple[str, ...] = ()  # values of secret-like flags are digests
    command_digest: str = ""  # of the command itself
    supervise: str = ""  # its version
    pid: int = 0  # of the supervisor
    start_ticks: int = 0  # field 22 of /proc/PID/stat; with `pid` and `boot_id` it names the process
    boot_id: str = ""  # of the machine
    scratch: str = ""  # the directory in memory where the heartbeats of its attempts are
    continues: bool = False  # it continues with the run
    incidents_before: int | None = None  # where a new run begins: how many incidents the job had before it
    invocation: tuple[str, ...] = ()  # supervise's own command line, secrets as in `command`
    cwd: str = ""  # where it was typed


class EventTaken(Struct, frozen=True, omit_defaults=True):
    """One event and the result of `decide`. A default value is left out, in the values below too."""

    event: str  # name of a class in `supervisor/core/events.py`
    data: dict[str, Any]  # its fields; `t` is that of the record, `attempt` that of the body unless it says another
    attempt: int = 0  # of the state after it
    stage: str = ""  # of the state after it
    state: dict[str, Any] | None = None  # the fields of the state after it that changed; null: those that a report of progress changes
    whole: bool = False  # `state` has all fields that differ from those of a fresh state
    actions: tuple[tuple[str, dict[str, Any]], ...] = ()  # a list of `[name, fields]` from `supervisor/core/actions.py`

    @property
    def is_short(self) -> bool:
        """Whether the state after it is what `progressed` makes of the one before."""
        return self.state is None and self.event == "ProgressObserved"

    def first(self, name: str) -> dict[str, Any] | None:
        """Return the fields of the first action of this name, or None."""
        return next((data for action, data in self.actions if action == name), None)


class RunEnded(Struct, frozen=True):
    """The run is over."""

    exit_code: int  # of the run
    reason: str = ""  # why it ended


#: The name of the note on a restore from a mirror before the first attempt.
RESTORED = "checkpoint_restored"
#: That of a note on a checkpoint that a mirror holds: `text` is the mirror, `data` has path and step.
MIRRORED = "checkpoint_mirrored"
#: That of a note on how many saves of the run the mirrors hold: `text` says it.
SAVES_COUNTED = "saves_counted"

#: That of a note on the standbys: `text` describes them, `data` has ready, private_mib and pids.
STANDBYS = "standbys"


class Note(Struct, frozen=True):
    """A fact beside the events. `data` holds JSON values."""

    name: str  # one of the notes below
    text: str = ""  # a sentence
    data: dict[str, Any] = field(default_factory=dict)  # JSON values


#: That of a note on where the time went until an attempt's first step (report/start_times.py): `data` is StartTimes.
START_TIMES = "start_times"


class StartTimes(Struct, frozen=True):
    """Where the time of one start of the ranks went."""

    attempt: int  # which
    after: str  # launch, failure or membership
    total_s: float  # the sum of the parts
    parts: dict[str, float] = field(default_factory=dict)  # seconds by name, in order; a part that is not known is missing
    trained: bool = True  # they reach to the first training step


#: The name of the note with the last line of a run (report/last_line.py): `data` has path and step of its newest verified checkpoint.
SUMMARY = "summary"


class ViewTaken(Struct, frozen=True):
    """The view of the job after the records up to here (supervisor/view/snapshot.py): nothing new, and all that a reader needs of them."""

    version: int  # of the view
    before: int  # the number of the view from which the lists continue; 0: all of them are in this one
    full: bool  # the state is whole, with the last incident: once a day; else what changed since the view before
    view: msgspec.Raw  # the job as it is
    lists: msgspec.Raw  # the additions since to the lists that grow: incidents, spans of time, samples of the pace, saves, meetings


Body = Header | RunBegan | EventTaken | RunEnded | Note | ViewTaken
KINDS: dict[str, type[Body]] = {"header": Header, "run": RunBegan, "event": EventTaken, "end": RunEnded, "note": Note, "view": ViewTaken}
_KIND_OF = {cls: kind for kind, cls in KINDS.items()}


class Record(Struct, frozen=True):
    """One record that checks. `body` is None for a kind that this supervise does not know."""

    seq: int
    t: float
    wall: str  # UTC of the wall clock; "": as `t`
    kind: str
    body: Body | None


class Damage(Struct, frozen=True):
    """Bytes that are not records, `torn` where they are merely the unfinished end. offset and length are bytes."""

    offset: int
    length: int
    torn: bool = False

    def __str__(self) -> str:
        """Name the damage and its place."""
        kind = "unfinished record at the end" if self.torn else "damaged record"
        return f"{kind}: {self.length} bytes at offset {self.offset}"


class _Envelope(Struct, frozen=True):
    seq: int
    kind: str
    body: msgspec.Raw
    t: float = 0.0
    wall: str = ""


_ENVELOPE = typed.decoder(_Envelope)
_BODIES: dict[str, msgspec.json.Decoder[Any]] = {kind: typed.decoder(cls) for kind, cls in KINDS.items()}


def to_json(value: object) -> bytes:
    """Return `value` as one line of JSON. Text with lone surrogates (a path that is not UTF-8) is kept, by escapes."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(value), separators=(",", ":")).encode("ascii")


def event_taken(  # noqa: PLR0913 (a record's fields)
    event: Event, taken: Iterable[Action], *, attempt: int, stage: str, state: dict[str, Any] | None = None, whole: bool = False
) -> EventTaken:
    """Return the record of an event: its fields and those of the actions, each under the name of its class.

    The report of each node of an attempt is in its own journal: of a thousand nodes it would be one record of many MiB.
    """
    event = replace(event, reports=()) if isinstance(event, events.ReportsGathered) else event
    acts = tuple((type(action).__name__, lean(action)) for action in taken)
    data: dict[str, Any] = lean(event)
    del data["t"]  # it is that of the record
    if data.get("attempt") == attempt:
        del data["attempt"]
    return EventTaken(type(event).__name__, data, attempt, stage, lean(state or {}), whole, acts)


def event_of(taken: EventTaken) -> Event:
    """Return the event again. Raises KeyError for a name, and msgspec.ValidationError for fields, that this supervise does not know."""
    return typed.converted(taken.data, EVENTS[taken.event])


def action_of(name: str, data: dict[str, Any]) -> Action:
    """Return an action again. Raises as `event_of` does."""
    return typed.converted(data, ACTIONS[name])


def encode(seq: int, t: float, wall_s: float, body: Body) -> bytes:
    """Return the framed line of a record, with its line feed."""
    kind = _KIND_OF[type(body)]
    wall = "" if abs(wall_s - t) < SAME_CLOCK_S else f'"wall":"{timestamp(wall_s)}",'
    head = f'{{"seq":{seq},"t":{t!r},{wall}"kind":"{kind}","body":'
    return frame(head.encode("ascii") + to_json(body) + b"}")


def frame(rec: bytes) -> bytes:
    """Return the line that carries `rec`."""
    return b'{"crc":"%08x","len":%d,"rec":%s}\n' % (zlib.crc32(rec), len(rec), rec)


def unframe(line: bytes, start: int = 0) -> bytes | None:
    """Return the record in `line` from `start` on, or None where it does not check."""
    opening = _FRAME.match(line, start)
    if opening is None:
        return None
    size = int(opening[2])
    end = opening.end() + size
    rec = line[opening.end() : end]
    if len(rec) != size or line[end:] != b"}\n" or zlib.crc32(rec) != int(opening[1], 16):
        return None
    return rec


def decode(rec: bytes) -> Record | None:
    """Return the record that these bytes are; None where they check and yet are not records."""
    try:
        env = _ENVELOPE.decode(rec)
        body = _BODIES[env.kind].decode(env.body) if env.kind in _BODIES else None
    except (UnicodeDecodeError, RecursionError):
        return None
    except msgspec.DecodeError:
        return _decode_leniently(rec)
    if isinstance(body, EventTaken):
        _complete(body, env.t)
    return Record(env.seq, env.t, env.wall, env.kind, body)


def _complete(taken: EventTaken, t: float) -> None:
    """Add the keys that are not fields of an event."""
    taken.data.setdefault("t", t)
    taken.data.setdefault("attempt", taken.attempt)


def _decode_leniently(rec: bytes) -> Record | None:
    """Do as `decode`: msgspec refuses the escapes of lone surrogates, the standard library does not."""
    try:
        raw = json.loads(rec)
        kind = raw["kind"]
        body: Body | None = _body(kind, raw["body"]) if kind in KINDS else None
        t = float(raw.get("t", 0.0))
        if isinstance(body, EventTaken):
            _complete(body, t)
        return Record(int(raw["seq"]), t, str(raw.get("wall", "")), kind, body)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _body(kind: str, values: dict[str, Any]) -> Body:
    if kind == "view":
        view, lists = (msgspec.Raw(json.dumps(values[name]).encode("ascii")) for name in ("view", "lists"))
        return ViewTaken(int(values["version"]), int(values["before"]), bool(values["full"]), view, lists)
    return typed.converted(values, KINDS[kind])


class JournalPosition(Struct):
    """How far a journal was read."""

    offset: int = 0  # of the next line, in bytes
    seq: int = 0  # of the newest record


def scan(path: Path, position: JournalPosition | None = None) -> Iterator[Record | Damage]:
    """Yield what the journal holds, in order; no file at all is an empty journal.

    A second copy of a record is skipped. `position`: where to begin; at the end it is behind the last line that is finished.
    Raises OSError, and OtherFormatError (78) at the header of another format.
    """
    position = position or JournalPosition()
    for rec in frames(path, position=position):
        record = rec if isinstance(rec, Damage) else decode(rec)
        if record is None:
            record = Damage(-1, len(rec) if isinstance(rec, bytes) else 0)
        if isinstance(record, Record):
            if isinstance(record.body, Header):
                check_version(path, record.body)
            if record.seq <= position.seq:
                continue
            position.seq = record.seq
        yield record


def frames(path: Path, *, position: JournalPosition | None = None) -> Iterator[bytes | Damage]:
    """Yield the bytes of each record that checks, and the damage between them. Reads as it goes: memory is that of one line.

    `position`: as in `scan`; it is behind the line of the last yielded record.
    """
    position = position or JournalPosition()
    try:
        fd = durable.open_regular(str(path))
    except FileNotFoundError:
        return
    with open(fd, "rb", buffering=1 << 20) as file:  # noqa: PTH123 (a descriptor)
        file.seek(position.offset)
        for line in file:
            rec, offset = unframe(line), position.offset
            if rec is None and not line.endswith(b"\n"):
                yield Damage(offset, len(line), torn=True)
                return
            position.offset += len(line)
            if rec is not None:
                yield rec
            else:
                yield from _rescued(line, offset)


def _rescued(line: bytes, offset: int) -> Iterator[bytes | Damage]:
    """A torn record may be followed by a whole one on the same line. The opening of a frame cannot occur inside a JSON string."""
    start = line.find(_OPEN, 1)
    while start >= 0:
        rec = unframe(line, start)
        if rec is not None:
            yield Damage(offset, start)
            yield rec
            return
        start = line.find(_OPEN, start + 1)
    yield Damage(offset, len(line))


def check_version(path: Path, header: Header) -> None:
    """Raise OtherFormatError where a supervise with another format wrote the file."""
    if header.version != VERSION:
        raise OtherFormatError(path, header.version)
