"""When memory will be used up: right within a fifth on leaks, silent on programs that grow and do no harm. No clock is waited for."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator

import pytest

from supervisor.observe.memory.forecast import MemorySample, MemoryTrend, TrendForecast
from tests.support.few import few

MIB, GIB = 1 << 20, 1 << 30
HOUR, DAY = 3600.0, 86400.0
LIMIT = 64.0 * GIB
Program = Callable[[float], float | None]


def noise(t: float, size: float) -> float:
    """Return what a sample differs by from the one before: prefetched batches, allocations within a step."""
    return size * random.Random(t).uniform(-1, 1)  # noqa: S311  a noise


def forecasts(program: Program, until_s: float, every_s: float = 10.0, looks: int = 150) -> Iterator[tuple[float, TrendForecast]]:
    """Run a program, look so often, and yield when a forecast was made. None of a program: it is in no training then."""
    trend, t, count = MemoryTrend(), 0.0, 0
    each = max(6, int(until_s / every_s / looks))
    while t < until_s:
        used = program(t)
        if used is not None:
            trend.take(MemorySample(t, used, t / 2 if count else None))  # the first is taken before the optimizer's count is read
            count += 1
            if count % each == 0 and (forecast := trend.forecast(LIMIT)) is not None:
                yield t, forecast
        t += every_s


def out_s(program: Program, until_s: float) -> float:
    """Return when a program is out of memory."""
    return next(t for t in range(0, int(1.1 * until_s), 10) if (program(t) or 0.0) >= LIMIT)


def leak(full_s: float, *, base: float = 10 * GIB, begins_s: float = 0.0, noisy: float = 0.0) -> Program:
    """Return a program that is full after so many seconds."""
    rate = (LIMIT - base) / (full_s - begins_s)
    return lambda t: base + rate * max(0.0, t - begins_s) + noise(t, noisy)


LEAKS = {
    "twenty minutes": (leak(1200.0), 1200.0),
    "two hours": (leak(2 * HOUR), 2 * HOUR),
    "two hours, batches come and go": (leak(2 * HOUR, noisy=1.0 * GIB, base=9 * GIB), 2 * HOUR),
    "a day": (leak(DAY, noisy=0.5 * GIB), DAY),
    "nine days": (leak(9 * DAY, noisy=0.5 * GIB), 9 * DAY),
    "begins after ten hours": (leak(13 * HOUR, begins_s=10 * HOUR, noisy=0.1 * GIB), 13 * HOUR),
    "in pieces of 100 MiB": (lambda t: 10 * GIB + 100 * MIB * (t * 54 * GIB / (2 * HOUR) // (100 * MIB)), 2 * HOUR),
    "no sample in an evaluation": (lambda t: None if t % 1200 > 1000 else leak(3 * HOUR)(t), 3 * HOUR),
    "under an epoch's cache": (lambda t: 10 * GIB + 40 * GIB * t / DAY + 12 * GIB * (t % 1800) / 1800, 26 * HOUR),
}


@pytest.mark.parametrize("name", few(LEAKS, 3))
def test_a_leak_is_forecast_within_a_fifth_and_in_time(name: str) -> None:
    program, full_s = LEAKS[name][0], out_s(*LEAKS[name])
    series = list(forecasts(program, 0.98 * full_s, 10.0 if full_s < 2 * DAY else 60.0))
    assert series, "none was made"
    first_t, first = series[0]
    actual_s = full_s - first_t
    assert actual_s >= 0.05 * full_s, "a person can still act"
    assert abs(first.left_s - actual_s) <= 0.2 * actual_s
    assert abs(first.left_s - actual_s) <= first.doubt_s, "the stated doubt holds"
    assert first.step is not None
    assert abs(first.step - full_s / 2) <= 0.2 * actual_s / 2
    grain_s = 1800.0 if "epoch" in name else 60.0  # it is out of memory at the end of an epoch, whichever that is
    right = [abs(forecast.left_s - (full_s - t)) <= max(0.2 * (full_s - t), grain_s) for t, forecast in series]
    assert sum(right) >= 0.9 * len(right)


def cache_that_levels_off(t: float) -> float:
    return 10 * GIB + 40 * GIB * (1 - 2.718 ** (-t / (2 * HOUR)))


def warm_up(t: float) -> float:
    return 10 * GIB + min(20 * GIB, 20 * GIB * t / 1800)


def sawtooth(t: float) -> float:
    """Hold an epoch's samples, and free them at its end."""
    return 10 * GIB + 25 * GIB * (t % (4 * HOUR)) / (4 * HOUR)


def fragmentation(t: float) -> float:
    """Reserve more in steps that become rare."""
    return 10 * GIB + 3 * GIB * sum(t > begin for begin in (600, 1500, 2700, 5400, 9000, 20000, 50000))


def evaluation(t: float) -> float:
    return 10 * GIB + (15 * GIB if t % 3000 > 2700 else 0) + noise(t, 0.2 * GIB)


def loaders_restart(t: float) -> float:
    """Start eight workers anew each epoch: each grows by copies of what it touches until it ends."""
    into = t % 2400
    return 12 * GIB + min(16 * GIB, 16 * GIB * into / 2000) + noise(t, 0.3 * GIB)


def random_walk() -> Program:
    walk, state = random.Random(7), [20.0 * GIB]  # noqa: S311  as above

    def at(_t: float) -> float:
        state[0] = min(max(state[0] + walk.gauss(0, 0.05 * GIB), 10 * GIB), 40 * GIB)
        return state[0]

    return at


HEALTHY: dict[str, Program] = {
    "level": lambda t: 20 * GIB + noise(t, 1 * GIB),
    "a cache that levels off": cache_that_levels_off,
    "a cache that levels off soon": lambda t: cache_that_levels_off(6 * t),
    "a cache that levels off high": lambda t: 10 * GIB + 45 * GIB * (1 - 2.718 ** (-t / (5 * HOUR))),
    "warm-up": warm_up,
    "an epoch's cache that is freed": sawtooth,
    "fragmentation in steps": fragmentation,
    "evaluations": evaluation,
    "loader workers that restart each epoch": loaders_restart,
    "longer and longer sequences are rare": lambda t: 20 * GIB + min(20.0, 3 * (1 + int(t / 600)) ** 0.4) * GIB,
    "a walk": random_walk(),
    "a leak too small to matter": lambda t: 20 * GIB + 10 * MIB * t / HOUR,
    "a drop, and then the same again": lambda t: 30 * GIB - (15 * GIB if 8 * HOUR < t < 8.5 * HOUR else 0) + noise(t, 0.1 * GIB),
    "a restart of the loaders after a leak of theirs": lambda t: 15 * GIB + 30 * GIB * ((t + 5000) % 20000) / 20000,
}


@pytest.mark.parametrize("name", few(HEALTHY, 4))
def test_a_program_that_grows_and_does_no_harm_is_silent(name: str) -> None:
    alarms = [*forecasts(HEALTHY[name], 3 * HOUR, looks=60), *forecasts(HEALTHY[name], 2 * DAY, 30.0, looks=100)]
    assert not alarms, f"{len(alarms)} forecasts, the first after {alarms[0][0] / HOUR:.1f} h: {alarms[0][1].left_s / 60:.0f} minutes left"


def test_growth_is_that_of_the_time_that_is_asked_for() -> None:
    trend = MemoryTrend()
    for number in range(3000):
        trend.take(MemorySample(10.0 * number, number * MIB))
    assert trend.grown(600.0) == pytest.approx(60 * MIB, rel=0.1)
    assert trend.grown(7000.0) == pytest.approx(700 * MIB, rel=0.1)
    assert trend.grown(1e9) == pytest.approx(3000 * MIB, rel=0.1)
    assert trend.known_s == pytest.approx(29_990, rel=0.03)
    assert (MemoryTrend().grown(600.0), MemoryTrend().known_s) == (0, 0)


def test_a_forecast_costs_little_and_a_healthy_program_less() -> None:
    trend, healthy = MemoryTrend(), MemoryTrend()
    for number in range(20_000):
        trend.take(MemorySample(10.0 * number, number * MIB))
        healthy.take(MemorySample(10.0 * number, 1 * GIB + number % 7))
    began = time.process_time()
    for _ in range(5):
        healthy.forecast(LIMIT)
        assert trend.forecast(21_000 * MIB) is not None
    assert (time.process_time() - began) / 5 < 0.1
