"""docs/guides/sharded-training.md: accelerate and DeepSpeed themselves read the two configurations."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.support.supervised import clean_environment

PAGE = Path(__file__).parents[2] / "docs/guides/sharded-training.md"
#: Goes the way of `accelerate launch`: the file, its checks, the variables of a rank, and the plugin that a rank makes of them.
FSDP = """
import json, os
import torch
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils import FullyShardedDataParallelPlugin
from accelerate.utils.launch import prepare_multi_gpu_env

args, _, _ = _validate_launch_command(launch_command_parser().parse_args(["--config_file", "fsdp.yaml", "train.py"]))
os.environ.update(prepare_multi_gpu_env(args))

class LlamaDecoderLayer(torch.nn.Linear):
    pass

plugin = FullyShardedDataParallelPlugin()
model = torch.nn.Sequential(LlamaDecoderLayer(4, 4), torch.nn.Linear(4, 4))
plugin.set_auto_wrap_policy(model)
print(json.dumps({
    "processes": args.num_processes,
    "fsdp": args.use_fsdp,
    "precision": os.environ["ACCELERATE_MIXED_PRECISION"],
    "version": plugin.fsdp_version,
    "reshard": plugin.reshard_after_forward,
    "state": plugin.state_dict_type.name,
    "layers": sorted(layer.__name__ for layer in plugin.auto_wrap_policy.keywords["transformer_layer_cls"]),
}))
"""
DEEPSPEED = """
import json
from deepspeed.runtime.config import DeepSpeedConfig

config = DeepSpeedConfig("ds.json")
print(json.dumps({
    "batch": config.train_batch_size,
    "micro": config.train_micro_batch_size_per_gpu,
    "steps": config.gradient_accumulation_steps,
    "stage": int(config.zero_config.stage),
    "bf16": config.bfloat16_config.enabled,
    "clipping": config.gradient_clipping,
}))
"""


def example(language: str) -> str:
    (text,) = re.findall(rf"```{language}\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    return str(text)


def answer(place: Path, program: str) -> object:
    (place / "ask.py").write_text(program)
    command = ["python", "ask.py"]
    done = subprocess.run(command, cwd=place, env=clean_environment(), capture_output=True, text=True, timeout=120, check=False)  # noqa: S603
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.process
def test_accelerate_reads_the_configuration_for_fsdp(tmp_path: Path) -> None:
    (tmp_path / "fsdp.yaml").write_text(example("yaml"))
    assert answer(tmp_path, FSDP) == {
        "processes": 8,
        "fsdp": True,
        "precision": "bf16",
        "version": 2,
        "reshard": True,
        "state": "SHARDED_STATE_DICT",
        "layers": ["LlamaDecoderLayer"],
    }


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="deepspeed is not installed: pip install deepspeed")
def test_deepspeed_reads_its_configuration(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(example("json"))
    assert answer(tmp_path, DEEPSPEED) == {"batch": 32, "micro": 4, "steps": 8, "stage": 2, "bf16": True, "clipping": 1.0}
