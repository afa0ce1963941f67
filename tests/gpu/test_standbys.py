"""What only a real GPU can prove of standbys: `make gpu`. Until it has, there are none where GPUs are visible, unless --standby asks."""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from supervisor.guardian.standby import READY
from tests.e2e.test_standby import logged, ready
from tests.standby.ways import PROBES, Case, Job, assert_equal, differences
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.supervised import Supervised

JOB = str(Path(__file__).with_name("steady_training.py"))
DEVICE = "cuda"
pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]
#: Each probe of tests/standby that is a script, behind a first use of the GPU.
PROBED = (
    (),
    ("interpreter.py", "json", "decimal"),
    ("kernel.py",),
    ("at_exit.py",),
    ("random_state.py",),
    ("output.py", "200"),
    ("children.py", "subprocess"),
    ("children.py", "spawn"),
    ("children.py", "forkserver"),
)
#: Loaders whose workers are forks, and those that are new processes.
TRAINED = (("here", "fork", "persistent"), ("spawn", "forkserver"))
ENDS = ("returns", "exits 3", "fails in a chain", "fails at exit", "is interrupted", "dies of TERM", "dies of KILL")
#: A context of CUDA takes some 300 MiB of a GPU, a standby must take none; the driver's own figure moves a little.
CONTEXT_MIB = 64


@pytest.fixture
def job(tmp_path: Path, gpus: list[str]) -> Job:
    """The directory of a job; skipped where no GPU is."""
    assert gpus
    return Job(tmp_path / "job")


def steps_of(run: Supervised, but: tuple[int, ...] = ()) -> list[tuple[int, int, int]]:
    """Return (rank, ns, pid) of each step that other processes than `but` made."""
    path = run.place / "progress"
    lines = path.read_text(encoding="ascii").splitlines(keepends=True) if path.exists() else []
    rows = [tuple(map(int, line.split())) for line in lines if line.endswith("\n")]
    return [(rank, ns, pid) for rank, _, ns, pid in rows if pid not in but]


def first_steps(run: Supervised, ranks: int, but: tuple[int, ...] = ()) -> dict[int, int]:
    """Await a step of each rank that another process than `but` made; return rank -> ns of the first."""

    def look() -> dict[int, int]:
        first = {rank: ns for rank, ns, _ in reversed(steps_of(run, but))}
        return first if len(first) == ranks else {}

    return wait_for(look, "a step of each rank", 120, alive=run.alive)


def train(supervise: Callable[..., Supervised], mode: str, ranks: int, place: Path) -> Supervised:
    """Start the job, and await a step of each rank."""
    launcher = ["torchrun", "--standalone", f"--nproc-per-node={ranks}", JOB, f"--device={DEVICE}"]
    run = supervise(*launcher, options=["--standby", mode, "--resumes-itself"], place=place)
    first_steps(run, ranks)
    return run


def used_mib() -> list[int]:
    """Return how much memory of each GPU is in use."""
    words = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)  # noqa: S603  words of our own
    return [int(line) for line in done.stdout.split()]


@pytest.mark.parametrize("words", PROBED, ids=" ".join)
def test_a_standby_rank_on_the_gpu_equals_one_that_starts_cold(words: tuple[str, ...], job: Job) -> None:
    assert_equal(job, Case(("-u", "on_device.py", DEVICE, *words)), ("modules.*",))


@pytest.mark.parametrize("ways", TRAINED, ids=" ".join)
def test_training_on_the_gpu_is_equal_to_the_last_bit(ways: tuple[str, ...], job: Job) -> None:
    warm = assert_equal(job, Case(("-u", "training.py", DEVICE, *ways)), ("modules.*",))
    assert warm.code == 0, warm.err.decode()
    assert len([name for name in warm.observed if name.startswith("losses.")]) == len(ways)


@pytest.mark.parametrize("way", ENDS)
def test_each_end_after_a_use_of_the_gpu_is_the_same(way: str, job: Job) -> None:
    warm = assert_equal(job, Case(("-u", "on_device.py", DEVICE, "exits.py", way)))
    assert "begins" in warm.out.decode()


def script_on_device(place: Path, before: str, after: str = "") -> Case:
    """Return a script that uses the GPU, with lines before and after its `import torch`."""
    text = (PROBES / "on_device.py").read_text(encoding="utf-8")
    (place / "script.py").write_text(text.replace("import torch\n", f"{before}import torch\n{after}"), encoding="utf-8")
    (place / "observed.py").write_text((PROBES / "observed.py").read_text(encoding="utf-8"), encoding="utf-8")
    return Case(("-u", "script.py", DEVICE), cwd=place)


def test_a_script_that_chooses_its_gpu_before_torch_has_a_warm_start(job: Job, tmp_path: Path) -> None:
    case = script_on_device(tmp_path, "os.environ.update(CUDA_VISIBLE_DEVICES='0', CUDA_DEVICE_ORDER='PCI_BUS_ID')\n")
    warm = assert_equal(job, case, ("modules.*",))
    assert not warm.note


#: Libraries that use the GPU while they are imported. A device that is open at the end of an import is enough.
GPU_USERS = {
    "import torch\ntorch.cuda.init()\n": "gpu_user (initialises CUDA) is left to the rank",
    "import torch\nVALUE = torch.zeros(1 << 28, dtype=torch.uint8, device='cuda')\n": "gpu_user (initialises CUDA) is left to the rank",
    "import torch\nVALUE = torch.cuda.is_available()\n": "gpu_user (initialises CUDA) is left to the rank",
    "import ctypes\nassert ctypes.CDLL('libcuda.so.1').cuInit(0) == 0\n": "gpu_user (initialises CUDA) is left to the rank",
    "import os\nFD = os.open('/dev/nvidiactl', os.O_RDWR)\n": "gpu_user (opens /dev/nvidiactl) is left to the rank",
}


@pytest.mark.parametrize("text", GPU_USERS)
def test_a_library_that_uses_the_gpu_while_it_is_imported_is_left_to_the_rank(text: str, job: Job, tmp_path: Path) -> None:
    site = tmp_path / "site-packages"
    site.mkdir()
    (site / "gpu_user.py").write_text(text, encoding="utf-8")
    case = replace(script_on_device(tmp_path, "", "import gpu_user\n"), env={"PYTHONPATH": str(site)})
    job.recorded(case)
    before = used_mib()
    standby = job.standby(case)
    assert (standby.poll(), standby.note) == (READY, GPU_USERS[text]), standby.why
    assert_uses_no_gpu([standby.pid], before)
    warm = job.warm(case, standby=standby)
    assert not warm.cold
    assert not differences([job.cold(case), job.cold(case)], warm, ("modules.*",))


def assert_uses_no_gpu(pids: list[int], before_mib: list[int]) -> None:
    """Hold that processes have no memory of a GPU, no context and no open device. before_mib: used_mib() without them."""
    assert [after - first for first, after in zip(before_mib, used_mib(), strict=True) if after - first > CONTEXT_MIB] == []
    apps = ["nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader"]
    listed = subprocess.run(apps, capture_output=True, text=True, timeout=60, check=True).stdout.split()  # noqa: S603  words of our own
    assert not {str(pid) for pid in pids} & {*listed}
    for pid in pids:
        opened = [os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir()]  # noqa: PTH115  a name that need not be a path
        assert [name for name in opened if name.startswith("/dev/nvidia")] == []


def test_standbys_hold_no_memory_and_no_file_of_a_gpu(gpus: list[str], supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    run = train(supervise, "on", len(gpus), tmp_path / "warm")
    before = used_mib()
    assert_uses_no_gpu(ready(run, 1, len(gpus)), before)
    run.signal(signal.SIGTERM)
    run.wait_for_nothing_left()


def test_from_a_kill_to_the_first_step_with_a_context(
    gpus: list[str], supervise: Callable[..., Supervised], tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    taken: dict[str, list[float]] = {"off": [], "on": []}
    for number in range(3):
        for mode, times in taken.items():
            run = train(supervise, mode, len(gpus), tmp_path / f"{mode}-{number}")
            if mode == "on":
                ready(run, 1, len(gpus))
            old = tuple({pid for _, _, pid in steps_of(run)})
            killed_ns = time.monotonic_ns()
            os.kill(old[-1], signal.SIGKILL)
            first = first_steps(run, len(gpus), old)
            times.append((max(first.values()) - killed_ns) / 1e9)
            if mode == "on":
                [used] = wait_for(lambda: logged(run, "standby.used"), "their use is logged", alive=run.alive)  # noqa: B023 - called at once
                assert used["ranks"] == [*range(len(gpus))]
            else:
                assert logged(run, "standby.used") == []
            run.signal(signal.SIGTERM)
            run.wait_for_nothing_left()
    cold, warm = (statistics.median(taken[mode]) for mode in ("off", "on"))
    record_property("kill_to_first_step_s", {"cold": round(cold, 3), "standby": round(warm, 3)})
    assert warm < cold, taken
