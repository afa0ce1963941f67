"""A rank that compiles a function, writes what the caches of the compilers did, and fails in attempt 1 after that.

In: the directory for attempt-N.json: hits and misses of inductor's cache, seconds to the first result, the places of all compile caches.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch
from torch._dynamo.utils import counters
from torch._inductor.runtime.cache_dir_utils import cache_dir
from torch.utils.cpp_extension import get_default_build_root

CACHES = (
    "HOME",
    "TMPDIR",
    "XDG_CACHE_HOME",
    "TORCHINDUCTOR_CACHE_DIR",
    "TRITON_CACHE_DIR",
    "TRITON_HOME",
    "TORCH_EXTENSIONS_DIR",
    "CUDA_CACHE_PATH",
)


@torch.compile
def step(x: torch.Tensor) -> torch.Tensor:
    """Compute what inductor makes a C++ kernel of."""
    return (torch.sin(x) * torch.exp(-x * x)).sum(dim=1).relu()


def main() -> None:
    """Run one attempt."""
    attempt = os.environ["SUPERVISE_JOB_ATTEMPT"]
    began = time.monotonic()
    step(torch.linspace(0, 1, 4096).reshape(64, 64))
    inductor = counters["inductor"]
    seen = {
        "hits": inductor["fxgraph_cache_hit"] + counters["aot_autograd"]["autograd_cache_hit"],
        "misses": inductor["fxgraph_cache_miss"],
        "took_s": time.monotonic() - began,
        "variables": {name: os.environ.get(name) for name in CACHES},
        "inductor": cache_dir(),
        "extensions": get_default_build_root(),
    }
    (Path(sys.argv[1]) / f"attempt-{attempt}.json").write_text(json.dumps(seen))
    sys.exit(3 if attempt == "1" else 0)


main()
