"""Training out of a standby is equal to the last bit, whatever feeds and runs it; what torch reads on import is not missed."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from supervisor.instrument._supervise_shim import standby
from supervisor.launch import tracing
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
    deviations = differences(colds, warm, ("modules.*",))  # addresses of C code are in there
    assert not deviations, "\n".join(deviations)
    return warm


@pytest.mark.parametrize("ways", [("here", "fork", "persistent"), ("spawn",)], ids=" ".join)
def test_training_is_equal_with_every_kind_of_loader(ways: tuple[str, ...], job: Job) -> None:
    warm = _equal(job, Case(("-u", "training.py", *ways)))
    losses = {name: value for name, value in warm.observed.items() if name.startswith("losses.")}
    assert len(losses) == len(ways)
    assert all(len(value) == 8 for value in losses.values())


@pytest.mark.timeout(1200)
def test_compiled_functions_are_equal(job: Job, tmp_path: Path) -> None:
    """A warm rank finds what the recorded one compiled. Whoever finds it imports less, so all that are compared find it."""
    if shutil.which("g++") is None:
        pytest.skip("torch.compile needs a C++ compiler (Debian: apt-get install g++)")
    cache = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache"), "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    case = Case(("-u", "training.py", "compile"), env=cache)
    job.recorded(case)
    first = job.warm(case)
    assert (first.cold, first.note, first.observed["found_in_cache"]) == ("", "", 1)
    warm = _equal(job, case)
    assert not [name for name in warm.files if name.startswith("uneven")], warm.files


#: What scripts do before they import torch; tests/standby/libraries.py has each by itself, without torch.
HEADS = {
    "variables, paths, words and the project's modules": (
        "import os, sys\nos.environ['OMP_NUM_THREADS'] = '2'\nos.environ['CUBLAS_WORKSPACE_CONFIG'] = ':4096:8'\n"
        "os.environ['TOKENIZERS_PARALLELISM'] = 'false'\nos.environ['CUDA_DEVICE_ORDER'] = 'PCI_BUS_ID'\n"
        "os.environ.setdefault('CUDA_VISIBLE_DEVICES', '0')\nos.environ.update(NCCL_DEBUG='WARN', NCCL_IB_TIMEOUT='22')\n"
        "os.environ['HF_HOME'] = os.path.expanduser('~/hub')\nimport settings\n"
        "sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)) + '/package')\n"
        "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--lr')\nparser.parse_args()\n"
        "import torch\ntorch.use_deterministic_algorithms(True)\n"
    ),
    "filters of warnings and the root logger": (
        "import warnings\nwarnings.filterwarnings('ignore')\nwarnings.filterwarnings('ignore', message='.*scheduler.*',"
        " category=UserWarning, module='torch')\nimport logging\n"
        "logging.basicConfig(level=logging.INFO, format='%(levelname)s %(message)s')\nimport torch\n"
    ),
    "warnings that are errors": "import warnings\nwarnings.simplefilter('error')\nimport torch\n",
    "gradients that are off": (
        "import torch\ntorch.set_grad_enabled(False)\nimport torch.distributed.checkpoint\nassert not torch.is_grad_enabled()\n"
    ),
    "several things, one after the other": (
        "import os\nos.environ['OMP_NUM_THREADS'] = '3'\nimport numpy\nos.environ['TOKENIZERS_PARALLELISM'] = 'false'\nimport warnings\n"
        "warnings.filterwarnings('ignore', category=FutureWarning)\nimport torch\nimport logging\nlogging.basicConfig(level='ERROR')\n"
        "import torch.distributed.checkpoint\nimport torch._dynamo\n"
    ),
}


@pytest.mark.parametrize("name", HEADS)
def test_settings_made_by_a_script_before_torch_hold_and_its_restart_is_warm(name: str, job: Job, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    shutil.copy(PROBES / "observed.py", tmp_path)
    (tmp_path / "settings.py").write_text("import os\nos.environ['OMP_NUM_THREADS'] = '2'\nos.environ['NCCL_DEBUG'] = 'WARN'\n")
    (tmp_path / "package").mkdir()
    script.write_text(
        HEADS[name] + "import logging, os, sys, warnings\nfrom observed import show\n"
        "show(threads=torch.get_num_threads(), config=torch.__config__.parallel_info(), filters=[repr(one) for one in warnings.filters],"
        " variables=dict(os.environ), loaded=sorted(sys.modules), path=sys.path, handlers=[repr(one) for one in logging.root.handlers],"
        " level=logging.root.level, spec=repr(torch.__spec__), kept=sys.modules['torch'] is torch)\n"
    )
    case = Case(("-u", "script.py"), cwd=tmp_path)
    job.recorded(case)
    colds = [job.cold(case), job.cold(case)]
    warm = job.warm(case)
    deviations = differences(colds, warm)
    assert not deviations, "\n".join([warm.cold, *deviations])
    assert not warm.cold
    assert not [name for name in warm.files if name.startswith("uneven")], warm.files
    assert not warm.note, warm.note


@pytest.mark.parametrize(
    ("head", "level"),
    [("", "INFO"), ("import os\nos.environ['TORCH_DISTRIBUTED_DEBUG'] = 'OFF'\n", "OFF")],
    ids=["by the trace", "by the script"],
)
def test_variables_that_trace_the_collectives_cause_no_cold_start(job: Job, tmp_path: Path, head: str, level: str) -> None:
    """The attempt after a hang may get these variables; torch has a recorder of so many collectives only if it reads them in time."""
    (tmp_path / "script.py").write_text(
        head + "import torch\nimport torch.distributed as dist\nfrom torch._C import _distributed_c10d as c10d\nfrom observed import show\n"
        "import json, os, logging, sys\n"
        "dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)\n[dist.barrier() for _ in range(9)]\n"
        "show(level=str(dist.get_debug_level()),"
        " entries=len(json.loads(c10d._dump_fr_trace_json())['entries']), variables=dict(os.environ), loaded=sorted(sys.modules))\n"
    )
    shutil.copy(PROBES / "observed.py", tmp_path)
    case = Case(("-u", "script.py"), cwd=tmp_path)
    traces = tracing.variables({}, str(tmp_path))
    assert traces.keys() <= {*standby.MAY_CHANGE}
    then = replace(case, env={**traces, tracing.SIZE: "4"})
    job.recorded(case)
    colds = [job.cold(then), job.cold(then)]
    assert (colds[0].observed["entries"], colds[0].observed["level"]) == (4, f"DebugLevel.{level}")
    warm = job.warm(case, then=then)
    assert not warm.cold, warm.cold
    assert not differences(colds, warm)


def test_a_value_that_a_script_computes_anew_makes_its_rank_start_cold(job: Job, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    shutil.copy(PROBES / "observed.py", tmp_path)
    script.write_text(
        "import os, sys, time\nos.environ['RUN_NAME'] = f'run-{time.time_ns()}'\nos.environ['OMP_NUM_THREADS'] = '2'\nimport torch\n"
        "import observed\nobserved.recorded()\n"
        "print(torch.get_num_threads(), os.environ['RUN_NAME'] > 'run-', os.getpid())\n"
    )
    case = Case(("script.py",), cwd=tmp_path)
    job.recorded(case)
    standby = job.standby(case)
    warm = job.warm(case, standby=standby)
    assert warm.out.decode().split() == ["2", "True", str(standby.pid)]
    assert (job.directory(2) / "uneven-0").read_text() == "torch\nRUN_NAME\n"
    shutil.copy(job.directory(2) / "imports-0.json", job.record)
    warm = job.warm(case)
    assert warm.cold == "refused: each attempt has another RUN_NAME before it imports torch"
    assert warm.code == 0
