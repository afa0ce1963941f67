"""Holds class names unique and the words that docs/reference/glossary.md replaced from coming back. Run by `make lint`.

    python tests/docs/words.py            # exit status 1, with a line for each name or word that is new
    python tests/docs/words.py --lower    # write the counts of today to words.toml, where they fell

It guides and proves nothing: a good name and a plain sentence are for a reader to judge.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import tomllib
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
TABLE = Path(__file__).with_name("words.toml")
PACKAGES = ("supervisor", "checkpointing", "health")
#: Write instead what happens: logged, reported, returned; enabled, unavailable, not permitted, missing; orphans, factory, and so on.
REPLACED = re.compile(
    r"(?<![A-Za-z])(?:un)?(?:told|said|armed)(?![A-Za-z])"
    r"|(?<![A-Za-z])(?:withheld|lacks|heard|weighed|looked|handed|stumbled|mended|setaside|leavings|heritage|workshop|narrator"
    r"|keeper|begun_with|suspect_until)(?![A-Za-z])",
    re.IGNORECASE,
)

Sources = dict[str, dict[str, str]]


def sources(root: Path) -> Sources:
    """Return the text of each Python file, by package and path."""
    return {
        package: {str(path.relative_to(root)): path.read_text(encoding="utf-8") for path in sorted((root / package).rglob("*.py"))}
        for package in PACKAGES
    }


def repeated(found: Sources) -> dict[str, int]:
    """Return the public class names that are used more than once in all packages together."""
    trees = (ast.parse(text) for files in found.values() for text in files.values())
    names = Counter(node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name[0] != "_")
    return {name: count for name, count in sorted(names.items()) if count > 1}


def counted(found: Sources) -> dict[str, int]:
    """Return how often a replaced word stands in each package."""
    return {package: sum(len(REPLACED.findall(text)) for text in files.values()) for package, files in found.items()}


def grown(now: dict[str, int], allowed: dict[str, int], least: int) -> list[str]:
    """Return a line for each count above the allowed one; a name that the table does not have may stand `least` times."""
    return [f"{name}: {count}, allowed {allowed.get(name, least)}" for name, count in now.items() if count > allowed.get(name, least)]


def lowered(now: dict[str, int], allowed: dict[str, int]) -> dict[str, int]:
    """Return the table with each count that fell; a name that is unique by now goes."""
    return {name: min(now[name], count) for name, count in allowed.items() if name in now}


def written(names: dict[str, int], words: dict[str, int]) -> str:
    """Return the text of words.toml."""
    head = "# What tests/docs/words.py allows. A count may only fall: python tests/docs/words.py --lower\n"
    tables = (("class_names", names), ("replaced_words", words))
    return head + "".join(f"\n[{title}]\n" + "".join(f"{name} = {count}\n" for name, count in table.items()) for title, table in tables)


def main() -> int:
    """Compare the sources with the table; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--lower", action="store_true", help="write the counts that fell")
    args = parser.parse_args()
    table = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    found = sources(ROOT)
    names, words = repeated(found), counted(found)
    if args.lower:
        TABLE.write_text(written(lowered(names, table["class_names"]), lowered(words, table["replaced_words"])), encoding="utf-8")
    wrong = [f"class name used more than once: {line}: give it a name of its own" for line in grown(names, table["class_names"], 1)]
    wrong += [f"replaced words in {line}: see docs/reference/glossary.md" for line in grown(words, table["replaced_words"], 0)]
    sys.stdout.writelines(f"{line}\n" for line in wrong)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
