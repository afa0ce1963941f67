"""Records the journals in this folder anew: `python tests/report/recorded/record.py [NAME ...]`, as root, in about ten minutes.

Each is of a real `supervise -- torchrun train.py` (tests/jobs/commonest.py) that failed in its way, up to its end or until a person looks.
Directories and host names are put in the words of an example; what a decision did to the state is left out, because the test decides anew.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from supervisor.journal.records import frame, unframe
from tests.support.ports import free_port

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
RESUMES = ("--checkpoints", "ckpt/*.pt", "--resume-args", "--resume {resume}")
ONE_NODE = ("torchrun", "--standalone", "--nproc-per-node=2")
#: Options of supervise and arguments of the script, by the name of the failure.
RUNS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "typo": (RESUMES, ("--fault=typo",)),
    "bug": (RESUMES, ("--fault=bug",)),
    "sample": (RESUMES, ("--fault=sample",)),
    "oom": (RESUMES, ("--fault=oom", "--per_device_batch=16")),
    "oom_with_knob": (
        (*RESUMES, "--knob", "batch_size=--per_device_batch", "--knob", "grad_accum=--accum"),
        ("--fault=oom", "--per_device_batch=16", "--accum=1"),
    ),
    "disk_full": (RESUMES, ("--fault=disk", "--mib=1")),
    "host_oom": (RESUMES, ("--fault=host_oom",)),
    "killed": (RESUMES, ("--fault=killed",)),
    "hang": ((*RESUMES, "--set", "hang.train_s=10", "--set", "hang.phase_s=10"), ("--fault=hang",)),
    "hang_restarted": ((*RESUMES, "--on-hang=restart", "--set", "hang.train_s=10", "--set", "hang.phase_s=10"), ("--fault=hang",)),
    "node_lost": (RESUMES, ("--steps=4000",)),
    "nccl": (RESUMES, ("--fault=nccl",)),
    "ecc": (RESUMES, ("--fault=ecc",)),
    "torn": ((), ("--fault=torn",)),
}
#: What the journal has when a person looks at a job that did not end.
LOOKS_AT = {"disk_full": '"ReportDecision"', "hang": '"HangConfirmed"', "node_lost": '"ReportDecision"'}


def environment(place: Path) -> dict[str, str]:
    """Return a user's environment."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SUPERVISE_", "PYTHON"))}
    return kept | {"OMP_NUM_THREADS": "1", "HOME": str(place.parent), "SUPERVISE_STANDBY_MODE": "off"}


def gpus(place: Path) -> dict[str, str]:
    """Build the fake NVML with two GPUs."""
    library = place.parent / "nvml" / "libnvidia-ml.so.1"
    library.parent.mkdir()
    source = ROOT / "tests/support/fake_nvml.c"
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-pthread", "-w", "-o", library, source], check=True)  # noqa: S603, S607
    state = library.with_name("state")
    state.write_text("count 2\n")
    return {"LD_LIBRARY_PATH": str(library.parent), "FAKE_NVML_STATE": str(state), "_SUPERVISE_TEST_INTERVALS": "0.04"}


def record(name: str) -> None:
    """Record one failure."""
    base = Path(tempfile.mkdtemp(prefix="recorded-"))
    place = base / "bert"
    place.mkdir()
    shutil.copy(ROOT / "tests/jobs/commonest.py", place / "train.py")
    environ, prefix = environment(place), ()
    if name == "disk_full":
        (place / "ckpt").mkdir()
        prefix = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o size=2600k tmpfs ckpt && exec "$@"', "sh")
    if name == "host_oom":
        prefix = ("python", "-c", IN_A_GROUP)
    if name == "ecc":
        environ |= gpus(place)
    if name == "torn":
        (place / "ckpt").mkdir()
        code = "import torch; torch.save({'step': 40, 'model': {}, 'pad': torch.zeros(9000)}, 'ckpt/step-000040.pt')"
        subprocess.run([sys.executable, "-c", code], cwd=place, check=True)  # noqa: S603  words of our own
        os.truncate(place / "ckpt" / "step-000040.pt", 20_000)
    options, script = RUNS[name]
    launcher = ONE_NODE
    if name == "node_lost":
        launcher = ("torchrun", f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--rdzv-backend=c10d", "--nnodes=2", "--nproc-per-node=1")
    command = ["supervise", "--job", "bert", *options, "--", *launcher, "train.py", *script]
    start = lambda more: subprocess.Popen([*prefix, *command[:1], *more, *command[1:]], cwd=place, env=environ, start_new_session=True)  # noqa: E731, S603
    runs = [start(())]
    if name == "node_lost":
        time.sleep(3)
        runs.append(start(("--state-dir", str(base / "second"))))
    journal = place / ".supervise/bert/nodes" / socket.gethostname() / "journal.jsonl"
    if name == "node_lost":
        wait(journal, '"CheckpointVerified"', runs[0])
        kill_all_of(runs.pop())
    wait(journal, LOOKS_AT.get(name, ""), runs[0])
    time.sleep(1)
    written = journal.read_bytes()
    for looked_at in runs:
        looked_at.send_signal(signal.SIGINT)
        time.sleep(0.5)
        kill_all_of(looked_at)
    (HERE / f"{name}.jsonl").write_bytes(b"".join(map(normal(base), written.splitlines(keepends=True))))
    shutil.rmtree(base)


#: Runs the rest of its arguments in a control group that has 1,500 MiB.
IN_A_GROUP = """
import os, sys
from tests.support.memory_group import memory_group
group = memory_group(1500).__enter__()
(group / "cgroup.procs").write_text(str(os.getpid()))
os.execvp(sys.argv[1], sys.argv[1:])
"""


def wait(journal: Path, text: str, run: subprocess.Popen[bytes]) -> None:
    """Await that the journal has the text, or the end of the run."""
    until = time.monotonic() + 300
    while run.poll() is None and time.monotonic() < until:
        if text and journal.exists() and text in journal.read_text():
            return
        time.sleep(0.2)


def kill_all_of(run: subprocess.Popen[bytes]) -> None:
    """Kill a supervise and all of its processes."""
    import psutil  # noqa: PLC0415

    try:
        every = [*psutil.Process(run.pid).children(recursive=True), psutil.Process(run.pid)]
    except psutil.NoSuchProcess:
        return
    for process in every:
        process.kill()
    run.wait()


def normal(base: Path):  # noqa: ANN201  a function
    """Return what puts the words of an example into a line of a journal."""
    words = {
        str(base): "/home/ada",
        str(ROOT / ".venv"): "/home/ada/venv",
        str(ROOT): "/home/ada/supervise",
        f'"{socket.gethostname()}': '"gpu-7',
        f" {socket.gethostname()}:": " gpu-7:",
    }

    def line(raw: bytes) -> bytes:
        text = (unframe(raw) or b"{}").decode()
        for old, new in words.items():
            text = text.replace(old, new)
        row = json.loads(text)
        if row["kind"] == "event":
            for name in ("state", "actions", "whole"):
                row["body"].pop(name, None)
        return frame(json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode())

    return line


if __name__ == "__main__":
    for failure in sys.argv[1:] or RUNS:
        record(failure)
