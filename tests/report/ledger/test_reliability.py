"""The interval of the MTBF against tables, and Daly's estimate against the figures that are known of it."""

from __future__ import annotations

import pytest

from supervisor.report.ledger.reliability import mtbf_interval_s, save_interval_s


@pytest.mark.parametrize(("mtbf_min", "best_min"), [(24 * 60, 117), (6 * 60, 57), (15, 9.1)])
def test_the_best_interval_between_saves_of_5_minutes(mtbf_min: float, best_min: float) -> None:
    interval_min = save_interval_s(5 * 60, mtbf_min * 60) / 60
    assert round(interval_min, 0 if best_min > 10 else 1) == best_min


def test_a_save_longer_than_twice_the_mtbf_is_due_once_per_mtbf() -> None:
    assert save_interval_s(100.0, 50.0) == 50.0


# The limits of a Poisson mean, 5 % in each tail, as tables have them (Garwood 1936; chi-square quantiles halved).
@pytest.mark.parametrize(
    ("failures", "least", "most"),
    [(0, None, 2.99573), (1, 0.0512933, 4.74386), (3, 0.817691, 7.75366), (10, 5.42541, 16.9622), (100, 84.1393, 118.0788)],
)
def test_the_interval_of_the_mtbf_is_that_of_the_tables(failures: int, least: float | None, most: float) -> None:
    low_s, high_s = mtbf_interval_s(3600.0, failures)
    assert low_s == pytest.approx(3600 / most, rel=1e-4)
    assert (high_s is None) if least is None else (high_s == pytest.approx(3600 / least, rel=1e-4))


def test_thousands_of_failures_are_no_overflow() -> None:
    low_s, high_s = mtbf_interval_s(5000.0, 5000)
    assert high_s is not None
    assert 0.97 < low_s < 1 < high_s < 1.03
