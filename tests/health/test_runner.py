"""Probes are asked in processes that can be thrown away; what does not answer is a finding, and costs no more than its deadline."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

import pytest

from health import registry, render
from health.checks import probes
from health.judge import blocking, judge
from health.model import Ask, Check, CheckResult, Reading, Readings, Repair, Result, worst
from health.probing.runner import OUTCOME, Runner
from health.thresholds import Thresholds
from tests.support.figures import within
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from health.probing.runner import Start
    from tests.support.fake_nvml import FakeNvml

NVML = "probe:nvml"
FOREIGN = ("foreign-0", "foreign-1", "foreign-2")


@pytest.fixture
def runner(fake_nvml: FakeNvml) -> Iterator[Runner]:
    runner = Runner(environ=fake_nvml.environ)
    yield runner
    runner.close()


@pytest.fixture(autouse=True)
def foreign(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the registry have four probes of a test's own, whose program `plugged` writes."""
    row = registry.ProbeRow("foreign_probe", deadline_s=600.0)
    monkeypatch.setattr(registry, "PROBES", {**registry.PROBES, **dict.fromkeys(("foreign", *FOREIGN), row)})


def plugged(tmp_path: Path, source: str, *, start: Start = lambda make: make()) -> Runner:
    """Return a runner that finds this program of the test's own probes."""
    (tmp_path / "foreign_probe.py").write_text("from health.model import Reading\nimport os, time\n" + source, "utf-8")
    path = os.pathsep.join([str(tmp_path), *(word for word in sys.path if word)])
    return Runner({**os.environ, "PYTHONPATH": path}, start=start)


@pytest.mark.process
@pytest.mark.parametrize("lasting", [False, True], ids=["sweep", "sample"])
@pytest.mark.bench
def test_a_probe_that_hangs_is_noticed_within_its_deadline_and_a_second(lasting: bool, fake_nvml: FakeNvml, runner: Runner) -> None:  # noqa: FBT001
    fake_nvml.set({"1.hang_ms.nvmlDeviceGetTemperature": 600_000})
    ask = runner.sample if lasting else runner.sweep
    begun = time.monotonic()
    now = ask(("nvml",), Ask(deadline_s=1.0))
    outcome = now.table(OUTCOME, NVML)
    assert outcome["state"] == "hung"
    assert time.monotonic() - begun >= 1.0
    assert within(2.0 + 2.0, since=begun)  # a python starts before the deadline runs: two seconds for it on a busy machine
    assert now.value("gpu.temperature_c", "gpu:GPU-00000000-0000-4000-8000-000000000000") == 41, "what was read before is kept"
    assert outcome["after"] == "gpu.retired_pending of gpu:GPU-00000000-0000-4000-8000-000000000001"
    answer = next(result for result in judge(now) if result.subject == NVML)
    assert (answer.result, answer.repair) == (Result.FAILED, Repair.DRAIN)
    assert not Path(f"/proc/{outcome['pid']}").exists()


@pytest.mark.process
def test_a_probe_in_the_kernel_is_reported_with_its_place(fake_nvml: FakeNvml, runner: Runner) -> None:
    fake_nvml.set({"0.stuck_ms.nvmlDeviceGetMigMode": 5_000})  # sleeps in state D, as a driver's call does
    now = runner.sweep(("nvml",), Ask(deadline_s=0.5))
    assert now.table(OUTCOME, NVML)["process"] == "D"
    answer = next(result for result in judge(now) if result.subject == NVML)
    assert (answer.result, answer.repair) == (Result.FAILED, Repair.REBOOT)
    assert "stuck in the kernel at " in answer.reason


@pytest.mark.process
def test_sampling_continues_after_a_hang(fake_nvml: FakeNvml, runner: Runner) -> None:
    fake_nvml.set({"0.hang_ms.nvmlDeviceGetTemperature": 600_000})
    first = runner.sample(("nvml", "pci"), Ask(deadline_s=2.0))
    assert first.table(OUTCOME, NVML)["state"] == "hung"
    assert first.table(OUTCOME, "probe:pci")["state"] == "answered", "the next probe has a process of its own"
    fake_nvml.set({"0.hang_ms.nvmlDeviceGetTemperature": None})
    assert runner.sample(("nvml",), Ask()).table(OUTCOME, NVML)["state"] == "answered"


@pytest.mark.process
def test_one_hang_holds_up_no_other_probe(fake_nvml: FakeNvml) -> None:
    fake_nvml.set({"0.hang_ms.nvmlDeviceGetTemperature": 600_000})
    awaited: list[list[str]] = []
    runner = Runner(environ=fake_nvml.environ, awaited=lambda names: awaited.append([*names]))
    now = runner.sweep(("nvml", "pci", "driver"), Ask(deadline_s=2.0))
    assert (awaited[0], awaited[-2:]) == (["nvml", "pci", "driver"], [["nvml"], []])
    assert {result.subject: now.table(OUTCOME, result.subject)["state"] for result in now.of(OUTCOME)} == {
        NVML: "hung", "probe:pci": "answered", "probe:driver": "answered",
    }  # fmt: skip


@pytest.mark.process
def test_a_probe_that_raises_costs_its_own_answer(tmp_path: Path) -> None:
    runner = plugged(tmp_path, "def read(ask):\n yield Reading('foreign', 'host', 'a', 1)\n raise RuntimeError('no such thing')\n")
    now = runner.sample(("foreign", "pci"), Ask())
    assert now.value("a") == 1
    assert now.table(OUTCOME, "probe:foreign")["why"] == "RuntimeError: no such thing"
    assert now.table(OUTCOME, "probe:pci")["state"] == "answered"
    answer = next(result for result in judge(now) if result.subject == "probe:foreign")
    assert (answer.result, answer.reason) == (Result.UNKNOWN, "probe foreign: RuntimeError: no such thing")
    runner.close()


@pytest.mark.process
def test_a_probe_that_dies_is_not_known(tmp_path: Path) -> None:
    runner = plugged(tmp_path, "def read(ask):\n yield Reading('foreign', 'host', 'a', 1)\n os.kill(os.getpid(), 11)\n")
    now = runner.sweep(("foreign",), Ask())
    assert now.table(OUTCOME, "probe:foreign")["state"] == "not_started"
    assert "died" in str(now.table(OUTCOME, "probe:foreign")["why"])
    assert runner.sample(("foreign",), Ask()).table(OUTCOME, "probe:foreign")["state"] == "not_started"
    assert runner.sample(("pci",), Ask()).table(OUTCOME, "probe:pci")["state"] == "answered"
    runner.close()


@pytest.mark.process
def test_output_of_a_library_is_no_answer(tmp_path: Path) -> None:
    runner = plugged(
        tmp_path, "def read(ask):\n print('noise', flush=True)\n os.write(1, b'more')\n yield Reading('foreign', 'host', 'a', 1)\n"
    )
    assert runner.sweep(("foreign",), Ask()).value("a") == 1


@pytest.mark.process
def test_noise_in_the_probers_own_pipe_costs_its_line_only(tmp_path: Path) -> None:
    noise = "[os.write(fd, b'\\xff[1]\\n[7]\\n{\\n') for fd in range(3, 9) if os.path.realpath(f'/proc/self/fd/{fd}').count('pipe')]"
    runner = plugged(tmp_path, f"def read(ask):\n {noise}\n yield Reading('foreign', 'host', 'a', 1)\n")
    now = runner.sweep(("foreign",), Ask())
    assert (now.value("a"), now.table(OUTCOME, "probe:foreign")["state"]) == (1, "answered")


@pytest.mark.process
def test_a_probe_that_is_short_of_cpu_is_no_finding(tmp_path: Path) -> None:
    runner = plugged(tmp_path, "def read(ask):\n yield Reading('foreign', 'host', 'a', 1)\n while True: pass\n")
    answer = next(result for result in judge(runner.sweep(("foreign",), Ask(deadline_s=0.5))) if result.subject == "probe:foreign")
    assert answer.result is Result.UNKNOWN
    assert "still running" in answer.reason


@pytest.mark.process
def test_a_probe_that_runs_at_its_deadline_and_waits_soon_after_it_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("health.probing.runner._RESTLESS_S", 20.0)  # so that what else the machine does is no matter
    busy = "until = time.process_time() + 0.2\n while time.process_time() < until: pass"
    runner = plugged(tmp_path, f"def read(ask):\n yield Reading('foreign', 'host', 'a', 1)\n {busy}\n time.sleep(600)\n")
    outcome = runner.sweep(("foreign",), Ask(deadline_s=0.1)).table(OUTCOME, "probe:foreign")
    assert (outcome["state"], outcome["process"]) == ("hung", "S")


@pytest.mark.process
@pytest.mark.parametrize("pause_s", [0.0, 0.5], ids=["it answers meanwhile", "it is stopped too"])
def test_the_asking_process_may_be_stopped_for_longer_than_the_deadline(pause_s: float, tmp_path: Path) -> None:
    reading = f"time.sleep({pause_s})\n yield Reading('foreign', 'host', 'a', 1)\n"
    stop = "import subprocess, sys; subprocess.run(['sh', '-c', f'kill -STOP {os.getppid()}; sleep 1.6; kill -CONT {os.getppid()}'])"
    runner = plugged(tmp_path, f"def read(ask):\n {stop}\n {reading}")
    ask = (
        f"import sys; sys.path[:0] = {[word for word in sys.path if word]!r}\n"
        "from health.model import Ask\nfrom health.probing.runner import OUTCOME, Runner\n"
        "from health import registry\nregistry.PROBES = {'foreign': registry.ProbeRow('foreign_probe')}\n"
        f"now = Runner().sweep(('foreign',), Ask(deadline_s=1.2))\n"
        "print(now.table(OUTCOME, 'probe:foreign')['state'], now.value('a'))\n"
    )
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *(word for word in sys.path if word)])}
    done = subprocess.run([sys.executable, "-c", ask], env=environ, capture_output=True, text=True, timeout=120, check=True)  # noqa: S603
    assert done.stdout.split() == ["answered", "1"]
    runner.close()


@pytest.mark.process
def test_the_prober_ends_with_whoever_asks(fake_nvml: FakeNvml) -> None:
    fake_nvml.set({"0.hang_ms.nvmlDeviceGetTemperature": 600_000})
    read, write = os.pipe()
    child = os.fork()
    if child == 0:  # a supervisor that is killed in the midst of a sweep
        os.close(read)
        os.dup2(write, 9)
        Runner(environ={**fake_nvml.environ, "PYTHONPATH": ""}).sample(("pci",), Ask())
        path = [path.name for path in Path("/proc").iterdir() if path.name.isdecimal() and _parent(path) == os.getpid()]
        os.write(write, (" ".join(path) + "\n").encode())
        signal.pause()
    os.close(write)
    with os.fdopen(read) as outcome:
        pids = outcome.readline().split()
    assert len(pids) == 1
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    deadline = time.monotonic() + 20
    while Path(f"/proc/{pids[0]}").exists() and _state(pids[0]) != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _stat(proc: Path) -> list[str]:
    try:
        return (proc / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    except OSError:
        return ["", "0"]


def _parent(proc: Path) -> int:
    return int(_stat(proc)[1])


def _state(pid: str) -> str:
    return _stat(Path("/proc") / pid)[0]


def _answers(_now: Readings, _before: Readings | None, _limits: Thresholds) -> list[CheckResult]:
    return [CheckResult("said", "host", Result.DEGRADED, "so", blocks=True)]


def _fails(_now: Readings, _before: Readings | None, _limits: Thresholds) -> list[CheckResult]:
    raise KeyError("x")


def test_a_check_without_its_probe_is_silent_and_a_failing_one_is_reported() -> None:
    now = Readings([Reading("runner", "probe:a", OUTCOME, {"state": "answered"})])
    fields = {
        "here": Check("here", "host", ("a",), _answers, "a"),
        "not asked": Check("not asked", "host", ("a", "b"), _answers, "a and b"),
        "broken": Check("broken", "host", (), _fails, "nothing"),
    }
    results = judge(now, checks=fields)
    assert [(result.check, result.result) for result in results] == [("said", Result.DEGRADED), ("broken", Result.UNKNOWN)]
    assert [result.check for result in blocking(results)] == ["said"]


def test_the_worst_comes_first() -> None:
    results = [
        CheckResult("c", "host", result, "") for result in (Result.OK, Result.SKIPPED, Result.UNKNOWN, Result.FAILED, Result.DEGRADED)
    ]
    results.append(CheckResult("d", "host", Result.FAILED, "", blocks=True))
    order = [(result.check, result.result.value) for result in worst(results)]
    assert order == [("d", "failed"), ("c", "failed"), ("c", "degraded"), ("c", "unknown"), ("c", "ok"), ("c", "skipped")]


@pytest.mark.parametrize(("name", "result"), [("nvml", Result.FAILED), ("disk", Result.FAILED), ("environment", Result.DEGRADED)])
@pytest.mark.parametrize("process", ["S", "D"])
def test_a_slow_tree_of_files_condemns_no_node(name: str, result: Result, process: str) -> None:
    now = Readings([Reading("runner", f"probe:{name}", OUTCOME, {"state": "hung", "deadline_s": 5.0, "process": process, "pid": 1})])
    assert [result.result for result in probes.probes(now, None, Thresholds())] == [result]


class _SlowPipe:
    """A pipe's end, in a process that is put aside as soon as it has closed it: the other process acts first, as on a busy machine."""

    def __init__(self, pipe: IO[bytes], pid: int) -> None:
        self._pipe = pipe
        self._pid = pid

    def fileno(self) -> int:
        return self._pipe.fileno()

    def close(self) -> None:
        self._pipe.close()
        wait_for(lambda: _state(str(self._pid)) in {"", "Z"}, "the prober has seen that its requests end", 20)


def _slow(make: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
    popen = make()
    assert popen.stdin is not None
    popen.stdin = cast("IO[bytes]", _SlowPipe(popen.stdin, popen.pid))
    return popen


def _group(group: str) -> list[str]:
    """Return the processes of a group that are alive."""
    rows = []
    for path in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if path.name.isdecimal():
                rows.append((path.name, *(path / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()[:3]))
    return [pid for pid, state, _, pgrp in rows if pgrp == group and state != "Z"]


@pytest.mark.process
@pytest.mark.parametrize("hangs", [True, False], ids=["hung", "answered"])
def test_a_prober_that_is_ended_is_ended_with_its_children(tmp_path: Path, hangs: bool) -> None:  # noqa: FBT001
    """The prober ends when its requests do, maybe before it is killed. A shell that forks all the time does not slip away either."""
    program = "for turn in $(seq 20000); do sleep 600 & kill $!; done"
    source = (
        "import subprocess\ndef read(ask):\n yield Reading('foreign', f'host:{os.getpid()}', 'a', os.getpid())\n"
        f" subprocess.Popen(['sh', '-c', {program!r}])\n time.sleep({600 if hangs else 0.1})\n"
    )
    runner = plugged(tmp_path, source, start=_slow)
    now = runner.sweep(FOREIGN, Ask(deadline_s=1.0 if hangs else 20.0))
    assert {now.table(OUTCOME, f"probe:{name}")["state"] for name in FOREIGN} == {"hung" if hangs else "answered"}
    pids = [str(result.value) for result in now.of("a")]
    assert len(pids) == len(FOREIGN)
    wait_for(lambda: not any(_group(pid) for pid in pids), "the end of what they started", 20)


@pytest.mark.process
@pytest.mark.parametrize("lasting", [False, True], ids=["sweep", "sample"])
def test_a_prober_that_dies_leaves_nothing_that_it_started(tmp_path: Path, lasting: bool) -> None:  # noqa: FBT001
    started = "import subprocess; subprocess.Popen(['sleep', '600'])"
    reading = "yield Reading('foreign', 'host', 'a', os.getpid())"
    runner = plugged(tmp_path, f"def read(ask):\n {started}\n {reading}\n os.kill(os.getpid(), 9)\n")
    now = (runner.sample if lasting else runner.sweep)(("foreign",), Ask())
    assert now.table(OUTCOME, "probe:foreign")["state"] == "not_started"
    wait_for(lambda: not _group(str(now.value("a"))), "the end of what it started", 20)


@pytest.mark.process
def test_a_lasting_prober_that_died_between_two_samples_leaves_nothing_that_it_started(tmp_path: Path) -> None:
    source = " import subprocess; subprocess.Popen(['sleep', '600'])\n yield Reading('foreign', 'host', 'a', os.getpid())\n"
    runner = plugged(tmp_path, f"def read(ask):\n{source}")
    first = cast("int", runner.sample(("foreign",), Ask()).value("a"))
    os.kill(first, signal.SIGKILL)
    wait_for(lambda: _state(str(first)) in {"", "Z"}, "its end", 20)
    second = cast("int", runner.sample(("foreign",), Ask()).value("a"))
    runner.close()
    assert second != first
    wait_for(lambda: not (_group(str(first)) or _group(str(second))), "the end of what they started", 20)


@pytest.mark.process
def test_the_children_of_a_prober_end_with_the_asking_process(tmp_path: Path) -> None:
    (tmp_path / "foreign_probe.py").write_text(
        "import os, subprocess\ndef read(ask):\n"
        f" open('{tmp_path}/new', 'w').write(str(os.getpid())); os.rename('{tmp_path}/new', '{tmp_path}/pid')\n"
        " subprocess.run(['sleep', '600'])\n yield\n",
        "utf-8",
    )
    ask = (
        f"import sys; sys.path[:0] = {[word for word in sys.path if word]!r}\n"
        "from health.model import Ask\nfrom health.probing.runner import Runner\n"
        "from health import registry\nregistry.PROBES = {'foreign': registry.ProbeRow('foreign_probe', 600.0)}\n"
        "Runner().sweep(('foreign',), Ask(deadline_s=600.0))\n"
    )
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *(word for word in sys.path if word)])}
    with subprocess.Popen([sys.executable, "-c", ask], env=environ) as asking:  # noqa: S603
        wait_for((tmp_path / "pid").exists, "the probe runs", 60)
        group = (tmp_path / "pid").read_text()
        wait_for(lambda: len(_group(group)) == 2, "what it starts runs", 20)
        asking.kill()
    wait_for(lambda: _group(group) == [], "their end", 20)


@pytest.mark.process
def test_a_job_of_many_variables_is_asked_for_few(tmp_path: Path) -> None:
    many = {f"SERVICE_{n}": "x" * 1000 for n in range(200)} | {"NCCL_DEBUG": "WARN"}
    runner = plugged(tmp_path, "def read(ask):\n yield Reading('foreign', 'host', 'a', len(ask.paths[0]))\n")
    now = runner.sweep(("environment", "foreign"), Ask(environ=many, paths=("x" * 100_000,)))
    assert now.value("env.variables") == {"NCCL_DEBUG": "WARN"}
    assert now.value("a") == 100_000, "more than a pipe holds"


@pytest.mark.process
def test_a_process_that_does_not_read_is_not_written_to_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("health.probing.runner._START_S", 0.5)
    (tmp_path / "deaf.py").write_text("import time\ntime.sleep(600)\n", "ascii")
    monkeypatch.setattr("health.probing.runner._PROBER", tmp_path / "deaf.py")
    now = plugged(tmp_path, "").sweep(("foreign",), Ask(paths=("x" * 100_000,)))
    assert now.table(OUTCOME, "probe:foreign")["state"] == "not_started"


def test_a_probe_that_answered_is_ok() -> None:
    now = Readings([Reading("runner", "probe:a", OUTCOME, {"state": "answered", "seconds": 0.1})])
    assert [result.result for result in probes.probes(now, None, Thresholds())] == [Result.OK]


def test_an_ask_comes_through_as_it_was() -> None:
    ask = Ask(3.0, ("/a",), ("b",), (1,), {"C": "d"}, "e", 7, lasting=True, root="/r", options={"f": [1, {"g": None}]})
    assert Ask.from_json(ask.to_json()) == ask
    assert ask.at("/proc/1") == "/r/proc/1"
    assert Ask().at("/proc/1") == "/proc/1"


def test_a_repeated_reason_takes_one_line() -> None:
    results = [CheckResult("c", "kernel", Result.DEGRADED, "killed", (f"line {number}",)) for number in range(3)]
    results.append(CheckResult("c", "kernel", Result.DEGRADED, "another"))
    lines = [(result.reason, result.evidence) for result in render.merged(results)]
    assert lines == [("killed (3 times)", ("line 2",)), ("another", ())]
