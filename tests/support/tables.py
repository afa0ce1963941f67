"""A parametrised test that takes nothing but its rows is one item for pytest: pytest itself needs 5 to 10 CPU milliseconds for an item.

Every row is checked, each that fails is reported with its name, and a single row can be asked for as ever:
`pytest 'tests/x.py::test_y[row]'`, `pytest -k row`, or each row as an item of its own by `pytest --rows`.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import re
from collections.abc import Callable, Collection
from enum import Enum
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

#: What a test may take beside its rows: each row gets its own directory and its own patches.
_FOR_EACH_ROW = frozenset({"tmp_path", "monkeypatch"})
#: What pytest sets up around such a test.
_AROUND = frozenset({"request", "tmp_path_factory", "the_machine_s_own_proc", "the_signals_of_before"})
#: How many rows that fail are shown with their tracebacks; the others have one line.
_SHOWN = 10
#: How pytest-timeout's message begins. Its timer runs once, so no other row may be begun.
_TIMEOUT = "Timeout (>"

#: A value that is longer has no place in a name.
_LONGEST_NAME = 100

_Param = type(pytest.param())


def wants_items(config: pytest.Config) -> bool:
    """Whether each row is to be an item: `--rows`, `-k`, or a test named with its row."""
    return bool(config.getoption("--rows") or config.getoption("keyword") or any("[" in arg.partition("::")[2] for arg in config.args))


def table_of(test: Callable[..., None]) -> Callable[..., None] | None:
    """Return a test that checks all rows of this one, or None where a row has marks, or the test has others than `parametrize`."""
    marks: list[pytest.Mark] = getattr(test, "pytestmark", [])
    if not marks or any(mark.name != "parametrize" or not _is_plain(mark) for mark in marks) or hasattr(test, "is_hypothesis_test"):
        return None
    taken = {name for mark in marks for name in _names(mark)}
    others = [parameter for name, parameter in inspect.signature(test).parameters.items() if name not in taken]
    if not {parameter.name for parameter in others} <= _FOR_EACH_ROW:
        return None

    @functools.wraps(test)
    def table(**fixtures: Any) -> None:  # noqa: ANN401  what the test takes
        _check(test, marks, fixtures)

    table.__signature__ = inspect.Signature(others)  # type: ignore[attr-defined]
    table.pytestmark = []  # type: ignore[attr-defined]
    return table


def needs_only_rows(item: pytest.Function) -> bool:
    """Whether no fixture is set up for the item that each row would need anew."""
    return set(item.fixturenames) <= _FOR_EACH_ROW | _AROUND


def _is_plain(mark: pytest.Mark) -> bool:
    """Whether the mark is `parametrize(names, rows, ids=…)`, with rows that can be read again and have no marks."""
    if len(mark.args) != 2 or set(mark.kwargs) - {"ids"} or not isinstance(mark.args[1], Collection):
        return False
    return not any(isinstance(row, _Param) and row.marks for row in mark.args[1])


def _names(mark: pytest.Mark) -> list[str]:
    names = mark.args[0]
    return [name.strip() for name in names.split(",") if name.strip()] if isinstance(names, str) else list(names)


def _rows(mark: pytest.Mark) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and the arguments of each row, the name as pytest would write it."""
    names, ids = _names(mark), mark.kwargs.get("ids")
    labels = itertools.repeat(None) if ids is None or callable(ids) else ids
    for number, (row, label) in enumerate(zip(mark.args[1], labels, strict=labels is ids)):
        values = row.values if isinstance(row, _Param) else (row,) if len(names) == 1 else row
        arguments = dict(zip(names, values, strict=True))
        chosen = row.id if isinstance(row, _Param) and row.id is not None else label
        if chosen is None:
            chosen = "-".join(_label(ids if callable(ids) else None, name, value, number) for name, value in arguments.items())
        yield str(chosen).encode("unicode_escape").decode(), arguments


def _label(ids: Callable[[Any], object] | None, name: str, value: object, number: int) -> str:
    chosen = ids(value) if ids is not None else None
    shown = value if chosen is None else chosen
    if isinstance(shown, bytes):
        return shown.decode("ascii", "backslashreplace")
    if (isinstance(shown, (str, int, float, complex, Enum)) and len(str(shown)) <= _LONGEST_NAME) or shown is None:
        return str(shown)
    if isinstance(shown, re.Pattern):
        return str(shown.pattern)
    return getattr(shown, "__name__", f"{name}{number}")


def _check(test: Callable[..., None], marks: list[pytest.Mark], fixtures: Mapping[str, Any]) -> None:
    """Run the test for each row; then fail with all rows that failed."""
    __tracebackhide__ = True
    failed: list[tuple[str, pytest.ExceptionInfo[BaseException]]] = []
    skipped: list[str] = []
    total = 0
    for row in itertools.product(*(list(_rows(mark)) for mark in marks)):
        total += 1
        name = "-".join(label for label, _ in row)
        arguments = {key: value for _, values in row for key, value in values.items()}
        try:
            _run(test, arguments, fixtures, total)
        except pytest.skip.Exception as skip:
            skipped.append(f"{name}: {skip}")
        except (Exception, pytest.fail.Exception) as error:
            if str(error).startswith(_TIMEOUT):
                error.add_note(f"in row {name}")
                raise
            failed.append((name, pytest.ExceptionInfo.from_exception(error)))
    if failed:
        pytest.fail(_report(failed, total), pytrace=False)
    if not total:
        pytest.fail("the table has no row", pytrace=False)
    if skipped:
        pytest.skip(f"{len(skipped)} of {total} rows: {'; '.join(skipped)}")


def _run(test: Callable[..., None], arguments: Mapping[str, Any], fixtures: Mapping[str, Any], number: int) -> None:
    """Run the test for one row, with a directory and patches that are the row's own."""
    __tracebackhide__ = True
    with pytest.MonkeyPatch.context() as patch:
        own: dict[str, Any] = {"monkeypatch": patch} if "monkeypatch" in fixtures else {}
        if "tmp_path" in fixtures:
            # no number in its name: the rows would look like a set of checkpoints, one for each step or rank
            directory: Path = fixtures["tmp_path"] / "".join(chr(ord("a") + int(digit)) for digit in str(number))
            directory.mkdir()
            own["tmp_path"] = directory
        test(**arguments, **own)


def _report(failed: list[tuple[str, pytest.ExceptionInfo[BaseException]]], total: int) -> str:
    """Name the rows that failed in the first line, and show why each did."""
    lines = [f"{len(failed)} of {total} rows failed: {'; '.join(name for name, _ in failed)}"]
    for name, error in failed[:_SHOWN]:
        lines += ["", f"row {name}", str(error.getrepr(style="long"))]
    lines += [f"row {name}: {error.exconly(tryshort=True).splitlines()[0]}" for name, error in failed[_SHOWN:]]
    return "\n".join(lines)
