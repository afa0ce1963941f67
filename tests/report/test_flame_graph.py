"""A flame graph: an SVG that any reader of XML takes, whatever the functions are called, with boxes as wide as their share."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest

from supervisor.report.flame_graph import flame_graph, hottest

SVG = "{http://www.w3.org/2000/svg}"
STACKS = {
    "rank 0;main (train.py:3);step (torch/optim/sgd.py:9)": 30,
    "rank 0;main (train.py:3);load (train.py:8)": 10,
    "rank 1;main (train.py:3)": 60,
}


def boxes(svg: str) -> dict[str, tuple[float, float, float]]:
    """Return the x, the y and the width of each box, by its tooltip."""
    frames = {}
    for group in ET.fromstring(svg).iter(f"{SVG}g"):  # noqa: S314  our own
        title, rect = group.find(f"{SVG}title"), group.find(f"{SVG}rect")
        assert title is not None
        assert rect is not None
        frames[str(title.text)] = (float(rect.attrib["x"]), float(rect.attrib["y"]), float(rect.attrib["width"]))
    return frames


def test_a_function_is_as_wide_as_its_share_and_stands_below_its_caller() -> None:
    drawn = boxes(flame_graph(STACKS, "job bert"))
    whole = drawn["rank 0 (40.0 %)"][2] + drawn["rank 1 (60.0 %)"][2]
    x, y, width = drawn["step (torch/optim/sgd.py:9) (30.0 %)"]
    above = drawn["main (train.py:3) (40.0 %)"]
    assert width / whole == pytest.approx(0.3, abs=0.01)
    assert y > above[1]
    assert above[0] <= x <= x + width <= above[0] + above[2] + 0.2


@pytest.mark.parametrize("name", ["<module> (a&b.py:1)", "<script>alert(1)</script>", "x\0y \x1b[31m\ud800", '"quoted"', ""])
def test_a_name_is_text_whatever_it_holds(name: str) -> None:
    svg = flame_graph({f"rank 0;{name}": 1}, f"title {name}")
    svg.encode()
    assert "<script" not in svg
    assert len(boxes(svg)) == 2


def test_a_narrow_box_is_left_out_and_a_deep_stack_is_cut() -> None:
    many = {f"rank 0;f{number}": 1 for number in range(10_000)}
    assert len(boxes(flame_graph(many, ""))) == 1
    assert len(boxes(flame_graph({";".join(["f"] * 5_000): 1}, ""))) <= 200
    assert flame_graph({}, "nothing").endswith("</svg>\n")


def test_the_hottest_functions_are_the_innermost() -> None:
    assert hottest(STACKS, 2) == [("main (train.py:3)", 60.0), ("step (torch/optim/sgd.py:9)", 30.0)]
