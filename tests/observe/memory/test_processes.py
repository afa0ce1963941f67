"""The memory of real processes, read from outside."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from supervisor.observe.memory import processes
from supervisor.observe.memory.processes import LoaderMemory, proportional, resident

if TYPE_CHECKING:
    from collections.abc import Iterator

MIB = 1 << 20
#: Shares 64 MiB with a child by fork; each prints when it holds them.
FAMILY = """
import os, sys, time
held = b"x" * (64 << 20)
pid = os.fork()
if pid:
    print(pid, flush=True)
time.sleep(60)
"""


@pytest.fixture(autouse=True)
def _a_busy_machine_reads_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "BUDGET_S", 60.0)


@pytest.fixture
def family() -> Iterator[tuple[int, int]]:
    """Yield the pids of a parent and its child that share memory."""
    parent = subprocess.Popen([sys.executable, "-c", FAMILY], stdout=subprocess.PIPE, text=True)  # noqa: S603
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    yield parent.pid, child
    os.kill(child, 9)
    parent.kill()
    parent.wait()
    parent.stdout.close()


def test_shared_pages_count_once_in_the_pss_of_loaders_and_in_full_in_what_is_resident(family: tuple[int, int]) -> None:
    parent, child = family
    sizes = resident(child)
    assert sizes is not None
    assert sizes[0] >= sizes[1] >= 64 * MIB
    shared = proportional(child)
    assert shared is not None
    assert 32 * MIB <= shared < 55 * MIB
    assert LoaderMemory().read((parent, child), 0.0)[child] == pytest.approx(shared, rel=0.1)


def test_pss_is_read_once_a_minute_and_of_no_large_process(family: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(processes, "proportional", lambda pid: asked.append(pid) or 5)
    loaders = LoaderMemory()
    assert loaders.read(family, 0.0) == dict.fromkeys(family, 5)
    assert loaders.read(family, 59.0) == dict.fromkeys(family, 5)
    assert sorted(asked) == sorted(family)
    loaders.read(family, 60.0)
    assert len(asked) == 4
    monkeypatch.setattr(processes, "MOST_BYTES", 32 * MIB)
    sizes = LoaderMemory().read(family, 0.0)
    assert len(asked) == 4
    assert all(size >= 64 * MIB for size in sizes.values()), "what is resident and no file's stands for it"


def test_of_many_loaders_some_wait_for_the_next_sample(family: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "BUDGET_S", 0.0)
    assert all(size >= 64 * MIB for size in LoaderMemory().read(family, 0.0).values())


def test_a_process_that_is_gone_is_absent() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert (resident(process.pid), proportional(process.pid)) == (None, None)
    assert LoaderMemory().read((process.pid,), 0.0) == {}
