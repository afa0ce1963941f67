"""A dataclass of supervisor/core/values.py is like one of the standard library in all that anybody asks of it."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from dataclasses import field
from typing import Any, ClassVar

import msgspec
import pytest

from supervisor.core import values

make: Any = values.dataclass  # a type checker knows it as the standard library's, whose options these tests give as a variable


def whole(dataclass: Any, **options: bool) -> Any:  # noqa: ANN401  either one
    @dataclass(**options)
    class Whole:
        number: int
        names: tuple[str, ...] = ()
        table: dict[str, int] = field(default_factory=dict)
        hidden: str = field(default="s", repr=False)
        note: str = field(default="", compare=False)
        later: int = field(default=3, kw_only=True)
        made: int = field(default=7, init=False)
        shared: ClassVar[int] = 5

        @property
        def twice(self) -> int:
            return 2 * self.number

    return Whole


def checked(dataclass: Any, **options: bool) -> Any:  # noqa: ANN401
    @dataclass(**options)
    class Checked:
        number: int

        def __post_init__(self) -> None:
            if self.number < 0:
                raise ValueError(self.number)

        def __repr__(self) -> str:
            return "mine"

    return Checked


OPTIONS = [{"frozen": True, "slots": True}, {"frozen": True}]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_it_is_like_the_standard_librarys(options: dict[str, bool]) -> None:
    ours, theirs = whole(make, **options), whole(dataclasses.dataclass, **options)
    assert [f.name for f in dataclasses.fields(ours)] == [f.name for f in dataclasses.fields(theirs)]
    assert ours.__match_args__ == theirs.__match_args__
    assert list(inspect.signature(ours).parameters) == list(inspect.signature(theirs).parameters)
    assert hasattr(ours(1), "__dict__") == hasattr(theirs(1), "__dict__")
    one, other = ours(1, ("a",), later=4), theirs(1, ("a",), later=4)
    assert repr(one) == repr(other)
    assert dataclasses.asdict(one) == dataclasses.asdict(other)
    assert (one.twice, one.made, one.shared, one.table) == (2, 7, 5, {})
    assert one == ours(1, ("a",), note="left out", later=4)
    assert one != ours(1, ("a",), hidden="t", later=4)
    assert one != other
    assert (one == 1, one != 1) == (False, True)
    assert ours(1).table is not ours(1).table
    assert dataclasses.replace(one, number=2) == ours(2, ("a",), later=4)
    for wrong in ((), (1, (), {}, "", "", 3)):
        with pytest.raises(TypeError, match=r"Whole\.__init__\(\)"):
            ours(*wrong)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_it_is_frozen_and_hashed_by_its_values(options: dict[str, bool]) -> None:
    ours, theirs = checked(make, **options), checked(dataclasses.dataclass, **options)
    one = ours(1)
    assert hash(one) == hash(theirs(1)) == hash(ours(1))
    assert repr(one) == "mine"
    for change in (lambda: setattr(one, "number", 2), lambda: setattr(one, "other", 2), lambda: delattr(one, "number")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            change()
    with pytest.raises(ValueError, match="-1"):
        ours(-1)
    with pytest.raises(ValueError, match="-1"):
        dataclasses.replace(one, number=-1)


@values.dataclass(frozen=True, slots=True)
class Pair:
    """One that a pickle can find."""

    left: int
    right: tuple[int, ...] = ()


@values.dataclass(frozen=True)
class Lasting:
    """The same without slots."""

    left: int


@pytest.mark.parametrize("one", [Pair(1, (2,)), Lasting(1)], ids=str)
def test_it_is_copied_and_pickled(one: object) -> None:
    assert copy.copy(one) == copy.deepcopy(one) == pickle.loads(pickle.dumps(one)) == one  # noqa: S301  our own


def test_it_is_matched_and_decoded() -> None:
    match Pair(1, (2,)):
        case Pair(left, (right,)):
            assert (left, right) == (1, 2)
    assert msgspec.convert({"left": 1, "right": [2]}, Pair) == Pair(1, (2,))
    assert msgspec.json.encode(Pair(1, (2,))) == b'{"left":1,"right":[2]}'


def test_what_has_other_options_is_the_standard_librarys() -> None:
    made = whole(make, slots=True)
    one = made(1)
    one.number = 2
    assert one == made(2)
    assert whole(make, frozen=True, slots=True, eq=False)(1) != whole(make, frozen=True, slots=True, eq=False)(1)
