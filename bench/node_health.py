"""What health costs: `python bench/node_health.py [--json]`. Needs a C compiler, for the fake NVML of tests/health/fake_nvml.

Measured: a sweep of 8 fake GPUs in CPU milliseconds (in a session that lasts; in a fresh process, which imports nvidia-ml-py first);
sampling as a share of a core, prober and runner together; the seconds of all that is read before an attempt; how long after its deadline a
hang is noticed. The fake answers at once: a real driver adds its own time. Not `health.py`: that name would hide the package from this
very script.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from health import registry
from health.judge import judge
from health.model import Ask
from health.probing.runner import OUTCOME, Runner

GPUS = 8
COUNT = 40
#: Seconds between two samples of a running job.
PERIOD_S = 15.0
FAKE = Path(__file__).parents[1] / "tests" / "health" / "fake_nvml" / "fake_nvml.c"


def main() -> None:
    """Measure and print."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        sys.exit("no C compiler to build the fake NVML with")
    with tempfile.TemporaryDirectory() as place:
        library, state = Path(place, "libnvidia-ml.so.1"), Path(place, "state")
        subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-pthread", "-w", "-o", library, FAKE], check=True)  # noqa: S603 -- our own command
        state.write_text(f"count {GPUS}\n", "utf-8")
        environ = {**os.environ, "LD_LIBRARY_PATH": place, "FAKE_NVML_STATE": str(state)}
        figures = {**sweeps(environ), **sampling(environ), **preflight(environ), **hang(environ, state)}
    for name, (value, limit) in figures.items():
        figure = {"name": name, "value": round(value, 4), "limit": limit, "ok": value <= limit}
        print(
            json.dumps(figure) if "--json" in sys.argv else f"{name:66} {value:9.4f}  (limit {limit:g}){'' if value <= limit else '  OVER'}"
        )


def sweeps(environ: dict[str, str]) -> dict[str, tuple[float, float]]:
    """Return the CPU of one sweep, warm and in a fresh process."""
    runner = Runner(environ=environ)
    runner.sample(("nvml",), Ask())
    warm = [_cpu_s(runner, lasting=True) for _ in range(COUNT)]
    fresh = [_cpu_s(runner, lasting=False) for _ in range(5)]
    runner.close()
    return {
        f"sweep of {GPUS} GPUs, CPU ms (median)": (statistics.median(warm) * 1e3, 50.0),
        f"sweep of {GPUS} GPUs, fresh process with its imports, CPU ms (median)": (statistics.median(fresh) * 1e3, 100.0),
    }


def _cpu_s(runner: Runner, *, lasting: bool) -> float:
    now = (runner.sample if lasting else runner.sweep)(("nvml",), Ask())
    spent = now.table(OUTCOME, "probe:nvml")["cpu_s"]
    return spent if isinstance(spent, float) else 0.0


def sampling(environ: dict[str, str]) -> dict[str, tuple[float, float]]:
    """Return the share of a core that sampling takes: all sampled probes, the checks, and the runner's own reading."""
    runner = Runner(environ=environ)
    first = runner.sample(registry.sampled(), Ask())
    begun = time.process_time()
    probes_s = 0.0
    for _ in range(COUNT):
        now = runner.sample(registry.sampled(), Ask())
        probes_s += sum(float(str(now.table(OUTCOME, reading.subject).get("cpu_s", 0.0))) for reading in now.of(OUTCOME))
        judge(now, first)
    own_s = time.process_time() - begun
    runner.close()
    # the thread that hears events: it wakes once a second in the real library, and asks the file 50 times a second in the fake
    return {f"sampling every {PERIOD_S:.0f} s, share of a core in percent": (100 * (probes_s + own_s) / COUNT / PERIOD_S, 0.5)}


def preflight(environ: dict[str, str]) -> dict[str, tuple[float, float]]:
    """Return the seconds of the fast set, in parallel, with python's start, and its CPU."""
    begun, spent = time.monotonic(), _children_s()
    judge(Runner(environ=environ).sweep(registry.fast(), Ask()))
    return {
        "before an attempt, seconds": (time.monotonic() - begun, 10.0),
        "before an attempt, CPU seconds of all probers": (_children_s() - spent, 10.0),
    }


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def hang(environ: dict[str, str], state: Path) -> dict[str, tuple[float, float]]:
    """Return how long after its deadline a hang in the driver is reported."""
    runner = Runner(environ=environ)
    runner.sample(("pci",), Ask())
    state.write_text(f"count {GPUS}\n3.hang_ms.nvmlDeviceGetTemperature 600000\n", "utf-8")
    deadline_s = 1.0
    begun = time.monotonic()
    now = runner.sample(("nvml",), Ask(deadline_s=deadline_s))
    late = time.monotonic() - begun - deadline_s
    runner.close()
    if now.table(OUTCOME, "probe:nvml")["state"] != "hung":
        sys.exit("the hang was not noticed")
    return {"a hang is reported, seconds after its deadline": (late, 1.0)}


if __name__ == "__main__":
    main()
