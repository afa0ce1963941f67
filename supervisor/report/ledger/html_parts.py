"""What our HTML pages are made of: the document with its style and its policy, texts, lists of facts, drawings. Pure.

Nothing is fetched and nothing runs but what the policy of the document names; a file's names nothing. Every text that comes from a job goes
through `escaped`, which cleans it too: a log line may hold anything. A document is well-formed XML, so that a test can parse it.

Shapes are drawn in SVG without text, stretched to the width; their words stand beside them in HTML, so that they can be read on a phone.
"""

from __future__ import annotations

import base64
import hashlib
import html
import re
from typing import TYPE_CHECKING, Final

from supervisor.report.layout import Fact, Tone
from supervisor.report.ledger.spans import TimeState
from supervisor.report.text import clean

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Colours on light and on dark: each stands out from the background by 3:1, as WCAG 2.2 asks of graphics (1.4.11).
COLOURS: Final[dict[TimeState, tuple[str, str]]] = {
    TimeState.PRODUCTIVE: ("#1a7f37", "#3fb950"),
    TimeState.DEGRADED: ("#6b7a00", "#b5c334"),
    TimeState.REWORK: ("#bc4c00", "#f0883e"),
    TimeState.CHECKPOINT_STALL: ("#0969da", "#58a6ff"),
    TimeState.UNMEASURED: ("#6e7781", "#8b949e"),
    TimeState.START_AND_LOAD: ("#8250df", "#bc8cff"),
    TimeState.DETECTION: ("#cf222e", "#ff7b72"),
    TimeState.TEAR_DOWN: ("#9a6700", "#d29922"),
    TimeState.DECISION: ("#953800", "#e3936b"),
    TimeState.HEALTH: ("#1b7c83", "#39c5cf"),
    TimeState.WAITING: ("#57606a", "#a1aab4"),
    TimeState.PREEMPTED: ("#bf3989", "#f778ba"),
    TimeState.UNACCOUNTED: ("#24292f", "#f0f6fc"),
}
#: Background, text, faint text and lines, on light and on dark.
GROUND: Final = {
    "ground": ("#ffffff", "#14171a"),
    "text": ("#1f2328", "#e6edf3"),
    "faint": ("#57606a", "#a1aab4"),
    "line": ("#818b98", "#6e7681"),
}
#: The width of a drawing, in units of its own.
COLUMNS: Final = 1000
#: What no document may hold: halves of characters (a path that is not UTF-8), what Unicode sets apart for no use, and what turns the
#: direction of the text that follows.
_NO_CHARACTER = re.compile("[\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")
_RULES: Final = """
*{box-sizing:border-box}
body{margin:0;background:var(--ground);color:var(--text);font:16px/1.5 system-ui,sans-serif;overflow-wrap:anywhere}
dd,summary,h1,code{unicode-bidi:isolate}
main{max-width:70rem;margin:0 auto;padding:1rem}
h1{font-size:1.4rem}h2{font-size:1.15rem;margin-top:2rem}
.faint{color:var(--faint)}
.scroll{overflow-x:auto}
table{border-collapse:collapse}th,td{text-align:left;padding:.2rem .8rem .2rem 0;vertical-align:top}
td.number{text-align:right;white-space:nowrap}
.swatch{display:inline-block;width:.9rem;height:.9rem;margin-right:.4rem;vertical-align:-.1rem}
svg{display:block;width:100%}
.bar svg{height:2rem}.row svg{height:1rem}.curve svg{height:10rem;border:1px solid var(--line)}
.row{display:grid;grid-template-columns:7.5rem 1fr;gap:.5rem;align-items:center;font-size:.85rem}
.ends{display:flex;justify-content:space-between;gap:1rem;font-size:.85rem;color:var(--faint)}.ends span:last-child{text-align:right}
.line{fill:none;stroke:var(--text);stroke-width:1.5;stroke-linecap:round;vector-effect:non-scaling-stroke}
.point{stroke-width:5}
.mark{stroke:var(--text);stroke-width:2;vector-effect:non-scaling-stroke}
dl{display:grid;grid-template-columns:minmax(6rem,max-content) 1fr;gap:.1rem 1rem;margin:.5rem 0}
dt{color:var(--faint)}dd{margin:0}
details{border-top:1px solid var(--line);padding:.4rem 0}summary{cursor:pointer}
summary:focus-visible{outline:2px solid var(--text)}
header{display:flex;flex-wrap:wrap;gap:0 1.5rem;max-width:70rem;margin:0 auto;padding:.5rem 1rem 0;font-size:.85rem}header p{margin:0}
a{color:var(--checkpoint_stall)}a:focus-visible,input:focus-visible,button:focus-visible{outline:2px solid var(--text);outline-offset:2px}
.lost{font-weight:bold}
.dot{display:inline-block;width:.7rem;height:.7rem;border-radius:50%;margin-right:.4rem}
.jobs{width:100%}.jobs th,.jobs td{border-top:1px solid var(--line);padding:.4rem .8rem .4rem 0}
.jobs thead th{border-top:0;white-space:nowrap}
.jobs th.number{text-align:right}.jobs .faint{font-weight:normal}
.jobs tbody th{min-width:11rem}.jobs .state{min-width:10rem}.jobs .text{min-width:14rem}
label{display:block}input,button{font:inherit;padding:.4rem .6rem;margin:.3rem .5rem .3rem 0;border:1px solid var(--line);max-width:100%}
input,button{background:var(--ground);color:var(--text)}button{cursor:pointer}
@media(max-width:40rem){.jobs,.jobs tbody,.jobs tr,.jobs td,.jobs th{display:block}.jobs thead{display:none}
.jobs tr{border-top:1px solid var(--line);padding:.5rem 0}.jobs td:empty{display:none}
.jobs tbody th,.jobs td,.jobs td.number,.jobs .text,.jobs .state{min-width:0;border:0;padding:0;text-align:left;white-space:normal}
.jobs td{display:grid;grid-template-columns:7rem 1fr}.jobs td::before{content:attr(data-label);color:var(--faint)}
dl{grid-template-columns:1fr}dt{margin-top:.4rem}.row{grid-template-columns:4.5rem 1fr}}
"""


def _style() -> str:
    """Return the style of every document, with the colours as variables, for light and for dark."""
    rows = {**{state.value: colours for state, colours in COLOURS.items()}, **GROUND}
    light, dark = ("".join(f"--{name}:{colours[which]};" for name, colours in rows.items()) for which in (0, 1))
    swatches = "".join(f".{state.value}{{background:var(--{state.value})}}" for state in TimeState)
    return f":root{{color-scheme:light dark;{light}}}@media(prefers-color-scheme:dark){{:root{{{dark}}}}}{swatches}{_RULES}"


STYLE: Final = _style()
#: What a document may load and run: its own style, known by its digest, and nothing else. A page that is served adds what it needs.
POLICY: Final = (
    f"default-src 'none'; style-src 'sha256-{base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()}'; "
    "base-uri 'none'; form-action 'none'"
)


def document(  # noqa: PLR0913  the parts of a document
    title: str, sections: Iterable[str], *, policy: str = "", head: str = "", header: str = "", data: str = ""
) -> str:
    """Return the text of a document. policy: "" where it is served with one. head, header: more elements. data: attributes of the body."""
    meta = f'<meta http-equiv="Content-Security-Policy" content="{html.escape(policy)}"/>' if policy else ""
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8"/>',
        meta,
        '<meta name="viewport" content="width=device-width, initial-scale=1"/><meta name="color-scheme" content="light dark"/>',
        f"<title>{escaped(title)}</title><style>{STYLE}</style>{head}</head><body{data}>",
        header,
        "<main>",
        *sections,
        "</main></body></html>",
    ]
    return "\n".join(part for part in parts if part) + "\n"


def escaped(text: str) -> str:
    """Return foreign text as the content of an element or an attribute: cleaned, and nothing in it is markup."""
    return html.escape(_NO_CHARACTER.sub("?", clean(text)), quote=True)


def fact_list(facts: Iterable[Fact]) -> str:
    """Return facts as a list of labels and texts; a label of "" goes on under the one before."""
    rows: list[tuple[str, list[str]]] = []
    for fact in facts:
        strong = f"<strong>{escaped(fact.text)}</strong>" if fact.tone in {Tone.STRONG, Tone.BAD} else escaped(fact.text)
        shown = f"<code>{escaped(fact.text)}</code>" if fact.copied else strong
        if fact.label or not rows:
            rows.append((fact.label, [shown]))
        else:
            rows[-1][1].append(shown)
    lines = [f"<dt>{escaped(label)}</dt><dd>{'<br/>'.join(texts)}</dd>" for label, texts in rows]
    return f"<dl>{''.join(lines)}</dl>"


def drawing(shapes: Iterable[str], spoken: str, *, height: int = 10) -> str:
    """Return shapes as a drawing that has a name for those who do not see it."""
    box = f"0 0 {COLUMNS} {height}"
    return f'<svg viewBox="{box}" preserveAspectRatio="none" role="img" aria-label="{escaped(spoken)}">{"".join(shapes)}</svg>'


def stretch(x: float, width: float, state: TimeState) -> str:
    """Return a stretch of time in a drawing; a short one is still a fifth of a column wide."""
    return f'<rect x="{x:.2f}" y="0" width="{max(width, 0.2):.2f}" height="10" fill="var(--{state.value})"/>'
