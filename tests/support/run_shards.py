"""Run all tests in shards; a shard that passed at this commit is remembered below .pytest_cache, and skipped.

usage: run_shards.py all|I/N -- PYTEST-ARGUMENTS

The tree must be as it was committed for a shard to be remembered or skipped: what is not committed was not tested at the commit.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PASSED = Path(".pytest_cache") / "passed-shards.json"
SHARDS = 4
NOTHING_COLLECTED = 5


def commit_of(root: Path) -> str:
    """Return the commit that the tree is at, or an empty text where something is not committed."""

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)  # noqa: S603, S607  as the user has it
        return done.stdout.strip() if done.returncode == 0 else "unknown"

    return "" if git("status", "--porcelain") else git("rev-parse", "HEAD").replace("unknown", "")


def remembered(root: Path, commit: str) -> dict[str, str]:
    """Return shard → pytest's closing line, of those that passed at the commit."""
    try:
        kept = json.loads((root / PASSED).read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    found = kept.get(commit, {}) if commit and isinstance(kept, dict) else {}
    return dict(found)


def remember(root: Path, commit: str, passed: dict[str, str]) -> None:
    """Keep what passed at this commit, and nothing of others."""
    (root / PASSED).parent.mkdir(exist_ok=True)
    (root / PASSED).write_text(json.dumps({commit: passed}, indent=1), "utf-8")


def run(shard: str, arguments: list[str], root: Path) -> tuple[int, str]:
    """Run pytest, and show what it prints; return its exit code and its closing line."""
    command = [sys.executable, "-m", "pytest", "--shard", shard, *arguments]
    closing = ""
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True, errors="replace") as process:  # noqa: S603  ours
        for line in process.stdout or ():
            sys.stdout.write(line)
            sys.stdout.flush()
            closing = line.strip(" =\n") or closing
    return process.returncode, closing


def main(words: list[str], root: Path = ROOT) -> int:
    """Run the shards that are asked for; return the first exit code that is no success."""
    which, arguments = words[0], words[2:]
    shards = [f"{number}/{SHARDS}" for number in range(1, SHARDS + 1)] if which == "all" else [which]
    commit = commit_of(root)
    passed, failed = remembered(root, commit), 0
    for shard in shards:
        if shard in passed:
            continue
        code, closing = run(shard, arguments, root)
        if code not in (0, NOTHING_COLLECTED):
            failed = failed or code
        elif commit and commit_of(root) == commit:
            passed = remembered(root, commit) | {shard: closing}  # another shard may have ended meanwhile
            remember(root, commit, passed)
        else:
            passed[shard] = f"{closing} (not remembered: the tree has changes that are not committed)"
    for shard in shards:
        sys.stdout.write(f"shard {shard}: {passed.get(shard, 'FAILED')}\n")
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
