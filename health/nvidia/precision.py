"""The number format in which all GPUs of a job can train, by their compute capability.

Source: the CUDA C++ Programming Guide, "Compute Capabilities": tensor cores make matrix products in fp16 from 7.0 on, in bf16 from 8.0 on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

#: The least compute capability, best format first.
_LEAST: Final = (("bf16", (8, 0)), ("fp16", (7, 0)), ("fp32", (0, 0)))


def common_precision(capabilities: Iterable[tuple[int, int]]) -> str:
    """Return bf16, fp16 or fp32: the first that every GPU has; "" for no GPU. A capability is (major, minor)."""
    least = min(capabilities, default=None)
    return "" if least is None else next(name for name, needed in _LEAST if least >= needed)
