r"""The meaning of an exception that no signature matches: by its class and module and the frames that it came through, then by its message.

One table (ROWS): the first row that fits counts. A class is compared by its unqualified name where a row names classes, because the same
class travels under several module paths (torch.OutOfMemoryError and torch.cuda.OutOfMemoryError are one); by its module where a row names
modules. A row of frames asks for a part of the path of any frame, or of the innermost one (`raised_in`): who raised, not who called.

    ValueError, raised in torch/distributed/rendezvous.py      a rendezvous
    soundfile.LibsndfileError, by whoever                      data
    botocore.exceptions.HTTPClientError                        a remote store

Its message decides last, by the closed lists (logs/closed_lists.py): "CUDA error: …" of any kind is the device's, not the user's code.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from supervisor.classify import exits
from supervisor.classify.expressions import expression
from supervisor.classify.logs import closed_lists
from supervisor.core.model import Cause, Claim
from supervisor.core.values import Struct, replace

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Exception types that prove a cause, by their unqualified name; where the cause changes the job, they prove that too (consent.py).
BY_CLASS = {
    "ModuleNotFoundError": Claim(Cause.DEPENDENCY, 0.9),
    # not transient, as in the signatures: the same program asks for the same memory again
    "OutOfMemoryError": Claim(Cause.CUDA_OOM, 0.97),
    "MemoryError": Claim(Cause.HOST_OOM, 0.9),
    "DistNetworkError": Claim(Cause.RENDEZVOUS, 0.8, transient=True),
    "DistStoreError": Claim(Cause.RENDEZVOUS, 0.8, transient=True),
    "RendezvousConnectionError": Claim(Cause.RENDEZVOUS, 0.95, transient=True),
    "RendezvousTimeoutError": Claim(Cause.RENDEZVOUS, 0.95, transient=True),
    "RendezvousClosedError": Claim(Cause.RENDEZVOUS, 0.9, transient=True),
    "SignalException": Claim(Cause.PREEMPTED, 0.8, transient=True),
    # its message lists "potential root causes", which are not evidence
    **{
        kind: Claim(Cause.KILLED_UNKNOWN, 0.5, transient=True, consequence_of=exits.ANY)
        for kind in ("RayActorError", "ActorDiedError", "WorkerCrashedError", "NodeDiedError")
    },
    **{
        kind: Claim(Cause.USER_CODE, 0.45, transient=True, consequence_of=exits.ANY)
        for kind in ("BrokenPipeError", "ConnectionResetError", "ConnectionRefusedError", "EOFError")
    },
    # the frames above it only show what the program did at that moment
    "KeyboardInterrupt": exits.INTERRUPT,
}
ANY_EXCEPTION = Claim(Cause.USER_CODE, 0.7)
#: The same of a mistake, where a rank wrote down itself that it ended by it: the next attempt would make the same one.
OWN_MISTAKE = Claim(Cause.USER_CODE, 0.85)

#: Exceptions that a signal raises wherever the program is. The frames do not explain them.
SENT_FROM_OUTSIDE = frozenset({"KeyboardInterrupt"})


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: Exceptions of a connection that broke or could not be made.
OF_NETWORKS = _names(
    "TimeoutError timeout ConnectionError ConnectionResetError ConnectionRefusedError ConnectionAbortedError "
    "BrokenPipeError RemoteDisconnected IncompleteRead SSLError SSLEOFError gaierror ReadTimeout ConnectTimeout "
    "ReadTimeoutError ConnectTimeoutError MaxRetryError NewConnectionError ProtocolError ChunkedEncodingError "
    "ReadError ConnectError RemoteProtocolError ClientConnectorError ServerDisconnectedError ClientPayloadError"
)
#: Exceptions in a DataLoader's process if a worker dies during the transfer of a batch: the process fetches the descriptors of the batch's
#: memory from a thread of that worker (multiprocessing/resource_sharer.py). Often this is the only report, because the loader checked its
#: workers a moment too early.
OF_A_GONE_WORKER = frozenset({"ConnectionResetError", "ConnectionRefusedError", "BrokenPipeError", "EOFError"})
#: Exceptions of a mistake in the code of a data set, a transform or a collate function: no other data would help.
OF_MISTAKES = frozenset({"KeyError", "NameError", "UnboundLocalError", "AttributeError", "TypeError", "NotImplementedError"})
#: Exceptions of faults in the program or in its configuration, as long as nothing else explains them. FileNotFoundError is not one: a
#: mount comes late, another job writes the file; nor is FileExistsError, which two ranks race for.
_OF_THE_PROGRAM = OF_MISTAKES | _names(
    "ValueError IndexError ImportError SyntaxError IndentationError TabError ZeroDivisionError IsADirectoryError NotADirectoryError"
)
#: The RuntimeErrors by which torch refuses what an operator is given, or how the graph is used.
_REFUSED = expression(
    r"cannot be multiplied|must match the (?:size|existing size)|to be on the same (?:device|dtype)|is invalid for input of size"
    r"|[Gg]iven groups=|[Ss]izes? of tensors|[Ss]ize mismatch|must have the same (?:dtype|size|shape)"
    r"|[Ee]xpected (?:scalar type|\d-?D|tensor for|input)|not implemented for '|does not require grad|inplace operation|leaf [Vv]ariable"
    r"|backward through the graph|stack expects each tensor|index \S+ (?:is )?out of bounds"
)
_MOST_OF_A_MESSAGE = 400
#: Exceptions about a wrong value. Their message quotes the value, so the closed lists are not asked about it.
OF_VALUES = frozenset({"ValueError", "KeyError", "IndexError", "TypeError", "AttributeError", "NameError", "AssertionError", "LookupError"})


class ExceptionRow(Struct, frozen=True):
    """A row: the conditions on an exception, None or empty for anything, and its claim.

    modules: of its class, at the beginning. classes: unqualified. frame: a part of the path of a frame that it came through. raised_in: a
    part of the innermost frame's path. message: is searched in its text.
    """

    claim: Claim
    modules: tuple[str, ...] = ()
    classes: frozenset[str] = frozenset()
    frame: str = ""
    raised_in: str = ""
    message: re.Pattern[str] | None = None

    def fits(self, kind: str, text: str, paths: tuple[str, ...]) -> bool:
        """Whether an exception of this qualified type, with this text and these frames' paths, is meant."""
        name = kind.rsplit(".", 1)[-1]
        return (
            (not self.classes or name in self.classes)
            and (not self.modules or any(kind == module or kind.startswith(f"{module}.") for module in self.modules))
            and (not self.frame or any(self.frame in path for path in paths))
            and (not self.raised_in or (bool(paths) and self.raised_in in paths[-1]))
            and (self.message is None or self.message.search(text) is not None)
        )


def _rows(claim: Claim, *parts: str, classes: Iterable[str] = ()) -> tuple[ExceptionRow, ...]:
    return tuple(ExceptionRow(claim, classes=frozenset(classes), frame=frame) for frame in parts)


_REMOTE = Claim(Cause.STORAGE_REMOTE, 0.8, transient=True)
_NETWORK = Claim(Cause.STORAGE_REMOTE, 0.75, transient=True)
_DATA = Claim(Cause.DATA_ERROR, 0.75)
_CONFIGURATION = Claim(Cause.USER_CODE, 0.8)
_LACKS = Claim(Cause.DEPENDENCY, 0.85)
_RENDEZVOUS = Claim(Cause.RENDEZVOUS, 0.8, transient=True)
_REMOTE_MODULES = (
    *("botocore", "boto3", "aiobotocore", "s3transfer", "s3fs", "gcsfs", "google.api_core", "google.cloud", "google.auth", "azure"),
    *("oss2", "obs", "minio", "fsspec", "requests", "urllib3", "urllib.error", "http.client", "aiohttp", "httpx", "httpcore"),
    *("huggingface_hub", "hf_xet", "modelscope.hub", "openai", "anthropic", "paramiko", "google.resumable_media"),
)
ROWS: tuple[ExceptionRow, ...] = (
    # what a client refuses before it asks anybody is the caller's mistake
    ExceptionRow(
        _CONFIGURATION,
        classes=_names(
            "MissingSchema InvalidSchema InvalidURL InvalidHeader UnsupportedProtocol NoRegionError ParamValidationError "
            "ProfileNotFound UnknownServiceError DataNotFoundError HFValidationError OfflineModeIsEnabled "
            "RepositoryNotFoundError RevisionNotFoundError EntryNotFoundError RemoteEntryNotFoundError NotFound BadRequest "
            "BadRequestError InvalidArgument NoSuchKey NoSuchBucket ResourceNotFoundError"
        ),
        modules=_REMOTE_MODULES,
    ),
    ExceptionRow(
        _CONFIGURATION,
        modules=("botocore", "requests", "urllib.error", "httpx", "aiohttp"),
        message=expression(
            r"An error occurred \((?:404|NoSuchKey|NoSuchBucket)\)|\b404 (?:Client Error|Not Found)|Error 404\b|Client error '40[04]"
        ),
    ),
    # a library's tracker reports to a service; its refusal at the start is about a setting
    ExceptionRow(_REMOTE, modules=("wandb", "mlflow", "comet_ml", "neptune"), classes=frozenset({"CommError", "RestException", "Error"})),
    *(ExceptionRow(_CONFIGURATION, modules=(name,)) for name in ("wandb", "mlflow", "comet_ml", "neptune")),
    # the library's own exceptions, and those of networks that came through its code
    ExceptionRow(_REMOTE, modules=_REMOTE_MODULES),
    *_rows(_NETWORK, "/urllib/request.py", "/http/client.py", "/urllib3/", "/requests/", "/httpx/", "/aiohttp/", classes=OF_NETWORKS),
    *_rows(_NETWORK, "/botocore/", "/s3fs/", "/gcsfs/", "/fsspec/", "/huggingface_hub/", "/google/cloud/", classes=OF_NETWORKS),
    # libraries that are missing, or do not fit together
    ExceptionRow(
        _LACKS, classes=frozenset({"PackageNotFoundError", "DistributionNotFound", "VersionConflict", "ContextualVersionConflict"})
    ),
    ExceptionRow(_LACKS, modules=("pkg_resources",)),
    # a name that a module lacks may be the program's own; whatever else an import says is a library's word
    ExceptionRow(
        Claim(Cause.USER_CODE, 0.75),
        classes=frozenset({"ImportError"}),
        message=expression(r"ImportError(?:: (?:cannot import name|attempted relative import)|:?\s*$|: \w+$)"),
    ),
    ExceptionRow(_LACKS, classes=frozenset({"ImportError"})),
    ExceptionRow(_LACKS, modules=("ray",), classes=frozenset({"RuntimeEnvSetupError"})),
    ExceptionRow(
        Claim(Cause.NAN_LOSS, 0.75),
        classes=frozenset({"FloatingPointError"}),
        message=expression(r"(?i)\bnan\b|\binf(?:inite|inity)?\b|finite|overflow|invalid value"),
    ),
    # settings
    ExceptionRow(
        _CONFIGURATION,
        modules=(
            "omegaconf",
            "hydra",
            "yacs",
            "pydantic",
            "pydantic_core",
            "jsonargparse",
            "click",
            "absl.flags",
            "gin",
            "yaml",
            "tomllib",
            "toml",
        ),
    ),
    ExceptionRow(_CONFIGURATION, classes=frozenset({"MisconfigurationException", "ConfigAttributeError", "MissingMandatoryValue"})),
    # rendezvous: whatever is raised where the ranks meet
    ExceptionRow(Claim(Cause.RENDEZVOUS, 0.85, transient=True), modules=("etcd", "etcd3")),
    ExceptionRow(_RENDEZVOUS, raised_in="torch/distributed/rendezvous.py", classes=frozenset({"ValueError", "OSError"})),
    ExceptionRow(_RENDEZVOUS, raised_in="torch/distributed/elastic/rendezvous/"),
    ExceptionRow(
        _RENDEZVOUS,
        classes=frozenset({"ValueError", "OSError", "RuntimeError"}),
        message=expression(r"\bTCPStore\b|initializing torch\.distributed\b"),
    ),
    *_rows(
        _RENDEZVOUS,
        "torch/distributed/rendezvous.py",
        "torch/distributed/elastic/rendezvous/",
        classes=("RuntimeError", "TimeoutError", "timeout", "gaierror", "DistNetworkError", "DistStoreError", "ConnectionError"),
    ),
    # checkpoints
    *_rows(
        Claim(Cause.CHECKPOINT_CORRUPT, 0.8),
        "torch/distributed/checkpoint/filesystem.py",
        classes=("FileNotFoundError", "EOFError", "UnpicklingError", "BadZipFile"),
    ),
    # data: the readers of samples by their module, then exceptions from the read of a sample
    ExceptionRow(
        _DATA,
        modules=(
            *(
                "soundfile",
                "PIL",
                "datasets",
                "pyarrow",
                "pandas.errors",
                "lmdb",
                "av",
                "decord",
                "decord._ffi",
                "cv2",
                "librosa",
                "audioread",
            ),
            *("webdataset", "streaming", "torchcodec", "zstandard", "zstd", "lzma", "_lzma", "zlib", "gzip", "tarfile", "zipfile", "h5py"),
            *(
                "orjson",
                "simplejson",
                "json.decoder",
                "tensorflow.python.framework.errors_impl",
                "nibabel",
                "rasterio",
                "imageio",
                "ffmpeg",
            ),
        ),
    ),
    *_rows(Claim(Cause.DATA_ERROR, 0.7), "/PIL/ImageFile.py", classes=("error", "EOFError", "SyntaxError", "ValueError")),
    *_rows(Claim(Cause.USER_CODE, 0.75), "torch/utils/data/_utils/", classes=OF_MISTAKES),
    *_rows(_DATA, "torch/utils/data/_utils/fetch.py", "torch/utils/data/_utils/collate.py"),
    *_rows(Claim(Cause.DATA_ERROR, 0.7), "torch/utils/data/_utils/worker.py"),
    # a loader without workers has the data set's own frames below its own; here a worker died
    *_rows(
        Claim(Cause.DATALOADER_WORKER, 0.75, transient=True, consequence_of=exits.OWN_CAUSES),
        "torch/utils/data/dataloader.py",
        classes=OF_A_GONE_WORKER,
    ),
    # processes that other libraries start
    ExceptionRow(
        Claim(Cause.KILLED_UNKNOWN, 0.55, transient=True, consequence_of=exits.ANY),
        classes=frozenset({"BrokenProcessPool", "TerminatedWorkerError"}),
    ),
    ExceptionRow(Claim(Cause.HANG_NO_ERROR, 0.6, transient=True), modules=("ray",), classes=frozenset({"GetTimeoutError"})),
    ExceptionRow(Claim(Cause.GPU_DRIVER, 0.75), modules=("pynvml",)),
)
#: Exceptions of the device's libraries whose message the lists do not know.
_OF_DEVICES = (
    ExceptionRow(Claim(Cause.CUDA_ILLEGAL_ACCESS, 0.55, consequence_of=exits.ANY), classes=frozenset({"AcceleratorError", "CudaError"})),
    ExceptionRow(
        Claim(Cause.CUDA_ILLEGAL_ACCESS, 0.55, consequence_of=exits.ANY),
        classes=frozenset({"CUDARuntimeError", "CudaAPIError", "CUDADriverError", "CublasError"}),
    ),
    ExceptionRow(Claim(Cause.NCCL_NETWORK, 0.5, transient=True, consequence_of=exits.ANY), classes=frozenset({"DistBackendError"})),
)

#: OutOfMemoryError of a device's allocator; other libraries have classes of the same name.
_OF_DEVICE_MEMORY = expression(r"(?:torch|cupy)\.|(?:[\w.]*[.(])?OutOfMemoryError\)?:.{0,40}\b(?:CUDA|HIP|XPU|NPU|GPU)\b", re.DOTALL)
#: A MemoryError of an allocator: mostly empty, or with these words. Programs raise it for other things that they call memory.
_OF_ALLOCATORS = expression(
    r"[\w.]*MemoryError(?::\s*$|$|:.*(?:alloc|[Oo]ut of memory|[Nn]ot enough memory|[Ii]nsufficient memory))", re.DOTALL
)
#: A message that quotes somebody else.
_REPORTS = expression(r"\b(?:reported|said|says|wrote|expected)\b")
#: In the message of a ValueError only a text as long as a sentence counts, outside of quotation marks.
LONG_ENOUGH = 30
_QUOTED = expression(r"'[^'\n]*'|\"[^\"\n]*\"|`[^`\n]*`")
_PATH = expression(r'File "([^"\n]{1,1024})", line \d')


def _listed(kind: str, text: str) -> Claim | None:
    """Return what the closed lists say about a message, None where it quotes: a wrong value, or somebody else's words."""
    if exits.is_consequence(text) or _REPORTS.search(text):
        return None
    if kind not in OF_VALUES:
        return closed_lists.claim_of(text)
    return closed_lists.claim_of(_QUOTED.sub("", text.split("\n", 1)[0]), LONG_ENOUGH) if kind == "ValueError" else None


def by_class(text: str) -> Claim | None:
    """Return the claim of an exception's class alone, None if the class proves nothing."""
    kind = exits.exception_type(text)
    if (kind == "OutOfMemoryError" and not _OF_DEVICE_MEMORY.match(text)) or (kind == "MemoryError" and not _OF_ALLOCATORS.match(text)):
        return ANY_EXCEPTION
    return BY_CLASS.get(kind)


def claim_of(text: str, trace: str = "") -> Claim:
    """Return what an exception claims. text: "package.module.Type: message"; trace: its printed frames."""
    name = exits.exception_type(text)
    if name in SENT_FROM_OUTSIDE:
        return BY_CLASS[name]
    return stated(text, trace) or (exits.OF_A_PEER if exits.is_consequence(text) else ANY_EXCEPTION)


def is_own_mistake(text: str) -> bool:
    """Whether an exception "Type: message" is of a fault in the program, and comes again with the same program."""
    kind = exits.exception_type(text)
    return kind in _OF_THE_PROGRAM or (kind == "RuntimeError" and _REFUSED.search(text[:_MOST_OF_A_MESSAGE]) is not None)


def stated(text: str, trace: str = "") -> Claim | None:
    """Return what an exception's class, module, frames or message state; None if it may be anything."""
    kind = exits.qualified_type(text)
    paths = tuple(path.replace("\\", "/") for path in _PATH.findall(trace))
    row = next((row for row in ROWS if row.fits(kind, text, paths)), None)
    if row is not None:
        return row.claim
    by_name = by_class(text)
    if by_name is not None and by_name.consequence_of != exits.ANY:
        return by_name
    listed = _listed(kind, text)
    if listed is not None:
        return replace(listed, consequence_of=())
    device = next((row for row in _OF_DEVICES if row.fits(kind, text, paths)), None)
    return device.claim if device is not None else by_name
