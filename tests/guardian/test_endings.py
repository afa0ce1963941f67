"""Which processes the guardian kills, when, and which it never kills: real processes, a real kill -9."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.few import few
from tests.support.figures import within
from tests.support.waiting import is_running, wait_for

from .conftest import Side, read_pid, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.process

#: A rank as they come: ignores TERM, has loader workers, a stopped child, a daemon of its own session with an empty environment.
NASTY = textwrap.dedent("""
    import os, signal, subprocess, sys, time
    def note(name):
        with open(name + ".tmp", "w") as file:
            file.write(f"{os.getpid()}\\n")
        os.rename(name + ".tmp", name)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for worker in range(2):
        if os.fork() == 0:
            note(f"worker{worker}")
            time.sleep(600)
    if os.fork() == 0:
        note("stopped")
        os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(600)
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execve("/bin/sh", ["sh", "-c", "echo $$ > daemon; exec sleep 600"], {})
        os._exit(0)
    os.wait()
    note("rank")
    time.sleep(600)
""")
NAMES = ("rank", "worker0", "worker1", "stopped", "daemon")


def nasty(side: Side) -> list[int]:
    side.run([sys.executable, "-c", NASTY])
    return [read_pid(side.directory / name) for name in NAMES]


@pytest.mark.bench
@pytest.mark.parametrize("group", [False, True], ids=["supervisor alone", "supervisor and command in one kill"])
def test_everything_is_gone_within_five_seconds_of_the_supervisors_kill_9(side: Callable[..., Side], *, group: bool) -> None:
    driver = side()
    pids = nasty(driver)
    if group:
        os.kill(pids[0], signal.SIGKILL)
    began = time.monotonic()
    driver.process.kill()
    until(lambda: not any(map(is_running, [*pids, driver.hello["pid"]])), timeout_s=60.0, subject="the end of all")
    assert within(4.5, since=began)


def test_kill_9_of_the_guardian_is_reported_and_swept_by_the_supervisor(tmp_path: Path) -> None:
    code = textwrap.dedent("""
        import json, os, signal, sys, threading, time
        from supervisor.launch.guardian_client import GuardianClient
        from supervisor.guardian.ownership import Orphans
        script, *names = sys.argv[1:]
        died = threading.Event()
        orphans = Orphans("c" * 32)
        guardian = GuardianClient.start(lambda event: None, died.set)
        here = os.getcwd()
        guardian.spawn(attempt=1, kind="plain", argv=[sys.executable, "-c", script], env=dict(os.environ), cwd=here, log_dir=here)
        while not all(map(os.path.exists, names)):
            time.sleep(0.01)
        os.kill(guardian.pid, signal.SIGKILL)
        assert died.wait(60)
        assert orphans.end(0.5) == ()
        print(*(open(name).read().strip() for name in names))
    """)
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    argv = [sys.executable, "-c", code, NASTY, *NAMES]
    done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, timeout=120, check=True, cwd=tmp_path, env=env)  # noqa: S603 - our own script
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) == len(NAMES)
    assert not any(map(is_running, pids))


def test_end_all_leaves_nothing_and_says_so(side: Callable[..., Side]) -> None:
    driver = side()
    pids = nasty(driver)
    driver.call("end", "all", grace_s=0.3)
    ended = driver.wait("ended")
    assert not any(map(is_running, pids))
    assert ended["left"] == []
    assert ended["killed"] >= len(pids)
    assert next(event for event in driver.seen if event["ev"] == "exited")["signal"] == signal.SIGKILL


@pytest.mark.bench
def test_a_stopped_process_does_not_wait_for_the_grace(side: Callable[..., Side]) -> None:
    driver = side()
    driver.run([sys.executable, "-c", "import os, signal; print('up', flush=True); os.kill(os.getpid(), signal.SIGSTOP)"])
    pid = driver.seen[-1]["pid"]
    until(lambda: _state(pid) == "T", subject="the stop")
    began = time.monotonic()
    driver.call("end", "all", grace_s=10.0)
    driver.wait("ended")
    assert within(2.0, since=began)


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_term_gets_its_grace(side: Callable[..., Side]) -> None:
    driver = side()
    code = textwrap.dedent("""
        import signal, sys, time
        signal.signal(signal.SIGTERM, lambda *a: (time.sleep(0.5), sys.exit(7)))
        open("up", "w").close()
        time.sleep(600)
    """)
    driver.run([sys.executable, "-c", code])
    until((driver.directory / "up").exists)
    driver.call("end", "all", grace_s=8.0)
    assert driver.wait("exited")["code"] == 7
    driver.wait("ended")


def test_orphans_are_ended_but_not_the_command_nor_its_helpers(side: Callable[..., Side]) -> None:
    driver = side()
    code = textwrap.dedent("""
        import os, time
        def note(name):
            with open(name + ".tmp", "w") as file:
                file.write(f"{os.getpid()}\\n")
            os.rename(name + ".tmp", name)
        if os.fork() == 0:
            note("helper")
            time.sleep(600)
        if os.fork() == 0:
            if os.fork() == 0:
                note("orphan")
                time.sleep(600)
            os._exit(0)
        os.wait()
        note("command")
        time.sleep(600)
    """)
    driver.run([sys.executable, "-c", code])
    command, helper, orphan = (read_pid(driver.directory / name) for name in ("command", "helper", "orphan"))
    driver.call("end", "orphans", grace_s=1.0)
    assert driver.wait("ended")["killed"] == 1
    assert (is_running(command), is_running(helper), is_running(orphan)) == (True, True, False)


def test_a_detached_process_is_left_alone_after_a_crash_with_its_descendants(side: Callable[..., Side]) -> None:
    driver = side()
    code = textwrap.dedent("""
        import os, subprocess, sys, time
        inner = "echo $$ > detached; env -i sh -c 'echo $$ > below; exec sleep 600'; :"
        subprocess.Popen(["sh", "-c", inner], env={**os.environ, "SUPERVISE_JOB_DETACH": "1"})
        time.sleep(600)
    """)
    # the variable on the command itself excepts nothing: it would except the whole job
    command = driver.run([sys.executable, "-c", code], env={"SUPERVISE_JOB_DETACH": "1"})["pid"]
    detached, below = read_pid(driver.directory / "detached"), read_pid(driver.directory / "below")
    try:
        driver.call("end", "all", grace_s=0.5)
        ended = driver.wait("ended")
        assert not is_running(command)
        assert [left["pid"] for left in ended["left"]] == [detached]
        driver.process.kill()
        driver.process.wait()
        # the guardian stays to read the output of the one that it spared, and kills nothing
        time.sleep(1.5)
        assert (is_running(detached), is_running(below)) == (True, True)
    finally:
        for pid in (detached, below):
            os.kill(pid, signal.SIGKILL)


def test_a_stranger_with_a_copied_cookie_is_not_touched(side: Callable[..., Side]) -> None:
    cookie = {"SUPERVISE_JOB_COOKIE": "c" * 32}
    stranger = subprocess.Popen(["sleep", "600"], env={**os.environ, **cookie})  # noqa: S607
    try:
        driver = side()
        pid = driver.run(["sleep", "600"], env=cookie)["pid"]
        driver.process.kill()
        until(lambda: not is_running(pid))
        until(lambda: not is_running(driver.hello["pid"]))
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_after_finish_a_daemon_lives_on_is_listed_once_and_may_still_write(side: Callable[..., Side], tmp_path: Path) -> None:
    out = tmp_path / "stdout"
    with out.open("wb") as stdout:
        driver = side(stdout=stdout)
    code = textwrap.dedent("""
        import os, time
        if os.fork() == 0:
            os.setsid()
            with open("daemon.tmp", "w") as file:
                file.write(f"{os.getpid()}\\n")
            os.rename("daemon.tmp", "daemon")
            while not os.path.exists("go"):
                time.sleep(0.02)
            print("late words", flush=True)
            open("written", "w").close()
    """)
    driver.run([sys.executable, "-c", code])
    assert driver.wait("exited")["code"] == 0
    daemon = read_pid(tmp_path / "daemon")
    survivors = driver.finish()["pids"]
    assert [survivor["pid"] for survivor in survivors] == [daemon]
    assert "python" in survivors[0]["cmd"]
    driver.process.kill()
    driver.process.wait()
    time.sleep(0.3)
    assert is_running(daemon)
    (tmp_path / "go").touch()
    until((tmp_path / "written").exists, subject="a daemon that writes without SIGPIPE")
    until(lambda: b"late words" in out.read_bytes())


@pytest.mark.parametrize("wants", [True, False])
def test_a_save_is_asked_for_and_waited_for_only_where_wanted(side: Callable[..., Side], tmp_path: Path, *, wants: bool) -> None:
    job = tmp_path / "job"
    job.mkdir()
    if wants:
        (job / "wants-save").touch()
    driver = side()
    # where it is not wanted it takes so long that a busy machine kills it before it is done
    code = textwrap.dedent(f"""
        import os, time
        open("up", "w").close()
        while not os.path.exists("job/save-now"):
            time.sleep(0.01)
        time.sleep({0.2 if wants else 30})
        open("saved", "w").close()
        time.sleep(600)
    """)
    pid = driver.run([sys.executable, "-c", code], env={"SUPERVISE_JOB_DIR": str(job)})["pid"]
    until((tmp_path / "up").exists)  # the time for a save is no time to start in
    began = time.monotonic()
    driver.process.kill()
    until(lambda: not is_running(pid))
    assert (job / "save-now").exists()
    assert (tmp_path / "saved").exists() is wants
    assert time.monotonic() - began > 1.5 if wants else within(1.5, since=began)


@pytest.mark.parametrize(
    "signum", few([signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGPIPE], 2)
)
def test_the_guardian_is_deaf(side: Callable[..., Side], signum: int) -> None:
    driver = side()
    os.kill(driver.hello["pid"], signum)
    driver.call("tails", 1)
    driver.wait("tails")
    # and does not pass its deafness on
    pid = driver.run([sys.executable, "-I", "-c", f"import os, time; print({signum}, flush=True); time.sleep(600)"])["pid"]
    caught = Path(f"/proc/{pid}/status").read_text()
    ignored = int(caught.partition("SigIgn:")[2].split()[0], 16)
    assert not ignored >> (signal.SIGTERM - 1) & 1
    assert not ignored >> (signal.SIGHUP - 1) & 1


def test_a_signal_ignored_by_nohup_stays_ignored_for_the_command(side: Callable[..., Side]) -> None:
    driver = side(wrap=("sh", "-c", 'trap "" HUP; exec "$@"', "sh"))
    pid = driver.run(["sleep", "600"])["pid"]
    until(lambda: Path(f"/proc/{pid}/comm").read_text() == "sleep\n")  # until then it has what the guardian ignores
    ignored = int(Path(f"/proc/{pid}/status").read_text().partition("SigIgn:")[2].split()[0], 16)
    ordinary = (1 << 31) - 1  # 32 and 33 are the C library's own, which its posix_spawn leaves ignored
    assert ignored & ordinary == 1 << (signal.SIGHUP - 1)


@pytest.mark.parametrize(("argv", "text"), [(["/nowhere/at-all"], "No such file"), (["/etc"], "Permission denied"), (["a\0b"], "null")])
def test_a_command_that_cannot_be_started_is_reported(side: Callable[..., Side], argv: list[str], text: str) -> None:
    driver = side()
    driver.call("spawn", **driver.command(argv))
    failed = driver.wait("spawn_failed")
    assert text in failed["text"]
    assert failed["attempt"] == 1
    driver.run(["true"], attempt=2)
    assert driver.wait("exited")["attempt"] == 2


def test_the_kernel_takes_the_command_before_the_supervisor_where_memory_runs_out(side: Callable[..., Side]) -> None:
    driver = side()
    guardian_score = int(Path(f"/proc/{driver.hello['pid']}/oom_score_adj").read_text())
    driver.run(["sh", "-c", "cat /proc/self/oom_score_adj"])
    driver.wait("exited")
    log = driver.logs() / "rank-0.out"
    printed = wait_for(lambda: log.exists() and log.read_text(), "its output is in the log, maybe after its end")
    assert int(printed) == min(1000, guardian_score + 100)


def test_exits_are_reported_with_their_code_or_signal(side: Callable[..., Side]) -> None:
    driver = side()
    driver.run([sys.executable, "-c", "import sys; sys.exit(42)"])
    event = driver.wait("exited")
    assert (event["code"], event["signal"]) == (42, None)
    driver.run([sys.executable, "-c", "import os; os.abort()"], attempt=2)
    event = driver.wait("exited")
    assert (event["code"], event["signal"]) == (None, signal.SIGABRT)


def test_a_large_environment_arrives_whole(side: Callable[..., Side]) -> None:
    driver = side()
    big = {f"LARGE_{number}": "x" * 100_000 for number in range(8)}
    driver.run([sys.executable, "-c", "import os, sys; sys.exit(sum(len(os.environ[f'LARGE_{n}']) for n in range(8)) != 800000)"], env=big)
    assert driver.wait("exited")["code"] == 0


def test_a_signal_reaches_the_command_or_all(side: Callable[..., Side]) -> None:
    driver = side()
    code = textwrap.dedent("""
        import os, signal, time
        signal.signal(signal.SIGUSR1, lambda *a: open(f"hit-{os.getpid()}", "w").close())
        os.fork()
        open(f"up-{os.getpid()}", "w").close()
        while True:
            time.sleep(1)
    """)
    pid = driver.run([sys.executable, "-c", code])["pid"]
    until(lambda: len(list(driver.directory.glob("up-*"))) == 2)
    driver.call("signal", signal.SIGUSR1)
    until((driver.directory / f"hit-{pid}").exists)
    assert len(list(driver.directory.glob("hit-*"))) == 1
    driver.call("signal", signal.SIGUSR1, to="all")
    until(lambda: len(list(driver.directory.glob("hit-*"))) == 2)


def test_the_guardian_uses_little_memory(side: Callable[..., Side]) -> None:
    side().close()  # the first start may compile
    driver = side()
    driver.run(["sleep", "600"])
    status = Path(f"/proc/{driver.hello['pid']}/status").read_text()
    assert int(status.partition("VmRSS:")[2].split()[0]) < 16 * 1024


def test_a_rank_inherits_none_of_the_supervisors_descriptors(side: Callable[..., Side]) -> None:
    driver = side()
    # The rank reports when it has started: while a program is being loaded, the loader opens and closes files of its own. So does a touch.
    pid = driver.run([sys.executable, "-c", "import os, time; os.mkdir('started'); time.sleep(600)"])["pid"]
    until((driver.directory / "started").exists)
    descriptors = {int(fd): os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")}  # noqa: PTH115, PTH208
    assert {0, 1, 2} <= descriptors.keys()
    assert not [link for fd, link in descriptors.items() if fd > 2 and ("socket" in link or "eventpoll" in link)]


def test_no_request_waits_for_a_guardian_that_is_stopped(side: Callable[..., Side]) -> None:
    driver = side()
    os.kill(driver.hello["pid"], signal.SIGSTOP)
    until(lambda: _state(driver.hello["pid"]) == "T")
    for number in range(3000):
        driver.call("tails", number)
    code = "import sys; sys.exit(5)"
    driver.call("spawn", **driver.command([sys.executable, "-c", code]))
    os.kill(driver.hello["pid"], signal.SIGCONT)
    assert driver.wait("exited")["code"] == 5
    assert sum(event["ev"] == "tails" for event in driver.seen) == 3000


@pytest.mark.bench
def test_a_second_end_hurries_the_first_and_both_have_one_answer(side: Callable[..., Side]) -> None:
    driver = side()
    pids = nasty(driver)
    began = time.monotonic()
    driver.call("end", "orphans", grace_s=30.0)
    driver.call("end", "all", grace_s=30.0)
    driver.call("end", "all", grace_s=0.2)
    assert driver.wait("ended")["what"] == "all"
    assert within(5.0, since=began)
    assert not any(map(is_running, pids))
    driver.finish()
    assert sum(event["ev"] == "ended" for event in driver.seen) == 1


#: Root that gave up the right to signal others' processes: for it a process of another user is what one in uninterruptible sleep is.
WITHOUT_KILL = ("setpriv", "--bounding-set", "-kill", "--inh-caps", "-kill")
UNKILLABLE = textwrap.dedent("""
    import os, time
    if os.fork() == 0:
        with open("unkillable.tmp", "w") as file:
            file.write(f"{os.getpid()}\\n")
        os.rename("unkillable.tmp", "unkillable")
        os.setresuid(65534, 65534, 65534)
        time.sleep(600)
    time.sleep(600)
""")


@pytest.fixture
def stuck(side: Callable[..., Side]) -> Iterator[tuple[Side, int]]:
    """Give a side whose first command has started a process that nothing here can end."""
    if os.geteuid() != 0:
        pytest.skip("needs a process of another user: run as root")
    driver = side(wrap=WITHOUT_KILL)
    driver.run([sys.executable, "-c", UNKILLABLE])
    pid = read_pid(driver.directory / "unkillable")
    until(lambda: "\nUid:\t65534" in Path(f"/proc/{pid}/status").read_text(), subject="the other user")
    yield driver, pid
    os.kill(pid, signal.SIGKILL)


def test_an_unfinished_end_spares_processes_started_after_it(stuck: tuple[Side, int]) -> None:
    driver, pid = stuck
    driver.call("end", "all", grace_s=0.0)
    assert [(left["pid"], left["unkilled"]) for left in driver.wait("ended")["left"]] == [(pid, False)]  # no attempt waits for it
    driver.call("end", "all", grace_s=0.0)
    driver.call("spawn", **driver.command(["sleep", "600"], attempt=2))
    command = driver.wait("spawned")["pid"]
    time.sleep(0.5)  # many looks
    assert is_running(command)


@pytest.mark.bench
def test_a_process_that_could_not_be_ended_is_not_waited_for_again(stuck: tuple[Side, int]) -> None:
    driver, pid = stuck
    driver.call("end", "all", grace_s=0.0)
    assert [left["pid"] for left in driver.wait("ended")["left"]] == [pid]
    command = driver.run(["sleep", "600"], attempt=2)["pid"]
    began = time.monotonic()
    driver.call("end", "all", grace_s=5.0)
    assert [left["pid"] for left in driver.wait("ended")["left"]] == [pid]  # named again, for it is still there
    assert within(1.5, since=began)
    assert not is_running(command)
