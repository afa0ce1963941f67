"""Copies a checkpoint from the bytes of a pass over it: no byte is read again."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from checkpointing.io import durable
from checkpointing.io.file_copy import COPY, FileCopy, copy_modes, lacks_room
from checkpointing.io.reflink import LINK, REFLINK

if TYPE_CHECKING:
    from checkpointing.manifest.documents import Manifest
    from checkpointing.reader.messages import CopyPlan


class CopySink:
    """One copy that is being made. A failure of it ends the copy, and never the pass: `problem` says why there is none."""

    def __init__(self, path: str, plan: CopyPlan) -> None:
        """Copy the checkpoint at `path`, a file or a directory, as planned."""
        self._path, self._plan = path, plan
        self._root = os.path.realpath(path)
        self._files: dict[str, FileCopy] = {}  # by their places below the target, "" for a checkpoint that is a file
        self.problem = ""

    def take(self, path: str, piece: memoryview, _hasher: object) -> None:
        """Add the next bytes of the file that was opened at a path."""
        if self.problem:
            return
        place = os.path.realpath(path).removeprefix(self._root)
        try:
            if place not in self._files:
                self._begin(path, place)
            self._files[place].write(piece)
        except OSError as error:
            self.problem = f"it could not be copied: {error.strerror or error}"

    def finish(self, manifest: Manifest) -> str:
        """Make the copy of a verified checkpoint durable. Return how it was made, "" if it was not. The files are closed in any case."""
        wanted = {f"/{file.path}" if manifest.is_tree else "": file for file in manifest.files}
        try:
            for place, file in wanted.items():
                source = f"{self._root}{place}"
                if place not in self._files and not self.problem:
                    self._begin(source, place)
                copy = self._files.get(place)
                if self.problem or copy is None:
                    return ""
                if copy.way == COPY and copy.n_bytes != file.n_bytes:
                    self.problem = f"{file.path} was not read in full"
                    return ""
                copy.finish(os.stat(source))  # noqa: PTH116 -- strings throughout the package
            for place in self._files.keys() - wanted.keys():
                os.unlink(f"{self._plan.target}{place}")  # noqa: PTH108 -- read, and no part of the checkpoint
            if manifest.is_tree:
                copy_modes(self._root, self._plan.target, (file.path for file in manifest.files))
        except OSError as error:
            self.problem = f"it could not be copied: {error.strerror or error}"
            return ""
        finally:
            self.close()
        ways = {copy.way for copy in self._files.values()}
        return next((way for way in (COPY, LINK) if way in ways), REFLINK)

    def close(self) -> None:
        """Close the files."""
        for copy in self._files.values():
            copy.close()

    def _begin(self, source: str, place: str) -> None:
        """Begin the copy of a file before its first byte is used. Raises OSError."""
        target = f"{self._plan.target}{place}"
        directory = os.path.dirname(target)  # noqa: PTH120 -- strings throughout the package
        durable.make_directory(directory)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(target)  # noqa: PTH108 -- of a pass whose process was killed
        copy = FileCopy(source, target, may_link=self._plan.may_link and not place)
        is_first, self._files[place] = not self._files, copy
        if is_first:
            self.problem = lacks_room(directory, self._plan.n_bytes, self._plan.saves_left, copy.way)
