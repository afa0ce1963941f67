"""A training in one file in the form of nanoGPT: globals as settings, one ckpt.pt that is overwritten, a switch that resumes."""

import os
from contextlib import nullcontext

import hook
import torch
import toy
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel

out_dir = "out"
eval_interval = 10
init_from = "scratch"  # 'scratch' or 'resume'
gradient_accumulation_steps = 2  # over all ranks
batch_size = 8
max_iters = 40
learning_rate = 1e-2
config_keys = [name for name, value in globals().items() if not name.startswith("_") and isinstance(value, int | float | bool | str)]
exec(open("configurator.py").read())  # noqa: S102, SIM115, PTH123  nanoGPT's form
config = {name: globals()[name] for name in config_keys}

hook.start()
ddp = int(os.environ.get("RANK", "-1")) != -1
if ddp:
    init_process_group(backend="gloo")
    ddp_rank = int(os.environ["RANK"])
    ddp_world_size = int(os.environ["WORLD_SIZE"])
    assert gradient_accumulation_steps % ddp_world_size == 0
    gradient_accumulation_steps //= ddp_world_size
else:
    ddp_rank, ddp_world_size = 0, 1
master_process = ddp_rank == 0
if master_process:
    os.makedirs(out_dir, exist_ok=True)  # noqa: PTH103  as above

iter_num = 0
model = toy.model()
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
if init_from == "resume":
    checkpoint = torch.load(os.path.join(out_dir, "ckpt.pt"))  # noqa: PTH118  as above
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    iter_num = checkpoint["iter_num"]
raw_model = model
if ddp:
    model = DistributedDataParallel(model)


def get_batch(micro_step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the samples of a micro-batch: whatever its size, an iteration reads the same ones."""
    number = (iter_num * gradient_accumulation_steps + micro_step) * ddp_world_size + ddp_rank
    return toy.pairs(number * batch_size, batch_size)


while iter_num < max_iters:
    for micro_step in range(gradient_accumulation_steps):
        last = micro_step == gradient_accumulation_steps - 1
        with nullcontext() if last or not ddp else model.no_sync():
            x, y = get_batch(micro_step)
            hook.batch(len(x))
            loss = (model(x) - y).square().mean() / gradient_accumulation_steps
            hook.loss(loss, iter_num + 1).backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    iter_num += 1
    if iter_num % eval_interval == 0 and master_process:
        checkpoint = {"model": raw_model.state_dict(), "optimizer": optimizer.state_dict(), "iter_num": iter_num, "config": config}
        hook.save(iter_num)
        torch.save(checkpoint, os.path.join(out_dir, "ckpt.pt"))  # noqa: PTH118  as above
    hook.step(iter_num)

hook.final(iter_num, toy.weights(raw_model))
if ddp:
    destroy_process_group()
