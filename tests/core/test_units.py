"""A span, an amount of bytes and a rate are written in one way."""

from __future__ import annotations

import pytest

from supervisor.core.units import bytes_text, rate_text, span_text, step_time_text, timestamp


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 bytes"),
        (1023, "1023 bytes"),
        (1024, "1 KiB"),
        (12 << 10, "12 KiB"),
        (3 << 19, "1.5 MiB"),
        (512 << 20, "512 MiB"),
        (1023 << 20, "1023 MiB"),
        (int(79.1 * 2**30), "79.1 GiB"),
        (153 << 30, "153.0 GiB"),
        (3 << 40, "3.0 TiB"),
        (2000 << 50, "2000.0 PiB"),
        (-(3 << 20), "-3 MiB"),
    ],
)
def test_bytes_are_written_with_the_unit_that_fits(count: int, text: str) -> None:
    assert bytes_text(count) == text


def test_a_rate_is_bytes_in_a_second() -> None:
    assert rate_text(210 << 20) == "210 MiB/s"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1, "0.0 s"),
        (0.4, "0.4 s"),
        (45, "45 s"),
        (119, "119 s"),
        (720, "12 min"),
        (12_000, "3 h 20 min"),
        (2 * 86_400 + 3 * 3600, "2 days 3 h"),
    ],
)
def test_a_span_is_written_in_human_units(seconds: float, text: str) -> None:
    assert span_text(seconds) == text


def test_the_time_of_a_step_has_three_figures() -> None:
    assert (step_time_text(1.518), step_time_text(0.05231)) == ("1.52 s", "52.3 ms")


def test_a_moment_for_programs_is_utc() -> None:
    assert timestamp(0.25) == "1970-01-01T00:00:00.250Z"
