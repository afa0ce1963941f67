"""Stacks as faulthandler and py-spy print them, and the line of the user's in them."""

from __future__ import annotations

import json
from pathlib import Path

from checkpointing.training import ranks, whereabouts
from supervisor import worker
from supervisor.agent import step_agreement
from supervisor.observe.hangs.frames import StackFrame, ThreadStack, parse, parse_py_spy

SITE = "/venv/lib/python3.11/site-packages"
DUMP = f"""Thread 0x00007f0000000001 (most recent call first):
  File "/x/supervisor/instrument/_supervise_shim/recorder.py", line 60 in _serve

Thread 0x00007f0000000002 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 320 in wait
  File "{SITE}/tqdm/_monitor.py", line 60 in run

Current thread 0x00007f0000000003 (most recent call first):
  File "{SITE}/torch/distributed/distributed_c10d.py", line 3007 in all_reduce
  File "/x/supervisor/instrument/_supervise_shim/torchhooks.py", line 9 in wrapper
  File "/home/me/my train.py", line 61 in train
  File "/home/me/my train.py", line 90 in <module>
"""


def test_the_main_thread_comes_first_and_ours_not_at_all() -> None:
    main, other = parse(DUMP)
    assert main.innermost == StackFrame(f"{SITE}/torch/distributed/distributed_c10d.py", 3007, "all_reduce")
    assert main.user_frame == StackFrame("/home/me/my train.py", 61, "train")
    assert main.user_frame.place == "my train.py:61"
    assert other.user_frame is None
    assert [frame.module for frame in other.frames] == ["threading.py", "tqdm/_monitor.py"]
    assert main.find("torch/distributed/", "all_reduce", "barrier") is main.innermost


def test_a_text_that_is_no_dump_has_no_threads() -> None:
    assert parse("no stacks: process 7: it is stopped") == ()
    assert parse_py_spy("Error: Failed to suspend process") == parse_py_spy('{"a": 1}') == ()


def test_py_spy_names_the_threads() -> None:
    frames = [{"name": "__getitem__", "filename": "/home/me/data.py", "line": 88}]
    threads = [
        {"pid": 7, "thread_id": 1, "thread_name": "QueueFeederThread", "os_thread_id": 8, "frames": []},
        {"pid": 7, "thread_id": 2, "thread_name": "MainThread", "os_thread_id": 7, "frames": frames},
    ]
    main, other = parse_py_spy(json.dumps(threads))
    assert (main.thread, main.user_frame) == ("MainThread", StackFrame("/home/me/data.py", 88, "__getitem__"))
    assert other.innermost is None


def test_our_own_code_is_not_the_users_wherever_it_is_installed() -> None:
    """With pip's --target it is in no site-packages: then our thread at a rank's exit was named, and every rank stood in our barrier."""
    users = StackFrame("/home/me/checkpointing/train.py", 61, "train")
    our_frames = [StackFrame(str(Path(module.__file__ or "")), 7, "wait") for module in (worker, step_agreement, whereabouts, ranks)]
    assert ThreadStack("0x1", (*our_frames, users)).user_frame == users
    assert ThreadStack("0x2", tuple(our_frames)).user_frame is None
