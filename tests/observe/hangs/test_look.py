"""Looks at real processes that stand still, each in its own way."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from supervisor.core.model import Hang, HangKind
from supervisor.observe.hangs import diagnosis, frames, py_spy
from supervisor.observe.hangs.procfs import mount_of, waits
from supervisor.observe.hangs.rank_progress import RankProgress, compare
from tests.checkpointing import mounts
from tests.jobs.hang_names import HANGS
from tests.pathologies import hanging_jobs
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from conftest import Ranks

    from supervisor.observe.hangs.look import Look, ProcessLook
    from supervisor.observe.hangs.procfs import ThreadWait

pytestmark = pytest.mark.process

#: Which kind each pathology of tests/jobs/hangs.py is, and what its sentence holds.
KINDS = {
    "fewer": (HangKind.MISMATCH, "rank 1 in barrier (seq "),
    "swallowed": (HangKind.MISMATCH, "they wait for ever"),
    "loader": (HangKind.LATE, "rank 1 is in DataLoader.__next__ (hangs.py:"),
    "stuck_save": (HangKind.LATE, "rank 0 is in save (hangs.py:"),
    "one_sided": (HangKind.MISMATCH, "rank 0 waits in barrier (seq "),
    "python_loop": (HangKind.LATE, "rank 1 is in python_loop (hangs.py:"),
    "c_loop": (HangKind.LATE, "rank 1 is in c_loop (hangs.py:"),
    "c_wait": (HangKind.LATE, "rank 1 is in c_wait (hangs.py:"),
    "pipe": (HangKind.LATE, "rank 1 is in pipe (hangs.py:"),
    "fuse": (HangKind.BLOCKED, "/mnt (fuse)"),
    "frozen": (HangKind.BLOCKED, "rank 1 is blocked in D state"),
}
BUSY = {"python_loop", "c_loop"}
GIL_HELD = {"c_loop", "c_wait"}


def begun(ranks: Ranks, code: str, *, at: str = "") -> ProcessLook:
    """Start one rank of plain Python and look at it once it has come to the function `at` and sleeps: a look itself wakes it."""
    ranks.start("-c", code)
    pid = ranks.processes[0].pid
    wait_for(lambda: list(ranks.directory.glob(f"stacks-*-{pid}.txt")), "the instrumentation")

    def is_there(look: Look) -> bool:
        return look.ranks[0].process.state == "S" and any(frame.function == at for frame in _frames(look))

    return wait_for(lambda: look if is_there(look := ranks.look()) or not at else None, f"{at} on the stack").ranks[0].process


def _frames(look: Look) -> tuple[frames.StackFrame, ...]:
    stacks = look.ranks[0].process.stacks
    return stacks[0].frames if stacks else ()


def two_looks(ranks: Ranks, gap_s: float = 1.0) -> tuple[RankProgress, Hang, Look]:
    """Take two looks, and return what they mean. The time between them is what is measured."""
    first = ranks.look()
    time.sleep(gap_s)
    second = ranks.look()
    return compare(first, second), diagnosis.hang(first, second, still_s=9, limit_s=6, calibrated=True), second


def two_quiet_looks(ranks: Ranks, gap_s: float) -> tuple[Hang, Look]:
    """Take two looks between which nothing moved: where the machine is busy, a rank comes to rest later than the look is over."""

    def quiet() -> tuple[Hang, Look] | None:
        progress, hang, look = two_looks(ranks, gap_s)
        return (hang, look) if progress == RankProgress() else None

    return wait_for(quiet, "two looks between which nothing moved")


def test_a_sleeping_rank_moves_nothing_and_a_stopped_one_is_named(ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(py_spy, "PROGRAM", "no-such-py-spy")  # it could read a stopped process
    process_look = begun(ranks, "import time\ndef evaluate(): time.sleep(1e6)\nevaluate()", at="evaluate")
    assert (process_look.state, process_look.no_stacks, process_look.stacks[0].frames[0].function) == ("S", "", "evaluate")
    hang, _ = two_quiet_looks(ranks, 0.3)
    assert (hang.kind, hang.text) == (HangKind.STILL, "rank 0 is in evaluate (<string>:2)")
    ranks.processes[0].send_signal(signal.SIGSTOP)
    wait_for(lambda: waits(ranks.processes[0].pid).state == "T", "the stop")
    hang, look = two_quiet_looks(ranks, 0.0)
    assert (hang.kind, hang.ranks) == (HangKind.STOPPED, (0,))
    assert "it is stopped" in look.ranks[0].process.no_stacks
    ranks.processes[0].send_signal(signal.SIGCONT)
    assert wait_for(lambda: ranks.look().ranks[0].process.stacks, "stacks again")


def test_a_process_that_was_stopped_while_it_read_a_file_does_not_wait_for_the_file(ranks: Ranks) -> None:
    begun(ranks, f"import os\nfile = os.open({__file__!r}, os.O_RDONLY)\nwhile True: os.pread(file, 1 << 20, 0)")
    pid = ranks.processes[0].pid

    def stopped_in_a_read() -> ThreadWait | None:
        os.kill(pid, signal.SIGCONT)
        os.kill(pid, signal.SIGSTOP)
        seen = wait_for(lambda: wait if (wait := waits(pid)).state == "T" else None, "the stop")
        return seen if seen.call == "pread64" else None

    assert wait_for(stopped_in_a_read, "a stop in a read").file is None
    hang, _ = two_quiet_looks(ranks, 0.0)
    assert (hang.kind, hang.ranks) == (HangKind.STOPPED, (0,))


def test_a_rank_that_ended_is_gone(ranks: Ranks) -> None:
    begun(ranks, "import time\ntime.sleep(1e6)")
    infos = ranks.infos
    ranks.processes[0].kill()
    wait_for(lambda: waits(infos[0].pid).state == "Z", "the end")
    assert ranks.look(infos).ranks[0].process.state == "Z"
    ranks.processes[0].wait()
    assert ranks.look(infos).ranks[0].process.is_gone


def test_a_pipe_is_no_file_that_is_read(ranks: Ranks, tmp_path: Path) -> None:
    fifo = repr(str(tmp_path / "p"))
    code = f"import os\ndef receive(fd): os.read(fd, 1)\nos.mkfifo({fifo})\nreceive(os.open({fifo}, os.O_RDWR))"
    look = begun(ranks, code, at="receive")
    assert look.waits is not None
    assert (look.waits.call, look.waits.file) == ("read", None)


def test_a_read_from_a_dead_file_system_names_file_and_mount_and_gets_no_signal(ranks: Ranks, tmp_path: Path) -> None:
    mount = tmp_path / "mnt"
    (behind := tmp_path / "behind").mkdir()
    (behind / "data").write_bytes(b"x" * 100)
    with mounts.served(mount, behind) as server:
        mounts.hang(server, mount)
        ranks.start("-c", f"open({str(mount / 'data')!r}, 'rb').read()")
        pid = ranks.processes[0].pid
        wait_for(lambda: waits(pid).file is not None or waits(pid).state == "D", "the wait")
        hang, look = two_quiet_looks(ranks, 0.2)
        process = look.ranks[0].process
        assert process.waits is not None
        assert process.waits.file is not None
        assert (process.waits.file.path, process.waits.file.mount, process.waits.file.fs_type) == (str(mount / "data"), str(mount), "fuse")
        assert "answers no signal" in process.no_stacks
        assert (hang.kind, hang.ranks) == (HangKind.BLOCKED, (0,))
        assert f"of {mount}/data on {mount} (fuse)" in hang.text


LOADS = """
import sys, torch
class Data(torch.utils.data.Dataset):
    def __len__(self): return 4
    def __getitem__(self, item): return open(sys.argv[1], 'rb').read()
for batch in torch.utils.data.DataLoader(Data(), num_workers=1): pass
"""


@pytest.mark.slow
def test_a_loader_worker_at_a_dead_file_system_is_what_its_rank_is_blocked_by(ranks: Ranks, tmp_path: Path) -> None:
    mount = tmp_path / "mnt"
    (behind := tmp_path / "behind").mkdir()
    (behind / "data").write_bytes(b"x" * 100)
    with mounts.served(mount, behind) as server:
        mounts.hang(server, mount)
        ranks.start("-c", LOADS, str(mount / "data"))
        wait_for(lambda: any(worker.waits and worker.waits.file for worker in ranks.look().ranks[0].workers), "the worker's wait")
        progress, hang, look = two_looks(ranks)
        (worker,) = look.ranks[0].workers
        assert progress == RankProgress()
        assert (hang.kind, hang.ranks) == (HangKind.BLOCKED, (0,))
        assert hang.text.startswith(f"rank 0 is in DataLoader.__next__ (<string>:6), and its worker {worker.pid} is ")
        assert f"of {mount}/data on {mount} (fuse)" in hang.text


def test_the_later_of_two_mounts_at_a_point_and_escaped_blanks() -> None:
    text = (
        "1 0 8:1 / / rw - ext4 /dev/a rw\n2 1 0:3 / /a\\040b rw shared:1 - nfs4 s:/x rw\n3 1 0:4 / /a\\040b rw - fuse.sshfs h: rw\nbroken\n"
    )
    assert mount_of(text, "/a b/c") == ("/a b", "fuse.sshfs")
    assert mount_of(text, "/a b/c", "2") == ("/a b", "nfs4")
    assert mount_of(text, "/a bc") == ("/", "ext4")
    assert mount_of("", "/x") == ("", "")


def test_each_pathology_has_a_kind() -> None:
    assert KINDS.keys() == set(HANGS)


def _judged(ranks: Ranks, tmp_path: Path, pathology: str, at: int) -> tuple[RankProgress, Hang, Look]:
    """Have two gloo ranks stand still, and look twice."""
    words = [
        word for word in hanging_jobs.command(pathology) if word.startswith("--") and word not in {"--standalone", "--nproc-per-node=2"}
    ]
    with hanging_jobs.mounted(pathology, tmp_path / "place") as have_it_hang:
        ranks.start(
            str(Path(hanging_jobs.SCRIPT)), *words, f"--at={at}", f"--place={tmp_path / 'place'}", "--step-ms=1", count=2, cwd=tmp_path
        )
        have_it_hang()
        newest_step = [-1, 0.0]

        def stands_still() -> bool:
            steps = sum(beat.steps for beat in ranks.beats().values())
            if steps != newest_step[0]:
                newest_step[:] = [steps, time.monotonic()]
            return steps >= 2 * (at - 2) and time.monotonic() - newest_step[1] > 2

        def rests() -> tuple[RankProgress, Hang, Look] | None:
            progress, hang, look = two_looks(ranks, 2.0)
            return None if progress.moved or progress.polling else (progress, hang, look)

        wait_for(stands_still, "two seconds without a step", 90)
        return wait_for(rests, "two looks between which no rank moved")  # on a busy machine it rests later than it was looked at


RECEIVES = """
import sys, torch, torch.distributed as dist
dist.init_process_group('gloo')
dist.barrier(); open(f'{sys.argv[2]}/there-{dist.get_rank()}', 'w').close()
def exchange(got):
    if sys.argv[1] == 'recv': dist.recv(got, 1 - dist.get_rank())
    elif dist.get_rank(): dist.monitored_barrier()
    else: dist.recv(got, 1)
exchange(torch.zeros(1))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wait", "text"),
    [
        ("recv", "ranks 0, 1 wait in recv (<string>:6)"),
        pytest.param("both", "rank 0 waits in recv (<string>:8), rank 1 in monitored_barrier (<string>:7)", marks=pytest.mark.slow),
    ],
)
def test_gloo_ranks_that_wait_for_each_other_outside_of_torch_s_recorder(ranks: Ranks, tmp_path: Path, wait: str, text: str) -> None:
    ranks.start("-c", RECEIVES, wait, str(tmp_path), count=2)
    # not looked at before: a signal interrupts a rank that connects to the store, and it waits longer and longer before it tries again
    wait_for(lambda: len(list(tmp_path.glob("there-*"))) == 2, "both ranks to have met", 60)

    def are_there() -> bool:
        stacks = [rank.process.stacks for rank in ranks.look().ranks]
        return all(stack and any(frame.function == "exchange" for frame in stack[0].frames) for stack in stacks)

    wait_for(are_there, "both ranks in exchange", 60)
    progress, hang, _ = two_looks(ranks)
    assert progress == RankProgress()
    assert (hang.kind, hang.text, hang.group_timeout_s) == (HangKind.STILL, text, 1800.0)


PARALLEL = {
    "ddp": (
        HangKind.MISMATCH,
        r"rank 0 waits in all_reduce \(seq \d+, hang_parallel.py:20\), rank 1 in barrier \(seq \d+, hang_parallel.py:27\)",
    ),
    "fsdp": (
        HangKind.MISMATCH,
        r"rank 0 waits in all_?gather\w* \(seq \d+, hang_parallel.py:20\), rank 1 in barrier \(seq \d+, hang_parallel.py:27\)",
    ),
    "destroy": (HangKind.LATE, r"rank 0 waits in all_reduce \(seq 2, hang_parallel.py:35\); rank 1 is in end \(hang_parallel.py:33\)"),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", PARALLEL)
def test_two_ranks_that_hang_by_ddp_by_fsdp_and_at_the_end(ranks: Ranks, kind: str) -> None:
    ranks.start(str(hanging_jobs.SCRIPT.with_name("hang_parallel.py")), kind, count=2)
    due, text = PARALLEL[kind]

    def judged() -> tuple[RankProgress, Hang] | None:
        progress, hang, _ = two_looks(ranks)
        return (progress, hang) if not progress.moved and re.match(text, hang.text) else None

    progress, hang = wait_for(judged, f"two looks that show {text}", 60)
    assert (hang.kind, hang.busy, progress.busy) == (due, False, ())


@pytest.mark.slow
@pytest.mark.parametrize("pathology", HANGS)
def test_each_pathology_is_the_kind_that_it_is(ranks: Ranks, tmp_path: Path, pathology: str) -> None:
    kind, text = KINDS[pathology]
    progress, hang, look = _judged(ranks, tmp_path, pathology, 40 if pathology == "fewer" else 23)
    assert progress.moved == ()
    assert (hang.kind, hang.busy) == (kind, pathology in BUSY)
    assert text in hang.text
    unreadable = ["GIL may be held" in rank.collectives.unreadable for rank in look.ranks]
    assert unreadable == [False, pathology in GIL_HELD]
    assert look.took_s < 10
    if pathology == "loader":
        assert "in __getitem__ (hangs.py:" in hang.text
    if pathology == "swallowed":
        assert (hang.ranks, hang.group_timeout_s) == ((0, 1), 1800.0)
        pending = [group.pending.text for rank in look.ranks for group in rank.collectives.groups if group.pending is not None]
        assert hang.text.startswith(f"rank 0 waits in {pending[0][:-1]}, hangs.py:")
        assert f", rank 1 in {pending[1][:-1]}, hangs.py:" in hang.text
