"""Checks: pure functions that judge readings, in families by subject.

A family's table `CHECKS` names its checks and the probes that each one needs. A module with a single check has `NEEDS` and
`check(now: Readings, before: Readings | None, limits: Thresholds) -> Iterable[CheckResult]` instead; so does a package's plug-in.
"""
