"""When a series of numbers is abnormal, and when it is normal again."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from supervisor.classify.losses.judge import MOST_NAMES, NumberJudge
from supervisor.classify.losses.lines import NumberReader, NumberReading, captures
from supervisor.config import loss_rules
from tests.support.few import few

LOGS = sorted((Path(__file__).parents[2] / "corpus" / "logs").glob("*.log"))
RULES = loss_rules.packaged()


def changes(*lines: str) -> list[str]:
    """Return what the rules report of these lines: `+rule` and `-rule`, with the name of the number."""
    wanted, rules = captures(RULES)
    reader, judge = NumberReader(wanted), NumberJudge(rules)
    alarms = [alarm for line in lines for reading in reader.feed(line.encode() + b"\n") for alarm in judge.take(reading)]
    return [f"{'-' if alarm.is_over else '+'}{alarm.rule.id} {alarm.name}" for alarm in alarms]


def steps(*losses: object) -> list[str]:
    return [f"step {number} loss: {loss}" for number, loss in enumerate(losses)]


def bar(step: int, loss: object) -> str:
    return f"{step}%|#| {step}/100 [00:01<00:09, loss={loss}]"


def noisy(count: int, *, seed: int = 1, level: float = 2.0) -> list[float]:
    source = random.Random(seed)  # noqa: S311  no secret
    return [round(level * source.lognormvariate(0, 0.3), 4) for _ in range(count)]


NORMAL = [*noisy(150)]
SERIES: dict[str, tuple[list[str], list[str]]] = {
    "nan twice": (steps(2.5, "nan", "nan", "nan"), ["+loss.nan loss"]),
    "nan once, as a skipped step of mixed precision": (steps(2.5, "nan", 2.4, "nan", 2.3), []),
    "nan that is over": (steps("nan", "nan", "nan", 2.5, "nan"), ["+loss.nan loss", "-loss.nan loss"]),
    "inf, then nan": (steps("inf", "-inf", "nan", "nan"), ["+loss.inf loss", "-loss.inf loss", "+loss.nan loss"]),
    "one step printed by two": (["step 5 loss: nan", "epoch 1 step 5 loss nan", "step 5 loss: nan"][::2], []),
    "two names, one nan each": (["loss_a: nan loss_b: 1.0", "loss_a: 1.0 loss_b: nan"] * 3, []),
    "one of two heads": (["loss_a: nan loss_b: 1.0"] * 2, ["+loss.nan loss_a"]),
    "a bar that shows one step twice": ([bar(1, 2), bar(2, "nan"), bar(3, "nan"), bar(4, 2)], []),
    "a bar that goes on": ([bar(n, "nan") for n in range(1, 5)], ["+loss.nan loss"]),
    "what is read as a step stands still": (["batch 32 loss: nan"] * 50, ["+loss.nan loss"]),
    "jump": (steps(*NORMAL, *[40.0] * 5), ["+loss.jump loss"]),
    "jump that is over": (steps(*NORMAL, *[40.0] * 9, 2.0), ["+loss.jump loss", "-loss.jump loss"]),
    "a spike of four steps": (steps(*NORMAL, *[40.0] * 4, *NORMAL), []),
    "a jump at the start, before it is known what is usual": (steps(*NORMAL[:50], *noisy(300, level=40)), []),
    "a validation loss jumps": ([f"step {n} val_loss: {v}" for n, v in enumerate([*NORMAL, *[40.0] * 9])], []),
    "a loss that crosses zero": (steps(*[v - 2 for v in NORMAL], *[40.0] * 9), []),
    "no progress": (steps(*[2.3026] * 220), ["+loss.no_progress loss"]),
    "no progress that is over": (steps(*[2.3026] * 220, 2.3, *[2.3026] * 5), ["+loss.no_progress loss", "-loss.no_progress loss"]),
    "converged, with few digits": (steps(*[0.0] * 300), []),
    "converged, with rounding": (steps(*["0.0012"] * 300), []),
    "learns": (steps(*[round(5 / (1 + n / 50), 4) for n in range(1000)]), []),
}  # fmt: skip


@pytest.mark.parametrize("name", SERIES)
def test_a_series_is_reported_once_and_once_that_it_is_over(name: str) -> None:
    lines, expected = SERIES[name]
    assert changes(*lines) == expected


@pytest.mark.parametrize("spread", few([0.1, 0.5, 1.0]))
def test_healthy_trainings_with_noise_are_never_strange(spread: float) -> None:
    _, rules = captures(RULES)
    for seed in range(70):
        source = random.Random(seed)  # noqa: S311  no secret
        level, judge = source.uniform(0.05, 20), NumberJudge(rules)
        for step in range(600):
            value = round((level / (1 + step / 200) + 0.1) * source.lognormvariate(0, spread * source.random()), 4)
            assert judge.take(NumberReading(0, "loss", str(value), value, (str(step),), step)) == [], seed


def test_no_log_of_the_corpus_is_called_strange() -> None:
    assert len(LOGS) > 200
    judged = {log.name: changes(*log.read_text(encoding="utf-8", errors="replace").splitlines()) for log in LOGS}
    assert {name: alarms for name, alarms in judged.items() if alarms} == {}


def test_the_names_that_are_judged_are_bounded() -> None:
    wanted, rules = captures(RULES)
    reader, judge = NumberReader(wanted), NumberJudge(rules)
    for number in range(3 * MOST_NAMES):
        for reading in reader.feed(f"loss_{number}: 1.5\n".encode()):
            judge.take(reading)
    assert judge.names == MOST_NAMES
