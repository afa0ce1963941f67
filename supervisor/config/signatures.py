"""Reads the files of signatures: the built-in ones, which lie beside the classification, and those that the user's config names.

A file that cannot be read is a problem and no error, as is a bad row: both are left out. So is a row of the user's whose pattern may take
too long. Only a file that the settings name must exist, and be trusted like the file that names it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from health.kernellog import messages
from supervisor.classify.logs import catalogue
from supervisor.classify.logs.patterns import KernelMessage
from supervisor.classify.logs.rows import Problem
from supervisor.config.trust import LIMIT_BYTES, read_trusted
from supervisor.core.units import bytes_text
from supervisor.errors import SuperviseError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from supervisor.classify.logs.catalogue import Catalogue
    from supervisor.config.settings import Settings

#: The files of the built-in signatures.
PACKAGED = Path(__file__).parents[1] / "classify" / "signatures"


def read(extra: Iterable[Path] = ()) -> tuple[Catalogue, tuple[Problem, ...]]:
    """Return all signatures: the built-in ones, and those of the files `extra`."""
    problems: list[Problem] = []
    users = _texts(extra, problems)
    loaded, wrong = _with_ours(users)
    return loaded, (*problems, *wrong)


def configured(settings: Settings) -> tuple[Catalogue, tuple[Problem, ...]]:
    """Return all signatures: the built-in ones, and those of the files of classify.signatures.

    Raises SuperviseError (78) for a file that is not to be trusted.
    """
    texts = []
    for name in settings.classify.signatures:
        path = Path(settings.cwd) / Path(name).expanduser()
        text = read_trusted(path, "signatures")  # the text that was checked is the text that is used
        if text is None:
            raise SuperviseError(
                f"cannot read signatures: {path}: no such file",
                hint=f"Correct classify.signatures ({settings.origin('classify.signatures')}), or leave it out.",
            )
        texts.append((str(path), text))
    return _with_ours(texts)


def _with_ours(users: Iterable[tuple[str, str]]) -> tuple[Catalogue, tuple[Problem, ...]]:
    problems: list[Problem] = []
    packaged = _texts(sorted(PACKAGED.glob("*.toml")), problems)
    loaded, wrong = catalogue.load(
        packaged,
        users,
        {name: tuple(KernelMessage(form.anchor, form.expression) for form in forms) for name, forms in messages.named().items()},
    )
    return loaded, (*problems, *wrong)


def _texts(paths: Iterable[Path], problems: list[Problem]) -> list[tuple[str, str]]:
    texts = []
    for path in paths:
        try:
            with path.open("rb") as file:
                data = file.read(LIMIT_BYTES + 1)
            if len(data) > LIMIT_BYTES:
                problems.append(Problem(str(path), "", f"larger than {bytes_text(LIMIT_BYTES)}"))
                continue
            texts.append((str(path), data.decode("utf-8")))
        except (OSError, UnicodeDecodeError) as error:
            problems.append(Problem(str(path), "", f"cannot be read: {error}"))
    return texts
