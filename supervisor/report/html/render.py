"""Makes an HTML page of a template that is beside this file. No other module imports jinja2.

Nothing is fetched and nothing runs but what the policy of the page names; a file's names its own style alone. Each text that a template
writes is cleaned and escaped, whatever its source: a log line may hold anything. A page is well-formed XML, so that a test can parse it.

A template makes the page's `main`; `base.html.j2` is the frame of every page. style.css is in each page, and has
all colours, for light and for dark. No element may have a `style`: the policy refuses it.
"""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from supervisor.core.values import Struct, replace
from supervisor.job.local_time import zoned_text
from supervisor.report.text import clean

if TYPE_CHECKING:
    from collections.abc import Iterable

    from supervisor.report.layout import Fact
    from supervisor.report.table import Table

_PACKAGE: Final = "supervisor.report.html"
STYLE: Final = resources.files(_PACKAGE).joinpath("style.css").read_text(encoding="utf-8")
#: The sources that a page may load and run: its own style, known by its digest, and nothing else. A served page adds its own needs.
POLICY: Final = (
    f"default-src 'none'; style-src 'sha256-{base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()}'; "
    "base-uri 'none'; form-action 'none'"
)
#: Characters that no page may hold: halves of characters (a path that is not UTF-8), those that Unicode never uses, and those that turn the
#: direction of the text that follows.
_NO_CHARACTER: Final = re.compile("[\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")


class Live(Struct, frozen=True):
    """The additions of a served page to a file's. Addresses are relative, so that a proxy may serve it below a path of its own.

    script: of the script that keeps it up to date, "" for none. home: of the list of jobs, "" on the list itself. now: Unix seconds, when
    it was made.
    """

    script: str = ""
    home: str = ""
    now: float = 0.0


class Page(Struct, frozen=True):
    """A page. version: another one where anything in its `main` differs."""

    html: str
    version: str


def page(template: str, title: str, *, live: Live | None = None, **values: object) -> Page:
    """Return the page whose `main` is made of a template, the title and these values. live: None for a file: it names its policy.

    Raises jinja2.UndefinedError where the template needs a value that is not given.
    """
    templates = environment()
    main = Markup(templates.get_template(template).render(title=title, live=live, **values))  # noqa: S704  made by a template: each text in it is escaped
    version = hashlib.sha256(main.encode("utf-8", "replace")).hexdigest()[:16]
    base = templates.get_template("base.html.j2")
    return Page(base.render(title=title, main=main, live=live, version=version), version)


def html_line(text: str, *, is_whole: bool = False) -> str:
    """Return foreign text as one line that may stand in a page, once it is escaped. is_whole: however long it is."""
    return _NO_CHARACTER.sub("?", clean(text, is_whole=is_whole))


@cache
def environment() -> Environment:
    """Return the environment of the templates, with the filters and values that they have in common."""
    templates = Environment(
        loader=PackageLoader(_PACKAGE, ""),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_finalized,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    templates.filters |= {
        "whole": lambda text: escape(html_line(text, is_whole=True)),
        "own": escape,  # supervise's own text, such as an address: not cleaned
        "points": _points,
        "dots": _dots,
        "percent": _percent,
        "zoned": zoned_text,
        "labelled": labelled,
        "filled": _filled,
    }
    templates.globals |= {"STYLE": Markup(STYLE), "POLICY": escape(POLICY)}  # noqa: S704  our own file
    return templates


def _finalized(value: object) -> object:
    """Return a value that a template writes: a text is cleaned, markup is not."""
    return html_line(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _percent(value: float) -> Markup:
    """Return a place or a length of a drawing: a page has thousands of them."""
    return Markup(f"{value:.2f}".rstrip("0").rstrip(".") + "%")  # noqa: S704  a number


def _points(points: Iterable[tuple[float, float]]) -> Markup:
    """Return points as the attribute of a polyline; one alone is a line of no length, whose ends are round."""
    texts = [f"{x:.1f},{y:.1f}" for x, y in points]
    return Markup(" ".join(texts if texts[1:] else texts * 2))  # noqa: S704  numbers


def _dots(lines: Iterable[Iterable[tuple[float, float]]]) -> Markup:
    """Return the points of lines as a path of lines of no length, whose ends are round."""
    return Markup("".join(f"M{x:.1f},{y:.1f}h0" for points in lines for x, y in points))  # noqa: S704  numbers


def _filled(table: Table) -> Table:
    """Return a table without its empty columns, as a terminal shows it."""
    texts = [[cell if isinstance(cell, str) else cell.text for cell in row] for row in table.rows]
    kept = [at for at in range(len(table.columns)) if any(row[at] for row in texts)]
    rows = tuple(tuple(row[at] for at in kept) for row in table.rows)
    return replace(table, columns=tuple(table.columns[at] for at in kept), rows=rows)


def labelled(facts: Iterable[Fact]) -> list[tuple[str, list[Fact]]]:
    """Return facts by their labels, in their order; a label of "" continues under the one before."""
    rows: list[tuple[str, list[Fact]]] = []
    for fact in facts:
        if fact.label or not rows:
            rows.append((fact.label, [fact]))
        else:
            rows[-1][1].append(fact)
    return rows
