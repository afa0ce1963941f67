"""Training scripts of well-known programs, as short as they can be and still be recognised. They are parsed, never run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.config.settings import Origin, Settings, with_values
from supervisor.knobs import job_knobs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from supervisor.knobs.knob_set import KnobSet

HF = """
from transformers import HfArgumentParser, Trainer, TrainingArguments
(args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
wandb.init(config=dict(per_device_train_batch_size=args.per_device_train_batch_size))
Trainer(model=None, args=args).train()
"""
HF_BY_MODULE = """
import transformers as t
(args,) = t.HfArgumentParser(t.Seq2SeqTrainingArguments).parse_args_into_dataclasses()
"""
LIGHTNING = """
import lightning as L
from lightning.pytorch.cli import LightningCLI
class Data(L.LightningDataModule):
    def __init__(self, path: str, batch_size: int = 24, *, num_workers: int = 3):
        self.batch_size = batch_size
    def train_dataloader(self):
        return DataLoader([], batch_size=self.batch_size)
    def val_dataloader(self):
        return DataLoader([], batch_size=1)
class Model(L.LightningModule): ...
LightningCLI(Model, Data)
"""
TITAN = "from torchtitan.config import ConfigManager\nConfigManager().parse_args()\n"
MEGATRON = "from megatron.training import get_args, pretrain\npretrain(1, 2, 3, 4)\n"
NANOGPT = """
batch_size = 12
gradient_accumulation_steps = 5 * 8
config_keys = [k for k in globals()]
exec(open('configurator.py').read())
if ddp:
    gradient_accumulation_steps //= ddp_world_size
"""
DEEPSPEED = "import deepspeed\nparser = deepspeed.add_config_arguments(parser)\nengine = deepspeed.initialize(args=args)\n"
ACCELERATE = """
from accelerate import Accelerator
accelerator = Accelerator(gradient_accumulation_steps=2)
with accelerator.accumulate(model):
    pass
"""
SCRIPTS = {
    "hf_trainer": HF,
    "lightning": LIGHTNING,
    "torchtitan": TITAN,
    "megatron": MEGATRON,
    "nanogpt": NANOGPT,
    "deepspeed": DEEPSPEED,
    "accelerate": ACCELERATE,
}


def find(
    place: Path, command: str | Sequence[str], *declared: str, environ: Mapping[str, str] | None = None, program: str = "auto"
) -> KnobSet:
    """Return the knobs of a command that is run in `place`."""
    values: dict[str, str | tuple[str, ...]] = {"knobs.declared": declared, "knobs.program": program}
    settings = with_values(Settings(cwd=str(place)), values, {"knobs.declared": Origin("command line", "--knob")})
    return job_knobs.find(settings, command.split() if isinstance(command, str) else command, environ or {}, place)


def values_of(knob_set: KnobSet) -> dict[str, str]:
    """Return each knob with its value, without the one that hands a checkpoint over (test_resume.py)."""
    return {knob.name: knob.value for knob in knob_set.knobs if knob.name != "resume"}
