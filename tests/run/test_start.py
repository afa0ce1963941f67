"""What runs before the run: torchrun's agent imports torch while supervise imports the rest of itself."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.supervised import clean_environment
from tests.support.waiting import is_running, wait_for

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process

#: What takes 10 ms and more to import, and is not needed before the agent starts.
LATER = ("supervisor.strategies", "supervisor.classify.redact", "checkpointing.model", "health.model")
#: Waits for the agent where the run's own module is looked for, names it with its guardian, and fails there.
REST = """
import sys, time
import psutil
from supervisor.cli.main import main
from supervisor.errors import SuperviseError

class Rest:
    def find_spec(self, name, path=None, target=None):
        if name == "supervisor.run.main":
            until = time.monotonic() + 30
            while time.monotonic() < until:
                below = psutil.Process().children(recursive=True)
                if any("agent/__main__.py" in " ".join(one.cmdline()) for one in below):
                    print(*(one.pid for one in below), flush=True)
                    print("imported:", *sorted(sys.modules), flush=True)
                    break
                time.sleep(0.01)
            raise SuperviseError("the rest is not there", hint="none")

sys.meta_path.insert(0, Rest())
sys.exit(main())
"""


def test_the_agent_starts_before_the_rest_is_imported_and_ends_with_a_run_that_does_not_begin(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("open('started', 'w')\n")
    job = ["--job", "j", "--state-dir", "state", "--", "torchrun", "--standalone", "train.py"]
    ended = subprocess.run(  # noqa: S603  the program under test
        [sys.executable, "-c", REST, *job], cwd=tmp_path, env=clean_environment(), capture_output=True, text=True, check=False
    )
    assert "the rest is not there" in ended.stderr
    started, imported = ended.stdout.splitlines()
    assert [name for name in LATER if name in imported.split()] == [], "the agent waits for these imports"
    pids = [int(pid) for pid in started.split()]
    assert len(pids) == 2, ended
    wait_for(lambda: not any(map(is_running, pids)), "the end of the guardian and of the agent")
    assert not (tmp_path / "started").exists()
