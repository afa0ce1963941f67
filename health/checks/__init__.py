"""Checks: each judges readings, and is a pure function of them, of those at the job's start, and of the thresholds.

A check is a module with `NEEDS`, the probes whose readings it judges, and
`check(now: Readings, before: Readings | None, limits: Thresholds) -> Iterable[CheckResult]`. It answers for every subject it knows of, also
when all is well; for one that cannot be judged it answers UNKNOWN, and SKIPPED where there is nothing of the kind here.
"""
