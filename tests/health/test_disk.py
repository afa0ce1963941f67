"""The checks of the disks on prepared readings, and the probes on real file systems: full, read-only and dead."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from health import registry
from health.model import HOST, NOT_SUPPORTED, Ask, CheckResult, Json, Reading, Readings, Repair, Result
from health.probes.storage import disk, nvme, one_path
from health.probing.runner import OUTCOME, Runner
from health.thresholds import Thresholds
from tests.health.harmless_commands import are_apart
from tests.support.figures import within
from tests.support.waiting import PATIENCE_S

OK, DEGRADED, FAILED, UNKNOWN, SKIPPED = Result.OK, Result.DEGRADED, Result.FAILED, Result.UNKNOWN, Result.SKIPPED
GIB = 1 << 30
MIB = 1 << 20
DATA = "path:/data"
NFS: Json = {"point": "/data", "kind": "nfs4", "source": "filer:/data", "options": "rw,hard"}


@dataclass(frozen=True, slots=True)
class Row:
    """Readings of a path (of the host for NVMe), and the expected result."""

    check: str
    read: Mapping[str, Json]
    result: Result
    words: str
    repair: Repair = Repair.NONE
    before: Mapping[str, Json] | None = None
    blocks: bool = False


def space(free: int, total: int = 1000 * GIB, **more: Json) -> dict[str, Json]:
    row: dict[str, Json] = {"total": total, "free": free, "inodes": 1000, "inodes_free": 900, "read_only": False, "need": 0}
    return {"path.space": {**row, **more}, "path.mount": NFS}


def write(seconds: float = 0.004, **more: Json) -> dict[str, Json]:
    row: dict[str, Json] = {"error": "words", **more} if more else {"bytes": MIB, "seconds": seconds, "sync_s": seconds / 2}
    return {**space(500 * GIB), "path.write": row}


def hung(state: str, after: str) -> dict[str, Json]:
    row: dict[str, Json] = {"answers": False, "hung": True, "pid": 7, "state": state, "wchan": "rpc_wait_bit_killable", "after": after}
    return {"path.state": row, "path.mount": NFS}


def nvmes(*states: str) -> dict[str, Json]:
    rows: list[Json] = []
    for at, state in enumerate(states):
        rows.append({"name": f"nvme{at}", "model": "M", "state": state, "address": f"0000:0{at}:00.0"})
    return {"nvme.controllers": rows}


TABLE = [
    Row("disk_paths", {"path.state": {"answers": True}, "path.mount": NFS}, OK, "/data answers"),
    Row("disk_paths", hung("D", ""), FAILED, "/data does not answer when its status is read: stuck in the kernel at rpc_wait",
        Repair.DRAIN),
    Row("disk_paths", hung("S", "stat"), FAILED, "/data does not answer when asked for its free space", Repair.DRAIN),
    Row("disk_paths", hung("D", "space"), FAILED, "/data does not answer when written to", Repair.DRAIN),
    Row("disk_paths", {"path.state": {"answers": False, "error": "Stale", "errno": "ESTALE"}}, FAILED, "stale", Repair.CONFIGURE),
    Row("disk_paths", {"path.state": {"answers": False, "error": "Permission denied", "errno": "EACCES"}}, FAILED, "Permission denied",
        Repair.CONFIGURE),
    Row("disk_space", space(500 * GIB), OK, "/data has 500.0 GiB free"),
    Row("disk_space", space(90 * GIB), DEGRADED, "91% full", Repair.CONFIGURE),
    Row("disk_space", space(5 * GIB), FAILED, "/data is full: 5.0 GiB", Repair.CONFIGURE),
    Row("disk_space", space(400 * MIB, 10 * GIB), FAILED, "is full: 400 MiB", Repair.CONFIGURE),
    Row("disk_space", space(60 * MIB, 64 * MIB), OK, "60 MiB free"),  # small by design
    Row("disk_space", space(100 << 10, need=300 << 10), FAILED, "KiB free, and one checkpoint takes 300 K", Repair.CONFIGURE, blocks=True),
    Row("disk_space", space(500 * GIB, need=600 * GIB), FAILED, "one checkpoint takes 600.0 GiB", Repair.CONFIGURE, blocks=True),
    Row("disk_space", space(500 * GIB, need=400 * GIB), OK, "500.0 GiB free"),
    Row("disk_space", space(500 * GIB, inodes_free=50), DEGRADED, "50 inodes left", Repair.CONFIGURE),
    Row("disk_space", space(500 * GIB, inodes_free=0), FAILED, "0 inodes left", Repair.CONFIGURE),
    Row("disk_space", space(500 * GIB, inodes=0, inodes_free=0), OK, "500.0 GiB free"),  # btrfs
    Row("disk_space", {"path.space": {"error": "Input/output error"}}, UNKNOWN, "Input/output error"),
    Row("disk_writes", write(), OK, "/data can be written: 1 MiB in 0.004 s"),
    Row("disk_writes", write(2.5), DEGRADED, "/data is slow: 1 MiB in 2.500 s"),
    Row("disk_writes", write(errno="EROFS"), FAILED, "/data is read-only", Repair.CONFIGURE),
    Row("disk_writes", space(GIB, read_only=True), FAILED, "was not when the job started", Repair.DRAIN, before=space(GIB)),
    Row("disk_writes", space(GIB, read_only=True), FAILED, "/data is read-only", Repair.CONFIGURE, before=space(GIB, read_only=True)),
    Row("disk_writes", write(errno="EDQUOT"), FAILED, "words", Repair.CONFIGURE),
    Row("disk_writes", write(errno="EACCES"), FAILED, "cannot be written", Repair.CONFIGURE),
    Row("disk_writes", write(errno="EIO"), FAILED, "cannot be written", Repair.DRAIN),
    Row("disk_writes", space(GIB), UNKNOWN, "did not end"),
    Row("disk_nvme", nvmes("live", "live"), OK, "2 NVMe disks are live"),
    Row("disk_nvme", nvmes("live", "dead"), FAILED, "nvme1 (0000:01:00.0) is dead", Repair.REPLACE),
    Row("disk_nvme", nvmes("live", "resetting"), DEGRADED, "nvme1 (0000:01:00.0) is resetting"),
    Row("disk_nvme", nvmes("live"), FAILED, "nvme1 (0000:01:00.0) is gone", Repair.REPLACE, before=nvmes("live", "live")),
    Row("disk_nvme", nvmes(), FAILED, "nvme0 (0000:00:00.0) is gone", Repair.REPLACE, before=nvmes("live")),
    Row("disk_nvme", nvmes(), SKIPPED, "no NVMe disk"),
]  # fmt: skip


def readings(read: Mapping[str, Json]) -> Readings:
    return Readings(Reading("disk", HOST if name.startswith("nvme") else DATA, name, value) for name, value in read.items())


@pytest.mark.parametrize("row", TABLE, ids=[f"{at}-{row.check}" for at, row in enumerate(TABLE)])
def test_the_table(row: Row) -> None:
    before = None if row.before is None else readings(row.before)
    [result] = registry.checks()[row.check](readings(row.read), before, Thresholds())
    assert (result.result, result.repair, result.blocks) == (row.result, row.repair, row.blocks), result
    assert row.words in result.reason
    assert are_apart(result), result
    assert result.subject == (HOST if row.check == "disk_nvme" else DATA)


def test_every_check_of_the_disks_is_in_the_table() -> None:
    assert {row.check for row in TABLE} == {name for name in registry.checks() if name.startswith("disk_")}


def judged(check: str, now: Readings) -> dict[str, CheckResult]:
    return {check.subject: check for check in registry.checks()[check](now, None, Thresholds())}


def look(*paths: Path, deadline_s: float = 20.0, need: int = 0) -> Readings:
    return Readings(disk.read(Ask(paths=tuple(map(str, paths)), deadline_s=deadline_s, need_bytes=need)))


@pytest.mark.process
def test_real_paths_are_written_and_nothing_is_left(tmp_path: Path) -> None:
    missing = tmp_path / "not" / "there"
    file = tmp_path / "file"
    file.write_text("x", "ascii")
    now = look(tmp_path, missing, file)
    for path in (tmp_path, missing, file):
        subject = f"path:{path}"
        assert now.table("path.state", subject)["answers"] is True
        assert now.table("path.write", subject)["bytes"] == disk.WRITE_BYTES
        assert now.table("path.space", subject)["total"]
        assert judged("disk_writes", now)[subject].result in {OK, DEGRADED}
    assert now.table("path.state", f"path:{missing}")["directory"] == str(tmp_path)
    assert os.listdir(tmp_path) == ["file"]  # noqa: PTH208 -- names


@pytest.mark.process
def test_want_of_room_for_a_checkpoint_holds_a_start_back(tmp_path: Path) -> None:
    [outcome] = judged("disk_space", look(tmp_path, need=1 << 60)).values()
    assert (outcome.result, outcome.blocks) == (FAILED, True)


@pytest.mark.process
def test_the_probe_writes_no_file_where_that_is_not_wanted(tmp_path: Path) -> None:
    now = Readings(disk.read(Ask(paths=(str(tmp_path),), options={"disk": {"write_bytes": 0}})))
    assert now.one("path.write", f"path:{tmp_path}") is None
    assert now.table("path.state", f"path:{tmp_path}")["answers"] is True


@pytest.mark.parametrize("how", [errno.EOPNOTSUPP, errno.EISDIR], ids=["nfs", "old-kernel"])
def test_a_probe_file_with_a_name_is_unlinked_before_the_write(how: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.open

    def without(path: str, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(how, os.strerror(how))
        return real(path, flags, mode)

    monkeypatch.setattr(os, "open", without)
    fd = one_path._nameless(str(tmp_path))  # noqa: SLF001 -- as a file system without O_TMPFILE sees it
    try:
        assert os.listdir(tmp_path) == []  # noqa: PTH208 -- names
        assert os.write(fd, b"x") == 1
    finally:
        os.close(fd)


SLOW = """
import json, signal, sys, time
print(json.dumps({"stat": {"directory": sys.argv[1]}}), flush=True)
if "dead" in sys.argv[1]:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
    time.sleep(600)
print(json.dumps({"space": {"total": 1, "free": 1}}), flush=True)
"""


@pytest.mark.bench
@pytest.mark.process
def test_a_path_that_hangs_is_a_finding_and_holds_up_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "slow.py"
    program.write_text(SLOW, "ascii")
    monkeypatch.setattr(disk, "_PROGRAM", program)
    begun = time.monotonic()
    now = look(Path("/dead"), Path("/alive"), deadline_s=disk._RESERVE_S + 3.0)  # noqa: SLF001 -- its own time
    assert within(disk._RESERVE_S + 3.0, since=begun)  # noqa: SLF001
    state = now.table("path.state", "path:/dead")
    assert (state["hung"], state["after"], state["state"]) == (True, "stat", "S")
    assert not Path(f"/proc/{state['pid']}").exists(), "it was ended"
    assert now.table("path.state", "path:/alive")["answers"] is True
    outcome = judged("disk_paths", now)
    assert (outcome["path:/dead"].result, outcome["path:/alive"].result) == (FAILED, OK)


@pytest.mark.process
@pytest.mark.parametrize(
    ("state", "pending", "user", "asked"),
    [
        ("D", "0000000000000100", None, False),
        ("D", "0000000000002000", None, False),
        ("D", "0000000000000000", None, True),
        ("S", "0000000000000100", None, True),
        ("D", "0000000000000100", os.getuid() + 1, True),
    ],
    ids=["killed", "alarmed", "it-works-on-it", "going", "another-user"],
)
def test_a_stuck_reader_of_a_path_is_reported_and_gets_no_second(
    state: str,
    pending: str,
    user: int | None,
    asked: bool,  # noqa: FBT001 -- a parameter
    tmp_path: Path,
) -> None:
    place, proc = tmp_path / "data", tmp_path / "proc/70"
    place.mkdir()
    proc.mkdir(parents=True)
    (proc / "stat").write_text(f"70 ({one_path.mark(str(place))}) {state} 1 70 70\n", "ascii")
    mine = os.getuid() if user is None else user
    (proc / "status").write_text(f"Name:\tx\nUid:\t{mine}\t0\t0\t0\nSigPnd:\t{pending}\nShdPnd:\t0000000000000000\n", "ascii")
    (proc / "wchan").write_text("rpc_wait_bit_killable", "ascii")
    now = Readings(disk.read(Ask(paths=(str(place),), root=str(tmp_path))))
    row = now.table("path.state", f"path:{place}")
    assert row["answers"] is asked
    assert asked or (row["pid"], row["wchan"]) == (70, "rpc_wait_bit_killable")
    assert judged("disk_paths", now)[f"path:{place}"].result is (OK if asked else FAILED)


@pytest.mark.process
def test_the_reader_of_a_path_has_a_recognisable_name(tmp_path: Path) -> None:
    script = "import sys; from health.probes.storage import one_path; one_path.main(); print(open('/proc/self/comm').read())"
    done = subprocess.run(  # noqa: S603 -- ours
        [sys.executable, "-c", script, str(tmp_path), "0", "30"], capture_output=True, text=True, timeout=120, check=True,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert done.stdout.split()[-1] == one_path.mark(str(tmp_path))
    assert len(one_path.mark(str(tmp_path))) == 15


@pytest.mark.process
def test_the_probe_of_a_path_ends_itself_when_its_parent_is_gone(tmp_path: Path) -> None:
    program = Path(disk.__file__).with_name("one_path.py")
    fifo = tmp_path / "pipe"
    os.mkfifo(fifo)
    # its output is a pipe that is full and that nobody empties: it waits in its first answer for ever
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], stdin=subprocess.PIPE) as full:
        assert full.stdin is not None
        fd = full.stdin.fileno()
        os.set_blocking(fd, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(fd, bytes(4096))
        os.set_blocking(fd, True)
        with subprocess.Popen([sys.executable, "-P", "-S", str(program), str(tmp_path), "0", "1.0"], stdout=fd) as probe:  # noqa: S603
            assert probe.wait(PATIENCE_S) == -signal.SIGALRM
        full.kill()


IN_NAMESPACE = """
import json, subprocess, sys
def mount(*words): subprocess.run(["mount", *words], check=True)
root, command, deadline_s = sys.argv[1:4]
exec(command)
from health.model import Ask
from health.probes.storage import disk
from health.model import Readings
print(json.dumps(Readings(disk.read(Ask(paths=(root,), deadline_s=float(deadline_s)))).to_json()), flush=True)
"""


def namespace(root: Path, command: str, deadline_s: float = 30.0) -> Readings:
    """Return what is read in a mount namespace of its own, after `command`; deadline_s: for what does not answer."""
    program = shutil.which("unshare")
    if program is None or os.geteuid() != 0:
        pytest.skip("needs the right to mount: run as root, with unshare (Debian: apt-get install util-linux)")
    if subprocess.run([program, "-m", "true"], capture_output=True, check=False).returncode:  # noqa: S603 -- found on the PATH
        pytest.skip("no mount namespace can be made here (in a container: --privileged)")
    done = subprocess.run(  # noqa: S603 -- ours
        [program, "-m", sys.executable, "-c", IN_NAMESPACE, str(root), command, str(deadline_s)],
        capture_output=True, text=True, timeout=120, check=False, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return Readings.from_json(json.loads(done.stdout))


@pytest.mark.process
def test_a_real_read_only_remount(tmp_path: Path) -> None:
    command = "mount('-t', 'tmpfs', '-o', 'size=900m', 'tmpfs', root); mount('-o', 'remount,ro', root)"
    now = namespace(tmp_path, command)
    assert now.table("path.space", f"path:{tmp_path}")["read_only"] is True
    assert now.table("path.write", f"path:{tmp_path}")["errno"] == "EROFS"
    assert now.table("path.mount", f"path:{tmp_path}")["kind"] == "tmpfs"
    [outcome] = judged("disk_writes", now).values()
    assert outcome.result is FAILED


@pytest.mark.process
def test_a_real_full_disk_and_one_without_inodes(tmp_path: Path) -> None:
    full = "mount('-t', 'tmpfs', '-o', 'size=1m', 'tmpfs', root); open(root + '/x', 'wb').write(bytes(1 << 20))"
    now = namespace(tmp_path, full)
    assert now.table("path.write", f"path:{tmp_path}")["errno"] == "ENOSPC"
    [outcome] = judged("disk_writes", now).values()
    assert outcome.result is FAILED
    none = "mount('-t', 'tmpfs', '-o', 'size=900m,nr_inodes=100', 'tmpfs', root); [open(f'{root}/{n}', 'wb').close() for n in range(99)]"
    [outcome] = judged("disk_space", namespace(tmp_path, none)).values()
    assert (outcome.result, "inodes left" in outcome.reason) == (FAILED, True)


@pytest.mark.bench
@pytest.mark.process
def test_a_real_server_that_never_answers(tmp_path: Path) -> None:
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("needs /dev/fuse, readable and writable, for a dead server (in a container: --device /dev/fuse)")
    # the descriptor is open and nobody reads from it: what a dead file server looks like
    dead = """import os, ctypes
fd = os.open("/dev/fuse", os.O_RDWR)
options = f"fd={fd},rootmode=40000,user_id=0,group_id=0".encode()
assert ctypes.CDLL(None, use_errno=True).mount(b"dead", root.encode(), b"fuse", 0, options) == 0, ctypes.get_errno()"""
    begun = time.monotonic()
    now = namespace(tmp_path, dead, 4.0)
    assert within(20, since=begun)
    assert now.table("path.state", f"path:{tmp_path}")["hung"] is True
    assert now.table("path.mount", f"path:{tmp_path}")["source"] == "dead"
    [outcome] = judged("disk_paths", now).values()
    assert outcome.result is FAILED


@pytest.mark.process
def test_paths_are_asked_by_the_runner_and_sampled_by_a_session(tmp_path: Path) -> None:
    runner = Runner()
    try:
        for _ in range(2):
            now = runner.sample(("disk",), Ask(paths=(str(tmp_path),)))
            assert now.table(OUTCOME, "probe:disk")["state"] == "answered"
            assert now.table("path.state", f"path:{tmp_path}")["answers"] is True
    finally:
        runner.close()


def test_nvme_disks_of_a_tree(tmp_path: Path) -> None:
    ask = Ask(root=str(tmp_path))
    assert Readings(nvme.read(ask)).problem("nvme.controllers") == NOT_SUPPORTED
    for name, state in (("nvme0", "live"), ("nvme1", "dead")):
        at = tmp_path / "sys/class/nvme" / name
        (at / f"{name}n1").mkdir(parents=True)
        (at / "hwmon1").mkdir()
        for file, text in (("state", state), ("model", "ACME 3T  "), ("transport", "pcie"), ("address", f"0000:0{name[-1]}:00.0")):
            (at / file).write_text(text + "\n", "ascii")
    now = Readings(nvme.read(ask))
    assert now.rows("nvme.controllers")[0] == {
        "name": "nvme0", "model": "ACME 3T", "state": "live", "transport": "pcie", "address": "0000:00:00.0", "namespaces": 1,
    }  # fmt: skip
    [outcome] = judged("disk_nvme", now).values()
    assert outcome.result is FAILED
