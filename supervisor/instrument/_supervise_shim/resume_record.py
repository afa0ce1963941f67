"""Records the training state before each optimizer step, for `supervise drill resume`: digests of weights, optimizer state and gradients.

`supervise drill` writes the order into `drill` in the job's directory: kind "resume", and `records`, a directory for the rows. One line of
JSON per optimizer step goes to `rank-<rank>-attempt-<attempt>.jsonl` there. The state before a step is what the step before left: what a
checkpoint that is saved between the two must hold.

A tensor's digest is the sum of its bits as integers. It is exact in any order, is computed on the tensor's own device, and moves 8 bytes.
"""
# ruff: noqa: ANN401 - torch is not imported here, so its things have no types

from __future__ import annotations

import os
import sys

from .layout import quiet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .claim import ProcessIdentity
    from .heartbeat import HeartbeatWriter

#: The integer type of so many bytes.
_BITS = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}
#: A group of parameters has as many settings that count at most.
_MOST_SETTINGS = 32
#: In place of a sum: sparse and quantized tensors have no bits to add. A part with one of them has no digest ("").
_UNREAD = ("unread",)


class ResumeRecord:
    """The rows of this process. `order` is the content of the file."""

    def __init__(self, identity: ProcessIdentity, beat: HeartbeatWriter, order: dict[str, Any]) -> None:
        self._identity = identity
        self._beat = beat
        self._directory = str(order["records"])
        self._attempt = os.environ["SUPERVISE_JOB_ATTEMPT"]
        self._numbers: dict[int, int] = {}  # id of an optimizer → its number, in the order in which they step first
        self._kept: list[Any] = []  # no id is used twice

    @quiet
    def before_step(self, optimizer: Any, _args: object, _kwargs: object) -> None:
        """Write one row: torch's global optimizer pre-step hook."""
        if not self._identity.enabled:
            return
        import hashlib  # noqa: PLC0415 - a drill alone needs it
        import json  # noqa: PLC0415 - 3 ms at every start; torch has it by now

        if id(optimizer) not in self._numbers:
            self._numbers[id(optimizer)] = len(self._numbers)
            self._kept.append(optimizer)
        torch, beat = sys.modules["torch"], self._beat
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        parts: dict[str, list[Any]] = {
            "weights": [*parameters],
            "state": [value for one in parameters for _, value in _sorted(optimizer.state.get(one))],
            "gradients": [parameter.grad for parameter in parameters],
        }
        with torch.no_grad():
            sums = {name: [_sum(torch, value) for value in values] for name, values in parts.items()}
        row = {
            "optimizer": self._numbers[id(optimizer)],
            "steps": beat.steps,
            "step": beat.step,
            "settings": [_settings(group) for group in optimizer.param_groups],
            **{
                name: ""
                if any(value is _UNREAD for value in values)
                else hashlib.sha256(repr([_plain(value) for value in values]).encode()).hexdigest()[:16]
                for name, values in sums.items()
            },
        }
        path = os.path.join(self._directory, f"rank-{self._identity.rank}-attempt-{self._attempt}.jsonl")  # noqa: PTH118 - pathlib costs 5 ms of start-up
        with open(path, "a", encoding="ascii") as file:  # noqa: PTH123 - see above
            file.write(json.dumps(row) + "\n")


def _sum(torch: Any, value: Any) -> Any:
    """Return the sum of a tensor's bits, on its device; a number, a text or None as it is; `_UNREAD` for everything else."""
    value = getattr(value, "_local_tensor", value)  # of a distributed tensor this rank's part
    if value is None or isinstance(value, (int, float, str)):
        return value
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided or value.is_quantized:
        return _UNREAD
    plain = torch.view_as_real(value.detach()) if value.is_complex() else value.detach()
    bits = _BITS.get(plain.element_size())
    return _UNREAD if bits is None else plain.view(getattr(torch, bits)).sum(dtype=torch.int64)


def _plain(value: Any) -> Any:
    """Return a sum as a number. It waits for the device, once all sums are begun."""
    return int(value.item()) if hasattr(value, "item") else value


def _sorted(state: Any) -> list[tuple[str, Any]]:
    """Return the entries of one parameter's optimizer state by name."""
    return sorted(((str(name), value) for name, value in state.items()), key=lambda item: item[0]) if isinstance(state, dict) else []


def _settings(group: dict[str, Any]) -> dict[str, Any]:
    """Return the numbers among the settings of a group of parameters: learning rate, momentum, betas and the like."""
    found: dict[str, Any] = {}
    for name, value in group.items():
        value = value.item() if hasattr(value, "item") and getattr(value, "is_cpu", True) else value  # noqa: PLW2901 - a tensor of one number
        values = value if isinstance(value, (tuple, list)) else (value,)
        if name != "params" and len(found) < _MOST_SETTINGS and all(type(one) in (int, float) for one in values):
            found[str(name)] = value
    return found
