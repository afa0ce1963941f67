"""What a loop asks for again and again, by its source and by what its names hold."""

from __future__ import annotations

import textwrap

import pytest

from supervisor.observe.hangs import polled
from supervisor.observe.hangs.polled import PRESENCE, HeldFrame

#: (source, in which `# here` is the line that the stack shows; what the names hold; what the loop asks for)
LOOPS: dict[str, tuple[str, dict[str, polled.Held], tuple[polled.Held, ...]]] = {
    "a path in an attribute, as torch's FileBaton": (
        """
        def wait(self):
            while os.path.exists(self.lock_file_path):
                time.sleep(self.wait_seconds)  # here
        """,
        {"self.lock_file_path": ("path", "/c/lock"), "self.other": ("path", "/c/other")},
        ((PRESENCE, "/c/lock"),),
    ),
    "a question in the body": (
        """
        while True:
            if not lock.exists():
                break
            time.sleep(1)  # here
        """,
        {"lock": ("path", "/c/lock")},
        ((PRESENCE, "/c/lock"),),
    ),
    "a name that is joined": (
        "while os.path.isfile(os.path.join(cache, 'lock')): time.sleep(1)  # here",
        {"cache": ("path", "/c")},
        ((PRESENCE, "/c/lock"),),
    ),
    "a path that is divided": (
        "while not (root / f'{name}.done').exists(): time.sleep(1)  # here",
        {"root": ("path", "/c"), "name": ("path", "done/1")},
        ((PRESENCE, "/c/done/1.done"),),
    ),
    "a constant": ("while os.path.exists('/c/lock'): time.sleep(1)  # here", {}, ((PRESENCE, "/c/lock"),)),
    "a file that is read": (
        "while json.load(open(status))['ready'] is False: time.sleep(1)  # here",
        {"status": ("path", "/c/status")},
        (("path", "/c/status"),),
    ),
    "a process": ("while job.poll() is None: time.sleep(1)  # here", {"job": ("process", 7)}, (("process", 7),)),
    "only what is logged": ("while busy(): log.info(where); time.sleep(1)  # here", {"where": ("path", "/c/log")}, ()),
    "the inner of two loops": (
        """
        while os.path.exists(outer):
            for _ in range(9):
                os.path.exists(inner)
                time.sleep(1)  # here
        """,
        {"outer": ("path", "/c/outer"), "inner": ("path", "/c/inner")},
        ((PRESENCE, "/c/inner"),),
    ),
    "a loop around the function that the line is in": (
        """
        while os.path.exists(outer):
            def wait():
                time.sleep(1)  # here
        """,
        {"outer": ("path", "/c/outer")},
        (),
    ),
    "no loop, and a path that is called a lock": (
        "time.sleep(1)  # here",
        {"lock_file": ("path", "/c/model.lock"), "data": ("path", "/d")},
        (("path", "/c/model.lock"),),
    ),
    "an attribute of an attribute, and what nothing is known of": (
        "while f(self.options.first + 1, rows[0].path / 'x', self.lock): time.sleep(1)  # here",
        {"self.lock": ("path", "/c/lock")},
        (("path", "/c/lock"),),
    ),
    "an expression that is nested too deeply": (
        f"while f({'(1 + ' * 5000}where{')' * 5000}): time.sleep(1)  # here",
        {"where": ("path", "/c")},
        (),
    ),
    "source that cannot be read": ("while (:  # here", {"x": ("path", "/c/x")}, ()),
}


@pytest.mark.parametrize(("source", "values", "asked"), LOOPS.values(), ids=list(LOOPS))
def test_the_objects_that_a_loop_polls_are_read_from_its_source(
    source: str, values: dict[str, polled.Held], asked: tuple[polled.Held, ...]
) -> None:
    text = textwrap.dedent(source)
    line = next(number for number, row in enumerate(text.splitlines(), 1) if "# here" in row)
    frame = HeldFrame("/me/train.py", line, "wait", values or {"_": ("process", 1)})
    assert polled.polled([frame], lambda _file: text) == asked


def test_the_innermost_function_that_asks_for_something_counts() -> None:
    inner = HeldFrame("/me/retry.py", 1, "sleep", {"x": ("path", "/x")})
    outer = HeldFrame("/me/train.py", 1, "wait", {"lock": ("path", "/c/lock")})
    sources = {"/me/retry.py": "time.sleep(1)", "/me/train.py": "while os.path.exists(lock): sleep()"}
    assert polled.polled([inner, outer], sources.__getitem__) == ((PRESENCE, "/c/lock"),)


@pytest.mark.parametrize("answer", ["", "[1, 2]", "[(", "import os", "[('f', 'x', 'y', {})]"])
def test_an_invalid_answer_of_a_rank_is_none(answer: str) -> None:
    assert polled.read(answer) == ()
