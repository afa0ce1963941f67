"""All forms of kernel messages that say of trouble, in the order in which they are looked for.

In: a message. Out: the first form that it has, or None: an ordinary message. A literal that some message of trouble holds is looked for
first, all at once, because nearly all messages are ordinary. Pure; nothing fails.
"""

from __future__ import annotations

import re
from typing import Final

from health.kernellog.forms import Form, Match, first
from health.kernellog.gpuforms import GPU_FORMS
from health.kernellog.hostforms import HOST_FORMS
from health.kernellog.netforms import NET_FORMS
from health.kernellog.pciforms import PCI_FORMS
from health.kernellog.storageforms import STORAGE_FORMS

FORMS: Final[tuple[Form, ...]] = (*GPU_FORMS, *HOST_FORMS, *PCI_FORMS, *STORAGE_FORMS, *NET_FORMS)
_ANY = re.compile("|".join(sorted({re.escape(row.anchor) for row in FORMS}, key=len)))


def recognise(text: str, *, sure: bool = True) -> Match | None:
    """Return the form of a message. sure: the message is marked as the kernel's."""
    return first(text, FORMS, sure=sure) if _ANY.search(text) else None
