"""Lines of text in pickles of protocol 0: what a pickler writes is read as before, and what none writes makes nobody warn."""

from __future__ import annotations

import io
import pickle
import pickletools
import warnings

import pytest

from checkpointing.formats.pickles.opcode_texts import reader_of
from checkpointing.formats.pickles.scanner import NotAPickle, scan

TEXTS = ["step", "it's", 'a "b"', "back\\slash", "tab\tline\nend", "\x00\x1f\x7f", "\\x", "", "\\\\q"]
READERS = [op.arg for op in pickletools.opcodes if op.arg is not None and op.arg.name.startswith("stringnl")]


@pytest.mark.parametrize("text", TEXTS)
def test_strings_of_a_pickler_are_read_as_pickletools_reads_them(text: str) -> None:
    line = repr(text.encode("latin-1"))[1:].encode("ascii") + b"\n"
    read = reader_of(pickletools.stringnl)
    assert read is not None
    stream = io.BytesIO(line + b"rest")
    assert read(stream) == text == pickletools.stringnl.reader(io.BytesIO(line))
    assert stream.read() == b"rest"


def test_names_are_read_to_their_end() -> None:
    assert scan(b"cos\nsystem\n(S'x'\ntR.").dangers
    assert scan(pickle.dumps({"step": 7}, protocol=0)).steps == (("step", 7),)


@pytest.mark.parametrize("line", [rb"'\q'", rb"'a\8'", rb"'\x4'", rb"'\400'", rb"'\777'", b"'\\\xba'"])
@pytest.mark.parametrize("code", ["S", "P", "c", "i"])
def test_an_escape_that_python_does_not_know_is_no_pickle_and_no_warning(code: str, line: bytes) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(NotAPickle):
            scan(b"(" + code.encode() + line + b"\n" + line + b"\n.")


def test_each_reader_of_lines_is_one_of_these() -> None:
    assert {argument.name for argument in READERS} == {"stringnl", "stringnl_noescape", "stringnl_noescape_pair"}
