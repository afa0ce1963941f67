"""`supervise plan -- CMD`: what would be done, from the settings, the command and the core; nothing is run."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from supervisor.cli import main
from supervisor.core.model import Cause, Knob, Policy
from supervisor.core.policy_settings import Gpus, NetworkSection, Restart
from supervisor.knobs.bindings import NAMES
from supervisor.knobs.knob_set import BoundKnob, KnobSet
from supervisor.report import opening_lines, start_plan
from supervisor.strategies import LADDER_STEPS

if TYPE_CHECKING:
    from tests.support.fake_nvml import FakeNvml

HF = ["torchrun", "--nproc-per-node=2", "hf_trainer.py", "--per_device_train_batch_size", "32"]
SCREEN = 60
WIDTHS = 60, 100, 160


@pytest.fixture
def there(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(place)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(place))
    return place


def test_the_plan_shows_enabled_and_disabled_parts_on_one_screen(there: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(there.iterdir())
    assert main.main(["plan", "--set", "restart.max_attempts=7", "--", *HF]) == 0
    text = capsys.readouterr().out
    assert "hf_trainer.py (HF Trainer)" in text
    assert "in your script" not in text
    rows = [" ".join(line.split()) for line in text.splitlines()]
    assert "batch_size --per_device_train_batch_size 32 per GPU HF Trainer, once a rank is seen to train with it" in rows
    assert any(row.startswith("others --knob NAME=--YOUR-FLAG no flag of the script is known for") and "skip_window" in row for row in rows)
    assert "CUDA OOM --per_device_train_batch_size 32→16, --gradient_accumulation_steps 1→2 (HF Trainer);" in " ".join(rows)
    assert "restart.max_attempts 7 command line --set restart.max_attempts" in rows
    assert all(cause.value in text for cause in Cause if cause is not Cause.NONE)
    assert "halve_batch" not in text, "what is done about one cause is shown with --cause"
    assert len(rows) <= SCREEN
    assert sorted(there.iterdir()) == before, "nothing was run, nothing was written"


@pytest.mark.usefixtures("there")
def test_one_cause_is_planned_through_to_its_stop(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["plan", "--cause", "cuda_oom", "--", *HF]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "1. restart: --per_device_train_batch_size 32 → 16; --gradient_accumulation_steps 1 → 2" in text
    assert "5. restart: --per_device_train_batch_size 2 → 1; --gradient_accumulation_steps 16 → 32" in text
    assert "6. stop (65)" in text
    assert "mixed precision, where declared activation_checkpointing or cpu_offload or mixed_precision" in text, "what it needs"
    assert "settings" not in text


@pytest.mark.usefixtures("there")
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("options", [[], ["--cause", "cuda_oom"]], ids=["all", "one cause"])
def test_the_pages_fit_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: int, options: list[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    assert main.main(["plan", *options, "--", *HF]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= width


def test_the_findings_of_the_rules_in_the_script_stand_first(there: Path, capsys: pytest.CaptureFixture[str]) -> None:
    alone = "if dist.get_rank() == 0:\n    dist.barrier()\n"
    (there / "wrong.py").write_text("import torch.distributed as dist\n" + alone * 6)
    assert main.main(["plan", "--", "torchrun", "wrong.py"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    first = text.index(" in it wrong.py:3: only ranks with `dist.get_rank() == 0` (line 2) call barrier")
    assert " and 2 more: --json has all " in text
    assert first < text.index(" what a restart may change ")
    assert main.main(["plan", "--json", "--", "torchrun", "wrong.py"]) == 0
    assert len(json.loads(capsys.readouterr().out)["in_your_script"]) == 6


def test_a_script_that_is_no_python_is_reported_with_its_line(there: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (there / "broken.py").write_text("import torch\nif x\n    y = 1\n")
    for launcher in (["torchrun"], [sys.executable], [sys.executable, "-m", "torch.distributed.run"]):
        assert main.main(["plan", "--", *launcher, "broken.py"]) == 0
        text = capsys.readouterr().out
        assert "broken.py:2: SyntaxError: expected ':'; no rank can begin with it" in text, launcher


@pytest.mark.usefixtures("there")
def test_the_plan_as_json_holds_the_same_facts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["plan", "--json", "--cause", "nan_loss", "--", *HF]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["programs"] == ["HF Trainer"]
    assert {row["knob"] for row in data["enabled"]} == {"batch_size", "grad_accum", "num_workers", "group_timeout"}
    assert {row["knob"] for row in data["enabled"] + data["not_enabled"]} == set(NAMES)
    assert all(row["remedy"].startswith(("--knob ", "--resume-args ")) for row in data["not_enabled"])
    assert list(data["ladders"]) == ["nan_loss"]
    assert data["sequence"][-1]["kind"] == "stop"


@pytest.mark.usefixtures("there")
@pytest.mark.parametrize("at", [0, 1], ids=["before plan", "behind plan"])
def test_the_options_of_a_run_stand_before_or_behind_the_word(capsys: pytest.CaptureFixture[str], at: int) -> None:
    words = ["plan"]
    words[at:at] = ["--checkpoints", "ckpt/*.pt", "--resumes-itself"]
    assert main.main([*words, "--", "python", "train.py"]) == 0
    assert "the script resumes itself from ckpt/*.pt" in capsys.readouterr().out


@pytest.mark.usefixtures("there")
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["plan"], "no command given"),
        (["plan", "--cause", "cuda_om", "--", "true"], "no such cause: cuda_om"),
        (["--knob", "batch_size=--bs", "plan", "--", "true"], "wrong knob: batch_size=--bs"),
    ],
    ids=["no command", "no such cause", "a wrong knob"],
)
def test_an_unusable_argument_of_plan_is_a_usage_error(capsys: pytest.CaptureFixture[str], arguments: list[str], text: str) -> None:
    assert main.main(arguments) == 64
    assert text in capsys.readouterr().err


@pytest.mark.parametrize("cause", [cause for cause in Cause if cause is not Cause.NONE], ids=lambda cause: cause.value)
def test_every_ladder_ends(cause: Cause) -> None:
    knobs = (Knob("batch_size", "4", "--bs", counts="gpu"), Knob("grad_accum", "1", "--accum", counts="rank"))
    steps = start_plan.sequence(cause, Policy(knobs=knobs), 2)
    assert steps[-1].kind == "stop"
    assert all(step.reason and step.strategy in LADDER_STEPS for step in steps)


def test_the_wants_of_a_ladder_step_are_knobs() -> None:
    wants = [want for step in LADDER_STEPS.values() for want in step.wants]
    assert wants
    assert set(wants) <= set(NAMES)


@pytest.mark.parametrize(
    ("command", "line"),
    [
        ("torchrun --nproc-per-node=2 train.py", "--batch 24→24"),
        ("torchrun --nproc-per-node=8 train.py", "--accum 1→3"),
        ("torchrun --nproc-per-node=5 train.py", "nothing can be changed, because --batch 24 is not a multiple of 5 ranks"),
        ("deepspeed train.py", "shrinks at the same global batch, if --batch divides by the ranks, not known yet"),
        ("torchrun --nproc-per-node=gpu train.py", "if --batch divides by the ranks"),
    ],
)
def test_the_line_at_start_promises_of_a_global_batch_what_the_number_of_ranks_allows(command: str, line: str) -> None:
    size, accum = Knob("batch_size", "24", "--batch", counts="global"), Knob("grad_accum", "1", "--accum", counts="rank")
    opening_line = opening_lines.opening_lines(
        KnobSet((BoundKnob(size, ()), BoundKnob(accum, ()))), command.split(), {"PATH": "/usr/bin:/bin"}
    )[0]
    assert line.replace("--batch 24→24", "--accum 1→2") in opening_line


def steps(cause: Cause, policy: Policy, ranks: int = 4) -> list[tuple[str, str, int]]:
    return [(step.strategy, step.kind, step.exit_code) for step in start_plan.sequence(cause, policy, ranks)]


def test_the_node_that_the_command_implies_is_supposed() -> None:
    allowed = Policy(gpus=Gpus(minimum=3), restart=Restart(batch_drift=True))
    assert steps(Cause.GPU_LOST, allowed) == [("exclude_gpu", "restart", 0), ("exclude_gpu", "stop", 69)]
    assert steps(Cause.GPU_LOST, Policy()) == [("exclude_gpu", "stop", 69)]
    back = steps(Cause.NAN_LOSS, Policy(checkpoints_declared=True))
    assert [name for name, _, _ in back][:2] == ["step_back", "step_back"]
    assert back[-1][1:] == ("stop", 65)
    assert steps(Cause.SEGFAULT, Policy())[-1] == ("same_place", "stop", 65)


def test_with_batch_drift_a_batch_size_is_all_that_halving_needs() -> None:
    size = Knob("batch_size", "8", "--bs")
    drifting = Policy(knobs=(size,), restart=Restart(batch_drift=True))
    assert start_plan.sequence(Cause.CUDA_OOM, drifting, 2)[0].notes[0].startswith("the global batch shrinks from 16 to 8")
    assert start_plan._missing("halve_batch", drifting) == ""  # noqa: SLF001 -- what a line of the page is made of
    assert start_plan._missing("halve_batch", Policy(knobs=(size,))) == "grad_accum"  # noqa: SLF001 -- as above


def test_the_line_at_start_names_the_ladder_steps_for_networks_that_may_act() -> None:
    assert opening_lines.network_line(Policy()) == ""
    allow = NetworkSection(("interface", "ib_disable"))
    allowed = Policy(network=allow, variables=(("NCCL_IB_DISABLE", "0"), ("NCCL_SOCKET_IFNAME", "eth0")))
    line = opening_lines.network_line(allowed)
    assert line == "network (network.allow): interface may act; ib_disable may not: you set its variable"
    kept = (("env:NCCL_P2P_DISABLE", "1"), ("env:GLOO_SOCKET_IFNAME", "eth1"), ("env:NCCL_IB_DISABLE", "1"), ("batch_size", "8"))
    assert opening_lines.network_line(allowed, kept) == f"{line}; continues with GLOO_SOCKET_IFNAME=eth1"
    assert start_plan._missing("interface", allowed) == ""  # noqa: SLF001 -- as above
    assert start_plan._missing("p2p_disable", allowed) == "--set network.allow=p2p_disable"  # noqa: SLF001 -- as above


@pytest.mark.usefixtures("there")
@pytest.mark.parametrize(
    ("command", "supposed"),
    [
        ("torchrun --nproc-per-node=2 --nnodes=3 train.py", "2 ranks here, a GPU each, 3 nodes; step 310, no checkpoint"),
        ("torchrun --nproc_per_node 2 --nnodes=1:4 train.py", "2 ranks here, a GPU each, one node of an unknown number;"),
        ("accelerate launch train.py", "an unknown number of ranks and GPUs: the command does not say it; step 310"),
    ],
)
def test_the_plan_names_what_it_supposes(capsys: pytest.CaptureFixture[str], command: str, supposed: str) -> None:
    assert main.main(["plan", "--cause", "gpu_lost", "--", *command.split()]) == 0
    assert f"(supposed: {supposed}" in " ".join(capsys.readouterr().out.split())


@pytest.mark.usefixtures("there")
def test_the_plan_names_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["plan", "--", "no-such-command", "--x"]) == 64
    assert "no such command: no-such-command" in capsys.readouterr().err
    assert main.main(["plan", "--", "python", "nosuch.py"]) == 0
    text = capsys.readouterr().out
    text = " ".join(text.split())
    assert "script nosuch.py: no such file here" in text
    assert (
        "CUDA OOM nothing can be changed, because supervise does not know how the script gets its batch size and gradient accumulation: "
        "add --knob batch_size=--YOUR-FLAG --knob grad_accum=--YOUR-FLAG"
    ) in text
    assert main.main(["plan", "--", *HF]) == 0
    assert "no such file" not in capsys.readouterr().out


@pytest.mark.usefixtures("there")
def test_options_without_effect_are_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PET_NNODES", "2")
    command = ["torchrun", "--nproc-per-node=4", "--nnodes=1", *HF[1:]]
    assert main.main(["plan", "--", *command]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "warning torchrun takes the last --nproc-per-node alone: --nproc-per-node=4 has no effect; leave --nproc-per-node=2" in text
    assert "warning PET_NNODES=2 has no effect: the command gives torchrun --nnodes=1; unset PET_NNODES" in text
    assert main.main(["plan", "--json", "--", *command]) == 0
    assert len(json.loads(capsys.readouterr().out)["warnings"]) == 2


@pytest.fixture
def one_gpu(fake_nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_nvml.set(gpus=1)
    for name in ("LD_LIBRARY_PATH", "FAKE_NVML_STATE"):
        monkeypatch.setenv(name, fake_nvml.environ[name])
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.process
@pytest.mark.usefixtures("there", "one_gpu")
@pytest.mark.parametrize(
    ("visible", "text"),
    [
        ("", "torchrun's 2 ranks here (--nproc-per-node=2), and 1 GPU is visible: rank 1 fails if it takes the GPU of its LOCAL_RANK"),
        ("0,1", "CUDA_VISIBLE_DEVICES=0,1 names GPU 1, which this node does not have (it has GPU 0 alone): of torchrun's 2 ranks here"),
    ],
)
def test_ranks_that_do_not_fit_the_gpus_of_this_node_are_named(
    visible: str, text: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert main.main(["plan", "--json", "--", *HF]) == 0
    (warning,) = json.loads(capsys.readouterr().out)["warnings"]
    assert warning.startswith(text)
    assert ("it does not start (78); write --nproc-per-node=1" in warning) == bool(visible)
    assert warning.endswith("write --nproc-per-node=1")


#: Commands with model parallelism, by the name of the file in plans/ that has what `supervise plan` prints of each, up to the settings.
LAYOUTS = {
    "megatron": "--min-gpus 4 plan -- torchrun --nproc-per-node=8 megatron.py --tensor-model-parallel-size 2"
    " --pipeline-model-parallel-size 2 --micro-batch-size 4 --global-batch-size 64 --save ckpt",
    "torchtitan": "plan -- torchrun --nproc-per-node=8 -m torchtitan.train --job.config_file titan.toml",
}
TITAN_FILE = """
[training]
local_batch_size = 2
global_batch_size = 64
[parallelism]
tensor_parallel_degree = 4
pipeline_parallel_degree = 2
"""


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_plan_of_a_command_with_model_parallelism_is_printed_as_it_is_kept(
    there: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    (there / "titan.toml").write_text(TITAN_FILE)
    assert main.main(LAYOUTS[name].split()) == 0
    printed = capsys.readouterr().out.partition("\n-- settings")[0]
    assert printed == (Path(__file__).parent / "plans" / f"{name}.txt").read_text(encoding="utf-8")


@pytest.mark.usefixtures("there")
@pytest.mark.parametrize(
    ("size", "nodes", "follows"),
    [
        (1, 1, "on with 7 of 8"),
        (4, 1, "on with 4 of 8"),
        (8, 1, "too few are left for one"),
        (16, 2, "which other nodes share: each needs all of its ranks"),
    ],
)
def test_the_effect_of_a_failed_gpu_is_described_by_replicas(
    capsys: pytest.CaptureFixture[str], size: int, nodes: int, follows: str
) -> None:
    torchrun = ["torchrun", "--nproc-per-node=8", f"--nnodes={nodes}", "train.py"]
    assert main.main(["--min-gpus=1", "--allow-batch-drift", f"--model-parallel={size}", "plan", "--json", "--", *torchrun]) == 0
    replica = json.loads(capsys.readouterr().out)["replica"]
    assert (replica["size"], replica["source"]) == (size, f"--model-parallel {size}")
    assert follows in replica["one_gpu_less"]
