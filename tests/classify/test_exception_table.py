"""What an exception that no signature matches proves by its class, its module, its frames and its message."""

from __future__ import annotations

import pytest

from supervisor.classify import exception_table
from supervisor.classify.engine import classify
from supervisor.classify.exception_table import ANY_EXCEPTION, ROWS, ExceptionRow
from supervisor.core.model import Cause, Evidence

#: A message that the row's pattern finds, by a part of the pattern.
MESSAGES = {
    "An error occurred": "An error occurred (NoSuchKey)",
    "cannot import name": "cannot import name 'x'",
    "finite": "NaN found",
    "TCPStore": "TCPStore(port=0)",
}


def frame(path: str) -> str:
    return f'  File "/v/lib/python3.11/site-packages/{path.strip("/")}{"" if path.endswith(".py") else "/x.py"}", line 1, in f'


def example(row: ExceptionRow) -> tuple[str, str]:
    """An exception that the row is about: its text, and its frames."""
    kind = ".".join(part for part in (row.modules[0] if row.modules else "", min(row.classes, default="SomeError")) if part)
    message = next((text for part, text in MESSAGES.items() if row.message is not None and part in row.message.pattern), "some words")
    return f"{kind}: {message}", "\n".join(map(frame, filter(None, (row.frame, row.raised_in))))


@pytest.mark.parametrize(
    "row", ROWS, ids=lambda row: f"{row.claim.cause}-{(row.modules or (row.frame or row.raised_in,))[0]}-{min(row.classes, default='')}"
)
def test_every_row_is_reached(row: ExceptionRow) -> None:
    text, trace = example(row)
    fits = next(other for other in ROWS if other.fits(text.partition(":")[0], text, tuple(exception_table._PATH.findall(trace))))  # noqa: SLF001
    assert fits.claim.cause is row.claim.cause
    evidence = [Evidence("error_file", "exception", text, 0, 1.0), Evidence("error_file", "traceback", trace, 0, 1.0)]
    assert classify(evidence[: 1 + bool(trace)]).cause is row.claim.cause


FETCHED = frame("torch/utils/data/_utils/fetch.py")
CASES = {
    "a ValueError raised where the ranks meet": (
        "ValueError: port must be an integer",
        frame("torch/distributed/rendezvous.py"),
        Cause.RENDEZVOUS,
    ),
    "near: one that a caller of it raised": (
        "ValueError: port must be an integer",
        frame("torch/distributed/rendezvous.py") + "\n" + frame("proj/launch.py"),
        Cause.USER_CODE,
    ),
    "a reader of sound": ("soundfile.LibsndfileError: Error opening 'a.wav': System error.", "", Cause.DATA_ERROR),
    "a mandatory setting": ("omegaconf.errors.MissingMandatoryValue: Missing mandatory value: data.root", "", Cause.USER_CODE),
    "an address without a scheme": ("requests.exceptions.MissingSchema: Invalid URL 'x': No scheme supplied.", "", Cause.USER_CODE),
    "near: an address that does not answer": ("requests.exceptions.InvalidProxyAnswer: no route", "", Cause.STORAGE_REMOTE),
    "an object that is not there": (
        "botocore.exceptions.ClientError: An error occurred (NoSuchKey) when calling the GetObject operation: no",
        "",
        Cause.USER_CODE,
    ),
    "a package whose metadata is missing": ("importlib.metadata.PackageNotFoundError: apex", "", Cause.DEPENDENCY),
    "an extension that does not fit": ("ImportError: /v/fused.so: undefined symbol: _ZN2at", "", Cause.DEPENDENCY),
    "an import that a library refuses": ("ImportError: fast attention was asked for, and its kernels are not there", "", Cause.DEPENDENCY),
    "arithmetic that went wrong": ("FloatingPointError: overflow encountered in reduce", "", Cause.NAN_LOSS),
    "near: arithmetic of another kind": ("FloatingPointError: unknown rounding mode", "", Cause.USER_CODE),
    "near: a name that the program's own module lacks": ("ImportError: cannot import name 'Net' from 'model'", "", Cause.USER_CODE),
    "a CUDA error that no list names": ("RuntimeError: CUDA error: some new error of CUDA 14", "", Cause.CUDA_ILLEGAL_ACCESS),
    "one of the driver's": ("RuntimeError: CUDA error: CUDA driver is a stub library", "", Cause.GPU_DRIVER),
    "one of memory": ("torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered", "", Cause.GPU_ECC),
    "near: a value that quotes one": ("ValueError: unknown mode 'CUDA error: unspecified launch failure'", "", Cause.USER_CODE),
    "XLA's memory": ("jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes.", "", Cause.CUDA_OOM),
    "an errno in other words": ("my.store.WriteError: flush failed: errno=28 (ENOSPC)", "", Cause.DISK_FULL),
    "a step that took too long": ("TimeoutError: training_step timeout after 300s", "", Cause.HANG_NO_ERROR),
    "near: another time-out": ("TimeoutError: no licence after 300s", "", Cause.USER_CODE),
    "a mistake within the loader's frames": ("KeyError: 'label'", FETCHED, Cause.USER_CODE),
}


@pytest.mark.parametrize("case", CASES)
def test_class_module_and_frame_come_before_the_message(case: str) -> None:
    text, trace, cause = CASES[case]
    evidence = [Evidence("error_file", "exception", text, 0, 1.0), *([Evidence("error_file", "traceback", trace, 0, 1.0)] if trace else [])]
    assert classify(evidence).cause is cause


def test_a_message_alone_is_never_as_sure_as_a_change_of_the_job_needs() -> None:
    claim = exception_table.claim_of("RuntimeError: CUDA error: uncorrectable ECC error encountered")
    assert claim.cause is Cause.GPU_ECC
    assert claim.weight < 0.8
    assert exception_table.claim_of("RuntimeError: no text of a list") == ANY_EXCEPTION
