# ruff: noqa: ANN401 -- torch is imported late, so its things have no types here
"""Optimizers where the optimizer is not the subject: torch's own import torch._dynamo, two CPU-seconds in each process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

#: What a script that is given as text begins with, so that it has `light_sgd`.
IMPORT = f"import sys; sys.path.append({str(Path(__file__).parent)!r}); from light import light_sgd\n"


def without_dynamo(torch: Any) -> None:
    """Have torch's optimizers made and loaded without importing torch._dynamo; their own `step` imports it still."""
    for method in vars(torch.optim.Optimizer).values():
        wrapped = getattr(method, "__wrapped__", None)
        if wrapped is not None:  # as if torch._dynamo.disable had wrapped it already (torch/_compile.py keeps its answer there)
            wrapped.__dict__.setdefault("__dynamo_disable", wrapped)


def light_sgd(torch: Any, parameters: Any) -> Any:
    """Return an SGD with momentum that steps without importing torch._dynamo; the optimizer's hooks run as in torch's own."""
    without_dynamo(torch)

    class LightSGD(torch.optim.Optimizer):  # type: ignore[misc]  # torch is a value here
        def __init__(self) -> None:
            super().__init__(parameters, {"lr": 0.05})

        def step(self) -> None:
            with torch.no_grad():
                for parameter in self.param_groups[0]["params"]:
                    if parameter.grad is None:
                        continue
                    momentum = self.state[parameter].setdefault("momentum", torch.zeros_like(parameter))
                    momentum.mul_(0.9).add_(parameter.grad)
                    parameter.sub_(momentum, alpha=0.05)

    return LightSGD()
