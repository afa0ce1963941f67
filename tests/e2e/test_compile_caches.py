"""What torch compiled in one attempt is not compiled again in the next: each attempt has the user's own places of all compile caches."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.supervised import Supervised

SCRIPT = Path(__file__).parents[1] / "jobs" / "compiles.py"


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_restart_takes_what_the_attempt_before_compiled(supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    if shutil.which("g++") is None:
        pytest.skip("torch.compile needs a C++ compiler (Debian: apt-get install g++)")
    own = {"TMPDIR": str(tmp_path / "tmp"), "HOME": str(tmp_path / "home")}
    for place in own.values():
        Path(place).mkdir()
    run = supervise("torchrun", "--standalone", "--nproc-per-node=1", SCRIPT, tmp_path, **own)
    assert run.exit_code(400) == 0, run.stderr
    first, second = (json.loads((tmp_path / f"attempt-{number}.json").read_text()) for number in (1, 2))

    def places(seen: dict[str, Any]) -> dict[str, Any]:
        return {name: seen[name] for name in ("variables", "inductor", "extensions")}

    assert places(first) == places(second)
    assert {name: first["variables"][name] for name in own} == own
    assert first["inductor"].startswith(own["TMPDIR"])
    assert first["misses"] > 0, "attempt 1 compiles"
    assert second["misses"] == 0
    assert second["hits"] > 0
