"""The catalogue's facts of each checkpoint of a job. No checkpoint is read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from checkpointing import markers, step_names
from checkpointing.discover import find
from checkpointing.model import Candidate, Identity, is_unchanged, note_of
from checkpointing.retention.copies import Copies
from checkpointing.verification import identity_of
from supervisor.checkpoints.mirror.mirrored import MIRRORED
from supervisor.checkpoints.origin.baseline import BEFORE
from supervisor.checkpoints.recording import numerics
from supervisor.core.values import Struct
from supervisor.observe.ranks import path_patterns

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from checkpointing.manifest.documents import Manifest
    from checkpointing.rejections import Rejection
    from supervisor.checkpoints.discovery.record import Location
    from supervisor.cli.checkpoints.records import RecordedCheckpoints
    from supervisor.config.settings import Settings

_OUT_OF_USE: Final = "out of use"


class RejectedAs(Struct, frozen=True):
    """Why a checkpoint is not handed out. Times are Unix seconds."""

    kind: str  # as in the row `rejected`
    reason: str  # why it is not handed out
    t: float  # since when

    @staticmethod
    def of(rejection: Rejection | None) -> RejectedAs | None:
        """Return what a row says of a rejection."""
        return None if rejection is None else RejectedAs(rejection.kind, rejection.reason, rejection.t)


class VerifiedAs(Struct, frozen=True):
    """The verification of a checkpoint."""

    t: float  # when
    id: str | None  # of its digests; null: they were dropped
    format: str  # its format


class CopiedTo(Struct, frozen=True):
    """A backup copy."""

    place: str  # where it lies
    t: float  # since when
    held_by: str  # which run holds it


class MirroredTo(Struct, frozen=True):
    """A copy in a mirror."""

    mirror: str  # which
    key: str  # its key there
    t: float  # since when that is known


class CheckpointFacts(Struct, frozen=True):
    """One checkpoint. None: not known."""

    path: str  # which path; records of an earlier content of it are left out
    step: int | None  # as its content or its name gives it
    bytes: int  # its size
    state: str  # `verified`, `unread`, `unfinished`, `out of use`, or the kind of its rejection
    reason: str  # why
    identity: Identity  # which content is meant
    run: str  # who wrote it, "" where that is not known
    attempt: int | None  # likewise, or null
    writer: str  # `ranks`: their save was logged; `before`: it lay there before any run of the job; `unknown`
    verified: VerifiedAs | None  # null where it was not
    finite: bool | None  # whether all its numbers are; null where it was not verified
    copied: tuple[CopiedTo, ...]  # our copies
    mirrored: tuple[MirroredTo, ...]  # the mirrors that hold it
    rejected: RejectedAs | None  # null where it is not


def facts_of_all(settings: Settings, records: RecordedCheckpoints, discovered: Sequence[Location]) -> list[CheckpointFacts]:
    """Return the facts of each checkpoint that is declared, discovered, or of which something is recorded, sorted by path."""
    before = {row.path: row.identity for row in records.catalogue.each(BEFORE)}
    copies, mirrored = Copies(records.catalogue, 0).all(), records.catalogue.all(MIRRORED)
    facts = []
    for candidate in _candidates(settings, records, discovered):
        # a record of another content of its path is not about this one
        path, identity = candidate.path, candidate.identity
        rejection, manifest = records.rejections.get(path, identity), records.manifests.facts(path)
        manifest = manifest if manifest is not None and manifest.identity == identity else None
        state, reason = _state(records, candidate, rejection, manifest)
        lineage = records.order.lineage_of(path, identity, candidate.written_ns)
        facts.append(
            CheckpointFacts(
                path=path,
                step=_shown_step(candidate, manifest),
                bytes=identity.size,
                state=state,
                reason=reason,
                identity=identity,
                run=lineage.run,
                attempt=lineage.attempt or None,
                writer=_writer(records, candidate, lineage.run, before.get(path)),
                verified=None
                if manifest is None
                else VerifiedAs(manifest.made_unix_s, manifest.id if manifest.files else None, manifest.layout),
                finite=None if manifest is None else not manifest.non_finite,
                copied=tuple(
                    CopiedTo(copy.place, copy.made_ns / 1e9, copy.held_by)
                    for copy in copies
                    if manifest is not None and copy.manifest.path == path and copy.manifest.id == manifest.id
                ),
                mirrored=tuple(
                    MirroredTo(row.mirror, row.key, row.t) for row in mirrored if row.path == path and is_unchanged(identity, row.identity)
                ),
                rejected=RejectedAs.of(rejection),
            )
        )
    return facts


def _candidates(settings: Settings, records: RecordedCheckpoints, discovered: Sequence[Location]) -> Iterator[Candidate]:
    """Yield what the declared patterns match, what the learned ones do, and what something is written down about, sorted by path."""
    cwd = str(settings.cwd)
    patterns = tuple(location.pattern for location in discovered if location.kind != "seen")
    candidates = {candidate.path: candidate for candidate in find(settings.checkpoints.paths, cwd).candidates}
    for candidate in find(patterns, cwd).candidates if patterns else ():
        if any(path_patterns.matches(pattern, candidate.path) for pattern in patterns):
            candidates.setdefault(candidate.path, candidate)
    for path in [*(rejection.path for rejection in records.rejections.all()), *(manifest.path for manifest in records.manifests.all())]:
        identity = None if path in candidates else identity_of(path)
        if identity is not None:
            candidates[path] = Candidate(path, identity, step_names.step_in(path))
    yield from (candidates[path] for path in sorted(candidates))


def _state(records: RecordedCheckpoints, candidate: Candidate, rejection: Rejection | None, manifest: Manifest | None) -> tuple[str, str]:
    """Return the state of a checkpoint in a word, and why."""
    if rejection is not None:
        return rejection.kind, rejection.reason
    if marked := markers.unfinished(candidate.path):
        return "unfinished", marked
    back = next((row for row in records.order.roll_backs if records.order.gives_up(row, candidate)), None)
    if back is not None:
        return _OUT_OF_USE, back.reason or f"a run stepped back from {back.path}"
    return ("unread", "") if manifest is None else ("verified", numbers_text(manifest))


def _writer(records: RecordedCheckpoints, candidate: Candidate, run: str, before: Identity | None) -> str:
    """Return who wrote it: ranks whose save was logged, or somebody before the job. `run`: that wrote it, "" where none is known to."""
    if records.last_run.writes(candidate.path) or records.last_run.wrote_earlier(candidate.path):
        return "ranks"
    return "before" if not run and before is not None and is_unchanged(candidate.identity, before) else "unknown"


def numbers_text(manifest: Manifest) -> str:
    """Return the entries that are not finite in a verified checkpoint, and whether an earlier one of its run was finite there."""
    return numerics.report(manifest) or note_of(manifest.non_finite)


def _shown_step(candidate: Candidate, manifest: Manifest | None) -> int | None:
    if manifest is not None:
        return step_names.shown_step(candidate.path, manifest.step, manifest.content_step)
    return candidate.named.step if candidate.named is not None and candidate.named.sure else None
