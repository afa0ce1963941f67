"""How many ranks hold one copy of the model: by the flags of each program, its file, or the user; what does not fit is refused."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from supervisor.cli import main
from supervisor.config.settings import Origin, Settings, with_values
from supervisor.core.nodes.replicas import ONE_RANK, Replica
from supervisor.errors import ExitCode, SuperviseError
from supervisor.knobs import job_knobs
from tests.knobs.scripts import find

if TYPE_CHECKING:
    from pathlib import Path

NEMO = "from nemo.core.config import hydra_runner\n@hydra_runner(config_path='conf', config_name='gpt')\ndef main(cfg): ...\n"
NEMO_2 = "from nemo.lightning import MegatronStrategy\nstrategy = MegatronStrategy(tensor_model_parallel_size=4, context_parallel_size=2)\n"
TITAN_FILE = "[parallelism]\ntensor_parallel_degree = 4\npipeline_parallel_degree = 2\ndata_parallel_replicate_degree = 2\n"

RANKS = "torchrun --nproc-per-node 24"
MEGATRON, TITAN = f"{RANKS} megatron.py", f"{RANKS} -m torchtitan.train"

GIVEN = [
    (f"{MEGATRON} --tensor-model-parallel-size 4 --pipeline-model-parallel-size=2 --expert-model-parallel-size 2", 8),
    (f"{MEGATRON} --tensor-model-parallel-size 2 --context-parallel-size 2 --ds-sequence-parallel-size 2", 8),
    (f"{MEGATRON} --micro-batch-size 4", 1),
    (f"{TITAN} --parallelism.tensor_parallel_degree 4 --parallelism.context-parallel-degree=2", 8),
    (f"{TITAN} --parallelism.data_parallel_shard_degree 4 --parallelism.expert_parallel_degree 4", 1),
    (f"{TITAN} --job.config_file titan.toml", 8),
    (f"{TITAN} --job.config_file titan.toml --parallelism.tensor_parallel_degree 2", 4),
    ("deepspeed deepspeed.py --deepspeed_config ds.json", 6),
    (f"{RANKS} hf_trainer.py --deepspeed ds.json", 6),
    (f"{RANKS} hf_trainer.py --deepspeed off.json", 1),
    (f"{RANKS} nemo.py model.tensor_model_parallel_size=4 ++model.pipeline_model_parallel_size=2", 8),
    (f"{RANKS} nemo2.py", 8),
    (f"{RANKS} nanogpt.py --tensor-model-parallel-size 4", 1),
]


@pytest.fixture
def there(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(place)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(place))
    (place / "nemo.py").write_text(NEMO)
    (place / "nemo2.py").write_text(NEMO_2)
    (place / "titan.toml").write_text(TITAN_FILE)
    (place / "ds.json").write_text(json.dumps({"tensor_parallel": {"autotp_size": 2}, "sequence_parallel_size": 3}))
    (place / "off.json").write_text(json.dumps({"tensor_parallel": {"autotp_size": 0}}))
    return place


def declared(there: Path, command: str, number: int) -> Replica:
    settings = with_values(
        Settings(cwd=str(there)), {"job.model_parallel": number}, {"job.model_parallel": Origin("command line", "--model-parallel")}
    )
    return job_knobs.find(settings, command.split(), {}, there).replica


@pytest.mark.parametrize(("command", "size"), GIVEN)
def test_the_replica_size_is_the_product_of_the_programs_factors(there: Path, command: str, size: int) -> None:
    assert find(there, command).replica.size == size


def test_the_replica_source_names_the_factors_above_1(there: Path) -> None:
    command = f"{MEGATRON} --tensor-model-parallel-size 4 --pipeline-model-parallel-size 2 --context-parallel-size 1"
    assert find(there, command).replica.source == "--tensor-model-parallel-size 4 × --pipeline-model-parallel-size 2"  # noqa: RUF001
    assert find(there, GIVEN[5][0]).replica.source == (
        "parallelism.tensor_parallel_degree = 4 × parallelism.pipeline_parallel_degree = 2"  # noqa: RUF001
    )
    assert find(there, GIVEN[7][0]).replica.source == (
        "--deepspeed_config:tensor_parallel.autotp_size 2 × --deepspeed_config:sequence_parallel_size 3"  # noqa: RUF001
    )
    assert find(there, "torchrun --nproc-per-node 24 nemo2.py").replica.source == (
        "the script's tensor_model_parallel_size = 4 × the script's context_parallel_size = 2"  # noqa: RUF001
    )


def test_a_flag_alone_is_no_layout_and_a_program_that_is_not_to_be_recognised_has_none(there: Path) -> None:
    (there / "mine.py").write_text("parser.add_argument('--tensor-model-parallel-size')\n")
    assert find(there, "torchrun --nproc-per-node 24 mine.py --tensor-model-parallel-size 4").replica == ONE_RANK
    assert find(there, "torchrun --nproc-per-node 24 megatron.py --tensor-model-parallel-size 4", program="none").replica == ONE_RANK


def test_the_users_model_parallel_size_holds_for_any_command(there: Path) -> None:
    assert declared(there, "python anything.py", 8) == Replica(8, "--model-parallel 8")
    assert (
        declared(there, "torchrun --nproc-per-node 24 megatron.py --tensor-model-parallel-size 4 --pipeline-model-parallel-size 2", 8).size
        == 8
    )
    assert declared(there, "torchrun --nproc-per-node 24 megatron.py", 8).size == 8, "its flags say nothing"


def test_a_factor_that_is_no_number_is_reported_and_not_guessed(there: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = "torchrun --nproc-per-node 24 megatron.py --tensor-model-parallel-size TP"
    assert find(there, command).replica == Replica(unread="--tensor-model-parallel-size TP is not a number")
    assert main.main(["plan", "--", *command.split()]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "replica 1 rank: --tensor-model-parallel-size TP is not a number; --model-parallel N gives it" in text


def test_a_flag_of_ours_and_the_commands_own_that_differ_are_both_named(there: Path) -> None:
    with pytest.raises(SuperviseError) as raised:
        declared(there, "torchrun --nproc-per-node 24 megatron.py --tensor-model-parallel-size 4", 8)
    assert raised.value.exit_code == ExitCode.CONFIG
    assert raised.value.message == "two sizes of a replica: --model-parallel 8, and the command gives 4 (--tensor-model-parallel-size 4)"


@pytest.mark.parametrize(
    ("command", "message", "hint"),
    [
        ("torchrun --nproc-per-node=6 train.py", "the 6 ranks hold no whole number of replicas", "--nproc-per-node=4"),
        ("torchrun --nnodes=3 --nproc-per-node=2 train.py", "the 2 ranks of each of 3 nodes hold no whole", "--nnodes=4"),
        ("torchrun train.py", "the 1 rank holds no whole", "--nproc-per-node=4 or --nnodes=4"),
        ("torchrun --nnodes=1:1 --nproc-per-node=2 train.py", "the 2 ranks hold no whole", "--nproc-per-node=4 or --nnodes=2"),
        ("accelerate launch --num_processes 7 train.py", "the 7 ranks hold no whole", "Start 4 ranks"),
        ("deepspeed --num_gpus 3 --num_nodes 3 train.py", "the 9 ranks hold no whole", "Start 8 ranks"),
    ],
)
def test_ranks_that_hold_no_whole_number_of_replicas_are_refused_before_the_start(
    there: Path, command: str, message: str, hint: str
) -> None:
    with pytest.raises(SuperviseError) as raised:
        declared(there, command, 4)
    assert raised.value.exit_code == ExitCode.CONFIG
    assert raised.value.message.startswith(f"a replica, one copy of the model, has 4 ranks (--model-parallel 4), and {message}")
    assert hint in (raised.value.hint or "")
    assert "--model-parallel N" in (raised.value.hint or "")


@pytest.mark.parametrize(
    "command",
    [
        "torchrun --nproc-per-node=8 train.py",
        "torchrun --nproc-per-node=gpu train.py",
        "torchrun --nnodes=2:3 --nproc-per-node=2 train.py",
        "accelerate launch train.py",
        "accelerate launch train.py --num_processes 7",
        "deepspeed --num_gpus 3 --hostfile nodes train.py",
        "bash run.sh --num_gpus 3",
    ],
)
def test_a_fitting_or_unknown_size_is_not_refused(there: Path, command: str) -> None:
    assert declared(there, command, 4).size == 4


@pytest.mark.usefixtures("there")
def test_a_run_is_refused_with_78_before_it_starts_anything(there: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (there / "train.py").write_text("import pathlib; pathlib.Path('ran').touch()\n")
    before = sorted(there.iterdir())
    assert main.main(["--model-parallel", "4", "--", "torchrun", "--nproc-per-node=6", "train.py"]) == 78
    assert "Start with --nproc-per-node=4, or name the ranks of one replica: --model-parallel N." in capsys.readouterr().err
    assert sorted(there.iterdir()) == before


def test_deepspeed_derives_its_global_batch_by_itself_where_ranks_share_a_model(there: Path) -> None:
    batch = {"train_batch_size": 32, "train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 1}
    (there / "ds.json").write_text(json.dumps({**batch, "tensor_parallel": {"autotp_size": 2}}))
    command = ["torchrun", "--nproc-per-node=8", "deepspeed.py", "--deepspeed_config", "ds.json"]
    changed = find(there, command).apply(command, [("batch_size", "4"), ("grad_accum", "2")], there / "attempt", 8)
    written = json.loads(changed.files[0].read_text())
    assert written == {"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2, "tensor_parallel": {"autotp_size": 2}}


def test_a_plan_of_unequal_gpus_is_refused_where_a_replica_has_several(there: Path) -> None:
    (there / "train.py").write_text("")
    settings = with_values(
        Settings(cwd=str(there)),
        {"job.model_parallel": 2, "knobs.declared": ("batch_size=--batch", "grad_accum:32:planned=plan:2,1,2,1")},
        {"knobs.declared": Origin("command line", "--knob")},
    )
    command = "torchrun --nproc-per-node=4 train.py --batch 8 --global-batch 32"
    with pytest.raises(SuperviseError, match=r"a plan shares it by GPUs, and a replica, one copy of the model, has 2 ranks"):
        job_knobs.find(settings, command.split(), {}, there)
