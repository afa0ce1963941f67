"""On a node with GPUs a standby only imports: what uses a GPU while it is imported is left to the rank, and named.

A small library stands in for NVIDIA's driver: like that it can be loaded without being initialised, which CUDA builds of torch do.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from supervisor.guardian.standby import READY, REFUSED
from supervisor.instrument._supervise_shim import preload
from tests.instrument.test_standby_imports import Libraries, libraries
from tests.standby.ways import Case, Job, differences

if TYPE_CHECKING:
    from pytest import TempPathFactory  # noqa: PT013

__all__ = ["libraries"]

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

#: cuInit notes who calls it in $DRIVER_LOG, and is what makes the others answer: 3 is CUDA_ERROR_NOT_INITIALIZED.
DRIVER = """
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
static int initialized;
int cuInit(unsigned flags)
{
    int log = open(getenv("DRIVER_LOG"), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    dprintf(log, "%d\\n", getpid());
    close(log);
    initialized = 1;
    return 0;
}
int cuDeviceGetCount(int *count) { return initialized ? (*count = 1, 0) : 3; }
int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
"""
#: What a standby and the record ask of torch, and its list of what is done when CUDA is initialised. `init` notes who calls it.
TORCH = {
    "__init__": "import torch.cuda\ndef get_default_dtype(): return 'float32'\ndef is_grad_enabled(): return True\n",
    "cuda": (
        "import os\n_queued_calls, _began = [], []\ndef is_initialized(): return bool(_began)\n"
        "def init():\n    _began.append(1)\n    open(os.environ['DRIVER_LOG'], 'a').write(f'{os.getpid()}\\n')\n"
        "    [call() for call, _ in _queued_calls]\n"
    ),
}


@pytest.fixture(scope="session")
def driver(tmp_path_factory: TempPathFactory) -> Path:
    """Return the directory of a library that stands in for the driver."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler for the fake driver (Debian: apt-get install gcc)")
    place = tmp_path_factory.mktemp("driver")
    (place / "driver.c").write_text(DRIVER)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", "libcuda.so.1", "driver.c"], cwd=place, check=True)  # noqa: S603  words of our own
    return place


@pytest.fixture
def log(libraries: Libraries, tmp_path: Path) -> Path:
    """Return the file in which each process stands that initialised CUDA, with torch's stand-in installed."""
    libraries.ranks.variables["DRIVER_LOG"] = str(tmp_path / "initialized")
    (libraries.site / "torch").mkdir()
    for name, text in TORCH.items():
        (libraries.site / "torch" / f"{name}.py").write_text(text)
    return tmp_path / "initialized"


def test_a_library_that_initialises_cuda_at_import_is_never_imported_in_advance(libraries: Libraries, log: Path) -> None:
    """A context takes memory of a GPU that a rank may need."""
    state, note, _ = libraries.prepare(
        "import torch, lib_a, lib_b, lib_c", lib_a="", lib_b="import lib_deep", lib_c="", lib_deep="import torch\ntorch.cuda.init()"
    )
    assert (state, note) == (READY, "lib_b (initialises CUDA) is left to the rank")
    assert log.read_text().split() == [str(libraries.ranks.processes[0].pid)], "the recorded rank alone"
    assert libraries.warm() == ["lib_a", "lib_c"]


def test_a_script_that_initialises_cuda_between_its_imports_has_a_standby_of_all(libraries: Libraries, log: Path) -> None:
    state, note, _ = libraries.prepare("import torch, lib_a\ntorch.cuda.init()\nimport lib_b", lib_a="", lib_b="")
    assert (state, note) == (READY, "")
    assert len(log.read_text().split()) == 1
    assert libraries.warm() == ["lib_a", "lib_b"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("import ctypes\nctypes.CDLL('libcuda.so.1').cuInit(0)", "lib_b (initialises CUDA) is left to the rank"),
        ("import ctypes\nDRIVER = ctypes.CDLL('libcuda.so.1')", ""),
    ],
    ids=["initialised", "loaded"],
)
def test_a_library_that_initialises_the_driver_is_left_to_the_rank(
    libraries: Libraries, log: Path, driver: Path, text: str, why: str
) -> None:
    libraries.ranks.variables["LD_LIBRARY_PATH"] = str(driver)
    state, note, _ = libraries.prepare("import torch, lib_a, lib_b, lib_c", lib_a="", lib_b=text, lib_c="")
    assert (state, note) == (READY, why)
    assert ("libcuda" in Path(f"/proc/{libraries.ranks.processes[-1].pid}/maps").read_text()) is not bool(why)
    assert libraries.warm() == (["lib_a", "lib_c"] if why else ["lib_a", "lib_b", "lib_c"])
    assert log.exists() is bool(why)


def test_a_torch_imported_with_a_library_that_uses_a_gpu_allows_no_standby(libraries: Libraries, log: Path) -> None:
    state, why, _ = libraries.prepare("import lib_a", lib_a="import torch\ntorch.cuda.init()")
    assert (state, why) == (REFUSED, "lib_a (initialises CUDA) is left to the rank, and torch with it")
    assert len(log.read_text().split()) == 1


@pytest.mark.parametrize("device", ["/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia-uvm", "/dev/kfd", "/dev/dri/renderD128", "/dev/null"])
def test_an_open_device_of_a_gpu_is_a_use_of_the_gpu(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    monkeypatch.setattr(preload, "_target", lambda _number: device)
    assert preload.used_gpu() == ("" if device == "/dev/null" else f"opens {device}")


@pytest.mark.slow
def test_a_cuda_build_of_torch_is_imported_in_advance_without_cuda(driver: Path, tmp_path: Path) -> None:
    """The rank trains on the CPU, and torch asks the driver what is there; while a standby imports and waits it is not asked."""
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install -e .[dev]")
    if torch.version.cuda is None:
        pytest.skip(f"torch {torch.__version__} is built without CUDA: install a build with CUDA")
    job, log = Job(tmp_path / "job"), tmp_path / "initialized"
    case = Case(("-u", "training.py", "here", "fork"), env={"LD_LIBRARY_PATH": str(driver), "DRIVER_LOG": str(log)})
    job.recorded(case)
    colds = [job.cold(case), job.cold(case)]
    standby = job.standby(case)
    assert (standby.poll(), standby.why, standby.note) == (READY, "", "")
    assert "torch/lib/libtorch_cuda.so" in Path(f"/proc/{standby.pid}/maps").read_text()
    opened = [os.readlink(entry) for entry in Path(f"/proc/{standby.pid}/fd").iterdir()]  # noqa: PTH115  a name that need not be a path
    assert [name for name in opened if name.startswith(("/dev/nvidia", "/dev/dri"))] == []
    assert str(standby.pid) not in log.read_text().split(), "its imports initialise CUDA"
    warm = job.warm(case, standby=standby)
    assert not warm.cold
    assert str(standby.pid) in log.read_text().split()
    assert not differences(colds, warm, ("modules.*",))
