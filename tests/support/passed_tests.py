"""Leave out what passed at this commit: a run of hours that was cut off continues where it was (`pytest --resume`).

The tree must be as it was committed: what is not committed was not tested at the commit, so nothing of it is remembered.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

REMEMBERED = Path(".pytest_cache") / "passed-tests.txt"


def commit_of(root: Path) -> str:
    """Return the commit that the tree is at, or an empty text where something is not committed."""

    def git(*words: str) -> str | None:
        done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)  # noqa: S603, S607  as the user has it
        return done.stdout.strip() if done.returncode == 0 else None

    return "" if git("status", "--porcelain") != "" else git("rev-parse", "HEAD") or ""


class PassedTests:
    """The tests that passed at a commit: its file has the commit in its first line, then the name of a test in each.

    The process that was called reads it and adds to it. Workers get the names from that process, so that all leave out the same tests.
    """

    def __init__(self, config: pytest.Config) -> None:
        """Read what is known of this commit."""
        self._root, self._failed = config.rootpath, set[str]()
        self._worker: dict[str, Any] | None = getattr(config, "workerinput", None)
        if self._worker is not None:
            self.names = frozenset(self._worker["passed"])
            return
        self._commit = commit_of(self._root)
        path = self._root / REMEMBERED
        lines = path.read_text("utf-8").splitlines() if path.exists() else []
        if not self._commit or lines[:1] != [self._commit]:
            lines = [self._commit]
            path.parent.mkdir(exist_ok=True)
            path.write_text(f"{self._commit}\n", "utf-8")
        self.names = frozenset(lines[1:])

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:  # noqa: ANN401  xdist has no types
        """Tell a worker what is left out."""
        node.workerinput["passed"] = sorted(self.names)

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Leave out what passed."""
        if left := [item for item in items if item.nodeid in self.names]:
            config.hook.pytest_deselected(items=left)
            items[:] = [item for item in items if item.nodeid not in self.names]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Remember a test once its fixtures are ended, too."""
        if not report.passed:  # a skip is no pass: its reason is shown each time
            self._failed.add(report.nodeid)
        elif report.when == "teardown" and report.nodeid not in self._failed and self._worker is None and self._commit:
            with (self._root / REMEMBERED).open("a", encoding="utf-8") as file:
                file.write(f"{report.nodeid}\n")

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Forget all where the tree was changed meanwhile; a run that had nothing left to do is no failure."""
        if self._worker is not None:
            return
        if self._commit and commit_of(self._root) != self._commit:
            (self._root / REMEMBERED).unlink()
        if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and self.names:
            session.exitstatus = pytest.ExitCode.OK

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:  # noqa: ANN401  not a public class
        """Say how many tests passed before."""
        if not self._commit:
            terminalreporter.line("nothing is remembered: the tree has changes that are not committed")
        elif self.names:
            terminalreporter.line(f"{len(self.names)} tests were left out: they passed at this commit, {self._commit[:8]}")
