"""Uses a device, cpu or cuda, and runs another probe then: `on_device.py DEVICE PROBE [ARGUMENTS]`."""

from __future__ import annotations

import os
import runpy
import sys

import torch

from observed import recorded, show

CUDA = torch.cuda


def used(device: str) -> dict[str, object]:
    """Return what a first use of the device shows."""
    before = [CUDA.is_initialized(), CUDA.is_available(), CUDA.device_count(), os.environ.get("CUDA_VISIBLE_DEVICES")]
    torch.manual_seed(11)
    x = torch.randn(64, 64, device=device, requires_grad=True)
    with torch.autocast(device, dtype=torch.bfloat16):
        y = torch.nn.functional.gelu(x @ x).float().mean()
    y.backward()
    assert x.grad is not None
    figures = [y.item().hex(), x.grad.double().sum().item().hex(), torch.rand((), device=device).item().hex()]
    answer: dict[str, object] = {"before": before, "figures": figures, "after": CUDA.is_initialized()}
    if device == "cuda":
        answer |= {
            "device": [CUDA.current_device(), CUDA.get_device_name(), CUDA.get_device_capability()],
            "memory": [CUDA.memory_allocated(), CUDA.memory_reserved(), CUDA.max_memory_allocated()],
            "random": CUDA.get_rng_state().sum().item(),
            "pinned": torch.zeros(8).pin_memory().is_pinned(),
            "backends": [torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.benchmark, torch.backends.cudnn.version()],
            "stream": CUDA.current_stream().cuda_stream,
        }
    return answer


if __name__ == "__main__":
    facts = used(sys.argv[1])
    if sys.argv[2:]:
        recorded()
        sys.argv = sys.argv[2:]
        runpy.run_path(sys.argv[0], run_name="__main__")
    else:
        show(**facts)
