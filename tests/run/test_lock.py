"""The lock has one owner at a time, whichever process dies when; a lock of a possibly living owner is never taken."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from supervisor.errors import ExitCode, SuperviseError
from supervisor.job.identity import this_process
from supervisor.run import lock
from tests.support.figures import within
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.synchronize import Event
    from pathlib import Path

HEAD, NEXT, LAST = "aaaa", "bbbb", "cccc"
FORK = multiprocessing.get_context("fork")


def write_record(path: Path, **changes: object) -> None:
    """Write a lock file as another supervisor would have left it."""
    me = this_process()
    fields: dict[str, Any] = {name: getattr(me, name) for name in me.__slots__}
    fields |= {"token": "0123456789abcdef", "run": "", "since": time.time(), "released": False, **changes}
    path.write_text(json.dumps(fields), encoding="utf-8")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "lock"


@pytest.fixture
def gone() -> int:
    """Return the pid of a process that is no more."""
    process = subprocess.Popen([sys.executable, "-S", "-c", ""])
    process.wait()
    return process.pid


@pytest.fixture
def other_process(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Yield a process that holds the lock until its stdin is closed."""
    code = (
        "import sys\nfrom pathlib import Path\nfrom supervisor.run.lock import acquire\n"
        "held = acquire(Path(sys.argv[1]), job='j', run='r7')\nprint('held', flush=True)\nsys.stdin.read()\nheld.release()"
    )
    command = [sys.executable, "-c", code, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603  our own code
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_lock_is_taken_and_given_back_without_a_trace(path: Path) -> None:
    own_lock = lock.acquire(path, job="j", run="r1")
    assert own_lock.refresh()
    record = lock.holder(path)
    assert record is not None
    assert (record.process.pid, record.run, lock.is_alive(record)) == (os.getpid(), "r1", True)
    own_lock.release()
    assert list(path.parent.iterdir()) == []
    with pytest.raises(FileNotFoundError):  # nobody's: no reason to leave the job
        own_lock.refresh()


@pytest.mark.process
@pytest.mark.bench
def test_the_second_on_a_host_is_refused_within_two_seconds_naming_the_holder(path: Path, other_process: subprocess.Popen[str]) -> None:
    began = time.monotonic()
    with pytest.raises(SuperviseError) as caught:
        lock.acquire(path, job="j", takeover=True)  # takeover is for other hosts' locks: this holder can be seen
    assert within(2, since=began)
    assert caught.value.exit_code == ExitCode.CONFIG
    assert f"pid {other_process.pid} on " in caught.value.message
    assert "run r7" in caught.value.message
    assert "supervise stop --job" in caught.value.hint


@pytest.mark.process
def test_the_lock_of_a_killed_holder_is_taken_at_once(path: Path, other_process: subprocess.Popen[str]) -> None:
    other_process.kill()  # not reaped: the zombie is no holder either
    deadline = time.monotonic() + 10
    own_lock = None
    while own_lock is None:
        try:
            own_lock = lock.acquire(path, job="j")
        except SuperviseError:
            assert time.monotonic() < deadline
    assert own_lock.refresh()
    assert [entry.name for entry in path.parent.iterdir()] == ["lock"]


def test_a_pid_that_was_given_to_another_process_holds_nothing(path: Path) -> None:
    write_record(path, start_ticks=this_process().start_ticks + 1)
    assert lock.acquire(path, job="j").refresh()


@pytest.mark.skipif(
    not this_process().machine_id, reason="needs /etc/machine-id, which tells a reboot from another host: run `systemd-machine-id-setup`"
)
def test_a_lock_from_before_the_reboot_is_taken_at_once(path: Path) -> None:
    write_record(path, boot_id="another")
    assert lock.acquire(path, job="j").refresh()


FOREIGN: list[dict[str, object]] = [{"hostname": "elsewhere"}, {"machine_id": "another"}, {"pid_namespace": 1}]


@pytest.mark.parametrize("other", FOREIGN, ids=lambda other: next(iter(other)))
def test_the_lock_of_another_host_is_not_taken_by_its_pid(path: Path, gone: int, other: dict[str, object]) -> None:
    write_record(path, pid=gone, **other)
    texts: list[str] = []
    done = threading.Event()

    def refresh() -> None:
        while not done.wait(0.1):
            os.utime(path)

    refresher = threading.Thread(target=refresh)
    refresher.start()
    try:
        with pytest.raises(SuperviseError, match="supervised already") as caught:
            lock.acquire(path, job="j", lease_s=5, notify=texts.append)
    finally:
        done.set()
        refresher.join()
    assert "--takeover" in caught.value.hint
    assert len(texts) == 1


@pytest.mark.parametrize("other", FOREIGN, ids=lambda other: next(iter(other)))
def test_the_lock_of_another_host_is_taken_when_its_lease_stood_still(path: Path, gone: int, other: dict[str, object]) -> None:
    write_record(path, pid=gone, since=0.0, **other)
    os.utime(path, (0, 0))  # however old it looks: only our own observation counts
    began = time.monotonic()
    own_lock = lock.acquire(path, job="j", lease_s=0.5)
    assert time.monotonic() - began >= 0.5
    assert own_lock.refresh()


@pytest.mark.bench
def test_the_lock_of_another_host_is_taken_at_once_with_takeover(path: Path) -> None:
    first = lock.acquire(path, job="j")
    elsewhere = replace(first.record.process, hostname="elsewhere")
    write_record(path, hostname="elsewhere", token=first.record.token)
    first = replace(first, record=replace(first.record, process=elsewhere))
    began = time.monotonic()
    second = lock.acquire(path, job="j", takeover=True)
    assert within(2, since=began)
    assert not first.refresh()
    first.release()  # it has nothing to give back any more
    assert second.refresh()


@pytest.mark.process
def test_a_supervisor_in_another_pid_namespace_leaves_a_living_lock_until_a_takeover(path: Path) -> None:
    """The real thing: in there our pid is nobody's, and that must not look like our death."""
    own_lock = lock.acquire(path, job="j")
    code = (
        "import sys\nfrom pathlib import Path\nfrom supervisor.run.lock import acquire\nfrom supervisor.errors import SuperviseError\n"
        "try: acquire(Path(sys.argv[1]), job='j', takeover=sys.argv[2] == 'takeover', lease_s=30)\n"
        "except SuperviseError as error: sys.exit(error.exit_code)"
    )

    def elsewhere(how: str) -> subprocess.Popen[bytes]:
        command = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc", sys.executable, "-c", code, str(path), how]
        return subprocess.Popen(command, stderr=subprocess.PIPE)  # noqa: S603  our own code

    process = elsewhere("watch")
    while process.poll() is None:
        assert own_lock.refresh()
        time.sleep(0.1)
    _, errors = process.communicate()
    if b"unshare:" in errors:
        pytest.skip(f"needs namespaces (`unshare`), run as root: {errors.decode()}")
    assert (process.returncode, errors) == (ExitCode.CONFIG, b"")
    process = elsewhere("takeover")
    assert (process.communicate()[1], process.returncode) == (b"", 0)
    assert not own_lock.refresh()


@pytest.mark.parametrize("content", ["", "{", "[]", '{"pid": "x"}', "\0" * 100])
def test_an_unreadable_record_counts_as_one_out_of_sight(path: Path, content: str) -> None:
    path.write_text(content, encoding="utf-8")
    began = time.monotonic()
    assert lock.acquire(path, job="j", lease_s=0.3).refresh()
    assert time.monotonic() - began >= 0.3
    assert [entry.name for entry in path.parent.iterdir()] == ["lock"]


def test_a_successor_that_died_half_way_is_succeeded(path: Path, gone: int) -> None:
    write_record(path, pid=gone, token=HEAD)
    write_record(path.with_name(f"lock.{HEAD}"), pid=gone, token=NEXT)
    write_record(path.with_name(f"lock.{NEXT}"), pid=gone, token=LAST, released=True)
    assert lock.acquire(path, job="j").refresh()
    assert [entry.name for entry in path.parent.iterdir()] == ["lock"]


def test_a_late_taker_with_an_old_view_takes_no_lock(path: Path, gone: int) -> None:
    write_record(path, pid=gone, token=HEAD)
    old_view = lock._tail(path)  # noqa: SLF001  the race itself, without the luck
    assert old_view is not None
    owner = lock.acquire(path, job="j")
    late = lock.LockRecord("late", this_process(), "", 0.0)
    assert not lock._succeed(path, old_view, late)  # noqa: SLF001
    assert owner.refresh()
    assert [entry.name for entry in path.parent.iterdir()] == ["lock"]


def test_a_file_system_without_hard_links_will_do(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_link(_source: object, _target: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(lock.os, "link", no_link)
    own_lock = lock.acquire(path, job="j")
    with pytest.raises(SuperviseError):
        lock.acquire(path, job="j")
    own_lock.release()
    assert list(path.parent.iterdir()) == []


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(SuperviseError, match="cannot lock the job") as caught:
        lock.acquire(tmp_path / "missing" / "lock", job="j")
    assert "--state-dir" in caught.value.hint


def contend(path: Path, critical: Path, rounds: int, go: Event) -> None:
    """Take the lock `rounds` times; in the critical section nobody else may be. Leaves without giving the lock back."""
    go.wait(30)
    for turn in range(rounds):
        while True:
            try:
                own_lock = lock.acquire(path, job="j")
                break
            except SuperviseError:
                continue
        try:
            os.close(os.open(critical, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            os._exit(3)  # two owners
        time.sleep(0.001)
        alone = own_lock.refresh()
        critical.unlink()
        if not alone:
            os._exit(4)
        if turn == rounds - 1:
            os._exit(0)
        own_lock.release()
    os._exit(0)


@pytest.mark.process
@pytest.mark.parametrize("contenders", [8, *(pytest.param(24, marks=pytest.mark.slow, id=f"24-{n}") for n in range(5))])
def test_of_many_contenders_one_owns_at_a_time_and_all_get_their_turn(path: Path, tmp_path: Path, contenders: int) -> None:
    go = FORK.Event()
    processes = [FORK.Process(target=contend, args=(path, tmp_path / "critical", 1 if n % 3 else 5, go)) for n in range(contenders)]
    for process in processes:
        process.start()
    go.set()
    for process in processes:
        process.join(PATIENCE_S)
    codes = [process.exitcode for process in processes]
    for process in processes:
        if process.is_alive():
            process.kill()
            process.join()
    assert codes == [0] * contenders
