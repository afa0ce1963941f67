"""Train under `supervise`, tear the newest checkpoint, kill a rank with kill -9, and show the restart and how long it took.

`make demo` runs this. In: nothing. Out: the job's own output, the incident card, exit code 0 where the training finished and the
card could be shown; 1 with the reason where not. Everything is written below ./demo-run, which the next demo removes.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

Found = TypeVar("Found")

PLACE = Path("demo-run")
MARK = PLACE / ".made-by-the-demo"
STATE = PLACE / "state"
CHECKPOINTS = PLACE / "ckpt"
DEADLINE_S = 240.0  # on a machine that does nothing else the whole demo takes half a minute
RANKS = 2
LAUNCHER = ["torchrun", "--standalone", f"--nproc-per-node={RANKS}"]
SCRIPT = "examples/train_ddp.py"
STEPS, SAVE_EVERY = 400, 40
# the pace gives the standbys time to get ready; a rank that TERM ends at once, as Python does by itself, holds up no restart
PACE = ["--step-ms=40", "--on-term=end"]
TRAINING = [SCRIPT, f"--steps={STEPS}", f"--save-every={SAVE_EVERY}", "--log-every=40", "--keep=4", *PACE, f"--ckpt-dir={CHECKPOINTS}"]


def say(text: str) -> None:
    """Print a line of the demo's own, apart from the job's."""
    print(f"\n[demo] {text}", file=sys.stderr, flush=True)


def prepare() -> None:
    """Empty the place of an earlier demo; leave with a message where something is not as it must be."""
    if shutil.which("supervise") is None:
        sys.exit("[demo] `supervise` is not on PATH: run `make demo`, which installs it, or `pip install -e .` in a virtual environment")
    if not Path(SCRIPT).is_file():
        sys.exit(f"[demo] {SCRIPT} is not here: run the demo from the top of the checkout")
    if PLACE.exists() and not MARK.exists():
        sys.exit(f"[demo] {PLACE}/ is there and is not the demo's: move it away")
    shutil.rmtree(PLACE, ignore_errors=True)
    CHECKPOINTS.mkdir(parents=True)
    MARK.touch()


def start() -> subprocess.Popen[bytes]:
    """Start the training under `supervise`, its output going where this script's goes."""
    supervise = ["supervise", "--job", "demo", "--state-dir", str(STATE)]
    supervise += ["--checkpoints", f"{CHECKPOINTS}/*.pt", "--resume-args", "--resume {resume}"]
    # torchrun would set the first, and say so in four lines; the demo needs no numpy, and torch warns in each rank where there is none
    warnings = ",".join(filter(None, [os.environ.get("PYTHONWARNINGS"), "ignore:Failed to initialize NumPy"]))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": warnings}
    command = [*supervise, "--", *LAUNCHER, *TRAINING]
    say(shlex.join(command))  # to be pasted: the glob and the braces are quoted
    return subprocess.Popen(command, env=environment)  # noqa: S603  # our own command


def ask(command: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run a reading command of `supervise` about the demo's job."""
    words = ["supervise", command, "--job", "demo", "--state-dir", str(STATE), *options]
    return subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)  # noqa: S603  # our own command


def status() -> dict[str, Any]:
    """Return what `supervise status --json` tells; nothing where there is nothing to tell yet."""
    answer = ask("status", "--json")
    if answer.returncode != 0 or not answer.stdout.strip():
        return {}
    fields: dict[str, Any] = json.loads(answer.stdout)
    return fields


def wait_for(condition: str, look: Callable[[], Found | None], job: subprocess.Popen[bytes], deadline: float) -> Found:
    """Return the first answer of `look` that is not None; end the demo where the job ends or the time is up before."""
    while time.monotonic() < deadline:
        result = look()
        if result is not None:
            return result
        if job.poll() is not None:
            sys.exit(f"[demo] the job ended with {job.returncode} before {condition}")
        time.sleep(0.02)
    sys.exit(f"[demo] waited {DEADLINE_S:.0f} s in vain for {condition}")


def pid_of_rank_1() -> int | None:
    """Return the process id of rank 1 as `supervise` knows it."""
    return next((int(rank["pid"]) for rank in status().get("ranks", []) if rank["rank"] == 1), None)


def newest_step() -> int:
    """Return the step of the newest checkpoint; 0 where there is none."""
    return max((int(path.stem.partition("-")[2]) for path in CHECKPOINTS.glob("step-*.pt")), default=0)


def standbys_ready() -> bool | None:
    """Return whether a restart would be warm; None while the standbys still get ready and there is time to wait for them."""
    time.sleep(0.5)  # each look is a process, and they need the same cores
    if (status().get("standby") or {}).get("ready") == RANKS:
        return True
    return False if newest_step() >= STEPS // 2 else None


def saved_after(step: int) -> Path | None:
    """Return the checkpoint that was saved after this step, once it is there."""
    newest = newest_step()
    return CHECKPOINTS / f"step-{newest:08d}.pt" if newest > step else None


def break_it(job: subprocess.Popen[bytes], deadline: float) -> float:
    """Cut the newest checkpoint in half and kill rank 1, so soon after it was saved that no newer one comes in between.

    Returns when: Unix seconds.
    """
    pid = wait_for("rank 1 was known", pid_of_rank_1, job, deadline)
    wait_for("a good checkpoint was saved", lambda: saved_after(SAVE_EVERY), job, deadline)
    if not wait_for("standbys were ready", standbys_ready, job, deadline):
        say(f"{status()['standby']['text']}: the restart may be a cold one")
    step = newest_step()
    torn = wait_for("the next checkpoint was saved", lambda: saved_after(step), job, deadline)
    os.truncate(torn, torn.stat().st_size // 2)
    killed_t = time.time()
    os.kill(pid, signal.SIGKILL)
    say(f"cut {torn} in half, and killed rank 1 (process {pid}) with SIGKILL")
    return killed_t


def restart(killed_t: float) -> str:
    """Return how long the restart took, from the kill to the first step of both new ranks: by our clock and the journal's."""
    ended = status()
    opened_t, start = ended["last_incident"]["opened"], ended["start"]
    if start["after"] != "failure":
        sys.exit("[demo] the journal shows no restart after the failure")
    seconds, imports_s = opened_t - killed_t + start["total_s"], start["parts"]["import"]
    return f"from kill -9 to the first step of both new ranks: {seconds:.2f} s, of which {imports_s:.2f} s imports"


def main() -> int:
    """Run the demo; return its exit code."""
    prepare()
    began = time.monotonic()
    deadline = began + DEADLINE_S
    job = start()
    try:
        killed_t = break_it(job, deadline)
        code = job.wait(timeout=deadline - time.monotonic())
    except subprocess.TimeoutExpired:
        sys.exit("[demo] the training did not finish in time")
    finally:
        if job.poll() is None:
            job.terminate()
            job.wait()
    if code != 0:
        sys.exit(f"[demo] supervise ended with {code}: see {STATE}")
    say(restart(killed_t))
    say(f"the training finished after {time.monotonic() - began:.0f} s; `supervise why` tells the incident:")
    card = ask("why")
    print(card.stdout.rstrip() or card.stderr.rstrip(), flush=True)
    return 0 if card.returncode == 0 and card.stdout.strip() else 1


if __name__ == "__main__":
    sys.exit(main())
