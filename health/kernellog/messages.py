"""All forms of kernel messages that say of trouble, in the order in which they are looked for.

In: a message. Out: the first form that it has, or None: an ordinary message. Nearly all messages are ordinary: a form's literal is looked
for first, which is much cheaper than its pattern. Pure; nothing fails.
"""

from __future__ import annotations

from typing import Final

from health.kernellog.message_form import Form, Match, first
from health.kernellog.messages_gpu import GPU_FORMS
from health.kernellog.messages_host import HOST_FORMS
from health.kernellog.messages_network import NET_FORMS
from health.kernellog.messages_pci import PCI_FORMS
from health.kernellog.messages_storage import STORAGE_FORMS

FORMS: Final[tuple[Form, ...]] = (*GPU_FORMS, *HOST_FORMS, *PCI_FORMS, *STORAGE_FORMS, *NET_FORMS)


def recognise(text: str, *, sure: bool = True) -> Match | None:
    """Return the form of a message. sure: the message is marked as the kernel's."""
    return first(text, FORMS, sure=sure)
