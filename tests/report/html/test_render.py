"""What every page has around it: its policy, what a served page has beyond a file, and texts that do no harm."""

from __future__ import annotations

import base64
import hashlib
import re
from xml.etree import ElementTree as ET

import jinja2
import pytest

from supervisor.report.html import render
from supervisor.report.html.render import Live, page
from supervisor.report.layout import Fact, Tone

HOSTILE = "</dd><script>alert('1')</script> & ]]> \x1b[31m\udcff\ufffe \u202egnp.exe {{7*7}}"


@pytest.fixture
def facts(monkeypatch: pytest.MonkeyPatch) -> str:
    """Give the name of a template that shows `facts`."""
    text = '{% import "parts.html.j2" as parts %}<h1>{{ title }}</h1>{{ parts.fact_list(facts) }}'
    templates = render.environment().overlay()
    known = templates.loader
    assert known is not None
    templates.loader = jinja2.ChoiceLoader([jinja2.DictLoader({"facts.html.j2": text}), known])
    monkeypatch.setattr(render, "environment", lambda: templates)
    return "facts.html.j2"


def tree_of(text: str) -> ET.Element:
    head, _, rest = text.partition("\n")
    assert head == "<!DOCTYPE html>"
    return ET.fromstring(rest)  # noqa: S314  our own text


def test_a_file_names_its_policy_and_a_served_page_what_keeps_it_up_to_date(facts: str) -> None:
    file = tree_of(page(facts, "a job", facts=()).html)
    (policy,) = (meta.get("content") for meta in file.iter("meta") if meta.get("http-equiv"))
    assert policy == render.POLICY
    style = "".join(element.text or "" for element in file.iter("style"))
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert policy.startswith(f"default-src 'none'; style-src 'sha256-{digest}'; "), "no other style than the page's own"
    live = Live("../../live.js", "../.././", 1_790_000_000.0)
    served = page(facts, "a job", live=live, facts=())
    root = tree_of(served.html)
    body = root.find("body")
    assert body is not None
    assert body.get("data-version") == served.version
    assert [script.get("src") for script in root.iter("script")] == [live.script]
    assert {meta.get("http-equiv") for meta in root.iter("meta")} == {None, "refresh"}, "a served page has its policy in its headers"
    assert {"as-of", "connection"} <= {element.get("id") for element in root.iter()}
    assert page(facts, "a job", live=Live(now=1.0), facts=()).version == served.version
    assert page(facts, "a job", live=live, facts=(Fact("a", "b"),)).version != served.version


def test_a_text_that_is_foreign_is_text_and_nothing_else(facts: str) -> None:
    rows = (Fact(HOSTILE, HOSTILE), Fact("", HOSTILE, Tone.BAD), Fact("look", HOSTILE * 20, copied=True))
    text = page(facts, HOSTILE, facts=rows).html
    text.encode("utf-8")
    root = tree_of(text)
    assert not list(root.iter("script"))
    shown = [" ".join("".join(element.itertext()).split()) for element in root.iter("dd")]
    assert [line.count("<script>alert('1')</script>") for line in shown] == [2, 20], "two of one label, and a command is whole"
    assert not {"\x1b", "\u202e", "\ufffe"} & set(text)
    assert "{{7*7}}" in text


def test_a_value_that_is_not_given_is_an_error(facts: str) -> None:
    with pytest.raises(jinja2.UndefinedError, match="facts"):
        page(facts, "a job")


def test_the_style_fetches_nothing_and_the_templates_set_none() -> None:
    assert not re.search(r"url\(|@import|expression|//|[<&]", render.STYLE)
    loader = render.environment().loader
    assert loader is not None
    names = [name for name in loader.list_templates() if name.endswith(".j2")]
    assert {"base.html.j2", "parts.html.j2"} <= set(names)
    sources = [loader.get_source(render.environment(), name)[0] for name in names]
    assert not [name for name, source in zip(names, sources, strict=True) if re.search(r"\sstyle=|\son\w+=|\|\s*safe\b", source)]
