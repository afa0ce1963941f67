"""`supervise print accelerate` and `print torchrun`: what accelerate, bash and torchrun themselves make of the files."""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from supervisor.cli.main import main
from supervisor.cli.printing import accelerate, torchrun
from supervisor.cli.printing.node_facts import NodeFacts
from supervisor.errors import ExitCode, SuperviseError
from tests.support.supervised import clean_environment

if TYPE_CHECKING:
    from pathlib import Path

NOTHING = NodeFacts("login1", no_gpus="no GPU is visible here")
ONE = NodeFacts("n1", gpus=1, gpu_name="NVIDIA H200", precision="bf16", cores=1, memory_bytes=64 << 30)
EIGHT = NodeFacts(
    "n1", 8, gpu_name="NVIDIA H200", precision="bf16", numa_nodes=(0, 1), cores=96, memory_bytes=2048 << 30, shm_bytes=512 << 30
)
OLD = NodeFacts("n1", gpus=2, gpu_name="Tesla V100", precision="fp16")
OLDER = NodeFacts("n1", gpus=2, gpu_name="Tesla P100", precision="fp32")
MIXED = NodeFacts("n1", gpus=2, gpu_name="A and B")
MANY = {"distributed_type": "MULTI_GPU", "num_processes": 2}
CONFIGURATIONS: dict[str, tuple[NodeFacts, dict[str, Any]]] = {
    "nothing": (NOTHING, {"distributed_type": "NO", "num_processes": 1}),
    "one": (ONE, {"distributed_type": "NO", "num_processes": 1, "mixed_precision": "bf16"}),
    "eight": (EIGHT, {**MANY, "num_processes": 8, "mixed_precision": "bf16"}),
    "old": (OLD, {**MANY, "mixed_precision": "fp16"}),
    "older": (OLDER, {**MANY, "mixed_precision": "no"}),
    "precision unknown": (MIXED, MANY),
}
#: Asks accelerate itself, as `accelerate launch` does: torch is imported once for all files.
ASKED = """
import json, sys
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
names = ("num_processes", "num_machines", "machine_rank", "mixed_precision", "multi_gpu", "use_cpu", "gpu_ids")
for file, words in json.loads(sys.argv[1]):
    args, _, _ = _validate_launch_command(launch_command_parser().parse_args(["--config_file", file, *words, "train.py"]))
    print(json.dumps({name: getattr(args, name) for name in names}))
"""


@pytest.mark.parametrize("case", CONFIGURATIONS)
def test_the_configuration_has_what_is_known_of_the_node_and_nothing_else(case: str) -> None:
    facts, expected = CONFIGURATIONS[case]
    assert yaml.safe_load("\n".join(accelerate.configuration(facts, {}))) == expected


@pytest.mark.slow
@pytest.mark.process
def test_accelerate_reads_each_configuration(tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="accelerate is not installed: pip install -e .[dev]")
    asked: list[tuple[str, list[str]]] = []
    expected: list[dict[str, Any]] = []
    for case, (facts, values) in CONFIGURATIONS.items():
        text = list(accelerate.configuration(facts, {}))
        (tmp_path / f"{case}.yaml").write_text("\n".join(text))
        (words,) = [line for line in text if "--num_machines=N" in line] or [""]
        several = words.replace(f"=N*{facts.ranks}", f"={2 * facts.ranks}").replace("=N", "=2").replace("RANK", "1")
        known = {"mixed_precision": values.get("mixed_precision", "no"), "use_cpu": False, "gpu_ids": "all"}
        asked.append((f"{case}.yaml", []))
        expected.append({**known, "num_processes": facts.ranks, "num_machines": 1, "machine_rank": 0, "multi_gpu": facts.gpus > 1})
        if words:
            asked.append((f"{case}.yaml", several.split()[1:]))
            expected.append({**known, "num_processes": 2 * facts.ranks, "num_machines": 2, "machine_rank": 1, "multi_gpu": True})
    (tmp_path / "ask.py").write_text(ASKED)
    command = ["python", "ask.py", json.dumps(asked)]
    done = subprocess.run(command, cwd=tmp_path, env=clean_environment(), capture_output=True, text=True, timeout=120, check=False)  # noqa: S603
    assert done.returncode == 0, done.stderr
    assert [json.loads(line) for line in done.stdout.splitlines()] == expected


def test_affinity_is_offered_where_gpus_hang_on_several_nodes_and_accelerate_numbers_them_as_the_job_does() -> None:
    assert "FILE --enable_cpu_affinity train.py" in "\n".join(accelerate.configuration(EIGHT, {}))
    assert "affinity" not in "\n".join(accelerate.configuration(EIGHT, {"CUDA_VISIBLE_DEVICES": "4,5"}))
    assert "affinity" not in "\n".join(accelerate.configuration(OLD, {}))


def test_the_resources_of_loaders_are_printed_beside_the_ranks() -> None:
    assert EIGHT.loaders() == [
        "Loaders: 96 processors for 8 ranks: DataLoader(num_workers=11) at most, beside the rank.",
        "For each rank: 256.0 GiB of memory, 64.0 GiB of shared memory, in which workers hand batches over.",
    ]
    assert "num_workers=0" in ONE.loaders()[0]
    assert not NOTHING.loaders()


#: In place of supervise: it prints its words, one a line.
SUPERVISE = '#!/bin/bash\nprintf "%s\\n" "$@"\n'


def started(place: Path, facts: NodeFacts, command: list[str], options: tuple[str, ...] = (), **environ: str) -> tuple[int, list[str]]:
    """Run a printed script; return its exit code and the words that supervise gets."""
    (place / "supervise").write_text(SUPERVISE)
    (place / "supervise").chmod(0o755)
    (place / "run.sh").write_text("\n".join(torchrun.script(facts, options, command)) + "\n")
    environ = {"PATH": f"{place}:{os.defpath}", **environ}
    subprocess.run(["bash", "-n", "run.sh"], cwd=place, check=True, timeout=120)  # noqa: S607
    done = subprocess.run(["bash", "run.sh"], cwd=place, env=environ, capture_output=True, text=True, timeout=120, check=False)  # noqa: S607
    return done.returncode, done.stdout.splitlines()


SEVERAL = ["--nnodes=2", "--nproc-per-node=8", "--rdzv-backend=c10d", "--rdzv-endpoint=n1:29400"]


@pytest.mark.parametrize(
    ("command", "head", "program"),
    [
        (["python", "train.py", "--lr", "it's $1"], ["torchrun"], ["train.py", "--lr", "it's $1"]),
        (["train.py"], ["torchrun"], ["train.py"]),
        (["python3", "-m", "pkg.train", "x"], ["torchrun"], ["-m", "pkg.train", "x"]),
        (["env/bin/python", "-u", "t.py"], ["env/bin/python", "-u", "-m", "torch.distributed.run"], ["t.py"]),
        (["torchrun", "--max-restarts=0", "t.py"], ["torchrun"], ["--max-restarts=0", "t.py"]),
    ],
)
def test_one_script_starts_one_node_or_several(tmp_path: Path, command: list[str], head: list[str], program: list[str]) -> None:
    options = ("--checkpoints", "ckpt/*.pt")
    alone = [*options, "--", *head, "--standalone", "--nproc-per-node=8", *program]
    assert started(tmp_path, EIGHT, command, options) == (0, alone)
    several = [*options, "--", *head, *SEVERAL, *program]
    assert started(tmp_path, EIGHT, command, options, NNODES="2", HEAD="n1") == (0, several)
    code, words = started(tmp_path, EIGHT, command, NNODES="2")
    assert (code != 0, words) == (True, []), "without HEAD nothing is started"


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["torchrun", "--nproc-per-node=4", "t.py"], ["torchrun", "--standalone", "--nproc-per-node=4", "t.py"]),
        (["torchrun", "--standalone", "t.py"], ["torchrun", "--nproc-per-node=1", "--standalone", "t.py"]),
        (["torchrun", "--nnodes=1", "--nproc_per_node=2", "t.py"], ["torchrun", "--nnodes=1", "--nproc_per_node=2", "t.py"]),
    ],
)
def test_the_options_of_the_command_itself_stay(tmp_path: Path, command: list[str], words: list[str]) -> None:
    assert started(tmp_path, NOTHING, command) == (0, ["--", *words])


@pytest.mark.parametrize(
    "command", [["accelerate", "launch", "t.py"], ["python", "-c", "1"], ["python", "-m", "deepspeed", "t.py"], ["python"], ["sh", "t.sh"]]
)
def test_a_command_that_torchrun_cannot_start_is_refused(command: list[str]) -> None:
    with pytest.raises(SuperviseError, match="not a Python program that torchrun could start") as raised:
        list(torchrun.script(EIGHT, (), command))
    assert raised.value.exit_code == ExitCode.USAGE


def test_reasons_stand_in_the_script() -> None:
    comments = [line for line in torchrun.script(EIGHT, (), ["train.py"]) if line.startswith("# ")]
    assert comments[:2] == ["# torchrun on n1: 8 NVIDIA H200", "# one rank for each GPU"]
    assert any("--numa-binding=node" in line for line in comments)
    assert "here one rank is all that is known to fit" in list(torchrun.script(NOTHING, (), ["train.py"]))[2]


def test_the_commands_print_this_node(capfd: pytest.CaptureFixture[str]) -> None:
    for kind, words in (("nccl", ["# NCCL on "]), ("accelerate", ["# accelerate on "]), ("torchrun", ["#!/bin/bash", "# torchrun on "])):
        assert main(["print", kind]) == 0
        assert all(line.startswith(word) for line, word in zip(capfd.readouterr().out.splitlines(), words, strict=False))
    assert main(["print", "torchrun", "--", "accelerate", "launch", "t.py"]) == 64


TRAIN = """
import os
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], "at", os.environ["MASTER_PORT"])
"""


@pytest.mark.slow
@pytest.mark.process
def test_the_script_of_this_node_runs_by_supervise_and_torchrun_alone_and_as_one_of_several(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    environ = clean_environment()
    text = subprocess.run(
        ["supervise", "print", "torchrun", "--", "python", "train.py"],  # noqa: S607
        cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=120, check=True,
    ).stdout  # fmt: skip
    (tmp_path / "run.sh").write_text(text)
    for name, more in (("alone", {}), ("several", {"NNODES": "1:1", "HEAD": "localhost"})):
        done = subprocess.run(
            ["bash", "run.sh"],  # noqa: S607
            cwd=tmp_path, env={**environ, "SUPERVISE_JOB_NAME": name, **more}, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert (done.returncode, "rank 0 of 1 at" in done.stdout) == (0, True), done.stderr
