"""A training that knows nothing of supervise and resumes by itself, as scripts do: from the newest file, or from the only one.

--style steps: ckpt/step_N.pt, not atomic. inplace: one ckpt.pt, written over again and again. At --tear-at rank 0 dies in
the middle of that save, once. It refuses to start from a file that it cannot read, as torch.load does; with --swallow it starts from
scratch then. --names: a path, which it does not use. --latest: a link to the checkpoint, made before it is saved.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from light import light_sgd

HERE = Path.cwd()


class Tears:
    """Dies while it is pickled, when the half of the file is there."""

    def __init__(self, path: Path) -> None:
        """Take the file that is being written."""
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        """Die."""
        torch.save({"half": torch.ones(64)}, HERE / "half")
        self.path.write_bytes((HERE / "half").read_bytes()[:700])
        os.kill(os.getpid(), signal.SIGKILL)
        return (str, ())


def newest(style: str) -> Path | None:
    """Return what a resume takes."""
    if style == "inplace":
        return HERE / "ckpt.pt" if (HERE / "ckpt.pt").exists() else None
    checkpoints = [(int(m[1]), path) for path in (HERE / "ckpt").glob("step_*.pt") if (m := re.fullmatch(r"step_(\d+)\.pt", path.name))]
    own = [(step, path) for step, path in checkpoints if step != 999]
    return max(own)[1] if own else None


def save(style: str, step: int, state: dict[str, object], *, tear: bool, latest: bool) -> None:
    """Save in the style of the script."""
    path = HERE / "ckpt.pt" if style == "inplace" else HERE / "ckpt" / f"step_{step}.pt"
    if latest:
        (HERE / "ckpt" / "latest.pt").unlink(missing_ok=True)
        (HERE / "ckpt" / "latest.pt").symlink_to(path.name)
    if tear:
        state = {**state, "tears": Tears(path)}
    torch.save(state, path)


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--style", default="steps")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--tear-at", type=int, default=0)
    parser.add_argument("--pace-s", type=float, default=0.0)
    parser.add_argument("--names")
    parser.add_argument("--swallow", action="store_true")
    parser.add_argument("--latest", action="store_true")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 8)
    optimizer = light_sgd(torch, model.parameters())
    (HERE / "ckpt").mkdir(exist_ok=True)
    first, source = 0, newest(args.style)
    if source is not None:
        try:
            state = torch.load(source)
            model.load_state_dict(state["model"])
            first = state["step"]
        except Exception:
            if not args.swallow:
                raise
    if dist.get_rank() == 0:
        sys.stdout.write(f"resumed at {first}\n")
        sys.stdout.flush()
    torn = HERE / "torn"
    for step in range(first + 1, args.steps + 1):
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 0:
            dist.barrier()
            if dist.get_rank() == 0:
                tear = step == args.tear_at and not torn.exists()
                if tear:
                    torn.touch()
                save(args.style, step, {"model": model.state_dict(), "step": step}, tear=tear, latest=args.latest)
            dist.barrier()
        time.sleep(args.pace_s)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
