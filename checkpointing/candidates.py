"""Reads the candidates of a selection: by metadata first, by their bulk only where nothing else proves them whole.

How far one is proven, in the order of the attempts; `Selection.chosen.level` has the answer:

* "identity": it was verified before, and is unchanged by inode, size and modification time (another machine, and this one after its next
  boot, may number the device anew). Its directory and metadata were read again, and nothing else: that takes milliseconds at any size.
* "digest": it has size and modification time of what its manifest describes and lies elsewhere, or a checkpoint may have caused the
  last failure (`suspect`); every byte is the one recorded. So it is with a rewritten file whose format has no checksums.
* "structure", "layout": it has no manifest, or was rewritten since; its own format was checked in full.
* "manifest": it lies in a mirror and is not here yet: the restore checks every byte.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from checkpointing import markers
from checkpointing.io.read_watch import DiskSilent, ReadWatch
from checkpointing.io.reader import Interrupted, Throttle, never
from checkpointing.io.tree import ReadOptions
from checkpointing.manifest import check
from checkpointing.manifest.documents import Manifest, Manifests, is_same
from checkpointing.model import Candidate, Identity, Verdict, Verification, is_unchanged, note_of
from checkpointing.ordering import Order
from checkpointing.rejections import Rejections
from checkpointing.verification import NOT_TO_THE_END, Cache, identity_of, verify

#: The verdicts for which a checkpoint is rejected, and the kind of rejection.
REJECTED_FOR: Final = {Verdict.BAD: "torn", Verdict.INCOMPLETE: "incomplete", Verdict.DANGEROUS: "dangerous"}

_NOWHERE: Final = Identity(0, 0, 0, 0)
_FULL: Final = ("digest", "structure", "layout")  # levels that only a full reading gives
_SUSPECT: Final = "the last failure may come from a checkpoint"
_FINAL: Final = (Verdict.UNVERIFIABLE, Verdict.FOREIGN, Verdict.INCOMPLETE, Verdict.DANGEROUS)  # another reading says the same


def never_own(_path: str) -> bool:
    """Return False: no path is known to be written by this job."""
    return False


@dataclass(frozen=True, slots=True)
class Spare:
    """A checkpoint outside the place where the job reads it."""

    #: To which it would be put back.
    original_path: str
    manifest: Manifest
    #: The path of a copy on this machine; "" for a checkpoint in a mirror.
    copy_path: str
    #: Names the copy or the mirror for people.
    source: str

    @property
    def name(self) -> str:
        """Its name among candidates."""
        return self.copy_path or self.source


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionOptions:
    """How a selection chooses. The defaults choose by the files alone, in the order of their steps, and record nothing."""

    #: Where torn, incomplete and dangerous checkpoints are rejected for good. None: nothing is recorded.
    rejections: Rejections | None = None
    #: Verdicts of earlier selections; an unchanged file is not read in full again.
    cache: Cache = field(default_factory=Cache)
    #: The manifests that this node keeps. None: none.
    manifests: Manifests | None = None
    #: Copies on this machine and in mirrors, which are chosen from as well.
    spares: Sequence[Spare] = ()
    #: The last failure may come from a checkpoint: each byte is compared, also of checkpoints verified before.
    suspect: bool = False
    #: Limits the rate of reading. None: as fast as the disk gives.
    throttle: Throttle | None = None
    #: Asked before each MiB; once it says True, the rest stays unread and is treated as `unknown`.
    interrupted: Callable[[], bool] = never
    #: Reports how far a long read is, and remembers the disks that do not answer.
    watch: ReadWatch = field(default_factory=ReadWatch)
    #: Paths that are passed over unread, with the copies of their present content. They count as found: a job does not start from scratch
    #: because of them.
    avoid: Collection[str] = ()
    #: A checkpoint whose weights turned NaN gives way to the newest older one in which one of those weights holds numbers.
    prefer_finite: bool = True
    #: The facts of runs, attempts and roll-backs. By default nothing: the step decides.
    order: Order = field(default_factory=Order)
    #: Says whether a path is known to be written by this job, as in `verify`.
    own: Callable[[str], bool] = never_own


def glance(
    candidate: Candidate,
    cache: Cache,
    interrupted: Callable[[], bool] = never,
    *,
    own: Callable[[str], bool] = never_own,
    watch: ReadWatch | None = None,
) -> Verification | None:
    """Read the metadata of a file whose name does not surely give its step. None: the name does. Raises DiskSilent, Interrupted."""
    if candidate.named is not None and candidate.named.sure:
        return None
    known = cache.get(candidate.path, candidate.identity)
    if known is None:
        path, is_own, reading = candidate.path, own(candidate.path), ReadOptions(interrupted=interrupted)
        if watch is None:
            known = verify(path, bulk=False, reading=reading, own=is_own)
        else:
            known = watch.read(
                path, lambda how: verify(path, bulk=False, reading=how, own=is_own), device=candidate.identity.dev, reading=reading
            )
        cache.put(known)
    return known


@dataclass(frozen=True, slots=True)
class CandidateReader:
    """Reads candidates as the options say, each in full where nothing proves it without."""

    options: SelectionOptions
    #: Files from which no byte came, with the reason.
    silent: dict[str, str] = field(default_factory=dict)

    def glance(self, candidate: Candidate) -> Verification | None:
        """Return what the metadata say; None where the name is believed."""
        options = self.options
        try:
            return glance(candidate, options.cache, options.interrupted, own=options.own, watch=options.watch)
        except (DiskSilent, Interrupted) as error:
            return self._unread(candidate.path, candidate.identity, error)

    def may_prove(self, candidate: Candidate, glanced: Verification) -> bool:
        """Return whether a manifest may prove what a glance could not."""
        if glanced.verdict is not Verdict.UNVERIFIABLE:
            return False
        manifest = self._manifest(candidate)
        return manifest is not None and manifest.identity.size == candidate.identity.size

    def read(self, candidate: Candidate) -> Verification:
        """Return the verdict on a candidate, by the least reading that proves it."""
        suspect = self.options.suspect
        if markers.unfinished(candidate.path):  # its bytes may be those of the manifest all the same
            return self._verify(candidate.path, candidate.identity, "")
        known = self.options.cache.get(candidate.path, candidate.identity)
        manifest = self._manifest(candidate)
        if manifest is not None and is_same(candidate.identity, manifest):
            in_doubt = suspect or (known is not None and known.verdict in REJECTED_FOR)
            if is_unchanged(candidate.identity, manifest.identity) and not in_doubt:
                return self._believed(_recorded(candidate.path, candidate.identity, manifest, check.LEVEL))
            why = _SUSPECT if suspect else "it moved since it was verified"
            return self._kept(self._check(candidate.path, manifest, candidate.identity, why))
        if known is not None and known.verdict in _FINAL:
            verification = known
        elif known is not None and known.level in _FULL and not suspect:
            verification = self._believed(known)
        else:
            why = "never verified" if known is None or known.level not in _FULL else _SUSPECT
            verification = self._verify(candidate.path, candidate.identity, why)
        if manifest is not None and manifest.identity.size == candidate.identity.size and _may_be_proven(verification):
            # rewritten, or a directory that moved: equal bytes prove it, whatever its zeros look like; others prove nothing
            proven = self._check(candidate.path, manifest, candidate.identity, "its format has no checksums")
            verification = proven if proven.verdict is Verdict.VERIFIED else verification
        return verification if verification.level == "identity" else self._kept(verification)

    def read_spare(self, spare: Spare) -> Verification:
        """Return the verdict on a copy, which is read, or on what a mirror has, which its manifest describes."""
        if spare.copy_path:
            return self._check(spare.copy_path, spare.manifest, identity_of(spare.copy_path) or _NOWHERE, "a copy")
        return _recorded(spare.original_path, _NOWHERE, spare.manifest, "manifest")

    def _manifest(self, candidate: Candidate) -> Manifest | None:
        return self.options.manifests.get(candidate.path) if self.options.manifests is not None else None

    def _check(self, path: str, manifest: Manifest, identity: Identity, why: str) -> Verification:
        return self._followed(path, identity, lambda how: check.check(path, manifest, reading=how), why)

    def _verify(self, path: str, identity: Identity, why: str) -> Verification:
        own = self.options.own(path)
        return self._followed(path, identity, lambda how: verify(path, reading=how, own=own), why)

    def _followed(self, path: str, identity: Identity, work: Callable[[ReadOptions], Verification], why: str) -> Verification:
        options = self.options
        reading = ReadOptions(options.throttle, interrupted=options.interrupted)
        try:
            return options.watch.read(path, work, device=identity.dev, n_bytes=identity.size if why else 0, why=why, reading=reading)
        except (DiskSilent, Interrupted) as error:
            return self._unread(path, identity, error)

    def _unread(self, path: str, identity: Identity, error: DiskSilent | Interrupted) -> Verification:
        if isinstance(error, DiskSilent):
            self.silent[path] = str(error)
        reason = str(error) if isinstance(error, DiskSilent) else NOT_TO_THE_END
        return Verification(path, identity, Verdict.UNKNOWN, reason, reasons=(reason,))

    def _believed(self, known: Verification) -> Verification:
        """Take an earlier verdict, if directory and metadata of the file are still good: the bulk is not read."""
        own = self.options.own(known.path)
        directory = self._followed(known.path, known.identity, lambda how: verify(known.path, bulk=False, reading=how, own=own), "")
        if directory.identity != known.identity or directory.verdict not in (Verdict.VERIFIED, Verdict.UNVERIFIABLE):
            return directory
        self.options.cache.put(known)
        return replace(known, level="identity")

    def _kept(self, verification: Verification) -> Verification:
        self.options.cache.put(verification)
        return verification


def _recorded(path: str, identity: Identity, manifest: Manifest, level: str) -> Verification:
    """Return the verdict of a manifest: only verified checkpoints have one."""
    return Verification(
        path,
        identity,
        Verdict.VERIFIED,
        note_of(manifest.non_finite),
        manifest.step,
        level,
        manifest.within,
        manifest.layout,
        tuple(file.path for file in manifest.files) if manifest.is_tree else (),
        non_finite=manifest.non_finite,
        epoch=manifest.epoch,
        content_step=manifest.content_step,
    )


def _may_be_proven(verification: Verification) -> bool:
    is_probable = verification.verdict in (Verdict.UNVERIFIABLE, Verdict.BAD)
    return is_probable or (verification.verdict is Verdict.VERIFIED and verification.level == "layout")
