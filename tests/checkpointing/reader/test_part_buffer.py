"""The memory of parts on their way: bounded, used again within a pass, and given back after it."""

from __future__ import annotations

from checkpointing.reader.part_buffer import PartBuffer


def test_the_memory_of_a_sent_part_is_reused_during_a_pass() -> None:
    buffer = PartBuffer(10)
    buffer.begin_pass()
    first = buffer.reserve(6)
    assert first is not None
    assert buffer.reserve(5) is None, "there is room for 4 beside it"
    buffer.release(first)
    assert buffer.reserve(4) is first
    buffer.release(first)
    larger = buffer.reserve(8)
    assert larger is not None, "what was kept gives way"
    assert len(larger) == 8


def test_a_pass_begins_with_little_and_takes_more_with_each_part_that_was_sent() -> None:
    buffer = PartBuffer(100, first_bytes=30)
    buffer.begin_pass()
    parts = [buffer.reserve(10) for _ in range(4)]
    assert [part is not None for part in parts] == [True, True, True, False], "the mirror has taken nothing yet"
    assert parts[0] is not None
    buffer.release(parts[0])
    assert [buffer.reserve(10) is not None for _ in range(3)] == [True, True, False]
    assert PartBuffer(100, first_bytes=30).reserve(90) is not None, "a large part alone"


def test_after_the_last_pass_nothing_is_kept() -> None:
    buffer = PartBuffer(10)
    buffer.begin_pass()
    buffer.begin_pass()
    kept, on_its_way = buffer.reserve(4), buffer.reserve(4)
    assert kept is not None
    assert on_its_way is not None
    buffer.release(kept)
    buffer.end_pass()
    assert buffer.reserve(3) is kept, "another pass continues"
    buffer.release(kept)
    buffer.end_pass()
    buffer.release(on_its_way)
    buffer.begin_pass()
    again = buffer.reserve(10)
    assert again is not None
    assert len(again) == 10
