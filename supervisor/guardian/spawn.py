"""Starts a command as a child of the calling thread, with the descriptors and signals that it would have had without us.

A failure after the fork (no such file, no permission) arrives through `exec_fd`, a close-on-exec pipe: errno as decimal text, or nothing
after a successful exec. PDEATHSIG kills the child when the *calling thread* ends: spawn from the main thread only.

It forks by itself, since subprocess costs 2 MiB and posix_spawn cannot set PDEATHSIG. Between fork and exec nothing is imported and no lock
is taken.
"""

from __future__ import annotations

import fcntl
import os
import signal
import termios
import time

from .libc import die_with_parent

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from typing import Protocol

    class Outlet(Protocol):
        """The descriptors of which a child's `serves` are copies."""

        child_fd: int
        serves: tuple[int, ...]


PIPE_BYTES = 1024 * 1024
#: How much more likely than us the kernel's OOM killer takes what we start, in thousandths of the memory (proc_pid_oom_score_adj(5)). A
#: killed rank is a failure that is handled; of a killed supervisor only systemd knows.
_OOM_SCORE_MORE = 100
_OOM_SCORE_MOST = 1000
_F_SETPIPE_SZ = 1031
_OFLAG = 1
_LFLAG = 3


class SpawnedCommand:
    """A requested process. `exec_fd` is -1 once it is known whether the exec was done; `forked_at` is monotonic."""

    __slots__ = ("attempt", "exec_fd", "forked_at", "kind", "pid", "start_ticks")

    def __init__(self, attempt: int, kind: str, pid: int, exec_fd: int, start_ticks: int) -> None:
        self.attempt = attempt
        self.kind = kind
        self.pid = pid
        self.exec_fd = exec_fd
        self.start_ticks = start_ticks
        self.forked_at = time.monotonic()


class CommandOutput:
    """One output of a child: `name` out, err or both, the fds in the child that it serves, and both its ends here."""

    __slots__ = ("child_fd", "name", "pty", "read_fd", "serves")

    def __init__(self, name: str, serves: tuple[int, ...], *, pty: bool) -> None:
        self.name = name
        self.serves = serves
        self.pty = pty
        self.read_fd, self.child_fd = _open_pty() if pty else _open_pipe()


def same_file(fd: int, other: int) -> bool:
    """Return whether two descriptors are one open file or terminal, as after 2>&1."""
    status, another = os.fstat(fd), os.fstat(other)
    return (status.st_dev, status.st_ino) == (another.st_dev, another.st_ino)


def open_outlets(*, ptys: bool) -> list[CommandOutput]:
    """Open what a child writes to: one outlet for both where our own stdout and stderr are one file, so that order is kept.

    `ptys`: where the supervisor has a terminal the child gets one too, so that progress bars and pdb are as without us.
    """
    plan = [("both", (1, 2))] if same_file(1, 2) else [("out", (1,)), ("err", (2,))]
    return [CommandOutput(name, serves, pty=ptys and os.isatty(serves[0])) for name, serves in plan]


def copy_window_size(master: int) -> None:
    """Give a pseudo-terminal the size of the real one, if there is any."""
    for fd in (1, 2, 0):
        try:
            fcntl.ioctl(master, termios.TIOCSWINSZ, fcntl.ioctl(fd, termios.TIOCGWINSZ, bytes(8)))
        except OSError:
            continue
        return


def spawn(  # noqa: PLR0913 - the six facts that make a process
    argv: Sequence[str],
    env: Mapping[str, str],
    cwd: str,
    *,
    outlets: Sequence[Outlet],
    keep: Collection[int],
    ignored: Collection[int],
) -> tuple[int, int]:
    """Fork and exec; returns (pid, exec_fd).

    keep: descriptors that the child inherits beside 0, 1, 2. ignored: the signals that were ignored when supervise started; all
    others get their default action. Raises OSError when not even a fork is possible.
    """
    exec_fd, report_fd = os.pipe()
    guardian = os.getpid()
    # blocked until the child has its own dispositions: a TERM to the group in between must not be swallowed by our handlers
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        pid = os.fork()
        if pid == 0:
            _become(argv, env, cwd, outlets, keep, ignored, mask, guardian, report_fd)
    except OSError:
        os.close(exec_fd)
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.close(report_fd)
    os.set_blocking(exec_fd, False)
    return pid, exec_fd


def _become(  # noqa: PLR0913, PLR0917 - runs in the child and never returns
    argv: Sequence[str],
    env: Mapping[str, str],
    cwd: str,
    outlets: Sequence[Outlet],
    keep: Collection[int],
    ignored: Collection[int],
    mask: set[signal.Signals] | set[int],
    guardian: int,
    report_fd: int,
) -> None:
    try:
        die_with_parent()
        if os.getppid() != guardian:  # it died before the line above
            os._exit(1)
        signal.set_wakeup_fd(-1)
        for signum in range(1, signal.NSIG):
            if signum not in (signal.SIGKILL, signal.SIGSTOP):
                _set_disposition(signum, signal.SIG_IGN if signum in ignored else signal.SIG_DFL)
        for outlet in outlets:
            for fd in outlet.serves:
                os.dup2(outlet.child_fd, fd, inheritable=True)
        for fd in keep:
            os.set_inheritable(fd, True)  # noqa: FBT003 - the standard library's signature
        os.chdir(cwd)
        _raise_oom_score()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.execvpe(argv[0], list(argv), dict(env))  # noqa: S606 - the user's own command, never through a shell
    except OSError as error:
        os.write(report_fd, str(error.errno).encode())
    except BaseException as error:  # noqa: BLE001 - an argument with a NUL byte: nothing may unwind into the guardian's loop here
        os.write(report_fd, f"22 {error}".encode())
    finally:
        os._exit(127)


def _raise_oom_score() -> None:
    try:
        fd = os.open("/proc/self/oom_score_adj", os.O_RDWR)
        score = min(_OOM_SCORE_MOST, int(os.read(fd, 16)) + _OOM_SCORE_MORE)
        os.write(fd, str(score).encode())
        os.close(fd)
    except (OSError, ValueError):
        return  # a sandbox without /proc, or with a read-only one


def _set_disposition(signum: int, action: signal.Handlers) -> None:
    try:
        signal.signal(signum, action)
    except (OSError, ValueError):
        return  # the C library's own two realtime signals


def _open_pipe() -> tuple[int, int]:
    read_fd, write_fd = os.pipe()
    try:
        fcntl.fcntl(write_fd, _F_SETPIPE_SZ, PIPE_BYTES)
    except OSError:
        # over the user's limit (pipe-user-pages-soft): the default of 64 KiB works too, it only blocks sooner
        return read_fd, write_fd
    return read_fd, write_fd


def _open_pty() -> tuple[int, int]:
    """Open a terminal that changes no byte: what the child writes reaches the real one, which does the translating."""
    master, slave = os.openpty()
    attributes = termios.tcgetattr(slave)
    attributes[_OFLAG] &= ~termios.OPOST
    attributes[_LFLAG] &= ~(termios.ECHO | termios.ICANON | termios.ISIG)
    termios.tcsetattr(slave, termios.TCSANOW, attributes)
    copy_window_size(master)
    return master, slave
