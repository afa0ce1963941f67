"""What a launcher's command asks of a node, and which of its options have no effect: each launcher's own rules."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest
from torch.distributed.run import get_args_parser

from supervisor.knobs import launcher, launcher_options
from supervisor.launch import launchers
from supervisor.launch.launchers import ALL, PlannedRanks, ignored_options, planned_ranks

if TYPE_CHECKING:
    from pathlib import Path

CONFIG = """\
compute_environment: LOCAL_MACHINE
distributed_type: MULTI_GPU
gpu_ids: 0,9
num_machines: 2
num_processes: 8
use_cpu: false
"""


def facts(answer: PlannedRanks) -> dict[str, Any]:
    """Return the fields that differ from those of a command of which only the launcher is known."""
    plain = PlannedRanks(answer.launcher, 0)
    return {name: getattr(answer, name) for name in answer.__struct_fields__ if getattr(answer, name) != getattr(plain, name)}


@pytest.mark.parametrize(
    ("words", "environ", "expected"),
    [
        ("--nproc-per-node=4 train.py", {}, (4, "--nproc-per-node=4")),
        ("--nproc_per_node 4 train.py --nproc-per-node=8", {}, (4, "--nproc-per-node=4")),
        ("--nproc 4 train.py", {}, (4, "--nproc-per-node=4")),
        ("--nproc-per-node=2 --nproc_per_node=4 train.py", {}, (4, "--nproc-per-node=4")),
        ("--nproc-per-node=gpu train.py", {}, (None, "--nproc-per-node=gpu")),
        ("--nproc-per-node=auto train.py", {}, (0, "--nproc-per-node=auto")),
        ("--nproc-per-node=cpu train.py", {}, (0, "--nproc-per-node=cpu")),
        (f"--nproc-per-node={'9' * 5000} train.py", {}, (0, f"--nproc-per-node={'9' * 5000}")),
        ("--nproc-per-node=$N train.py", {}, (0, "--nproc-per-node=$N")),
        ("train.py", {"PET_NPROC_PER_NODE": "8"}, (8, "PET_NPROC_PER_NODE=8")),
        ("--nproc-per-node=4 train.py", {"PET_NPROC_PER_NODE": "8"}, (4, "--nproc-per-node=4")),
        ("train.py", {}, (1, "")),
    ],
)
def test_torchruns_ranks(tmp_path: Path, words: str, environ: dict[str, str], expected: tuple[int | None, str]) -> None:
    for head in (["torchrun"], [sys.executable, "-m", "torch.distributed.run"]):
        answer = planned_ranks([*head, *words.split()], environ, tmp_path)
        assert (answer.ranks, answer.how, answer.devices) == (*expected, None)
        assert answer.written(2) == "--nproc-per-node=2"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--num_processes=4 --multi_gpu t.py", {"ranks": 4, "how": "--num_processes=4", "option": "--num_processes="}),
        ("--num-processes 4 --multi-gpu t.py --num_processes 9", {"ranks": 4, "how": "--num_processes=4", "option": "--num_processes="}),
        (
            "--num_processes 8 --num_machines 2 --gpu_ids 0,1,2,3 --multi_gpu t.py",
            {
                "ranks": 4,
                "how": "--num_processes=8",
                "option": "--num_processes=",
                "nodes": 2,
                "devices": "0,1,2,3",
                "place": "--gpu_ids=",
            },
        ),
        ("--num_processes 4 t.py", {"ranks": 4, "how": "--num_processes=4", "option": "--num_processes=", "needs_several": True}),
        ("t.py", {"ranks": None, "option": "--num_processes=", "needs_several": True}),
        ("--enable_cpu_affinity --multi_gpu t.py", {"ranks": None, "option": "--num_processes=", "binds": True}),
        ("--gpu_ids all --multi_gpu t.py", {"ranks": None, "option": "--num_processes="}),
        ("--cpu --num_processes 4 t.py", {}),
    ],
)
def test_accelerates_ranks(tmp_path: Path, words: str, expected: dict[str, Any]) -> None:
    heads = (["accelerate", "launch"], ["accelerate-launch"], [sys.executable, "-m", "accelerate.commands.launch"])
    for head in heads:
        assert facts(planned_ranks([*head, *words.split()], {"HOME": str(tmp_path)}, tmp_path)) == expected


def test_accelerates_configuration_counts_where_the_command_says_nothing(tmp_path: Path) -> None:
    file = tmp_path / "my.yaml"
    file.write_text(CONFIG)
    answer = planned_ranks(["accelerate", "launch", "--config_file", "my.yaml", "t.py"], {}, tmp_path)
    assert facts(answer) == {
        "ranks": 4,
        "how": f"num_processes: 8 in {file}",
        "option": "num_processes: ",
        "nodes": 2,
        "devices": "0,9",
        "place": "gpu_ids: ",
    }
    assert answer.written(3) == "num_processes: 6"
    answers = planned_ranks(["accelerate", "launch", "--config_file=my.yaml", "--num_processes=2", "--gpu_ids=all", "t.py"], {}, tmp_path)
    assert (answers.ranks, answers.how, answers.devices) == (1, "--num_processes=2", None)
    default = tmp_path / ".cache" / "huggingface" / "accelerate" / "default_config.yaml"
    default.parent.mkdir(parents=True)
    default.write_text(CONFIG.replace("num_machines: 2", "num_machines: 1"))
    assert planned_ranks(["accelerate", "launch", "t.py"], {"HOME": str(tmp_path)}, tmp_path).ranks == 8
    elsewhere = {"HOME": str(tmp_path), "HF_HOME": str(tmp_path / "other")}
    assert planned_ranks(["accelerate", "launch", "t.py"], elsewhere, tmp_path).how == ""


@pytest.mark.parametrize("name", ["x" * 300, f"{'x' * 300}/c.yaml", "~no-such-user/c.yaml"])
def test_a_configuration_that_cannot_be_there_is_no_error_of_ours(tmp_path: Path, name: str) -> None:
    answer = planned_ranks(["accelerate", "launch", "--config_file", name, "train.py"], {"HOME": str(tmp_path)}, tmp_path)
    assert answer.launcher == "accelerate"
    assert ("File name too long" in answer.problem) == name.startswith("x")


@pytest.mark.parametrize(
    ("change", "ranks"),
    [
        (("use_cpu: false", "use_cpu: true"), 0),
        (("MULTI_GPU", "MULTI_CPU"), 0),
        (("MULTI_GPU", "'NO'"), 1),
        (("MULTI_GPU", "DEEPSPEED"), 4),
        (("num_processes: 8\n", ""), 0),
    ],
)
def test_accelerates_kinds_of_training(tmp_path: Path, change: tuple[str, str], ranks: int) -> None:
    (tmp_path / "my.yaml").write_text(CONFIG.replace(*change))
    assert planned_ranks(["accelerate", "launch", "--config_file=my.yaml", "t.py"], {}, tmp_path).ranks == ranks


@pytest.mark.parametrize("text", ["gpu_ids: [0, 1]\ndistributed_type: MULTI_GPU\n", "a: b: c\n", "\xff\xfe"])
def test_an_unreadable_configuration_is_reported_and_not_compared(tmp_path: Path, text: str) -> None:
    (tmp_path / "my.yaml").write_bytes(text.encode("latin-1"))
    answer = planned_ranks(["accelerate", "launch", "--config_file=my.yaml", "t.py"], {}, tmp_path)
    assert answer.ranks == 0
    assert answer.problem.startswith(f"{tmp_path / 'my.yaml'} cannot be read, so the ranks of accelerate are not compared with the GPUs: ")


REAL = """
import json, sys
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils.launch import prepare_multi_gpu_env
parser = launch_command_parser()
print(json.dumps(sorted({o.replace("_", "-") for a in parser._actions if a.nargs == 0 for o in a.option_strings})))
for words in json.load(sys.stdin):
    args, _, _ = _validate_launch_command(parser.parse_args(words))
    visible = prepare_multi_gpu_env(args).get("CUDA_VISIBLE_DEVICES")
    print(json.dumps([int(args.nproc_per_node), visible]))
"""


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.skipif(find_spec("accelerate") is None, reason="accelerate is not installed: pip install -e .[dev]")
def test_accelerate_itself_starts_as_many_ranks_and_shows_them_the_same_gpus(tmp_path: Path) -> None:
    """And its options without a value are those of our table."""
    (tmp_path / "my.yaml").write_text(CONFIG.replace("num_machines: 2", "num_machines: 1"))
    lines = [
        ["--multi_gpu", "--num_processes=4", "t.py", "--num_processes=9"],
        ["--multi-gpu", "--num-processes", "2", "--num_processes=6", "--gpu_ids", "0,1,2", "--debug", "t.py"],
        ["--config_file", "my.yaml", "t.py"],
        ["--config-file=my.yaml", "--num_processes", "3", "--gpu-ids=2,3,4", "-m", "pkg.mod"],
        ["--config_file=my.yaml", "--gpu_ids=all", "--mixed_precision", "no", "t.py"],
    ]
    environ = {key: value for key, value in os.environ.items() if key != launchers.VISIBLE} | {"HOME": str(tmp_path)}
    done = subprocess.run(  # noqa: S603  our own words
        [sys.executable, "-c", REAL],
        input=json.dumps(lines),
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
        cwd=tmp_path,
        env=environ,
    )
    flags, *theirs = map(json.loads, done.stdout.splitlines())
    assert flags == sorted(launcher._FLAGS["accelerate"])  # noqa: SLF001  the table
    answers = [planned_ranks(["accelerate", "launch", *words], environ, tmp_path) for words in lines]
    assert [[answer.ranks, answer.devices] for answer in answers] == theirs


@pytest.mark.parametrize(
    ("words", "environ", "expected"),
    [
        ("--num_gpus=4 t.py", {}, {"ranks": 4, "how": "--num_gpus=4", "option": "--num_gpus=", "devices": ALL}),
        ("--num_accelerators 4 t.py", {}, {"ranks": 4, "how": "--num_accelerators=4", "option": "--num_accelerators=", "devices": ALL}),
        (
            "--include localhost:0,9 t.py",
            {"CUDA_VISIBLE_DEVICES": "1"},
            {
                "ranks": 2,
                "how": "--include localhost:0,9",
                "option": "--num_gpus=",
                "devices": "0,9",
                "place": "--include=localhost:",
            },
        ),
        (
            "-e localhost:1 t.py",
            {},
            {"ranks": None, "how": "--exclude localhost:1", "option": "--num_gpus=", "devices": ALL, "excluded": ("1",)},
        ),
        (
            "t.py",
            {"CUDA_VISIBLE_DEVICES": "2,3"},
            {"ranks": 2, "how": "CUDA_VISIBLE_DEVICES=2,3", "option": "--num_gpus=", "devices": "2,3"},
        ),
        ("t.py", {}, {"ranks": None}),
        ("--num_gpus=4 t.py", {"DS_ACCELERATOR": "cpu"}, {}),
    ],
)
def test_deepspeeds_slots(tmp_path: Path, words: str, environ: dict[str, str], expected: dict[str, Any]) -> None:
    for head in (["deepspeed"], [sys.executable, "-m", "deepspeed.launcher.runner"]):
        assert facts(planned_ranks([*head, f"--hostfile={tmp_path}/none", *words.split()], environ, tmp_path)) == expected


@pytest.mark.parametrize(
    ("words", "host", "ranks"),
    [
        ("t.py", "worker-1", 4),
        ("t.py", "worker-0.example.org", 8),
        ("t.py", "elsewhere", 0),
        ("--include worker-0@worker-1:0,2 t.py", "worker-1", 2),
        ("--include worker-0@worker-1:0,2 t.py", "worker-0", 8),
        ("--include worker-0 t.py", "worker-1", 0),
        ("--num_gpus 2 t.py", "worker-1", 2),
    ],
)
def test_deepspeeds_hostfile_says_the_slots_of_this_node(tmp_path: Path, words: str, host: str, ranks: int) -> None:
    (tmp_path / "hosts").write_text("# ours\nworker-0 slots=8\nworker-1 slots=4\n")
    assert planned_ranks(["deepspeed", "-H", "hosts", *words.split()], {}, tmp_path, host).ranks == ranks


def test_deepspeed_reads_numbers_alone(tmp_path: Path) -> None:
    answer = planned_ranks(["deepspeed", "t.py"], {"CUDA_VISIBLE_DEVICES": "GPU-1,GPU-2"}, tmp_path)
    assert answer.problem == "DeepSpeed reads numbers alone, and not CUDA_VISIBLE_DEVICES=GPU-1,GPU-2"


def test_the_tasks_of_a_step_are_ranks_where_each_has_a_supervise_of_its_own(tmp_path: Path) -> None:
    step = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_TASKS_PER_NODE": "8(x2)", "SLURM_NODEID": "1"}
    answer = planned_ranks([sys.executable, "train.py"], step, tmp_path)
    assert (answer.launcher, answer.ranks, answer.how, answer.written(4)) == ("srun", 8, "8 tasks of step 7.0", "--ntasks-per-node=4")
    assert planned_ranks(["srun", "-n8", "python", "train.py"], step, tmp_path).ranks == 0


@pytest.mark.parametrize("command", [["python", "spawns.py"], ["bash", "-c", "torchrun t.py"], ["accelerate", "config"], ["./train"], []])
def test_of_another_command_nothing_is_known(tmp_path: Path, command: list[str]) -> None:
    assert planned_ranks(command, dict(os.environ), tmp_path) == launchers.UNKNOWN
    assert ignored_options(command, {"PET_NPROC_PER_NODE": "4"}) == ()


@pytest.mark.parametrize(
    ("command", "environ", "warnings"),
    [
        (
            "torchrun --nproc-per-node=2 --nnodes=1 --nproc_per_node 4 t.py --nproc-per-node=9",
            {},
            ["torchrun takes the last --nproc-per-node alone: --nproc-per-node=2 has no effect; leave --nproc-per-node=4 alone there"],
        ),
        (
            "torchrun --rdzv-c timeout=900 --nproc-per-node=2 --rdzv_conf=last_call_timeout=3 t.py",
            {},
            [
                (
                    "torchrun takes the last --rdzv-conf alone: --rdzv-conf=timeout=900 has no effect;"
                    " write --rdzv-conf=timeout=900,last_call_timeout=3"
                )
            ],
        ),
        (
            "torchrun -t 1 --tee=3 t.py",
            {},
            ["torchrun takes the last --tee alone: --tee=1 has no effect; leave --tee=3 alone there"],
        ),
        (
            "torchrun --nproc-per-node=4 t.py",
            {"PET_NPROC_PER_NODE": "8", "PET_NNODES": "2", "PET_STANDALONE": "1"},
            [
                (
                    "PET_NPROC_PER_NODE=8 has no effect: the command gives torchrun --nproc-per-node=4; unset PET_NPROC_PER_NODE,"
                    " or leave --nproc-per-node out"
                )
            ],
        ),
        ("torchrun --nproc-per-node=4 --nproc-per-node=4 --standalone --standalone t.py", {"PET_NPROC_PER_NODE": "4"}, []),
        ("torchrun --node-rank=0 --nnodes=2 --nproc-per-node=4 --rdzv-id=a --rdzv-endpoint=b t.py --nnodes=3", {}, []),
        (
            "accelerate launch --num_processes 2 --multi_gpu --num-processes=4 t.py --num_processes 8",
            {},
            ["accelerate takes the last --num-processes alone: --num-processes=2 has no effect; leave --num-processes=4 alone there"],
        ),
        (
            "deepspeed --num_gpus 2 --num_gpus 4 t.py --num_gpus 8",
            {},
            ["deepspeed takes the last --num_gpus alone: --num_gpus=2 has no effect; leave --num_gpus=4 alone there"],
        ),
        ("deepspeed --num_gpus 2 --num_nodes 4 t.py", {"PET_NNODES": "3"}, []),
    ],
)
def test_of_an_option_with_two_values_the_one_without_effect_is_named(command: str, environ: dict[str, str], warnings: list[str]) -> None:
    assert list(ignored_options(command.split(), environ)) == warnings


@pytest.mark.parametrize(
    "words",
    [
        "--nproc-per-node=2 --nproc_per_node 4 t.py -t 3",
        "-t3 -r 0:1 --standalone -m pkg.mod --nproc-per-node=9",
        "--stand --nproc-p 3 --no-python bash -c x",
        "--log-dir /tmp/l --rdzv-e a:1 --rdzv-endpoint=b:2 -- t.py",
    ],
)
def test_options_and_their_values_are_found_as_torchruns_parser_finds_them(words: str) -> None:
    args, parser = words.split(), get_args_parser()
    theirs = vars(parser.parse_args(args))
    options = launcher.LauncherCommand("torchrun", tuple(args)).options()
    by_name = {name: action.dest for action in parser._actions for name in action.option_strings}  # noqa: SLF001  theirs
    for option in options:
        (dest,) = {dest for name, dest in by_name.items() if launcher_options.is_same(name, option.key)}
        last = [other for other in options if launcher_options.is_same(other.key, option.key)][-1]
        assert theirs[dest] == last.value
    given = {dest for dest, value in theirs.items() if value != parser.get_default(dest)} - {"training_script", "training_script_args"}
    flags = {action.dest for action in parser._actions if action.nargs == 0}  # noqa: SLF001  theirs
    assert len(given - flags) == len({next(d for n, d in by_name.items() if launcher_options.is_same(n, option.key)) for option in options})
