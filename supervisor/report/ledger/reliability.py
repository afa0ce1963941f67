"""How often a job fails, and how often it should save: an exact interval for the MTBF, and Daly's estimate. Pure arithmetic."""

from __future__ import annotations

import math

#: The share of the probability that the interval holds.
CONFIDENCE = 0.9
#: For fewer failures no mean is shown, and nothing is advised: the interval is wider than a factor of four.
LEAST_FAILURES = 3


def mtbf_interval_s(ran_s: float, failures: int) -> tuple[float, float | None]:
    """Return the two-sided interval of the mean time between failures, in seconds; without a failure it has no upper end (None).

    Exact for a Poisson process that was watched for `ran_s` seconds: F. Garwood, *Fiducial limits for the Poisson distribution*,
    Biometrika 28, 1936. It equals 2T / chi-square(1 - a/2, 2n + 2) and 2T / chi-square(a/2, 2n), a = 1 - CONFIDENCE.
    """
    tail = (1 - CONFIDENCE) / 2
    most = _poisson_mean(failures, tail)
    return ran_s / most, None if failures == 0 else ran_s / _poisson_mean(failures - 1, 1 - tail)


def _poisson_mean(count: int, probability: float) -> float:
    """Return the mean of the Poisson distribution in which `count` events or fewer have this probability, by bisection."""
    low, high = 0.0, count + 20.0 + 10.0 * math.sqrt(count + 1)
    for _ in range(60):
        mean = (low + high) / 2
        if _poisson_cdf(count, mean) > probability:
            low = mean
        else:
            high = mean
    return (low + high) / 2


def _poisson_cdf(count: int, mean: float) -> float:
    """Return the probability of `count` events or fewer. A count a dozen deviations below the mean adds less than a float's precision."""
    first = max(0, int(min(count, mean) - 12 * math.sqrt(mean + 1)) - 1)
    return math.fsum(math.exp(k * math.log(mean) - mean - math.lgamma(k + 1)) for k in range(first, count + 1))


def save_interval_s(save_s: float, mtbf_s: float) -> float:
    """Return how long to train between two saves so that saves and lost steps together cost least, in seconds.

    The higher-order estimate of J. T. Daly, *A higher order estimate of the optimum checkpoint interval for restart dumps*, FGCS 22,
    2006: sqrt(2CM) (1 + sqrt(C/2M)/3 + (C/2M)/9) - C, and M where C is 2M or more. Young's sqrt(2CM) is its first term. The time of a
    restart has no part in it.
    """
    ratio = save_s / (2 * mtbf_s)
    if ratio >= 1:
        return mtbf_s
    return math.sqrt(2 * save_s * mtbf_s) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - save_s
