"""Where another rank is in its program: file, line and function of its training thread, asked over a socket.

Each rank that meets others keeps a listening socket and a thread that waits in accept(): a rank that hangs in C code with the GIL released
still answers, and nothing polls. Address and password stand in the store of torch's process group under
`checkpointing/whereabouts/<rank>`. Only a rank that waited in vain asks.
"""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import os
import secrets
import socket
import sys
import sysconfig
import threading
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

_KEYS: Final = "checkpointing/whereabouts"
#: Seconds in which a rank answers, unless its process is stopped or its machine is gone.
ANSWER_S: Final = 5.0
_MOST_BYTES: Final = 4096
#: Ranks that are asked where they stand, and named; the others are only counted.
MOST_ASKED: Final = 16
MOST_NAMED: Final = 4
GONE: Final = "its process is gone"
#: How long a rank that answers is observed before it is known to stand still: longer than ranks.py takes to leave a meeting that is over.
_STILL_S: Final = 2.0
_C10D: Final = "torch/distributed/distributed_c10d.py"
_COLLECTIVES: Final = frozenset({
    "all_gather", "all_gather_into_tensor", "all_gather_object", "all_reduce", "all_to_all", "all_to_all_single", "barrier", "broadcast",
    "broadcast_object_list", "gather", "gather_object", "monitored_barrier", "reduce", "reduce_scatter", "reduce_scatter_tensor", "scatter",
})  # fmt: skip
_LIBRARIES: Final = tuple({sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), os.path.dirname(os.path.dirname(__file__))})  # noqa: PTH120
_NOT_THE_USERS: Final = ("/site-packages/", "/dist-packages/", "<frozen ", "/supervisor/worker.py", "/supervisor/agent/")


class OwnTask:
    """The work of this process together with other ranks, by its own word."""

    task = ""  # what its training thread waits in; "": nothing that others wait in too
    work = ""  # the meeting to which a thread comes that is at work in the same call; "": none


class RankPlace(NamedTuple):
    """The place of another rank, by its answer. Each part is "" where it is not known."""

    #: As in OwnTask; or the collective of all ranks that its training thread waits in.
    task: str = ""
    #: Such as `train.py:112 in evaluate`.
    where: str = ""
    #: As in OwnTask.
    work: str = ""


class _OwnAddress:
    """Where this process answers, which has one place in the training: in each store that it meets others in, the same."""

    lock = threading.Lock()
    listener: socket.socket | None = None
    address = ""


def show(store: Any, rank: int) -> None:  # noqa: ANN401 -- torch's store
    """Let the other ranks of this store ask for this thread's place. Raises nothing: without it a rank is named without its line."""
    with _OwnAddress.lock, contextlib.suppress(Exception):
        if not _OwnAddress.address:
            _OwnAddress.address = _listen()
        store.set(f"{_KEYS}/{rank}", _OwnAddress.address)


def _listen() -> str:
    """Begin to answer; return the address and the password."""
    host, password, dual = _own_host(), secrets.token_hex(16), socket.has_dualstack_ipv6()
    listener = socket.create_server(("", 0), family=socket.AF_INET6 if dual else socket.AF_INET, dualstack_ipv6=dual)
    thread = threading.Thread(
        target=_answer_all, args=(listener, password, threading.get_ident()), name="checkpointing-whereabouts", daemon=True
    )
    thread.start()
    _OwnAddress.listener = listener
    return f"{host} {listener.getsockname()[1]} {password}"


def _after_fork() -> None:
    """Leave the port to the parent: nobody answers here, and a DataLoader's worker may outlive a rank that is gone."""
    if _OwnAddress.listener is not None:
        _OwnAddress.listener.close()
    _OwnAddress.lock, _OwnAddress.listener, _OwnAddress.address = threading.Lock(), None, ""


os.register_at_fork(after_in_child=_after_fork)


def ask(store: Any, rank: int) -> RankPlace:  # noqa: ANN401 -- torch's store
    """Return the place of a rank. Takes ANSWER_S at most; nothing is known of one that never showed an address."""
    try:
        key = f"{_KEYS}/{rank}"
        if not store.check([key]):
            return RankPlace()
        host, port, password = store.get(key).decode().split()
        if ipaddress.ip_address(host).is_loopback:  # it is on the host of MASTER_ADDR, whose own name may be 127.0.1.1 there (Debian)
            host = os.environ.get("MASTER_ADDR", host)
    except Exception:  # noqa: BLE001 -- torch's store may raise anything; the caller has an error of its own to raise
        return RankPlace()
    try:
        with socket.create_connection((host, int(port)), timeout=ANSWER_S) as connection:
            connection.sendall(password.encode() + b"\n")
            answer = b""
            while len(answer) < _MOST_BYTES and (chunk := connection.recv(_MOST_BYTES)):
                answer += chunk
            return RankPlace(*answer.decode(errors="replace").split("\n", maxsplit=2))
    except ConnectionError:
        return RankPlace(where=GONE)
    except OSError:
        return RankPlace(where="its process does not answer")


def described(store: Any, ranks: Sequence[int], task: str = "") -> str:  # noqa: ANN401 -- torch's store
    """Say of ranks that did not come where they stand: `rank 3 did not: it is at train.py:112 in evaluate`.

    task: who waits in it too is passed over. "" where nobody is left.
    """
    texts, unnamed = list[str](), 0
    for number, rank in enumerate(ranks):
        if number >= MOST_ASKED or len(texts) >= MOST_NAMED:
            unnamed = len(ranks) - number
            break
        rank_place = ask(store, rank)
        if task and rank_place.task == task:
            continue
        where = rank_place.where
        location = where if not where or where.startswith("its ") else f"it is at {where}"
        texts.append(f"rank {rank} did not" + (f": {location}" if location else ""))
    return ", ".join(texts) + (f", and {unnamed} more" if texts and unnamed else "")


def away(store: Any, ranks: Sequence[int], task: str) -> bool:  # noqa: ANN401 -- torch's store
    """Return whether these ranks can never come to a call that this one waits in: proven, and False in doubt.

    The process of one is gone; or all of them wait, and continue waiting, in other calls that need every rank, so also this one.
    """
    asked = ranks[:MOST_ASKED]
    before = [ask(store, rank) for rank in asked]
    if any(rank_place.where == GONE for rank_place in before):
        return True
    if not all(rank_place.task and rank_place.task != task for rank_place in before):
        return False
    time.sleep(_STILL_S)
    return [ask(store, rank) for rank in asked] == before


def are_coming(store: Any, ranks: Sequence[int], task: str) -> bool:  # noqa: ANN401 -- torch's store
    """Return whether each of these ranks is at work in the call that this one waits in, and so on its way here."""
    return len(ranks) <= MOST_ASKED and all(ask(store, rank).work == task for rank in ranks)


def place(frame: FrameType | None) -> str:
    """Return file, line and function of the innermost frame that is the user's; of the innermost one where none is."""
    innermost = frame
    while frame is not None and _is_library(frame.f_code.co_filename):
        frame = frame.f_back
    user_frame = frame or innermost
    if user_frame is None:
        return ""
    code = user_frame.f_code
    return f"{os.path.basename(code.co_filename)}:{user_frame.f_lineno} in {code.co_name}"  # noqa: PTH119


def _collective(frame: FrameType | None) -> str:
    """Return the collective of all ranks that a thread waits in; "" where it is in none."""
    if frame is None or not frame.f_code.co_filename.endswith(_C10D) or frame.f_code.co_name not in _COLLECTIVES:
        return ""
    group = frame.f_locals.get("group")
    every_rank = group is None or group is frame.f_globals["GroupMember"].WORLD
    return f"torch.distributed.{frame.f_code.co_name}" if every_rank else ""


def _is_library(path: str) -> bool:
    return path.startswith(_LIBRARIES) or any(directory in path for directory in _NOT_THE_USERS)


def _answer_all(listener: socket.socket, password: str, thread: int) -> None:
    """Answer who knows the password, one after the other, as long as the process lives."""
    with listener:
        while True:
            with contextlib.suppress(OSError):
                connection, _ = listener.accept()
                with connection:
                    connection.settimeout(ANSWER_S)
                    question = b""
                    while not question.endswith(b"\n") and len(question) < _MOST_BYTES and (chunk := connection.recv(_MOST_BYTES)):
                        question += chunk
                    if hmac.compare_digest(question.strip(), password.encode()):
                        frame = sys._current_frames().get(thread)  # noqa: SLF001 -- the only way
                        answer = f"{OwnTask.task or _collective(frame)}\n{place(frame)}\n{OwnTask.work}"
                        connection.sendall(answer.encode()[:_MOST_BYTES])


def _own_host() -> str:
    """Return the address of this machine on the way to MASTER_ADDR, which all ranks reach."""
    master = os.environ.get("MASTER_ADDR", "127.0.0.1")
    port = os.environ.get("MASTER_PORT", "1")
    family, _, _, _, address = socket.getaddrinfo(master, int(port) if port.isdecimal() else 1, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])
