"""All that watches one attempt, begun and ended together: what one of them lacks costs no other."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from health.probes import control_groups
from health.probes.control_groups import ControlGroup
from supervisor.config import signatures
from supervisor.config.settings import Settings
from supervisor.job.clock import Clock
from supervisor.job.job import Job
from supervisor.observe.anchor_scanner import scanner
from supervisor.observe.attempt_watch import AttemptWatch, LauncherFacts
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from supervisor.core.model import Evidence

NOBODY = LauncherFacts(list, tuple)


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[AttemptWatch]:
    catalogue, _ = signatures.read()
    pair = catalogue, scanner(catalogue.anchors)
    state, scratch = tmp_path / "state", tmp_path / "scratch"
    job = Job("train", "run-1", "node", ("true",), tmp_path, {}, Settings(), state, scratch, "cookie")
    watching = AttemptWatch(job, lambda: pair, Clock.start(), (), lambda _event: None)
    yield watching
    watching.stop()


def _asked(watch: AttemptWatch, *names: str) -> list[Evidence]:
    sources = watch.sources(1, watch.watchers, (), 0, (), NOBODY)
    return [fact for name in names for fact in sources[name]()]


def test_without_a_descriptor_for_the_kernels_log_all_else_is_watched(watch: AttemptWatch, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr("os.eventfd", none)
        watch.begin(1)
    (fact,) = _asked(watch, "logs", "kernel")  # the logs were read, and there are none
    assert (fact.source, fact.name) == ("kernel", "not_observed")
    assert "Too many open files" in fact.text


def test_kills_are_counted_while_the_attempt_runs_each_at_its_time(
    watch: AttemptWatch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def count(kills: int) -> None:
        (tmp_path / "memory.events").write_text(f"max 0\noom_kill {kills}\n")

    count(3)
    monkeypatch.setattr(control_groups, "read", lambda _controller: [ControlGroup(tmp_path, 2, own=True)])
    watch.begin(1)
    count(4)
    watch.tick(())
    count(5)
    watch.read_now()
    first, second = _asked(watch, "cgroup")
    assert {(fact.name, dict(fact.fields)["kills"]) for fact in (first, second)} == {("oom_kill", "1")}
    assert 0 < first.t < second.t


def test_an_attempt_that_is_watched_leaves_no_descriptor(watch: AttemptWatch) -> None:
    watch.begin(1)
    _asked(watch, "logs", "kernel")
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208  a count
    for _ in range(5):
        watch.begin(2)
        _asked(watch, "logs", "kernel")
    wait_for(lambda: len(os.listdir("/proc/self/fd")) <= before + 1, "all are closed, but maybe the last")  # noqa: PTH208  a count


def test_the_interface_that_a_plan_chose_and_nccls_own_log_are_evidence(watch: AttemptWatch) -> None:
    watch.begin(1)
    logs = Path(watch._job.log_dir(1))  # noqa: SLF001  where the attempt's output goes
    logs.mkdir(parents=True, exist_ok=True)
    log = "node:7:8 [0] NCCL INFO Channel 00/0 : 1[1] -> 0[0] [send] via NET/Socket/0\n"
    (logs / "nccl-node-7.log").write_text(log)
    launcher = LauncherFacts(list, tuple, (("env:NCCL_SOCKET_IFNAME", "lo"), ("batch_size", "8")))
    facts = watch.sources(1, watch.watchers, (), 0, (), launcher)["network"]()
    transports, *interfaces = facts
    assert (transports.name, transports.text) == ("transports", "NET/Socket")
    assert [dict(interface.fields)["name"] for interface in interfaces if dict(interface.fields).get("used") == "yes"] == ["lo"]


def test_late_evidence_of_an_attempt_does_not_take_the_watch_of_the_next(watch: AttemptWatch) -> None:
    watch.begin(1)
    first = watch.watchers
    watch.begin(2)
    sources = watch.sources(1, first, (), 0, (), NOBODY)
    assert [*sources["logs"]()] == []
    second = watch.watchers.logs
    assert second is not None
    assert second is not first.logs
    assert not second._over.is_set(), "the second attempt is watched on"  # noqa: SLF001
    assert _asked(watch, "logs") == []
