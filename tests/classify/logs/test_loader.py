"""A DataLoader's worker that dies while it hands a batch over: what its process says then, and what only looks like it."""

from __future__ import annotations

import pytest

from supervisor.classify.engine import classify
from supervisor.classify.logs.match import read_text
from supervisor.config import signatures
from supervisor.core.model import Cause, Evidence

CATALOGUE, _ = signatures.read()
#: Produced: a worker gets SIGKILL while the main process asks it for the descriptors of a batch, which takes a worker that holds the GIL
#: (torch 2.13, Python 3.11). What stands below it in that log, another 0.1 s later, is LATER.
RESET = """\
Traceback (most recent call last):
  File "/home/user/proj/train.py", line 30, in <module>
    for step, (x, y) in enumerate(DataLoader(Shards(), batch_size=8, num_workers=1)):
  File "/home/user/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py", line 725, in __next__
    data = self._next_data()
  File "/home/user/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py", line 1505, in _next_data
    idx, data = self._get_data()
  File "/home/user/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py", line 1464, in _get_data
    success, data = self._try_get_data()
  File "/home/user/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py", line 1291, in _try_get_data
    data = self._data_queue.get(timeout=timeout)
  File "/usr/local/lib/python3.11/multiprocessing/queues.py", line 122, in get
    return _ForkingPickler.loads(res)
  File "/home/user/venv/lib/python3.11/site-packages/torch/multiprocessing/reductions.py", line 538, in rebuild_storage_fd
    fd = df.detach()
  File "/usr/local/lib/python3.11/multiprocessing/resource_sharer.py", line 57, in detach
    with _resource_sharer.get_connection(self._id) as conn:
  File "/usr/local/lib/python3.11/multiprocessing/resource_sharer.py", line 86, in get_connection
    c = Client(address, authkey=process.current_process().authkey)
  File "/usr/local/lib/python3.11/multiprocessing/connection.py", line 524, in Client
    answer_challenge(c, authkey)
  File "/usr/local/lib/python3.11/multiprocessing/connection.py", line 773, in answer_challenge
    response = connection.recv_bytes(256)        # reject large message
  File "/usr/local/lib/python3.11/multiprocessing/connection.py", line 216, in recv_bytes
    buf = self._recv_bytes(maxlength)
  File "/usr/local/lib/python3.11/multiprocessing/connection.py", line 430, in _recv_bytes
    buf = self._recv(4)
  File "/usr/local/lib/python3.11/multiprocessing/connection.py", line 395, in _recv
    chunk = read(handle, remaining)
ConnectionResetError: [Errno 104] Connection reset by peer
"""
LATER = """\
Traceback (most recent call last):
  File "/usr/local/lib/python3.11/weakref.py", line 666, in _exitfunc
    f()
  File "/home/user/venv/lib/python3.11/site-packages/torch/utils/data/_utils/signal_handling.py", line 73, in handler
    _error_if_any_worker_fails()
RuntimeError: DataLoader worker (pid 18722) is killed by signal: Killed.
"""
CAUGHT = "    data = [self.dataset[idx] for idx in possibly_batched_index]\n"
FETCHED = f'  File "/home/user/venv/lib/python3.11/site-packages/torch/utils/data/_utils/fetch.py", line 54, in fetch\n{CAUGHT}'
OWN_QUEUE = "".join(RESET.partition('  File "/usr/local/lib/python3.11/multiprocessing/queues.py"')[1:])


def judge(text: str) -> tuple[Cause, bool]:
    verdict = classify(read_text(text, CATALOGUE))
    return verdict.cause, verdict.transient


def test_a_batch_that_its_worker_can_no_longer_hand_over_tells_of_the_worker() -> None:
    assert judge(RESET) == (Cause.DATALOADER_WORKER, True)
    assert judge(RESET + LATER) == (Cause.DATALOADER_WORKER, True)


def test_the_kernel_knows_better_why_the_worker_is_gone() -> None:
    killed = Evidence("cgroup", "oom_kill", "1", t=1.0)
    assert classify((*read_text(RESET, CATALOGUE), killed)).cause is Cause.HOST_OOM


@pytest.mark.parametrize("kind", ["ValueError", "KeyError", "RuntimeError"])
def test_other_exceptions_in_a_loader_are_not_the_end_of_a_worker(kind: str) -> None:
    assert judge(RESET.replace("ConnectionResetError", kind))[0] is not Cause.DATALOADER_WORKER


def test_a_connection_that_the_data_set_lost_or_the_users_own_queue_is_no_worker() -> None:
    inside = RESET.partition('  File "/usr/local/lib/python3.11/multiprocessing/queues.py"')[0] + FETCHED
    assert judge(f"{inside}ConnectionResetError: [Errno 104] Connection reset by peer\n")[0] is Cause.DATA_ERROR
    assert judge(f"Traceback (most recent call last):\n{OWN_QUEUE}")[0] is not Cause.DATALOADER_WORKER


@pytest.mark.parametrize("kind", ["KeyError", "NameError", "AttributeError", "TypeError"])
@pytest.mark.parametrize("in_worker", [False, True], ids=["no worker", "in a worker"])
def test_a_mistake_in_the_code_of_a_data_set_is_the_programs_and_another_error_the_datas(kind: str, *, in_worker: bool) -> None:
    frames = f'{FETCHED}  File "/home/user/train.py", line 16, in __getitem__\n    return row["label"]\n'
    caught = f"{kind}: Caught {kind} in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n{frames}"
    text = f"Traceback (most recent call last):\n{frames}{caught if in_worker else ''}{kind}: 'label'\n"
    assert judge(text)[0] is Cause.USER_CODE
    assert judge(text.replace(kind, "ValueError"))[0] is Cause.DATA_ERROR
