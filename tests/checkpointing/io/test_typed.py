"""Typed values are made by any thread."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
#: Of each new type four threads make the first value at the same time. By msgspec's own function this ends the interpreter with SIGSEGV.
THREADS = """
import sys, threading
from msgspec import defstruct
from checkpointing.io import typed
sys.setswitchinterval(1e-6)
row = {f"f{number}": [{f"x{place}": 1 for place in range(5)}] for number in range(8)}
for turn in range(60):
    inner = defstruct(f"Inner{turn}", [(f"x{place}", "int | None") for place in range(5)])
    outer = defstruct(f"Outer{turn}", [(f"f{number}", tuple[inner, ...]) for number in range(8)])
    together, values = threading.Barrier(4), []
    def make():
        together.wait()
        values.append(typed.converted(row, outer))
    threads = [threading.Thread(target=make) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(values) == 4 and all(value == values[0] for value in values)
"""


def test_threads_make_the_first_values_of_a_type_at_once() -> None:
    done = subprocess.run([sys.executable, "-c", THREADS], cwd=ROOT, capture_output=True, text=True, check=False)  # noqa: S603  ours
    assert done.returncode == 0, done.stderr


def test_no_other_module_has_msgspec_learn_a_type() -> None:
    direct = re.compile(r"msgspec\.(convert|json\.decode|json\.Decoder|msgpack)\(")
    files = [file for package in ("supervisor", "checkpointing", "health") for file in (ROOT / package).rglob("*.py")]
    assert [str(file.relative_to(ROOT)) for file in files if direct.search(file.read_text(encoding="utf-8"))] == [
        "checkpointing/io/typed.py"
    ]
