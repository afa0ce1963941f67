"""Training out of a standby is equal to the last bit, whatever feeds and runs it; what torch reads on import is not missed."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from tests.standby.ways import PROBES, Case, Job, differences

if TYPE_CHECKING:
    from pathlib import Path

    from tests.standby.ways import Outcome

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(600)]


def _equal(job: Job, case: Case) -> Outcome:
    job.recorded(case)
    colds = [job.cold(case), job.cold(case)]
    warm = job.warm(case)
    assert not warm.cold
    assert warm.code == 0, warm.err.decode()
    found = differences(colds, warm, ("modules.*",))  # addresses of C code are in there
    assert not found, "\n".join(found)
    return warm


@pytest.mark.parametrize("ways", [("here", "fork", "persistent"), ("spawn", "forkserver")], ids=" ".join)
def test_training_is_equal_with_every_kind_of_loader(ways: tuple[str, ...], job: Job) -> None:
    warm = _equal(job, Case(("-u", "training.py", *ways)))
    losses = {name: value for name, value in warm.observed.items() if name.startswith("losses.")}
    assert len(losses) == len(ways)
    assert all(len(value) == 8 for value in losses.values())


def test_compiled_functions_are_equal(job: Job, tmp_path: Path) -> None:
    if shutil.which("g++") is None:
        pytest.skip("torch.compile needs a C++ compiler")
    _equal(
        job,
        Case(
            ("-u", "training.py", "compile"), env={"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache"), "TORCHINDUCTOR_COMPILE_THREADS": "1"}
        ),
    )


SETS = {
    "a variable of C code": ("import os\nos.environ['OMP_NUM_THREADS'] = '2'\nimport torch\n", "OMP_NUM_THREADS"),
    "a variable of Python code": ("import os\nos.environ['TOKENIZERS_PARALLELISM'] = 'false'\nimport torch\n", None),
    "warnings filters": ("import warnings\nwarnings.simplefilter('error')\nimport torch\n", "the warnings filters"),
}


@pytest.mark.parametrize("name", SETS)
def test_what_a_script_sets_before_torch_holds(name: str, job: Job, tmp_path: Path) -> None:
    text, why = SETS[name]
    script = tmp_path / "script.py"
    shutil.copy(PROBES / "observed.py", tmp_path)
    script.write_text(
        text + "import os, sys, warnings\nfrom observed import show\n"
        "show(threads=torch.get_num_threads(), config=torch.__config__.parallel_info(), filters=[repr(one) for one in warnings.filters],"
        " variables=dict(os.environ), loaded=sorted(sys.modules))\n"
    )
    case = Case(("-u", "script.py"), cwd=tmp_path)
    job.recorded(case)
    colds = [job.cold(case)]
    warm = job.warm(case)
    found = differences(colds, warm, ("files.beats.*",))  # times and pids: there is one cold start to compare with
    assert not found, "\n".join([warm.cold, *found])
    assert warm.cold == (f"refused: the script changes {why} before it imports torch" if why else "")
