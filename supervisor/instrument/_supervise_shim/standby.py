"""Waits in the place of a rank: imports what the rank was seen to import, and continues as that rank (docs/explanation/restarts.md).

The interpreter was started with the rank's own command line, and this runs where every rank of the job begins: in sitecustomize, before the
script. So Python itself runs the script, and nothing of that is imitated. This process must not run the script without a hand-over: every
other way out of here ends the process. Where a module has to be left to the rank (preload.py), it starts anew without that module.

Messages, over a SOCK_SEQPACKET socket: to the parent one JSON object when it is ready, or refuses; from the parent one packet with a memfd
(JSON: argv, env, cwd, fds) and the rank's descriptors; to the parent "A", or "N" and the reason. End of file: exit.
"""

from __future__ import annotations

import os
import sys

from .claim import leave_environment
from .preload import MOST_LEFT_OUT, LeftToRank, Preload, Refused
from .process_traits import (
    LOW_FDS,
    MOST_OUTPUT_BYTES,
    GarbageCollections,
    Priority,
    Title,
    capture,
    drop_finders,
    private_kib,
    replay,
    set_environment,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

    from .gates import Gates

VARIABLE = "SUPERVISE_JOB_STANDBY"
#: Variables of which the next attempt may have other values, unless a library's Python code reads them while it is imported: the
#: rank's number, which changes when nodes come or go, and the variables of a traced attempt (launch/tracing.py), read when the ranks meet.
MAY_CHANGE = (
    *("RANK", "WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE"),
    *("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE", "TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"),
    *("TORCH_NCCL_DUMP_ON_TIMEOUT", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCH_FR_DUMP_TEMP_FILE"),
    "TORCH_DISTRIBUTED_DEBUG",  # read by torch while it is imported, and once more at the hand-over (Preload.renew_debug_level)
)
#: The modules that this one needs. torch imports all of it, so in a rank it is there as well.
NEEDED = ("json", "_socket", "ctypes")
MOST_WORDS = 1000  # of a reason
_PACKET = 4096
_FD_BYTES = 4


class StandbyOrder:
    """The value of VARIABLE: `fd|nice|oom|modules that are left out, each with its effect|path of the record`.

    nice and oom: the values to return to, if known.
    """

    def __init__(self, text: str) -> None:
        fd, nice, oom, left_out, self.path = text.split("|", 4)
        self.fd = int(fd)
        self.priority = Priority(nice, oom)
        self.left_out = dict(row.split(" ", 1) for row in left_out.split(";") if row)

    def as_variable(self, fd: int) -> str:
        """Return it as the variable's text."""
        left_out = ";".join(f"{name} {why}" for name, why in self.left_out.items())
        return f"{fd}|{self.priority.nice}|{self.priority.oom}|{left_out}|{self.path}"


def wait(folder: str, make: Callable[[bytes], Any]) -> Any:  # noqa: ANN401 - the Instrumentation, which imports this module
    """Prepare and wait; returns what `make` gave once this process is the rank. `make` gets the record, and instruments this process."""
    try:
        return WaitingProcess(folder).run(make)
    except BaseException:  # noqa: BLE001 - whatever it is, the script must not run
        os._exit(1)


class WaitingProcess:
    """This process, until it is the rank."""

    def __init__(self, folder: str) -> None:
        import fcntl  # noqa: PLC0415 - a standby alone needs it here

        self._order = StandbyOrder(os.environ.pop(VARIABLE))
        self._fd = fcntl.fcntl(self._order.fd, fcntl.F_DUPFD_CLOEXEC, LOW_FDS)
        if self._order.fd != self._fd:
            os.close(self._order.fd)
        self._cwd = os.getcwd()  # noqa: PTH109 - pathlib is imported where the rank imports it
        self._outputs = [capture(number) for number in (1, 2)]
        self._order.priority.lower()
        # as in the rank when the script begins
        os.environ.pop("SUPERVISE_JOB_LINEBUF", None)
        leave_environment(folder)
        sys.modules.pop("sitecustomize", None)

    def run(self, make: Callable[[bytes], Any]) -> Any:  # noqa: ANN401 - as above
        """Import, report, wait, take over."""
        with open(self._order.path, "rb") as file:  # noqa: PTH123 - pathlib is imported where the rank imports it
            source = file.read()
        import json  # noqa: PLC0415 - NEEDED

        record = json.loads(source)
        try:
            program, preload = self._prepare(source, record, make)
        except Refused as refused:
            self._refuse(str(refused))
        except LeftToRank as module:
            self._start_anew(*module.args)
        collections = GarbageCollections()
        if why := self._order.priority.restore():  # now: who waits uses no processor, and on a busy machine nobody must wait for it
            self._refuse(why)
        title = Title()
        cold = list(title.argv)
        title.show(["supervise-standby:", *cold], None)
        # the options and the script are Python's already, and cannot be changed any more; only what follows them can
        fixed = len(cold) - len(sys.argv) + 1
        note = preload.note or preload.left_out_text
        facts = {"private_kib": private_kib(), "fixed": fixed, "note": note}
        may_change = [] if "*" in preload.read else [name for name in MAY_CHANGE if name not in preload.read]
        self._send({"ready": True, "may_change": may_change, **facts})
        gates = self._take_over(record, preload, title, fixed)
        program.keep_back(gates)
        collections.go_on()
        return program

    def _prepare(self, source: bytes, record: dict[str, Any], make: Callable[[bytes], Any]) -> tuple[Any, Preload]:
        if record["refused"]:
            raise Refused(record["refused"])
        if not record["modules"].keys() >= {*NEEDED}:
            raise Refused("the rank does not import torch")
        program = make(source)
        preload = Preload(record, self._order.left_out)
        preload.run()
        preload.check()
        if any(os.fstat(fd).st_size > MOST_OUTPUT_BYTES for fd in self._outputs):
            raise Refused("its imports print too much")
        return program, preload

    # messages

    def _send(self, message: dict[str, Any]) -> None:
        import json  # noqa: PLC0415 - NEEDED

        os.write(self._fd, json.dumps(message).encode())

    def _refuse(self, why: str) -> NoReturn:
        self._send({"ready": False, "why": why[:MOST_WORDS]})
        os._exit(0)

    def _receive(self) -> tuple[dict[str, Any], list[int]]:
        import _socket  # noqa: PLC0415 - NEEDED
        import json  # noqa: PLC0415 - as above

        sock = _socket.socket(fileno=self._fd)
        try:
            data, ancillary, _, _ = sock.recvmsg(_PACKET, 1024, _socket.MSG_CMSG_CLOEXEC)
        finally:
            sock.detach()
        if not data:
            os._exit(0)  # the parent is gone, or needs no standby any more
        rights = b"".join(chunk for level, kind, chunk in ancillary if (level, kind) == (_socket.SOL_SOCKET, _socket.SCM_RIGHTS))
        fds = [int.from_bytes(rights[at : at + _FD_BYTES], sys.byteorder) for at in range(0, len(rights), _FD_BYTES)]
        body = fds.pop(0)
        message = json.loads(os.pread(body, os.fstat(body).st_size, 0))
        os.close(body)
        return message, fds

    # ends

    def _start_anew(self, module: str, why: str) -> NoReturn:
        """Start this process anew, without a module."""
        order = self._order
        if len(order.left_out) > MOST_LEFT_OUT:
            self._refuse(f"too many modules cannot be imported in advance, {module} among them")
        order.left_out[module] = why
        with open("/proc/self/cmdline", "rb") as file:  # noqa: PTH123 - see above
            argv = file.read().split(b"\0")[:-1]
        with open("/proc/self/environ", "rb") as file:  # noqa: PTH123 - see above
            pairs = [pair.partition(b"=") for pair in file.read().split(b"\0") if pair]
        env = {name: value for name, _, value in pairs}
        env[VARIABLE.encode()] = os.fsencode(order.as_variable(self._fd))
        os.chdir(self._cwd)
        os.set_inheritable(self._fd, True)  # noqa: FBT003 - the standard library's signature
        os.execve(sys.executable, argv, env)  # noqa: S606 - this very interpreter

    def _take_over(self, record: dict[str, Any], preload: Preload, title: Title, fixed: int) -> Gates:
        """Wait for the hand-over, and become the rank. Return what its script has only behind a gate."""
        message, fds = self._receive()
        why = preload.outdated() or self._order.priority.restore_oom()
        if why:
            os.write(self._fd, b"N" + why[:MOST_WORDS].encode("utf-8", "replace"))
            os._exit(0)
        replay(self._outputs, {number: fds[at] for at, number in enumerate(message["fds"])})
        drop_finders(record)
        if message["cwd"]:
            os.chdir(message["cwd"])
        argv, env = message["argv"], message["env"]
        title.show(argv, env)
        set_environment(env)
        sys.argv[1:] = argv[fixed:]
        if hasattr(sys, "orig_argv"):
            sys.orig_argv[:] = argv
        preload.renew_debug_level()
        gates = preload.gates(argv, env, os.getcwd())  # noqa: PTH109 - as above
        os.write(self._fd, b"A")
        os.close(self._fd)
        return gates
