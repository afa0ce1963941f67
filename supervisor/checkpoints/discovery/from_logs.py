"""Discovers where a job's checkpoints are, from the logs of what its ranks save and load.

A location that was saved to while the job trained, or twice, is a *candidate*: its files are verified in the background, and a file that is
written in place is copied. It is one of *checkpoints* once an attempt also loaded from it before its first step, or tried to. Only such a
location is handed over or pruned, unless the script gets its checkpoint by an option (`set_resume_way`). A location that is loaded like
data (more than `MOST_LOADED` different files in one attempt) is neither: a cache is saved and loaded, too.

A record that cannot be written is in `problem`. The numbers of locations and writes are bounded.
"""

from __future__ import annotations

import math
import os
import re
import stat
import threading
import time
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final

from checkpointing.formats import tree_format_of
from checkpointing.formats.directories import file_set
from checkpointing.io import durable
from checkpointing.io.tree import Tree
from checkpointing.model import Identity, is_unchanged
from supervisor.checkpoints.discovery import record as discovery_record
from supervisor.checkpoints.discovery.record import REPEATED, DiscoveryRecord, Location, MadeDirectory, Write, to_stat, with_stat
from supervisor.checkpoints.discovery.shared_saves import SharedSaves
from supervisor.core.model import ResumeKind
from supervisor.instrument._supervise_shim.layout import loads_first
from supervisor.observe.ranks import save_logs
from supervisor.observe.ranks.path_patterns import checkpoint_path, names_checkpoint, pattern_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from checkpointing.catalogue import CheckpointCatalogue
    from supervisor.knobs.knob_set import ResumeWay

MOST_LOADED: Final = 3
MOST_LOCATIONS: Final = 64
#: Files of the checkpoints of this node's ranks: twenty of a thousand files each, of which `checkpoints.keep` must know the oldest.
MOST_WRITES: Final = 20_000
MOST_MADE: Final = 1_000
#: Files written into a checkpoint's directory without a call that a hook sees: by DCP, transformers, accelerate, DeepSpeed, Megatron.
BESIDE: Final = re.compile(
    r"__\d+_\d+\.distcp|\.metadata|\.metadata\.tmp|metadata\.json|common\.pt|zero_to_fp32\.py"
    r"|(trainer_state|config|generation_config|adapter_config|special_tokens_map|added_tokens|preprocessor_config|processor_config)\.json"
    r"|(tokenizer|tokenizer_config|vocab)\.json|vocab\.txt|merges\.txt|tokenizer\.model|chat_template\.(jinja|json)"
    r"|\.tmp\w{6}|\S+\.index\.json|scheduler\.bin|random_states_\d+\.pkl|sampler(_\d+)?\.bin"
)
#: PEFT's card of the model: any person may have written a file of that name.
_CARD: Final = "README.md"
_CARD_BYTES: Final = 4096


class Discovery:
    """Where one job's checkpoints are, and what its ranks wrote, on this node."""

    def __init__(self, catalogue: CheckpointCatalogue, run_id: str) -> None:
        """Read what earlier runs discovered. Their writes do not count as this run's."""
        self._resume_way: ResumeWay | None = None
        self._catalogue = catalogue
        self._run = run_id
        self._lock = threading.Lock()
        self._read: dict[str, tuple[int, int]] = {}  # file of lines → inode, bytes read of it
        self._numbers: dict[str, int] = {}  # file of lines → number of the last save that was counted
        self._open: dict[str, set[tuple[str, int]]] = {}  # path → (file of lines, number) of the saves that have not ended
        self._loaded: dict[tuple[str, str], set[str]] = {}  # (file of lines, pattern) → paths loaded
        self._saved_first: dict[tuple[int, str], float] = {}  # (attempt, path) → when it was first saved before that attempt's first step
        self._times: dict[str, dict[str, int]] = {}  # path → how many saves of it began in each file of lines
        self._gaps: set[str] = set()  # files of lines in which a save is missing
        self._saved: dict[str, None] = {}  # the checkpoints that ranks saved in this run, in the order of their first saves
        self._counted: set[str] = set()  # paths whose saves were counted by an earlier supervisor
        self.shared_saves = SharedSaves()
        record = self._written = discovery_record.read(catalogue)
        self._locations = record.locations
        self._writes = record.writes if record.run == run_id else {}
        self._logged_before = record.writes  # of this run or the one before it
        self._saved = dict.fromkeys(map(checkpoint_path, self._writes))
        self._made = record.made if record.run == run_id else {}  # directory that a rank made → device and inode

    def set_resume_way(self, way: ResumeWay | None) -> None:
        """Set how the script gets a checkpoint whose location nobody declared.

        If it is given a path or a switch, a location that the job saves to needs no load to count. For a path there must be no doubt which
        location is meant; `way.files` settles that: the pattern of a name that is of the program's checkpoints alone (Lightning makes a
        directory for each attempt).
        """
        self._resume_way = way

    def absorb(self, directory: Path, attempt: int, *, again: bool = False) -> bool:
        """Read and record what the ranks of an attempt logged since the last time. Return whether anything was new.

        `again`: an earlier supervisor has read a part of it; the saves that it counted do not count again.
        """
        with self._lock:
            self._counted = {path for path, write in self._writes.items() if again and write.attempt == attempt}
            self._saved_first = {key: t for key, t in self._saved_first.items() if key[0] == attempt}
            before = self._locations, self._writes, self._made
            self._locations, self._writes, self._made = dict(self._locations), dict(self._writes), dict(self._made)  # readers hold no lock
            for file in sorted(directory.glob("saves-*.jsonl")):
                for row in self._new_rows(file):
                    self._add_save(row, str(file), attempt)
            for file in sorted(directory.glob("loads-*.jsonl")):
                for row in self._new_rows(file):
                    self._add_load(row, str(file), attempt)
            self._drop_oldest()
            changed = (self._locations, self._writes, self._made) != before
            if changed:
                self._write_file()
            return changed

    def locations(self) -> tuple[Location, ...]:
        """Return all locations, those of checkpoints first."""
        return tuple(
            sorted(
                self._locations.values(),
                key=lambda location: (location.kind != "checkpoint", location.kind != "candidate", location.pattern),
            )
        )

    def patterns(self, *, candidates: bool = False) -> tuple[str, ...]:
        """Return the patterns of checkpoints, and with `candidates` those of candidates too."""
        kinds = ("checkpoint", "candidate") if candidates else ("checkpoint",)
        locations = self.locations()
        patterns = tuple(location.pattern for location in locations if location.kind in kinds)
        way = self._resume_way
        given = () if way is None or way.knob.counts == ResumeKind.ITSELF else _likely_patterns(locations, way)
        return (*patterns, *(pattern for pattern in given if pattern not in patterns))

    def is_checkpoint(self, path: str) -> bool:
        """Return whether a path lies at a location of checkpoints."""
        return pattern_of(path) in self.patterns()

    def is_known(self, path: str) -> bool:
        """Return whether a path lies at a location of checkpoints or candidates."""
        return pattern_of(path) in self.patterns(candidates=True)

    def is_repeated(self, path: str, *, in_training: bool = False) -> bool:
        """Return whether a path lies at a location to which this job was seen to save at least twice; `in_training`: while it trained."""
        location = self._locations.get(pattern_of(path), Location(""))
        return not location.data and (location.in_training if in_training else location.saved) >= REPEATED

    def is_saved(self, path: str) -> bool:
        """Return whether a path lies at a location to which this job was seen to save."""
        location = self._locations.get(pattern_of(path), Location(""))
        return bool(location.saved) and not location.data

    def saved(self) -> tuple[str, ...]:
        """Return the checkpoints that this run was seen to save, oldest first, whatever became of them: a file, or a directory of files."""
        return tuple(self._saved)

    def writes(self, checkpoint: str) -> tuple[Write, ...]:
        """Return what this run did to a checkpoint: to the file, or to each file below the directory."""
        return tuple(write for write in self._writes.values() if write.path == checkpoint or write.path.startswith(checkpoint + "/"))

    def attempt_of(self, path: str, identity: Identity) -> int | None:
        """Return which attempt of this run was seen to write a file as it is now, None where none was."""
        write = self._writes.get(path)
        return (
            write.attempt if write is not None and write.after == (identity.dev, identity.ino, identity.size, identity.mtime_ns) else None
        )

    def ended(self) -> tuple[Write, ...]:
        """Return the last save of each file where a rank was seen to end it, and no other save of that file is under way."""
        return tuple(write for write in self._writes.values() if _is_ended(write))

    def is_ended(self, path: str, identity: Identity) -> bool:
        """Return whether the last save of a file was seen to end and left the file as it is: nobody writes it any more."""
        write = self._writes.get(path)
        return write is not None and _is_ended(write) and write.after == (identity.dev, identity.ino, identity.size, identity.mtime_ns)

    def replaces(self, checkpoint: str) -> bool:
        """Return whether each file of a checkpoint was seen to get another inode when it was saved: a rewrite cannot harm a link to it."""
        writes = self.writes(checkpoint)
        return bool(writes) and all(write.replaced for write in writes)

    def wrote_earlier(self, checkpoint: str) -> bool:
        """Return whether a save of a checkpoint was logged when this supervisor started: in this run, or the one before it."""
        return any(path == checkpoint or path.startswith(checkpoint + "/") for path in self._logged_before)

    def is_as_left(self, checkpoint: str) -> bool:
        """Return whether each file of a checkpoint that a rank of this run or the one before it was seen to save is as its save left it.

        False where none was seen to be saved there. Under way, a save changes the file that was there, or one that was not.
        """
        prefix = checkpoint + "/"
        last = {**self._logged_before, **self._writes}
        states = [_is_as_left(write) for path, write in last.items() if path == checkpoint or path.startswith(prefix)]
        return True in states and False not in states

    def has_content(self, identity: Identity) -> bool:
        """Return whether a rank of this run was seen to write this content, at whatever path: a link to it, or a copy with its times."""
        return any(
            write.after is not None
            and (write.after[:2] == (identity.dev, identity.ino) or write.after[2:] == (identity.size, identity.mtime_ns))
            for write in self._writes.values()
        )

    def logs_saves_like(self, checkpoint: str) -> bool:
        """Return whether ranks of this run were seen to save to other paths of the same location: a save there is seen."""
        pattern = pattern_of(checkpoint)
        others = (checkpoint_path(write.path) for write in self._writes.values() if write.after is not None)
        return any(other != checkpoint and pattern_of(other) == pattern for other in others)

    def ended_saves(self, attempt: int) -> tuple[str, ...]:
        """Return the checkpoints of this run whose saves ended, in the order of their last saves.

        Nothing while a rank of `attempt`, the running one, saves.
        """
        writes = self._writes
        if any(write.interrupted and write.attempt == attempt for write in writes.values()):
            return ()
        last: dict[str, float] = {}
        for path, write in writes.items():
            if not write.interrupted:
                checkpoint = checkpoint_path(path)
                last[checkpoint] = max(write.t, last.get(checkpoint, write.t))
        return tuple(sorted(last, key=lambda path: last[path]))

    def add(self, checkpoint: str) -> None:
        """Count a path as that of a checkpoint: it was restored from a mirror."""
        with self._lock:
            self._locations = dict(self._locations)
            self._count(checkpoint, time.time(), saved=1, loaded=1)
            self._write_file()

    def stat_interrupted_saves(self) -> None:
        """Note the identity of each file that a cut save left, or whose save was logged before it was closed. No rank is alive.

        A file that a cut save left is this job's if the save wrote to it: it is new, or it has the same inode as before and differs
        otherwise. Else the save had not touched it yet.
        """
        with self._lock:
            with_stats = {path: with_stat(write) for path, write in self._writes.items() if write.interrupted or write.logged_before_close}
            if any(self._writes[path] != write for path, write in with_stats.items()):
                self._writes = {**self._writes, **with_stats}
                self._write_file()

    def written_files(self, checkpoint: str, alive_until_ns: int, proven: Identity | None = None) -> dict[str, Identity]:
        """Return the files of a checkpoint that this run was seen to write, each with the identity that was noted then.

        No hook sees the small files that a framework writes beside (`BESIDE`), nor what a script writes with a plain `open`; a set of files
        has the latter in each save (file_set.common). They count as seen if they can be nobody else's. First: a rank of this run made the
        directory, or it was absent when its save began, so nothing in it is older. Second: they did not change after `alive_until_ns` (wall
        time), when the last rank ended, or the directory is still `proven`, as it was found whole. A hard link that a mirror's upload made
        and removed changes only their ctime.
        """
        members = {
            write.path: Identity(*write.after) for write in self.writes(checkpoint) if write.after is not None and not write.is_directory
        }
        if not self._is_made_here(checkpoint):
            return members
        try:
            tree = Tree(checkpoint)
        except OSError:
            return members
        entries, as_proven = tree.entries, tree.identity == proven
        claimant = tree_format_of(tree)
        # in another format's checkpoint such a file may be a person's: an evaluation's result beside each save
        common = file_set.common(checkpoint, tree.files) if claimant is not None and claimant[0] == file_set.NAME else frozenset()
        for name, entry in entries.items():
            known = not entry.what and (
                name in common or BESIDE.fullmatch(name.rpartition("/")[2]) or (name == _CARD and _is_card_of_peft(f"{checkpoint}/{name}"))
            )
            if known and entry.st.st_nlink == 1 and (as_proven or entry.st.st_ctime_ns <= alive_until_ns):
                members.setdefault(f"{checkpoint}/{name}", Identity.of(entry.st))
        return members

    def unfinished(self) -> tuple[tuple[str, bool, bool], ...]:
        """Return the directories that this run made for checkpoints; for each, whether a save in it was cut off, and whether all were."""
        cuts: dict[str, list[bool]] = {path: [] for path in self._made if checkpoint_path(path) == path}
        for path, write in self._writes.items():
            cuts.setdefault(checkpoint_path(path), []).append(write.interrupted)
        return tuple(
            (checkpoint, any(cut), bool(cut) and all(cut))
            for checkpoint, cut in cuts.items()
            if self.is_known(checkpoint) and self._is_made_here(checkpoint)
        )

    def is_first(self, checkpoint: str) -> bool:
        """Return whether a checkpoint is the first at its location, and nothing lay at its path before this run saved it."""
        writes, location = self.writes(checkpoint), self._locations.get(pattern_of(checkpoint), Location(""))
        is_new = self._is_made_here(checkpoint) or all(write.created_by_job for write in writes)
        return is_new and location.saved == 1 and bool(writes) and all(write.before is None for write in writes)

    def _is_made_here(self, checkpoint: str) -> bool:
        try:
            st = os.lstat(checkpoint)
        except OSError:
            return False
        write = self._writes.get(checkpoint)
        return stat.S_ISDIR(st.st_mode) and (
            self._made.get(checkpoint) == MadeDirectory(checkpoint, st.st_dev, st.st_ino) or (write is not None and write.created_by_job)
        )

    # the lines of the logs

    def _add_save(self, row: dict[str, Any], file: str, attempt: int) -> None:
        path, event, number = str(row["path"]), row["what"], int(row.get("n", 0))
        self.shared_saves.add(row, file, attempt)
        known = self._writes.get(path, Write(path, attempt, float(row["t"])))
        for directory, dev, ino in row.get("made", ()):
            self._made.pop(directory, None)
            self._made[directory] = MadeDirectory(str(directory), dev, ino)
        if not int(row.get("steps", 1)):
            self._saved_first.setdefault((attempt, path), float(row["t"]))
        if event == "began":
            under_way = self._open.setdefault(path, set())
            if known.attempt != attempt:
                under_way.clear()  # whose ranks are dead
            if number > self._numbers.get(file, 0):
                self._count_times(path, file, number)
                self._numbers[file] = number
                checkpoint = checkpoint_path(path)
                is_counted = under_way or path in self._counted or row.get("goes_on")
                if not is_counted and (
                    checkpoint == path or not self.writes(checkpoint)
                ):  # one save of all ranks, one directory of many files
                    self._count(checkpoint, float(row["t"]), saved=1, in_training=_in_training(row))
            under_way.add((file, number))
            self._saved.setdefault(checkpoint_path(path))
            before = to_stat(row["was"])
            # of the ranks that save it together, the second finds what the first one made
            created_by_job = before is None or known.created_by_job
            self._writes.pop(path, None)
            self._writes[path] = replace(
                known,
                attempt=attempt,
                t=float(row["t"]),
                before=before,
                after=None,
                interrupted=True,
                created_by_job=created_by_job,
                logged_before_close=bool(row.get("file")),
                save_count=self._most_times(path, known.save_count if known.attempt == attempt else 0),
            )
        elif event == "ended":
            under_way = self._open.get(path, set())
            under_way.discard((file, number))
            after = to_stat(row["now"])
            replaced = known.before is not None and after is not None and known.before[:2] != after[:2]
            self._writes[path] = replace(known, after=after, interrupted=bool(under_way) or not row["well"], replaced=replaced)
        elif event == "renamed":
            self._add_rename(str(row["was"]), path, row, attempt)

    def _count_times(self, path: str, file: str, number: int) -> None:
        """Count a save to a path. A rank numbers its saves; where a number is missing, a line was lost, and its counts prove nothing."""
        if number != self._numbers.get(file, 0) + 1:
            self._gaps.add(file)
        counts = self._times.setdefault(path, {})
        counts[file] = counts.get(file, 0) + 1

    def _most_times(self, path: str, known: int) -> int:
        counts = self._times.get(path, {})
        return 0 if self._gaps.intersection(counts) else max(known, *counts.values(), 0)

    def _add_rename(self, before: str, path: str, row: dict[str, Any], attempt: int) -> None:
        """Count a save under its final name only."""
        t, in_training = float(row["t"]), _in_training(row)
        earlier = self._writes.pop(before, None)
        if earlier is not None:
            self._saved.pop(checkpoint_path(before), None)
            self._saved.setdefault(checkpoint_path(path))
            self._open.pop(before, None)
            if checkpoint_path(before) == before or not self.writes(checkpoint_path(before)):
                self._count(checkpoint_path(before), t, saved=-1, in_training=-in_training)
            checkpoint = checkpoint_path(path)
            if checkpoint == path or not self.writes(checkpoint):
                self._count(checkpoint, t, saved=1, in_training=in_training)
        self._writes.pop(path, None)
        self._writes[path] = Write(
            path, attempt, t, None, to_stat(row["now"]), created_by_job=earlier is not None and earlier.created_by_job, replaced=True
        )

    def _add_load(self, row: dict[str, Any], file: str, attempt: int) -> None:
        if not loads_first(row.get("via", ""), int(row["steps"])):
            return  # an evaluation, or the best model put back at the end
        path = str(row["path"])
        if float(row["t"]) > self._saved_first.get((attempt, path), math.inf):
            return  # the first weights, which one rank saves for the others
        real = os.path.realpath(path) if os.path.islink(path) else path  # noqa: PTH114 (strings throughout)
        checkpoint = checkpoint_path(real)
        pattern = pattern_of(checkpoint)
        paths = self._loaded.setdefault((file, pattern), set())
        first = not any(paths for (_, other), paths in self._loaded.items() if other == pattern)  # of all ranks
        paths.add(checkpoint)
        self._count(checkpoint, float(row["t"]), loaded=int(first), data=len(paths) > MOST_LOADED)

    def _count(  # noqa: PLR0913 -- the counted files
        self, checkpoint: str, t: float, *, saved: int = 0, in_training: int = 0, loaded: int = 0, data: bool = False
    ) -> None:
        pattern = pattern_of(checkpoint)
        location = self._locations.pop(pattern, Location(pattern))
        location = Location(
            pattern,
            max(location.saved + saved, 0),
            location.loaded + loaded,
            data=location.data or data,
            t=t,
            in_training=max(location.in_training + in_training, 0),
        )
        if location.saved or location.loaded:
            self._locations[pattern] = location

    def _drop_oldest(self) -> None:
        while len(self._locations) > MOST_LOCATIONS:
            del self._locations[
                min(
                    self._locations.values(), key=lambda location: (location.kind == "checkpoint", location.kind == "candidate", location.t)
                ).pattern
            ]
        while len(self._writes) > MOST_WRITES:
            gone = next(iter(self._writes))
            del self._writes[gone]
            self._open.pop(gone, None)
            self._times.pop(gone, None)
        while len(self._made) > MOST_MADE:
            del self._made[next(iter(self._made))]

    # files

    def _new_rows(self, file: Path) -> Iterator[dict[str, Any]]:
        """Read the new whole lines of a log; a file that was made anew is read from its beginning."""
        try:
            st = file.stat()
            if self._read.get(str(file)) == (st.st_ino, st.st_size):
                return
            with os.fdopen(durable.open_regular(str(file)), "rb") as source:
                st = os.fstat(source.fileno())
                inode, at = self._read.get(str(file), (st.st_ino, 0))
                source.seek(at if inode == st.st_ino and at <= st.st_size else 0)
                text = source.read()
                whole = text[: text.rfind(b"\n") + 1]
                self._read[str(file)] = st.st_ino, source.tell() - len(text) + len(whole)
        except OSError:
            return
        yield from save_logs.rows(whole)

    def _write_file(self) -> None:
        record = DiscoveryRecord(dict(self._locations), dict(self._writes), dict(self._made), self._run)
        discovery_record.write(self._catalogue, self._written, record)
        self._written = record


def _likely_patterns(locations: tuple[Location, ...], way: ResumeWay) -> tuple[str, ...]:
    """Return the patterns of the most likely checkpoints: by the program's own names, else if no location was also loaded."""
    saved = [location for location in locations if location.saved and not location.data]
    if way.files:
        return tuple(location.pattern for location in saved if fnmatchcase(location.pattern.rpartition("/")[2], way.files))
    if any(location.kind == "checkpoint" for location in locations):
        return ()
    likely = tuple(location.pattern for location in saved if location.saved >= REPEATED or names_checkpoint(location.pattern))
    return likely if way.knob.counts == ResumeKind.SWITCH or len(likely) == 1 else ()


def read_last_run(catalogue: CheckpointCatalogue) -> Discovery:
    """Return the discoveries of a job, with the files that its last run was seen to write."""
    logged = catalogue.get(discovery_record.LOGGED)
    return Discovery(catalogue, "" if logged is None else logged.run)


def _in_training(row: dict[str, Any]) -> int:
    """Return 1 for a save that came after a first step, else 0."""
    return int(int(row.get("steps", 0)) > 0)


def _is_ended(write: Write) -> bool:
    return write.after is not None and not write.interrupted and not write.logged_before_close


def _is_card_of_peft(path: str) -> bool:
    try:
        with open(path, "rb") as source:  # noqa: PTH123 (strings throughout)
            lines = source.read(_CARD_BYTES).splitlines()
    except OSError:
        return False
    return lines[:1] == [b"---"] and b"library_name: peft" in lines


def _is_as_left(write: Write) -> bool | None:
    """Return whether the file at a save's path is of that save; None where none is."""
    try:
        st = os.stat(write.path)  # noqa: PTH116 (strings throughout)
    except OSError:
        return None
    st_before = write.before if write.after is None else write.after
    if st_before is None:
        return True
    if write.after is None or write.logged_before_close or stat.S_ISDIR(st.st_mode):
        return st.st_ino == st_before[1]
    return is_unchanged(Identity.of(st), Identity(*st_before))
