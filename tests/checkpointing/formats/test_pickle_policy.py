"""What a pickle may call is judged by name; what real checkpoints hold is never called dangerous, and nothing is executed."""

from __future__ import annotations

import argparse
import collections
import datetime as dt
import enum
import functools
import json
import logging
import os
import pathlib
import pickle
import platform
import random
import signal
import string
import subprocess
from typing import TYPE_CHECKING, Any, List, Optional  # noqa: UP035 -- what is pickled

import numpy as np
import pytest
import torch

from checkpointing.formats.directories import dcp_metadata
from checkpointing.formats.pickles import scanner
from checkpointing.formats.pickles.policy import Judgement, judge
from checkpointing.model import Verdict
from checkpointing.verification import verify

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Color(enum.Enum):
    """Pickled through getattr by some versions of Python."""

    RED = 1


class Outer:
    """Holds a class."""

    class Inner:
        """Pickled through getattr by the older protocols."""


SOUND: dict[str, Any] = {
    "namespace": argparse.Namespace(lr=0.1),
    "numpy_scalar": np.float64(3),
    "numpy_array": np.arange(3),
    "numpy_dtype": np.dtype("f4"),
    "numpy_objects": np.array(["a"], dtype=object),
    "numpy_state": np.random.default_rng(1),
    "datetime": dt.datetime.now(dt.UTC),
    "path": pathlib.Path("x"),
    "enum": Color.RED,
    "signal": signal.SIGTERM,
    "partial": functools.partial(torch.relu),
    "nested": Outer.Inner(),
    "random_state": random.getstate(),
    "defaultdict": collections.defaultdict(functools.partial(dict, a=1)),
    "device": torch.device("cpu"),
    "dtype": torch.bfloat16,
    "function": torch.nn.functional.gelu,
    "module": torch.nn.TransformerEncoderLayer(8, 2),
    "optimizer": torch.optim.Adam([torch.ones(1, requires_grad=True)]),
    "set": {1, 2},
    "complex": 1 + 2j,
    "bytes": b"abc",
    "logger": logging.getLogger("x"),
    "iterator": iter([1]),
    "optional": Optional[int],  # noqa: UP045 -- what is pickled
    "list_of": List[int],  # noqa: UP006 -- as above
}


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("name", SOUND)
def test_usual_contents_of_checkpoints_are_not_dangerous(name: str, protocol: int, tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    torch.save({"value": SOUND[name]}, path, pickle_protocol=protocol)
    verification = verify(str(path), own=True)
    assert verification.verdict is Verdict.VERIFIED, verification
    of_its_own = name in ("enum", "nested")
    assert ("needs names that are not listed" in verification.reason) == of_its_own
    elsewhere = verify(str(path))
    assert elsewhere.verdict is (Verdict.DANGEROUS if of_its_own else Verdict.VERIFIED), elsewhere
    assert ("the file is not known as this job's" in elsewhere.reason) == of_its_own


#: Objects of the standard library that are on no list. A setting or a report of the machine in a checkpoint holds such.
UNLISTED: dict[str, Any] = {
    "union": int | None,
    "uname": platform.uname(),
    "stat": os.stat("/"),  # noqa: PTH116 -- the object itself
    "template": string.Template("$x"),
    "decoder": json.JSONDecodeError("x", "y", 0),
}


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("name", UNLISTED)
def test_an_unlisted_call_of_the_standard_library_is_noted_in_a_file_of_ones_own_and_refused_elsewhere(
    name: str, protocol: int, tmp_path: Path
) -> None:
    path = tmp_path / "x.pt"
    torch.save({"value": UNLISTED[name]}, path, pickle_protocol=protocol)
    own = verify(str(path), own=True)
    assert (own.verdict, "needs names that are not listed" in own.reason) == (Verdict.VERIFIED, True), own
    elsewhere = verify(str(path))
    assert (elsewhere.verdict, "not on the list" in elsewhere.reason) == (Verdict.DANGEROUS, True), elsewhere


@pytest.mark.parametrize("protocol", [2, 4])
def test_an_unlisted_name_that_is_only_referred_to_is_noted_wherever_the_file_comes_from(protocol: int, tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    torch.save({"value": json.dumps}, path, pickle_protocol=protocol)
    for verification in (verify(str(path), own=True), verify(str(path))):
        assert (verification.verdict, "needs names that are not listed" in verification.reason) == (Verdict.VERIFIED, True), verification


@pytest.mark.parametrize("protocol", [3, 4, 5])
def test_tensors_that_pickle_itself_wrote_are_looked_into(protocol: int) -> None:
    assert scanner.scan(pickle.dumps({"w": torch.ones(3)}, protocol)).dangers == ()


class Calls:
    """Pickled as a call."""

    def __init__(self, function: Callable[..., Any], *arguments: object) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[object, ...]]:
        """Have pickle call it."""
        return self.call


def inner_bomb() -> bytes:
    return pickle.dumps(Calls(os.system, "true"))


BOMBS: dict[str, object] = {
    "system": Calls(os.system, "true"),
    "popen": Calls(subprocess.Popen, ["true"]),
    "check_output": Calls(subprocess.check_output, ["true"]),
    "eval": Calls(eval, "1"),
    "exec": Calls(exec, "1"),
    "open": Calls(open, "/dev/null", "w"),
    "import": Calls(__import__, "os"),
    "getattr": Calls(getattr, Calls(__import__, "os"), "system"),
    "getattr_dunder": Calls(getattr, {}, "__class__"),
    "touch": Calls(pathlib.Path.touch, pathlib.Path("x")),
    "loads": Calls(pickle.loads, inner_bomb()),
    "nested_bytes": Calls(torch.storage._load_from_bytes, inner_bomb()),  # noqa: SLF001 -- as pickle.dump of a tensor writes it
    "torch_load": Calls(torch.load, "x"),
    "hub": Calls(torch.hub.load, "x", "y"),
    "partial_getattr": Calls(functools.partial, getattr, 1),
    "reference_alone": {"callback": os.system},
    "numpy_load": Calls(np.load, "x"),
}


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
@pytest.mark.parametrize("name", BOMBS)
def test_a_pickle_that_runs_code_is_dangerous(name: str, protocol: int) -> None:
    data = pickle.dumps({"step": 3, "value": BOMBS[name]}, protocol)
    assert scanner.scan(data).dangers, name
    with pytest.raises(scanner.NotAPickle) as torn:
        scanner.scan(data[:-1])
    assert torn.value.dangers  # what stands before the tear would have run


class Named:
    """Pickled as a global of any name, without importing it."""

    def __init__(self, module: str, name: str) -> None:
        self.text = f"c{module}\n{name}\n".encode()


def calling(module: str, name: str, opcode: bytes = b"R") -> bytes:
    """Give a pickle that calls a global with one text."""
    if opcode == b"i":
        return b"\x80\x02}X\x01\x00\x00\x00a(X\x07\x00\x00\x00evil.soi" + f"{module}\n{name}\n".encode() + b"s."
    if opcode == b"o":
        return b"\x80\x02}X\x01\x00\x00\x00a(" + Named(module, name).text + b"X\x07\x00\x00\x00evil.soos."
    return b"\x80\x02}X\x01\x00\x00\x00a" + Named(module, name).text + b"X\x07\x00\x00\x00evil.so\x85" + opcode + b"s."


GADGETS = (
    ("torch._C._distributed_c10d", "_register_handler"),
    ("torch.cuda.tunable", "read_file"),
    ("torch.utils.some_new_module", "evaluate"),
    ("transformers.modeling_utils", "load_state_dict"),
    ("accelerate.checkpointing", "load_custom_state"),
    ("nemo.core.classes.common", "import_class_by_path"),
    ("somebody", "Thing"),
)


@pytest.mark.parametrize("opcode", [b"R", b"\x81", b"i", b"o"], ids=["REDUCE", "NEWOBJ", "INST", "OBJ"])
@pytest.mark.parametrize(("module", "name"), GADGETS)
def test_a_call_that_is_not_listed_is_reported(module: str, name: str, opcode: bytes) -> None:
    scan = scanner.scan(calling(module, name, opcode))
    expected = () if (module, opcode) == ("somebody", b"\x81") else (f"{module}.{name}",)
    assert scan.unlisted == expected


def test_an_object_of_an_unknown_class_is_made_without_calling_it() -> None:
    scan = scanner.scan(calling("__main__", "Config", b"\x81"))
    assert (scan.dangers, scan.unlisted, scan.unknown) == ((), (), ("__main__.Config",))
    reaches = scanner.scan(calling("__main__", "Config.make", b"\x81"))
    assert reaches.unlisted == ("__main__.Config.make",)
    text = Named("torch.cuda.tunable", "read_file").text
    holds = scanner.scan(b"\x80\x02}X\x01\x00\x00\x00ac__main__\nConfig\n" + text + b"\x85\x81s.")
    assert holds.unlisted == ("torch.cuda.tunable.read_file",), "the class may call what it is given"


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("torch._ops", "ops.load_library"),
        ("torch", "ops.load_library"),
        ("transformers.utils.import_utils", "direct_transformers_import"),
        ("transformers.pipelines", "pipeline"),
        ("lightning_fabric.utilities.cloud_io", "_load"),
        ("accelerate.utils", "load"),
    ],
)
def test_a_name_known_to_load_code_is_dangerous_whoever_wrote_it(module: str, name: str) -> None:
    assert scanner.scan(calling(module, name)).dangers


def test_a_function_that_is_not_listed_does_not_get_called_through_what_is() -> None:
    text = Named("torch.cuda.tunable", "read_file").text
    rebuilds = b"\x80\x02ctorch._tensor\n_rebuild_from_type_v2\n(" + text + b"ctorch\nTensor\n))tR."
    assert scanner.scan(rebuilds).unlisted == ("torch.cuda.tunable.read_file",)
    iterates = b"\x80\x02cbuiltins\niter\n(cfunctools\npartial\n" + text + b"\x85RK\x00tR."
    assert scanner.scan(iterates).dangers == ("builtins.iter of several",)
    makes = b"\x80\x02cbuiltins\ntype\n(X\x01\x00\x00\x00A)}tR."
    assert scanner.scan(makes).dangers == ("builtins.type of several",)


@pytest.mark.parametrize(
    "change", [b"}b", b"X\x01\x00\x00\x00aK\x01s", b"K\x01a", b"(K\x01e"], ids=["BUILD", "SETITEM", "APPEND", "APPENDS"]
)
def test_a_change_of_a_modules_contents_is_dangerous(change: bytes) -> None:
    assert scanner.scan(b"\x80\x02ctorch.nn\nModule\n" + change + b".").dangers == ("a change of torch.nn.Module",)


@pytest.mark.parametrize(("module", "name"), [*GADGETS, ("torch._ops", "ops.load_library"), ("torch.nn", "Linear"), ("__main__", "Config")])
def test_the_metadata_of_dcp_names_nothing_beyond_its_list(module: str, name: str) -> None:
    evil = (
        b"\x80\x02ctorch.distributed.checkpoint.metadata\nMetadata\n)\x81}X\x0c\x00\x00\x00planner_data"
        + calling(module, name)[2:-1]
        + b"sb."
    )
    with pytest.raises(dcp_metadata.Dangerous, match=name.replace(".", r"\.")):
        dcp_metadata.read(evil)


@pytest.mark.parametrize("protocol", [2, 4])
def test_a_method_of_a_known_package_is_called_by_no_checkpoint(protocol: int) -> None:
    assert scanner.scan(pickle.dumps(Calls(torch.Tensor.backward, 1), protocol)).dangers
    held = scanner.scan(pickle.dumps({"hook": torch.nn.Module.forward, "add": torch.Tensor.add}, protocol))
    assert (held.dangers, held.unknown) == ((), ())


@pytest.mark.parametrize(
    ("module", "name", "judgement"),
    [
        ("posix", "system", Judgement.DANGEROUS),
        ("nt", "system", Judgement.DANGEROUS),
        ("__builtin__", "eval", Judgement.DANGEROUS),
        ("__builtin__", "set", Judgement.KNOWN),
        ("builtins", "ValueError", Judgement.KNOWN),
        ("torch.serialization", "os.system", Judgement.DANGEROUS),
        ("torch", "hub.load", Judgement.DANGEROUS),
        ("torch", "nn.Linear", Judgement.KNOWN),
        ("torch.fx.experimental.symbolic_shapes", "ShapeEnv.evaluate_guards_expression", Judgement.DANGEROUS),
        ("torch.utils.data.datapipes.utils.decoder", "basichandlers", Judgement.DANGEROUS),
        ("torch.distributed.distributed_c10d", "_tensor_to_object", Judgement.DANGEROUS),
        ("torch.distributed.checkpoint.filesystem", "_StorageInfo", Judgement.KNOWN),
        ("torch.utils.data.sampler", "RandomSampler", Judgement.KNOWN),
        ("torch.optim.lr_scheduler", "LambdaLR", Judgement.KNOWN),
        ("numpy.lib._npyio_impl", "load", Judgement.DANGEROUS),
        ("numpy.random._pickle", "__bit_generator_ctor", Judgement.KNOWN),
        ("numpy._core.multiarray", "_reconstruct", Judgement.KNOWN),
        ("transformers.trainer_utils", "IntervalStrategy", Judgement.KNOWN),
        ("numpy.testing._private.utils", "runstring", Judgement.DANGEROUS),
        ("mine", "sys", Judgement.DANGEROUS),
        ("mine", "Model.__init__.__globals__", Judgement.DANGEROUS),
        ("mine", "Model", Judgement.UNKNOWN),
        ("__main__", "Config", Judgement.UNKNOWN),
        ("transformers.training_args", "TrainingArguments", Judgement.KNOWN),
        ("operator", "attrgetter", Judgement.DANGEROUS),
        ("operator", "itemgetter", Judgement.KNOWN),
        ("webbrowser", "open", Judgement.DANGEROUS),
        ("runpy", "run_path", Judgement.DANGEROUS),
        ("timeit", "timeit", Judgement.DANGEROUS),
        ("signal", "Signals.SIGTERM", Judgement.KNOWN),
        ("signal", "signal", Judgement.DANGEROUS),
        ("os", "stat_result", Judgement.UNKNOWN),
        ("os", "_exit", Judgement.DANGEROUS),
        ("posixpath", "join", Judgement.UNKNOWN),
        ("operator", "call", Judgement.DANGEROUS),
        ("string", "Template.substitute", Judgement.DANGEROUS),
        ("sqlite3", "connect", Judgement.DANGEROUS),
        ("io", "open", Judgement.DANGEROUS),
        ("types", "FunctionType", Judgement.DANGEROUS),
        ("__builtin__", "reduce", Judgement.UNKNOWN),
    ],
)
def test_names(module: str, name: str, judgement: Judgement) -> None:
    assert judge(module, name) is judgement


@pytest.mark.parametrize("suffix", [".pt", ".bin"])
@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_planted_plain_pickle_is_dangerous_whatever_it_is_named(suffix: str, protocol: int, tmp_path: Path) -> None:
    path = tmp_path / f"x{suffix}"
    path.write_bytes(pickle.dumps(Calls(os.system, f"touch {tmp_path / 'ran'}"), protocol))
    assert verify(str(path)).verdict is Verdict.DANGEROUS
    path.write_bytes(pickle.dumps({"step": 3}, 2) + path.read_bytes())
    assert verify(str(path)).verdict is Verdict.DANGEROUS  # behind a harmless one
    assert not (tmp_path / "ran").exists()


def test_a_plain_pickle_is_unverifiable_and_a_torn_one_bad(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    path.write_bytes(pickle.dumps({"step": 3, "w": [1.0] * 100}))
    assert (verify(str(path)).verdict, verify(str(path)).step) == (Verdict.UNVERIFIABLE, 3)
    path.write_bytes(path.read_bytes()[:-10])
    assert verify(str(path)).verdict is Verdict.BAD
