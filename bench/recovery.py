"""Write the tables that docs/recovery.md has of the ladders: what each rung does, and which rungs answer which cause.

    python bench/recovery.py             # write them
    python bench/recovery.py --check     # exit status 1, naming the page, where it is not up to date

In: supervisor/strategies. Out: the text between the markers of docs/recovery.md.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from supervisor.strategies import GUARDS, LADDERS, RUNGS

if TYPE_CHECKING:
    from supervisor.core.model import Cause

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "recovery.md"


def rungs() -> str:
    """Return what each rung does."""
    rows = [f"| `{rung.name}` | {rung.summary} | {'yes' if rung.changes_job else ''} |" for rung in RUNGS.values()]
    return "\n".join(("| rung | what it does | changes the job |", "| --- | --- | --- |", *rows))


def ladders() -> str:
    """Return the ladder of each cause; those that share one share a row. The guards, which all but one begin with, are left out."""
    causes: dict[tuple[str, ...], list[Cause]] = {}
    for cause, ladder in LADDERS.items():
        causes.setdefault(ladder, []).append(cause)
    rows = [
        f"| {' '.join(f'`{cause}`' for cause in group)} | {' · '.join(f'`{name}`' for name in ladder if name not in GUARDS)} |"
        for ladder, group in causes.items()
    ]
    return "\n".join(("| cause | ladder |", "| --- | --- |", *rows))


def placed(page: str, name: str, table: str) -> str:
    """Return a page with the text between its markers of this name replaced."""
    text, count = re.subn(
        rf"(<!-- {name}: written by bench/recovery.py -->\n).*?(<!-- end of {name} -->)",
        lambda match: f"{match[1]}\n{table}\n\n{match[2]}",
        page,
        flags=re.DOTALL,
    )
    if count != 1:
        raise SystemExit(f"the markers of {name} stand {count} times in the page")
    return text


def main() -> int:
    """Write the tables, or compare them; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="write nothing; exit status 1 where the page is stale")
    args = parser.parse_args()
    page = PAGE.read_text(encoding="utf-8")
    text = placed(placed(page, "ladders", ladders()), "rungs", rungs())
    if text == page:
        return 0
    print(f"{'stale' if args.check else 'written'}: {PAGE.relative_to(ROOT)}")
    if not args.check:
        PAGE.write_text(text, encoding="utf-8")
    return int(args.check)


if __name__ == "__main__":
    sys.exit(main())
