"""`supervise checkpoints prune`: removes a job's older copies, or lists those that it would remove; names the files set aside.

It removes our own copies, and those in mirrors where a number for them is given. The job's own checkpoints it only lists: their supervisor
alone removes them, since it knows what the ranks use.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import click

from checkpointing.discover import find
from checkpointing.model import size_text
from checkpointing.retention import prune as pruning
from checkpointing.retention import rules
from checkpointing.retention.aside import AsideRecord, size_of
from checkpointing.retention.copies import DIRECTORY as COPIES
from checkpointing.retention.copies import Copies
from supervisor.checkpoints.references import leads_to
from supervisor.cli import stdio
from supervisor.cli.checkpoints import mirror
from supervisor.cli.checkpoints.records import DIRECTORY, MIRROR, RecordedCheckpoints, named_or_latest_job, refuse_while_running
from supervisor.cli.checkpoints.verify import output
from supervisor.cli.invocation import JOB, Invocation, json_option, setting_options
from supervisor.cli.jobs.job_files import find_job, state_root
from supervisor.cli.progress import progress
from supervisor.observe.ranks.path_patterns import pattern_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from checkpointing.retention.aside import AsideChange
    from supervisor.config.settings import Settings


@click.command()
@setting_options(*JOB, *MIRROR, "checkpoints.keep")
@click.option("--mirror-keep", type=click.IntRange(min=1), metavar="N", help="Keep this many of the newest in each mirror.")
@click.option("--dry-run", is_flag=True, help="Only list what would be removed.")
@json_option
def command(invocation: Invocation, *, mirror_keep: int | None, dry_run: bool, as_json: bool) -> int:
    """--keep is the number of our copies to keep, else 2. With it the command also lists what the supervisor would remove of the job's own.

    Files that were set aside (.supervise-aside) stay, and are listed with their size.
    It runs on a node where the job ran, while the job does not run; --dry-run also while it runs.
    """
    settings, job = named_or_latest_job(invocation)
    return prune(settings, job, mirror_keep, dry_run=dry_run, as_json=as_json)


def prune(settings: Settings, job: str, mirror_keep: int | None, *, dry_run: bool, as_json: bool) -> int:
    """Remove the copies beyond the limit, or with `dry_run` list them. Returns 0; 1 where a damaged copy kept older ones from going."""
    checkpoints = settings.checkpoints
    place = find_job(state_root(settings), job)
    if not dry_run:
        refuse_while_running(place)
    directory = place.directory / DIRECTORY
    policy = rules.RetentionPolicy(checkpoints.keep or rules.RetentionPolicy().newest, checkpoints.keep_every or None)
    records = RecordedCheckpoints(directory, is_writer=not dry_run)
    with progress("removing our own copies", wanted=not as_json):
        gone = Copies(records.catalogue, 0, order=records.order.order).prune(policy, dry_run=dry_run)
    for name in gone.removed:
        _say("copy", name, removed=not dry_run, as_json=as_json)
    if gone.reason:
        _say("copy", str(directory / COPIES), reason=gone.reason, as_json=as_json)
    if checkpoints.keep:
        for pruned in _own(settings, records, policy):
            _say("checkpoint", pruned.path, reason=pruned.reason or "the supervisor removes it after the next save", as_json=as_json)
    in_mirrors = mirror_keep or checkpoints.mirror_keep
    if in_mirrors and checkpoints.mirror:
        every = checkpoints.keep_every or None
        mirror.prune(settings, job, rules.RetentionPolicy(in_mirrors, every), dry_run=dry_run, as_json=as_json)
    with progress("measuring the files set aside", wanted=not as_json):
        for change in AsideRecord(records.catalogue).standing():
            _say("set aside", change.to, reason=_why_aside(change, settings.undo_command(place.job, change.id)), as_json=as_json)
    if not gone.removed and not gone.reason:
        stdio.say("no backup copy is to be removed")
    return 1 if gone.reason else 0


def _why_aside(change: AsideChange, undo: str) -> str:
    """Return what lies there, how large it is, and which commands take it away."""
    back = f"`{undo}` moves it back, `rm -r {shlex.quote(change.to)}` frees the room"
    return f"{size_text(size_of(change.to))}, from {change.path} ({change.reason}): {back}"


def _own(settings: Settings, records: RecordedCheckpoints, policy: rules.RetentionPolicy) -> Iterator[pruning.Pruned]:
    """Yield those of the job's own checkpoints that a policy does not keep, place by place."""
    declared = {candidate.path for candidate in find(settings.checkpoints.paths, str(settings.cwd)).candidates}
    rows: dict[str, list[pruning.PruneRow]] = {}
    order = records.order.order()
    for manifest in records.manifests.all():
        seen = records.last_run.written_files(manifest.path, (manifest.made_unix_s + 1) * 10**9, manifest.identity)
        is_rejected = records.rejections.get(manifest.path, manifest.identity) is not None
        if manifest.path in declared or records.last_run.is_checkpoint(manifest.path):
            rows.setdefault(pattern_of(manifest.path), []).append(
                pruning.PruneRow(manifest, seen, is_rejected=is_rejected, leads=leads_to(manifest.path))
            )
    for pattern in sorted(rows):
        newest = order.newest_manifests(row.manifest for row in rows[pattern])[0]
        for row, reason in pruning.plan(rows[pattern], policy, newest.path, order):
            yield pruning.Pruned.of(row, reason)


def _say(kind: str, path: str, *, removed: bool = False, reason: str = "", as_json: bool) -> None:
    text = f"{'removed' if removed else 'stays' if reason else 'would remove'} {kind} {path}{f': {reason}' if reason else ''}"
    output(as_json=as_json).row({"what": kind, "path": path, "removed": removed, "reason": reason}, text)
