"""Records which paths the script looked for in vain, and which directories it listed, before it trained.

A script that looks for its checkpoint at its first start thereby shows where it will look at the next. os.stat, lstat, access, listdir and
scandir are wrapped from the import of torch to the first step; os.path, pathlib and glob go through them. Then the originals are back.
Bounded: hashes of at most `MISSING` paths, `PER_FOLDER` of one folder, and the newest `LISTED` directories. A wrapped function returns,
raises and pickles as before.
"""

from __future__ import annotations

import functools
import os

from .layout import quiet
from .paths import as_good_as, path_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .claim import ProcessIdentity

MISSING = 8192
PER_FOLDER = 64
LISTED = 1024
#: How far above what is saved it is looked for: out/iter_10/mp_rank_00/model.pt
ABOVE = 3


class PathProbes:
    """Owns what was asked for, and the wrapped functions until `end`."""

    def __init__(self, identity: ProcessIdentity) -> None:
        self._identity = identity
        self._over = False
        self._missing: set[int] = set()
        self._counts: dict[int, int] = {}
        self._listed: dict[int, None] = {}
        self._wrapped: list[tuple[str, Any, Any]] = []

    def begin(self) -> None:
        """Wrap the functions."""
        kinds = (
            ("stat", self._seeking),
            ("lstat", self._seeking),
            ("access", self._seeking),
            ("listdir", self._listing),
            ("scandir", self._listing),
        )
        for name, kind in kinds:
            inner = getattr(os, name)
            wrapper = as_good_as(inner, functools.wraps(inner)(kind(inner)))
            self._wrapped.append((name, inner, wrapper))
            setattr(os, name, wrapper)

    def end(self) -> None:
        """Put the originals back, but for those that somebody else wrapped meanwhile: ours only hand on from here."""
        self._over = True
        while self._wrapped:
            name, inner, wrapper = self._wrapped.pop()
            if getattr(os, name) is wrapper:
                setattr(os, name, inner)

    def above(self, path: str) -> dict[str, list[str]]:
        """Say which of a path that is saved to now, and of the directories above it, were asked for in vain (`asked`) or `listed` before.

        Empty while it does not train yet: what is made on the way there is prepared data, not what the training is resumed from.
        """
        if not self._over:
            return {}
        paths = [path]
        for _ in range(ABOVE):
            paths.append(paths[-1].rpartition(os.sep)[0] or os.sep)
        found = {
            "asked": [one for one in paths if hash(one) in self._missing],
            "listed": [one for one in paths[1:] if hash(one) in self._listed],
        }
        return {name: told for name, told in found.items() if told}

    def _seeking(self, inner: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as os has it
            if self._over:
                return inner(*args, **kwargs)
            try:
                result = inner(*args, **kwargs)
            except (FileNotFoundError, NotADirectoryError):
                self._missed(args, kwargs)
                raise
            if result is False:  # access
                self._missed(args, kwargs)
            return result

        return wrapper

    def _listing(self, inner: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as os has it
            if not self._over:
                self._lists(args, kwargs)
            return inner(*args, **kwargs)

        return wrapper

    @quiet
    def _missed(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        path = None if kwargs.get("dir_fd") is not None else path_of(args[0] if args else kwargs["path"])
        if path is None or not self._identity.armed or len(self._missing) >= MISSING or hash(path) in self._missing:
            return
        folder = hash(path.rpartition(os.sep)[0])
        count = self._counts.get(folder, 0)
        if count < PER_FOLDER:
            self._counts[folder] = count + 1
            self._missing.add(hash(path))

    @quiet
    def _lists(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        place = args[0] if args else kwargs.get("path")
        path = path_of("." if place is None else place)
        if path is not None and self._identity.armed:
            self._listed.pop(hash(path), None)
            self._listed[hash(path)] = None
            if len(self._listed) > LISTED:
                self._listed.pop(next(iter(self._listed)), None)
