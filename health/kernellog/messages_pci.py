"""What the kernel says of PCIe, its slots and the IOMMU. One row for each form; see forms.py."""

# ruff: noqa: E501  (a pattern is read in one piece)

from __future__ import annotations

from typing import Final

from health.kernellog.message_form import PCI, Form, Role, form
from health.kernellog.model import Severity
from health.model import Repair

_INFO, _ERROR, _CRITICAL = Severity.INFO, Severity.ERROR, Severity.CRITICAL
_NONE, _REBOOT, _DRAIN = Repair.NONE, Repair.REBOOT, Repair.DRAIN
#: The address in front, by whatever driver has the device.
_DEVICE = rf"(?:[\w-]+ )?{PCI}: "

PCI_FORMS: Final[tuple[Form, ...]] = (
    form(
        "aer",
        "correctable",
        "orrect",
        rf"{_DEVICE}(?:AER: )?(?:Multiple )?(?:AER: )?(?:PCIe Bus Error: severity=(?:Corrected|Correctable)\b|(?:Multiple )?(?:Corrected|Correctable) error (?:message )?received)",
        _INFO,
        _NONE,
        "errors on PCIe that were corrected",
    ),
    form(
        "aer",
        "fatal",
        "atal)",
        rf"{_DEVICE}(?:AER: )?(?:(?:PCIe Bus Error: )severity=Unc\w+ \(Fatal\)|(?:Multiple )?(?:Uncorrected|Uncorrectable) \(Fatal\) error (?:message )?received)",
        _CRITICAL,
        _REBOOT,
        "an uncorrectable error on PCIe, fatal for the link",
    ),
    form(
        "aer",
        "nonfatal",
        "ncorrect",
        rf"{_DEVICE}(?:AER: )?(?:(?:PCIe Bus Error: )severity=Unc\w+|(?:Multiple )?(?:Uncorrected|Uncorrectable)(?: \(Non-Fatal\))? error (?:message )?received)",
        _ERROR,
        _NONE,
        "an uncorrectable error on PCIe",
    ),
    form(
        "aer",
        "cannot_recover",
        "can't recover",
        rf"{_DEVICE}(?:AER: )?can't recover \(no error_detected callback\)",
        _CRITICAL,
        _REBOOT,
        "the device's driver cannot recover from an error on PCIe: the device is gone",
    ),
    form(
        "aer",
        "recovery_failed",
        "device recovery failed",
        rf"{_DEVICE}(?:AER: )?device recovery failed",
        _CRITICAL,
        _REBOOT,
        "an error on PCIe could not be recovered",
    ),
    form(
        "aer",
        "recovered",
        "device recovery successful",
        rf"{_DEVICE}(?:AER: )?device recovery successful",
        _INFO,
        _NONE,
        "a device recovered from an error on PCIe",
        Role.PART,
    ),
    form(
        "aer",
        "correctable",
        "] ",
        rf"{_DEVICE} *\[ *\d+\] (?:RxErr|BadTLP|BadDLLP|Rollover|Timeout|NonFatalErr|CorrIntErr|HeaderOF|Receiver Error|Bad TLP|Bad DLLP|Replay Timer Timeout|RELAY_NUM Rollover|Replay Num Rollover|Advisory Non-Fatal)",
        _INFO,
        _NONE,
        "errors on PCIe that were corrected",
        Role.PART,
    ),
    form(
        "aer",
        "nonfatal",
        "] ",
        rf"{_DEVICE} *\[ *\d+\] (?:DLP|SDES|TLP|FCP|CmpltTO|CmpltAbrt|UnxCmplt|RxOF|MalfTLP|ECRC|UnsupReq|ACSViol|Data Link Protocol|Surprise Down|Poisoned TLP|Flow Control Protocol|Completion Timeout|Completer Abort|Unexpected Completion|Receiver Overflow|Malformed TLP|Unsupported Request)\b",
        _ERROR,
        _NONE,
        "an uncorrectable error on PCIe",
        Role.PART,
    ),
    form(
        "aer",
        "dpc",
        "DPC:",
        rf"{_DEVICE}DPC: (?:containment event|unmasked uncorrectable error)",
        _CRITICAL,
        _REBOOT,
        "a PCIe port was shut after an uncorrectable error",
    ),
    form(
        "pci",
        "link_down",
        "Slot(",
        rf"{_DEVICE}(?:pciehp: )?Slot\((?P<subject>[^)]+)\): Link Down",
        _ERROR,
        _DRAIN,
        "a PCIe slot lost its link while the node ran",
    ),
    form(
        "pci",
        "card_gone",
        "Slot(",
        rf"{_DEVICE}(?:pciehp: )?Slot\((?P<subject>[^)]+)\): Card not present",
        _ERROR,
        _DRAIN,
        "a PCIe slot lost its card while the node ran",
        Role.PART,
    ),
    form(
        "pci",
        "not_ready",
        "not ready",
        rf"(?:pci|nvidia|vfio-pci|pcieport) {PCI}: not ready \d+ms after .*giving up",
        _CRITICAL,
        _REBOOT,
        "a device did not come back from a reset",
    ),
    form(
        "iommu",
        "fault",
        "DMAR",
        rf"DMAR: \[(?:DMA|INTR)[^\]]*\] Request device \[{PCI}\]",
        _ERROR,
        _NONE,
        "a device touched memory that is not its own",
    ),
    form(
        "iommu",
        "fault",
        "IO_PAGE_FAULT",
        rf"(?:[\w-]+ {PCI}: )?AMD-Vi: Event logged \[IO_PAGE_FAULT",
        _ERROR,
        _NONE,
        "a device touched memory that is not its own",
    ),
)
