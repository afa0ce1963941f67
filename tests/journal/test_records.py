# ruff: noqa: ANN401  values of every class of the core
"""Records: to bytes and back, and bytes that are no record."""

from __future__ import annotations

import dataclasses
import enum
import json
import re
import types
import typing
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from supervisor.core import actions, events
from supervisor.core.values import replace
from supervisor.journal.records import (
    ACTIONS,
    EVENTS,
    Damage,
    EventTaken,
    Header,
    Note,
    OtherFormatError,
    Record,
    RunBegan,
    RunEnded,
    ViewTaken,
    action_of,
    decode,
    encode,
    event_of,
    event_taken,
    frame,
    scan,
    unframe,
)
from tests.support.pages import page_text

if TYPE_CHECKING:
    from pathlib import Path


def sample(kind: Any, number: int = 1) -> Any:
    """Return a value of the type `kind` in which each field holds something that is not its default."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is types.UnionType:
        return sample(args[0], number)
    if origin is tuple:
        return tuple(sample(a, number + i) for i, a in enumerate((args[0], args[0]) if Ellipsis in args else args))
    if origin is typing.Literal:
        return args[-1]
    if isinstance(kind, type) and (dataclasses.is_dataclass(kind) or issubclass(kind, msgspec.Struct)):
        hints = typing.get_type_hints(kind)
        names = [field.name for field in dataclasses.fields(kind)] if dataclasses.is_dataclass(kind) else kind.__struct_fields__
        return kind(**{name: sample(hints[name], number + i) for i, name in enumerate(names)})
    if isinstance(kind, enum.EnumMeta):
        return list(kind)[-1]
    return {int: number, float: number + 0.1, str: f"text {number} é \udcff", bool: True}[kind]


@pytest.mark.parametrize("name", EVENTS)
def test_every_event_comes_back_as_it_was(name: str) -> None:
    event = sample(EVENTS[name])
    line = encode(1, event.t, 3.0, event_taken(event, (), attempt=1, stage="running"))
    body = decode(unframe(line) or b"").body  # type: ignore[union-attr]
    assert isinstance(body, EventTaken)
    # what each node reported stands in its own journal
    assert event_of(body) == (replace(event, reports=()) if isinstance(event, events.ReportsGathered) else event)


@pytest.mark.parametrize("name", ACTIONS)
def test_every_action_comes_back_as_it_was(name: str) -> None:
    action = sample(ACTIONS[name])
    line = encode(1, 2.0, 3.0, event_taken(events.StacksRequested(1.0), (action,), attempt=1, stage="running"))
    body = decode(unframe(line) or b"").body  # type: ignore[union-attr]
    assert isinstance(body, EventTaken)
    assert action_of(*body.actions[0]) == action


def test_the_lists_of_classes_are_the_core_s() -> None:
    assert set(EVENTS.values()) == set(typing.get_args(events.Event))
    assert set(ACTIONS.values()) == set(typing.get_args(actions.Action))


@pytest.mark.parametrize(
    "body",
    [
        Header("job", "node"),
        RunBegan("run", ("torchrun", "é"), "digest", "0.1.0", 7, 8, "boot", "/dev/shm/x", continues=True, incidents_before=3),  # noqa: S108
        RunEnded(75, "requeue"),
        Note("spawned", "pid 5", {"pid": 5, "all": [1, 2]}),
    ],
)
def test_every_kind_comes_back_as_it_was(body: Any) -> None:
    record = decode(unframe(encode(9, 2.5, 1_790_000_000.25, body)) or b"")
    assert record == Record(9, 2.5, "2026-09-21T14:13:20.250Z", record.kind, body)  # type: ignore[union-attr]


def test_a_line_is_json_by_itself_and_named_as_the_page_says() -> None:
    line = encode(1, 2.0, 3.0, Header("job", "node"))
    read = json.loads(line)
    assert list(read) == ["crc", "len", "rec"]
    assert read["rec"]["kind"] == "header"
    page = page_text("journal-format.md")
    for cls in (Header, RunBegan, EventTaken, RunEnded, Note, ViewTaken):
        for name in cls.__struct_fields__:
            assert f"`{name}`" in page, f"{cls.__name__}.{name} is not on the page"


def test_fields_that_this_supervise_does_not_know_are_ignored() -> None:
    rec = b'{"seq":1,"t":1.0,"new":1,"kind":"event","body":{"event":"StopRequested","data":{"t":1.0,"signum":2,"why":"x"},"more":[]}}'
    body = decode(rec).body  # type: ignore[union-attr]
    assert isinstance(body, EventTaken)
    assert event_of(body) == events.StopRequested(1.0, 2)


def test_an_unknown_kind_is_a_record_without_a_body() -> None:
    assert decode(b'{"seq":4,"kind":"weather","body":{"wind":3}}') == Record(4, 0.0, "", "weather", None)


def test_an_event_of_another_name_or_shape_is_refused_and_nothing_is_run() -> None:
    with pytest.raises(KeyError):
        event_of(EventTaken("os.system", {"command": "true"}))
    with pytest.raises(msgspec.ValidationError):
        event_of(EventTaken("StopRequested", {"t": "noon", "signum": 2}))


def written(path: Path, *lines: bytes) -> Path:
    path.write_bytes(b"".join(lines))
    return path


def test_any_truncation_costs_the_last_record_only(tmp_path: Path) -> None:
    lines = [encode(i + 1, 1.0, 1.0, Note("n", "é" * i)) for i in range(3)]
    whole = b"".join(lines)
    for size in range(len(whole) + 1):
        records = list(scan(written(tmp_path / "j", whole[:size])))
        complete = sum(1 for n in range(1, 4) if size >= len(b"".join(lines[:n])))
        assert [r.seq for r in records if isinstance(r, Record)] == list(range(1, complete + 1))
        torn = size != len(b"".join(lines[:complete]))
        assert [d.torn for d in records if isinstance(d, Damage)] == ([True] if torn else [])


def test_a_flipped_bit_anywhere_costs_that_record_and_its_offset_is_reported(tmp_path: Path) -> None:
    lines = [encode(i + 1, 1.0, 1.0, Note("n", "text")) for i in range(3)]
    whole, at = b"".join(lines), len(lines[0])
    for i in range(at, at + len(lines[1]) - 1):
        broken = bytearray(whole)
        broken[i] ^= 0x01
        records = list(scan(written(tmp_path / "j", bytes(broken))))
        assert [r.seq for r in records if isinstance(r, Record)] == [1, 3], i
        damage = next(d for d in records if isinstance(d, Damage))
        assert damage.offset == at
        assert str(at) in str(damage)


def test_a_record_behind_a_torn_one_on_the_same_line_is_found(tmp_path: Path) -> None:
    torn = encode(2, 1.0, 1.0, Note("n", 'looks like {"crc":"00000000","len":1,"rec":'))[:-9]
    records = list(scan(written(tmp_path / "j", encode(1, 1.0, 1.0, Note("n")), torn, encode(2, 1.0, 1.0, Note("again")))))
    assert [r.body.name for r in records if isinstance(r, Record)] == ["n", "again"]  # type: ignore[union-attr]
    assert any(isinstance(d, Damage) and d.length == len(torn) for d in records)


def test_a_second_copy_is_skipped(tmp_path: Path) -> None:
    first, second = encode(1, 1.0, 1.0, Note("a")), encode(2, 1.0, 1.0, Note("b"))
    assert [r.seq for r in scan(written(tmp_path / "j", first, second, first, second)) if isinstance(r, Record)] == [1, 2]


def test_bytes_that_check_and_are_no_record_are_damage(tmp_path: Path) -> None:
    records = list(scan(written(tmp_path / "j", frame(b"[1,2]"), frame(b'{"seq":"x"}'), frame(b"\xff"), encode(1, 1.0, 1.0, Note("n")))))
    assert [type(f) for f in records] == [Damage, Damage, Damage, Record]


@pytest.mark.parametrize("version", ["0", "3.3", "new", ""])
def test_another_format_is_refused_by_name(tmp_path: Path, version: str) -> None:
    path = written(tmp_path / "journal.jsonl", encode(1, 1.0, 1.0, Header("job", "node", version)))
    with pytest.raises(OtherFormatError, match=f"{re.escape(str(path))}.*{re.escape(version)}") as caught:
        list(scan(path))
    assert caught.value.exit_code == 78
    assert "that version" in caught.value.hint


def test_no_file_is_an_empty_journal(tmp_path: Path) -> None:
    assert list(scan(tmp_path / "none")) == []
