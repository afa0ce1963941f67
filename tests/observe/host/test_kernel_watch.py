"""The kernel's log: its own lines, the job that each belongs to, and no health out of silence."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from health.kernellog import kmsg_reader, sources
from health.kernellog.kmsg_reader import Device, KmsgRecord, parse
from supervisor.config import signatures
from supervisor.core.model import Cause, RankInfo
from supervisor.guardian import process_tree
from supervisor.job.clock import Clock
from supervisor.observe.anchor_scanner import scanner
from supervisor.observe.host import kernel_records, kernel_watch
from supervisor.observe.host.kernel_watch import KernelWatch
from supervisor.observe.processes.job_processes import JobProcesses, ProcessOwner
from tests.support.waiting import PATIENCE_S, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from supervisor.core.model import Evidence
    from supervisor.observe.log_watch import Signatures

XID = "NVRM: Xid (PCI:0000:3d:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
KILLED = (
    "Memory cgroup out of memory: Killed process {pid} (python) total-vm:9331372kB, anon-rss:1043844kB, file-rss:0kB, shmem-rss:0kB, UID:0"
)


@pytest.fixture(scope="module")
def known() -> Signatures:
    catalogue, _ = signatures.read()
    pair = catalogue, scanner(catalogue.anchors)
    return lambda: pair


class FakeKmsg:
    """A /dev/kmsg whose records the test puts: one for each read; None for those that were overwritten."""

    def __init__(self) -> None:
        self._records: list[bytes | None] = []
        self._wake = os.eventfd(0, os.EFD_NONBLOCK)
        self.closed = False

    def put(self, *records: bytes | None) -> None:
        """Have these read next."""
        self._records += records
        os.eventfd_write(self._wake, 1)

    def fileno(self) -> int:
        """See Kmsg."""
        return self._wake

    def read(self) -> bytes:
        """See Kmsg."""
        if not self._records:
            os.eventfd_read(self._wake)  # raises BlockingIOError the second time, as poll is level-triggered
            raise BlockingIOError
        record = self._records.pop(0)
        if record is None:
            raise BrokenPipeError
        return record

    def close(self) -> None:
        """See Kmsg."""
        self.closed = True
        os.close(self._wake)


def _record(text: str, flags: str = "-") -> bytes:
    return f"3,1234,449410332316,{flags};{text}\n".encode()


def _watched(known: Signatures, processes: JobProcesses, *records: bytes | None) -> tuple[Evidence, ...]:
    kmsg = FakeKmsg()
    watch = KernelWatch(known, processes, Clock.start(), lambda: kmsg)
    watch.start()
    kmsg.put(*records)
    facts = watch.finish(60)
    assert kmsg.closed
    return facts


def test_a_record_is_its_first_line_unescaped() -> None:
    record = parse(b"3,7,1000000,-,caller=T1;NVRM: \\x41 \\xc3\\xa9\n SUBSYSTEM=pci\n DEVICE=+pci:0000:3d:00.0\n")
    assert record == KmsgRecord("NVRM: A é", "-", 7, 1.0)


@pytest.mark.parametrize(
    "data",
    [
        b"12,7,1000000,-;NVRM: Xid (PCI:0000:3d:00): 79, GPU has fallen off the bus.\n",  # facility 1: a user's
        b"30,7,1000000,-;NVRM: Xid (PCI:0000:3d:00): 79, GPU has fallen off the bus.\n",  # facility 3: a daemon's
        b"",
        b"\n",
        b"no record",
        b"3,7;text",
        b"\xff\xfe\x00" * 1000,
    ],
)
def test_a_record_that_is_not_the_kernels_own_is_ignored(data: bytes) -> None:
    assert parse(data) is None


def test_a_line_that_comes_in_parts_is_one(known: Signatures) -> None:
    evidence = _watched(
        known, JobProcesses(os.getpid()), _record(XID[:20], flags="c"), _record(XID[20:60], flags="+"), _record(XID[60:], flags="+")
    )
    assert [(fact.text, fact.claim and fact.claim.cause) for fact in evidence] == [(XID, Cause.GPU_LOST)]


def test_overruns_are_reported(known: Signatures) -> None:
    evidence = _watched(known, JobProcesses(os.getpid()), None, _record("nothing at all"), None, _record(XID))
    assert [(fact.source, fact.name) for fact in evidence] == [("kernel", "gpu_lost.xid"), ("kernel", "overrun")]
    assert "2 times" in evidence[1].text
    assert dict(evidence[0].fields)["pci"].endswith("3d:00")


def test_a_storm_is_counted_and_its_first_and_last_are_kept(known: Signatures) -> None:
    pci = "0000:{:02x}:00"
    evidence = _watched(known, JobProcesses(os.getpid()), *(_record(XID.replace("0000:3d:00", pci.format(n % 200))) for n in range(400)))
    limit = kernel_records.KEPT_FIRST + kernel_records.KEPT_LAST
    assert (evidence[-1].name, evidence[-1].text.split()[0]) == ("more", str(400 - limit))
    buses = [dict(fact.fields)["pci"] for fact in evidence[:-1]]
    assert buses == [pci.format(n) for n in (*range(kernel_records.KEPT_FIRST), *range(200 - kernel_records.KEPT_LAST, 200))]


def test_a_storm_of_one_kind_takes_no_room_from_another(known: Signatures, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("supervisor.observe.processes.job_processes.FIRST_NAMESPACE", "pid:[0]")
    evidence = _watched(known, JobProcesses(os.getpid()), *(_record(KILLED.format(pid=n)) for n in range(250)), _record(XID))
    assert "gpu_lost.xid" in {fact.name for fact in evidence if fact.claim is not None}


class _Flood(FakeKmsg):
    """One that always has another record, the first of them an Xid."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0
        os.eventfd_write(self._wake, 1)

    def read(self) -> bytes:
        """See Kmsg."""
        self.reads += 1
        return _record(XID if self.reads == 1 else "br0: received packet on eth0 with own address as source address")


def test_a_flood_without_end_is_not_awaited(known: Signatures) -> None:
    flood = _Flood()
    watch = KernelWatch(known, JobProcesses(os.getpid()), Clock.start(), lambda: flood)
    watch.start()
    wait_for(lambda: flood.reads > 2 * kernel_watch.AT_ONCE, "some of the flood is read", 60)
    facts = watch.finish(60)
    assert flood.closed
    assert [fact.name for fact in facts] == ["gpu_lost.xid", "unread"]


def test_evidence_found_by_the_deadline_is_reported_despite_a_silent_source(known: Signatures) -> None:
    stuck, hangs = threading.Event(), threading.Event()

    class Stuck(FakeKmsg):
        def read(self) -> bytes:
            try:
                return super().read()
            except BlockingIOError:
                stuck.set()
                hangs.wait(60)
                raise

    kmsg = Stuck()
    watch = KernelWatch(known, JobProcesses(os.getpid()), Clock.start(), lambda: kmsg)
    watch.start()
    kmsg.put(_record(XID))
    assert stuck.wait(60)
    assert [(fact.source, fact.name) for fact in watch.finish(0.05)] == [("kernel", "gpu_lost.xid"), ("observer", "overdue")]
    hangs.set()
    assert [fact.name for fact in watch.finish(60)] == ["gpu_lost.xid"]


def test_lines_read_before_the_log_broke_are_reported(known: Signatures, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line that was held for its continuation, what was overwritten, and that nothing else could be asked."""
    monkeypatch.setattr(sources, "SYSLOG_FILES", ())
    monkeypatch.setenv("PATH", str(tmp_path))
    evidence = _watched(known, JobProcesses(os.getpid()), None, _record(XID, flags="c"), b"")
    assert {fact.name for fact in evidence} == {"gpu_lost.xid", "overrun", "not_observed"}


def test_the_wake_up_of_the_thread_is_not_closed_during_a_write(known: Signatures, monkeypatch: pytest.MonkeyPatch) -> None:
    really = os.eventfd_write
    written: list[tuple[str, str]] = []

    def write(fd: int, value: int) -> None:
        really(fd, value)
        assert watch._answered.wait(60)  # noqa: SLF001  the thread has come to its end meanwhile, but for what it closes
        for thread in threads:
            thread.join(0.2)  # it waits for us; if it did not, it would be gone by then
        name = f"/proc/self/fd/{fd}"
        written.append((name, os.readlink(name)))  # noqa: PTH115  a name that is no path

    watch = KernelWatch(known, JobProcesses(os.getpid()), Clock.start(), _refused)
    watch.start()
    threads = [thread for thread in threading.enumerate() if thread.name == "kernel"]
    assert threads
    monkeypatch.setattr(os, "eventfd_write", write)
    watch.stop()
    ((name, text),) = written
    assert text == "anon_inode:[eventfd]"
    wait_for(lambda: not os.path.lexists(name), "it is closed", 30)


def test_no_descriptor_is_held_before_the_start_nor_after_the_end(known: Signatures) -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208  a count
    watch = KernelWatch(known, JobProcesses(os.getpid()), Clock.start(), _refused)
    watch.stop()
    # another test's thread may have one open just now
    wait_for(lambda: len(os.listdir("/proc/self/fd")) <= before, "none is held", 30)  # noqa: PTH208  a count
    watch.start()
    watch.stop()
    watch.finish(60)
    wait_for(lambda: len(os.listdir("/proc/self/fd")) <= before, "the descriptor is closed", 30)  # noqa: PTH208  a count
    watch.stop()


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process of ours with a child: a rank and its loader."""
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1, flush=True); import time; time.sleep(60)'])"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)  # noqa: S603  our own code
    assert process.stdout is not None
    process.stdout.readline()
    yield process
    process.stdout.close()
    for process_stat in process_tree.below(process.pid, process_tree.snapshot()):
        os.kill(process_stat.pid, signal.SIGKILL)
    process.kill()
    process.wait()


def test_a_pid_is_of_a_rank_of_ours_or_of_a_stranger(known: Signatures, sleeper: subprocess.Popen[bytes]) -> None:
    processes = JobProcesses(root=2**22 + 1)  # nobody: this test's own parent is no supervisor
    if processes.whose(os.getpid())[0] is ProcessOwner.UNKNOWN:
        pytest.skip("this is a pid namespace, where the kernel names other pids: run it on the host")
    processes.set_ranks([RankInfo(5, 5, sleeper.pid, 0)])
    child = process_tree.below(sleeper.pid, process_tree.snapshot())[0].pid
    assert processes.whose(sleeper.pid) == (ProcessOwner.JOB, 5)
    assert processes.whose(child) == (ProcessOwner.JOB, 5)  # by its parents, who are there
    assert processes.whose(os.getpid()) == (ProcessOwner.OTHER, None)
    evidence = _watched(known, processes, _record(KILLED.format(pid=child)), _record(KILLED.format(pid=os.getpid())))
    assert [(fact.name, fact.rank, fact.claim and fact.claim.cause) for fact in evidence] == [
        ("host_oom.kernel_killed", 5, Cause.HOST_OOM),
        ("of_others", None, None),
    ]


def test_a_process_that_was_recorded_is_known_when_it_is_gone(sleeper: subprocess.Popen[bytes]) -> None:
    processes = JobProcesses(root=2**22 + 1)
    if processes.whose(os.getpid())[0] is ProcessOwner.UNKNOWN:
        pytest.skip("this is a pid namespace, where the kernel names other pids: run it on the host")
    processes.set_ranks([RankInfo(2, 2, sleeper.pid, 0)])
    snapshot = process_tree.snapshot()
    child = process_tree.below(sleeper.pid, snapshot)[0]
    processes.add_descendants([snapshot[sleeper.pid], child])
    os.kill(child.pid, signal.SIGKILL)
    wait_for(lambda: process_tree.read(child.pid) is None, "its end", 30)
    assert processes.whose(child.pid) == (ProcessOwner.JOB, 2)
    processes.set_ranks([])
    assert processes.whose(child.pid) == (ProcessOwner.OTHER, None)


def test_without_comparable_pids_a_kill_is_no_claim_and_a_container_is_known_by_its_id(
    known: Signatures, monkeypatch: pytest.MonkeyPatch
) -> None:
    container = "3f4e" * 16
    monkeypatch.setattr("supervisor.observe.processes.job_processes.FIRST_NAMESPACE", "pid:[0]")
    processes = JobProcesses(os.getpid())
    monkeypatch.setattr(processes, "_containers", frozenset({container}))
    constraint = (
        "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg={0},task_memcg={0},task=python,pid=9,uid=0"
    )
    evidence = _watched(
        known,
        processes,
        _record(KILLED.format(pid=os.getpid())),
        _record(constraint.format(f"/docker/{container}")),
        _record(constraint.format(f"/docker/{'00ab' * 16}")),
    )
    assert [(fact.name, fact.claim is not None) for fact in evidence] == [
        ("nearby", False),
        ("host_oom.kernel_constraint", True),
        ("of_others", False),
    ]


def test_a_container_that_sees_other_gpus_has_not_lost_this_one(known: Signatures, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_records, "NVIDIA_GPUS", str(tmp_path))
    (tmp_path / "0000:5e:00.0").mkdir()
    assert [fact.name for fact in _watched(known, JobProcesses(os.getpid()), _record(XID))] == ["of_others"]
    (tmp_path / "0000:3d:00.0").mkdir()
    assert [fact.name for fact in _watched(known, JobProcesses(os.getpid()), _record(XID))] == ["gpu_lost.xid"]


XID_OF = "NVRM: Xid (PCI:0000:3d:00): {code}, pid={pid}, name=python, Ch 00000008"


@pytest.mark.parametrize(("code", "is_own"), [(79, True), (74, True), (48, True), (31, False), (13, False), (43, False), (94, False)])
def test_a_strangers_pid_excludes_what_is_a_processs_own_and_the_gpu_decides_the_rest(
    known: Signatures,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    code: int,
    is_own: bool,  # noqa: FBT001  a parameter
) -> None:
    monkeypatch.setattr(kernel_records, "NVIDIA_GPUS", str(tmp_path))
    monkeypatch.setattr(JobProcesses, "whose", lambda *_: (ProcessOwner.OTHER, None))  # as of a monitor, or of who is gone
    (tmp_path / "0000:3d:00.0").mkdir()
    line = XID_OF.format(code=code, pid=4242)
    (fact,) = _watched(known, JobProcesses(os.getpid()), _record(line))
    assert (fact.name != "of_others") is is_own
    (tmp_path / "0000:3d:00.0").rename(tmp_path / "0000:5e:00.0")
    assert [fact.name for fact in _watched(known, JobProcesses(os.getpid()), _record(line))] == ["of_others"]


def test_a_switch_is_no_gpu_and_everybodys(known: Signatures, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_records, "NVIDIA_GPUS", str(tmp_path))
    (tmp_path / "0000:3d:00.0").mkdir()
    line = "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"
    assert [fact.name for fact in _watched(known, JobProcesses(os.getpid()), _record(line))] == ["nvlink.sxid"]


def test_the_process_records_of_an_earlier_attempt_do_not_return_in_the_next() -> None:
    processes = JobProcesses(root=2**22 + 1)
    if processes.whose(os.getpid())[0] is ProcessOwner.UNKNOWN:
        pytest.skip("this is a pid namespace, where the kernel names other pids: run it on the host")
    processes.set_ranks([RankInfo(2, 2, 2**22 + 2, 0)])
    process_stat = process_tree.ProcessStat(2**22 + 3, 2**22 + 2, 1, "S", 1)

    def meanwhile() -> Iterator[process_tree.ProcessStat]:
        yield process_stat
        processes.set_ranks([RankInfo(2, 2, 2**22 + 4, 0)])  # the next attempt begins while this one is taken down

    processes.add_descendants(meanwhile())
    assert processes.whose(process_stat.pid) == (ProcessOwner.OTHER, None)
    assert processes.whose(2**22 + 4) == (ProcessOwner.JOB, 2)


def _refused() -> Device:
    raise PermissionError(1, "Operation not permitted")


def test_a_log_that_nobody_may_read_is_not_healthy(known: Signatures, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "SYSLOG_FILES", (str(tmp_path / "kern.log"),))
    monkeypatch.setenv("PATH", str(tmp_path))
    watch = KernelWatch(known, JobProcesses(os.getpid()), Clock.start(), _refused)
    watch.start()
    (fact,) = watch.finish(60)
    assert (fact.source, fact.name) == ("kernel", "not_observed")
    assert "Operation not permitted" in fact.text
    assert "journalctl" in fact.text
    assert "syslog" in fact.text


def test_a_device_that_is_only_called_so_is_reported(known: Signatures, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "SYSLOG_FILES", ())
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(kmsg_reader, "KMSG", "/dev/null")
    watch = KernelWatch(known, JobProcesses(os.getpid()), Clock.start())
    watch.start()
    (fact,) = watch.finish(60)
    assert fact.name == "not_observed"


@pytest.mark.parametrize(("name", "sure"), [("kern.log", True), ("messages", False)])
def test_syslog_is_read_from_the_attempts_start_and_trusted_as_far_as_it_can_be(
    known: Signatures,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    sure: bool,  # noqa: FBT001  a parameter
) -> None:
    file = tmp_path / name
    line = f"Nov 21 07:00:00 node-7 kernel: [  123.456789] {XID}\n"
    file.write_text(line)
    monkeypatch.setattr(sources, "SYSLOG_FILES", (str(tmp_path / "kern.log"), str(tmp_path / "messages")))
    monkeypatch.setattr(sources, "KERNEL_FILE", str(tmp_path / "kern.log"))
    monkeypatch.setenv("PATH", str(tmp_path))
    event = threading.Event()

    def refused() -> Device:
        event.set()  # by now the thread has looked how large the file is
        return _refused()

    watch = KernelWatch(known, JobProcesses(os.getpid()), Clock.start(), refused)
    watch.start()
    assert event.wait(PATIENCE_S)
    with file.open("a") as log:
        log.write("Nov 21 07:00:01 node-7 train[1]: kernel panic in my diary\n")
        log.write(line.replace("3d:00", "5e:00"))
    facts = watch.finish(60)
    assert [(dict(fact.fields)["pci"][-5:], fact.free_text) for fact in facts] == [("5e:00", not sure)]


def test_the_journal_is_asked_for_records_of_facility_0(known: Signatures, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = '{{"SYSLOG_FACILITY":"{facility}","__REALTIME_TIMESTAMP":"{us}","MESSAGE":{message}}}'
    later = int((time.time() + 1) * 1e6)
    buses = ",".join(str(byte) for byte in XID.encode())  # as journalctl writes what is not plain text
    rows = [
        row.format(facility=1, us=later, message=f'"{XID}"'),
        row.format(facility=0, us=later, message=f"[{buses}]"),
        '{"MESSAGE": 7}',
        "[]",
        "torn",
    ]
    script = tmp_path / "journalctl"
    script.write_text("#!/bin/sh\ncat <<'END'\n" + "\n".join(rows) + "\nEND\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    watch = KernelWatch(known, JobProcesses(os.getpid()), Clock.start(), _refused)
    watch.start()
    (fact,) = watch.finish(60)
    assert (fact.name, fact.text, fact.free_text) == ("gpu_lost.xid", XID, False)


def test_a_stopped_watch_asks_no_source(known: Signatures, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "journalctl"
    script.write_text(f"#!/bin/sh\n: > {tmp_path}/asked\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    watch = KernelWatch(known, JobProcesses(os.getpid()), Clock.start(), _refused)
    watch.start()
    watch.stop()
    assert watch.finish(60) == ()
    assert not (tmp_path / "asked").exists()


def _device() -> Device:
    try:
        return Device()
    except OSError as error:
        pytest.skip(f"{kmsg_reader.KMSG} cannot be opened, run as root: {error.strerror}")


def test_a_users_record_in_the_real_device_is_ignored_and_the_kernels_own_is_found(known: Signatures) -> None:
    _device().close()
    try:
        writer = os.open(kmsg_reader.KMSG, os.O_WRONLY)
    except OSError as error:
        pytest.skip(f"{kmsg_reader.KMSG} cannot be opened, run as root: {error.strerror}")
    processes = JobProcesses(os.getpid())
    watch = KernelWatch(known, processes, Clock.start())
    watch.start()
    os.write(writer, f"<3>{XID}".encode())
    os.write(writer, XID.encode())
    os.close(writer)
    victim = subprocess.Popen([sys.executable, "-c", "import ctypes; ctypes.string_at(8)"], stderr=subprocess.DEVNULL)
    processes.set_ranks([RankInfo(3, 3, victim.pid, 0)])
    assert victim.wait() == -signal.SIGSEGV
    facts = watch.finish(60)
    assert not [fact for fact in facts if "NVRM" in fact.text]
    if not Path("/proc/sys/debug/exception-trace").exists() or Path("/proc/sys/debug/exception-trace").read_text().strip() == "0":
        pytest.skip("the kernel does not log segmentation faults: sysctl debug.exception-trace=1")
    mine = [fact for fact in facts if f"[{victim.pid}]" in fact.text]
    if not mine:
        pytest.skip("the kernel did not log this fault, because it limits their rate: run it again")
    assert [(fact.name, fact.rank) for fact in mine] == [("segfault.kernel", 3)]
    assert abs(mine[0].t - time.time()) < 30
