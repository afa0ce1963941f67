"""Reads the files of signatures: ours, which lie beside the classification, and those that the user's config names.

In: paths, or the settings that name them. Out: a Catalogue and the problems, of which none is an error: a file that cannot be read is out
of use like a bad row, and so is, once it was searched for too long, a row of the user's own. Only what the settings name must be there and
be trusted, like the file that names it (SuperviseError, 78).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from supervisor.classify import catalogue
from supervisor.classify.rows import Problem
from supervisor.cli import stdio
from supervisor.config.trust import LIMIT_BYTES, read_trusted
from supervisor.config.user_patterns import Bounded
from supervisor.errors import SuperviseError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from supervisor.classify.catalogue import Catalogue
    from supervisor.config.settings import Settings

#: Where ours lie.
PACKAGED = Path(__file__).parents[1] / "classify" / "signatures"


def warn(text: str) -> None:
    """Tell it on stderr."""
    stdio.say(f"warning: {text}")


def read(extra: Iterable[Path] = (), tell: Callable[[str], None] = warn) -> tuple[Catalogue, tuple[Problem, ...]]:
    """Return all signatures: ours, and those of the files `extra`.

    tell: hears, at most once of each row of `extra`, that it went out of use while it was searched for; from whichever thread searched.
    """
    problems: list[Problem] = []
    users = _texts(extra, problems)
    found, wrong = _with_ours(users, tell)
    return found, (*problems, *wrong)


def configured(settings: Settings, tell: Callable[[str], None] = warn) -> tuple[Catalogue, tuple[Problem, ...]]:
    """Return all signatures: ours, and those of classify.signatures. Raises SuperviseError (78) for a file that is not to be trusted."""
    texts = []
    for name in settings.classify.signatures:
        path = Path(settings.cwd) / Path(name).expanduser()
        text = read_trusted(path, "signatures")  # what was looked at is what is used
        if text is None:
            raise SuperviseError(
                f"cannot read signatures: {path}: no such file",
                hint=f"Correct classify.signatures ({settings.origin('classify.signatures')}), or leave it out.",
            )
        texts.append((str(path), text))
    return _with_ours(texts, tell)


def _with_ours(users: Iterable[tuple[str, str]], tell: Callable[[str], None]) -> tuple[Catalogue, tuple[Problem, ...]]:
    problems: list[Problem] = []
    ours = _texts(sorted(PACKAGED.glob("*.toml")), problems)
    found, wrong = catalogue.load(
        ours, users, lambda pattern, name, origin: Bounded(pattern, lambda reason: tell(str(Problem(origin, name, reason))))
    )
    return found, (*problems, *wrong)


def _texts(paths: Iterable[Path], problems: list[Problem]) -> list[tuple[str, str]]:
    texts = []
    for path in paths:
        try:
            with path.open("rb") as file:
                data = file.read(LIMIT_BYTES + 1)
            if len(data) > LIMIT_BYTES:
                problems.append(Problem(str(path), "", f"larger than {LIMIT_BYTES >> 20} MiB"))
                continue
            texts.append((str(path), data.decode("utf-8")))
        except (OSError, UnicodeDecodeError) as error:
            problems.append(Problem(str(path), "", f"cannot be read: {error}"))
    return texts
