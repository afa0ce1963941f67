"""Tracebacks taken out of logs: made by Python itself, interleaved, prefixed, chained, boxed and cut."""

from __future__ import annotations

import itertools
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING

import pytest

from supervisor.classify.logs import text
from supervisor.classify.logs.tracebacks import DIRECT, HANDLED, Finder, Traceback, calls, frames_in, up_to_root

if TYPE_CHECKING:
    from collections.abc import Iterable

CHAINED = """
def load(path):
    raise KeyError('model')
def main():
    try:
        load('x')
    except KeyError as error:
        raise RuntimeError('cannot resume:\\nthe file has no model') from error
main()
"""
CONTEXT = """
def outer():
    try:
        1 / 0
    except ZeroDivisionError:
        open('/nowhere/at/all')
outer()
"""
GROUP = """
def job(i):
    raise ValueError(f'bad {i}')
def main():
    errors = []
    for i in range(2):
        try:
            job(i)
        except ValueError as error:
            errors.append(error)
    raise ExceptionGroup('two jobs', errors)
main()
"""
MANY_LINES = """
class Odd(Exception):
    pass
raise Odd('first\\n\\tMissing key(s): "a", "b".\\n\\tsize mismatch for c\\n\\n  and a paragraph')
"""
RECURSION = """
def f(n):
    return f(n + 1)
f(0)
"""
BARE = "raise KeyboardInterrupt"


def output_of(program: str, *, name: str = "job.py", tmp: str = "") -> str:
    """What Python prints for a program that fails."""
    run = subprocess.run(  # noqa: S603 (our own interpreter, our own program)
        [sys.executable, "-c", f"import sys; exec(compile({program!r}, {name!r}, 'exec'))"],
        capture_output=True, text=True, check=False, timeout=120, cwd=tmp or None,
    )  # fmt: skip
    assert run.returncode
    return run.stderr


def tracebacks_in(lines: Iterable[str]) -> list[Traceback]:
    finder = Finder()
    for number, line in enumerate(lines, 1):
        finder.feed(text.read(line.encode()), number)
    return finder.finish()


def raised(traceback: Traceback) -> list[tuple[str, str]]:
    return [(exception.kind, exception.message) for exception in traceback.raised]


@pytest.mark.process
def test_chained_exceptions_are_one_traceback_in_printed_order() -> None:
    (chain,) = tracebacks_in(output_of(CHAINED).splitlines())
    assert raised(chain) == [("KeyError", "'model'"), ("RuntimeError", "cannot resume:\nthe file has no model")]
    assert chain.whole
    assert chain.raised[0].frames[-1].function == "load"
    assert chain.raised[1].frames[-1].function == "main"


@pytest.mark.process
def test_an_exception_during_the_handling_of_another_is_chained_too() -> None:
    (chain,) = tracebacks_in(output_of(CONTEXT).splitlines())
    assert [kind for kind, _ in raised(chain)] == ["ZeroDivisionError", "FileNotFoundError"]


@pytest.mark.process
def test_an_exception_group_holds_its_parts() -> None:
    chains = tracebacks_in(output_of(GROUP).splitlines())
    kinds = [exception for chain in chains for exception in raised(chain)]
    assert ("ExceptionGroup", "two jobs (2 sub-exceptions)") in kinds
    assert ("ValueError", "bad 0") in kinds
    assert ("ValueError", "bad 1") in kinds


@pytest.mark.process
def test_a_message_of_many_lines_is_kept_whole() -> None:
    (traceback,) = tracebacks_in(output_of(MANY_LINES).splitlines())
    assert raised(traceback) == [("Odd", 'first\n\tMissing key(s): "a", "b".\n\tsize mismatch for c\n  and a paragraph')]


@pytest.mark.process
def test_a_syntax_error_has_its_message_and_the_frames_that_led_to_it() -> None:
    (traceback,) = tracebacks_in(output_of("compile('def f(:\\n  pass', 'broken.py', 'exec')").splitlines())
    assert traceback.raised[-1].kind == "SyntaxError"
    assert traceback.raised[-1].frames[-1].path == "broken.py"


@pytest.mark.process
def test_repeated_frames_are_folded_as_python_folds_them() -> None:
    (traceback,) = tracebacks_in(output_of(RECURSION).splitlines())
    assert traceback.raised[-1].kind == "RecursionError"
    assert len(traceback.raised[-1].frames) < 10


@pytest.mark.process
def test_an_exception_without_a_message_ends_a_traceback() -> None:
    (traceback,) = tracebacks_in([*output_of(BARE).splitlines(), "step 1 loss 2.0"])
    assert raised(traceback) == [("KeyboardInterrupt", "")]


@pytest.mark.parametrize(
    "prefix",
    [
        "[rank{}]: ",
        "[default{}]:",
        "[default{0}]:[rank{0}]: ",
        "{}: ",
        "[1,{}]<stderr>:",
        "2026-11-21T00:00:00.123456789Z stderr F [rank{}]: ",
    ],
)
@pytest.mark.process
def test_ranks_that_write_at_once_come_apart_by_their_prefixes(prefix: str) -> None:
    logs = {rank: output_of(program).splitlines() for rank, program in enumerate((CHAINED, CONTEXT, MANY_LINES))}
    alone = {rank: [raised(traceback) for traceback in tracebacks_in(lines)] for rank, lines in logs.items()}
    mixed = [
        prefix.format(rank) + lines for row in itertools.zip_longest(*logs.values()) for rank, lines in enumerate(row) if lines is not None
    ]
    together: dict[int | None, list[list[tuple[str, str]]]] = {}
    for traceback in tracebacks_in(mixed):
        together.setdefault(traceback.rank, []).append(raised(traceback))
    assert together == alone


def test_a_traceback_whose_beginning_was_cut_is_known_by_its_frames() -> None:
    (traceback,) = tracebacks_in(
        ['  File "a.py", line 3, in step', "    loss.backward()", "RuntimeError: bad", "CUDA kernel errors might be asynchronous"]
    )
    assert not traceback.whole
    assert raised(traceback) == [("RuntimeError", "bad\nCUDA kernel errors might be asynchronous")]


def test_an_exception_alone_is_one_without_frames() -> None:
    (traceback,) = tracebacks_in(["torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"])
    assert not traceback.whole
    assert traceback.raised[0].frames == ()


@pytest.mark.parametrize(
    "line",
    ["loss: 3.0", "INFO: RuntimeError: x is handled", "a RuntimeError occurred", "Epoch: 3", "some_function_error: 3", "MSE Error: 0.3"],
)
def test_a_line_that_only_mentions_an_exception_is_no_traceback(line: str) -> None:
    assert tracebacks_in([line]) == []


WORKER = """\
Traceback (most recent call last):
  File "train.py", line 9, in <module>
    for batch in loader:
  File "/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py", line 1529, in _next_data
    return self._process_data(data, worker_id)
RuntimeError: Caught RuntimeError in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "/venv/lib/python3.11/site-packages/torch/utils/data/_utils/worker.py", line 349, in _worker_loop
    data = fetcher.fetch(index)
RuntimeError: unable to allocate shared memory(shm) for file </torch_2792_2412970214_0>: No space left on device (28)
"""
SPAWNED = """\
torch.multiprocessing.spawn.ProcessRaisedException:

-- Process 0 terminated with the following error:
Traceback (most recent call last):
  File "/venv/lib/python3.11/site-packages/torch/multiprocessing/spawn.py", line 90, in _wrap
    fn(i, *args)
  File "main.py", line 5, in worker
    raise ValueError("no")
ValueError: no
"""
REMOTE = '''\
multiprocessing.pool.RemoteTraceback:
"""
Traceback (most recent call last):
  File "/usr/lib/python3.11/multiprocessing/pool.py", line 125, in worker
    result = (True, func(*args, **kwds))
ZeroDivisionError: division by zero
"""

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "a.py", line 4, in <module>
    pool.map(f, [0])
ZeroDivisionError: division by zero
'''
BOXED = """\
╭─────────────────────────────── Traceback (most recent call last) ────────────────────────────────╮
│ /home/user/sd-scripts/train_network.py:773 in <module>                                           │
│                                                                                                  │
│   770 │   args = train_util.read_config_from_file(args, parser)                                  │
│ ❱ 773 │   train(args)                                                                            │
│                                                                                                  │
│ /home/user/sd-scripts/train_network.py:578 in train                                              │
╰──────────────────────────────────────────────────────────────────────────────────────────────────╯
RuntimeError: CUDA error: uncorrectable ECC error encountered
CUDA kernel errors might be asynchronously reported at some other API call
"""


@pytest.mark.parametrize(
    ("log", "kinds", "function"),
    [
        (WORKER, ["RuntimeError", "RuntimeError"], "_worker_loop"),
        (SPAWNED, ["torch.multiprocessing.spawn.ProcessRaisedException", "ValueError"], "worker"),
        (REMOTE, ["ZeroDivisionError", "ZeroDivisionError"], "<module>"),
        (BOXED, ["RuntimeError"], "train"),
    ],
)
def test_tracebacks_within_messages_and_boxes_are_exceptions_in_order(log: str, kinds: list[str], function: str) -> None:
    (traceback,) = tracebacks_in(log.splitlines())
    assert [kind for kind, _ in raised(traceback)] == kinds
    assert traceback.raised[-1].frames[-1].function == function


def test_the_root_of_a_chain_is_what_the_last_exception_was_raised_from() -> None:
    parts = [
        f'Traceback (most recent call last):\n  File "a.py", line {n}, in f\n    g()\n{kind}: {n}\n'
        for n, kind in enumerate(("KeyError", "OSError", "RuntimeError"))
    ]
    (chained,) = tracebacks_in(f"\n{DIRECT}\n\n".join(parts).splitlines())
    assert (chained.root.kind, chained.root.line) == ("KeyError", 4)
    (handled,) = tracebacks_in(f"{parts[0]}\n{HANDLED}\n\n{parts[1]}\n{DIRECT}\n\n{parts[2]}".splitlines())
    assert handled.root.kind == "OSError"
    (last,) = tracebacks_in(f"{parts[0]}\n{DIRECT}\n\n{parts[1]}\n{HANDLED}\n\n{parts[2]}".splitlines())
    assert last.root.kind == "RuntimeError"
    child = parts[0].replace("KeyError: 0", "subprocess.CalledProcessError: Command 'ninja' returned non-zero exit status 1.")
    (passed_on,) = tracebacks_in(f"{child}\n{DIRECT}\n\n{parts[1]}".splitlines())
    assert passed_on.root.kind == "OSError"
    assert up_to_root(f"{child}\n{DIRECT}\n\n{parts[1]}") == ("", "")


def test_two_tracebacks_one_after_the_other_are_two() -> None:
    single = textwrap.dedent("""\
        Traceback (most recent call last):
          File "a.py", line 1, in f
            g()
        ValueError: a
        """)
    assert [raised(traceback) for traceback in tracebacks_in((single + single).splitlines())] == [[("ValueError", "a")]] * 2


def test_a_logged_line_ends_a_message() -> None:
    (traceback,) = tracebacks_in(["RuntimeError: bad", "2026-11-21 00:36:22,598 | INFO | trainer | step=8 loss=1.0", "more"])
    assert raised(traceback) == [("RuntimeError", "bad")]


def test_source_code_within_a_traceback_is_not_taken_for_what_happened() -> None:
    finder = Finder()
    lines = [
        "Traceback (most recent call last):",
        '  File "a.py", line 1, in f',
        '    raise RuntimeError("CUDA out of memory")',
        "RuntimeError: x",
    ]
    assert [finder.feed(text.read(line.encode()), i) for i, line in enumerate(lines)] == [True, True, True, False]


def test_open_tracebacks_are_bounded() -> None:
    finder = Finder()
    for rank in range(2000):
        finder.feed(text.read(f"[rank{rank}]: Traceback (most recent call last):".encode()), rank)
        finder.feed(text.read(f'[rank{rank}]:   File "a.py", line 1, in f'.encode()), rank)
    assert len(finder._open) <= 512  # noqa: SLF001 (the bound is the claim)


@pytest.mark.parametrize(
    "before", ["Exception ignored in: <function X.__del__ at 0x7f>", "--- Logging error ---", "Error in atexit._run_exitfuncs:"]
)
def test_a_traceback_that_ended_nothing_is_none(before: str) -> None:
    traceback = ["Traceback (most recent call last):", '  File "a.py", line 1, in f', "AssertionError: can only test a child process"]
    assert tracebacks_in([before, *traceback, "Model saved"]) == []
    assert len(tracebacks_in([before, *traceback, "", *traceback])) == 1


def test_the_prefix_of_a_logger_is_stripped_from_each_line() -> None:
    log = (
        "2023-04-29 06:01:12.977 [177/train (pid 28936)] [09c5] Traceback (most recent call last):\n"
        '2023-04-29 06:01:13.104 [177/train (pid 28936)] [09c5]   File "/job/save.py", line 379, in save\n'
        "2023-04-29 06:01:13.105 [177/train (pid 28936)] [09c5]     zip_file.write_record(name, data, size)\n"
        "2023-04-29 06:01:13.106 [177/train (pid 28936)] [09c5] OSError: [Errno 28] No space left on device\n"
    )
    (chain,) = tracebacks_in(log.splitlines())
    assert raised(chain) == [("OSError", "[Errno 28] No space left on device")]
    assert chain.raised[0].frames[0].function == "save"


def test_a_logger_that_marks_the_first_line_only_is_no_prefix_of_the_others() -> None:
    log = 'ERROR [12/20 18:16:20 train]: Traceback (most recent call last):\n  File "/job/save.py", line 1, in save\nKeyError: 1\n'
    (chain,) = tracebacks_in(log.splitlines())
    assert raised(chain) == [("KeyError", "1")]


def test_a_traceback_that_the_end_cut_off_is_one_without_an_exception() -> None:
    (chain,) = tracebacks_in(["Traceback (most recent call last):", '  File "/job/save.py", line 1, in save', "    f.write(data)"])
    assert chain.raised == ()


def test_rows_get_frames_as_path_and_function() -> None:
    trace = 'Traceback (most recent call last):\n  File "C:\\py\\torch\\serialization.py", line 9, in _load\n    x()\nEOFError'
    assert calls(frames_in(trace)) == "C:/py/torch/serialization.py:_load"


def test_the_rest_of_a_folded_frame_is_no_exception() -> None:
    folded = (
        'Traceback (most recent call last):\n  File "/opt/lib/torch/multiprocessing/spawn.py", line 98, in start\n_workers\n'
        "    run()\nValueError: bad\n"
    )
    (traceback,) = tracebacks_in(folded.splitlines())
    assert [kind for kind, _ in raised(traceback)] == ["ValueError"]
