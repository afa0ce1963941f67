"""The progress of long work at true size: 20 GiB of a checkpoint, a mirror of a million objects, a journal of months."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from checkpointing.command_line.output import Output
from checkpointing.command_line.verdicts import verify
from supervisor.cli import stdio
from supervisor.cli.checkpoints.mirror import list_mirrors
from supervisor.cli.jobs.job_files import JobFiles, whole_view_of
from supervisor.config.settings import Checkpoints, Settings
from supervisor.job import identity
from tests.scale.object_store import mirror_keys, object_store
from tests.scale.patterned_disk import PatternedDisk, save
from tests.support.long_journal import write_months
from tests.support.terminal import stderr_is_a_terminal
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from pathlib import Path

GIB = 1 << 30


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_verify_of_20_gib_shows_bytes_rate_and_time_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, printed = PatternedDisk(monkeypatch), list[str]()
    path = save(tmp_path / "step_9.safetensors", 20 * GIB, 9)
    with stderr_is_a_terminal(monkeypatch) as terminal:
        assert verify([str(path)], Output(write=printed.append)) == 0
        wait_for(lambda: not terminal.rows, "the end of the bar")
    assert disk.n_read >= 20 * GIB
    frames = [line for line in terminal.lines if re.search(r"━ \d+\.\d GiB of 20\.0 GiB, [\d.]+ [GM]iB/s, (\d+ min )?\d+ s left$", line)]
    amounts = [float(re.findall(r"([\d.]+) GiB of", line)[0]) for line in frames]
    assert len(set(amounts)) > 20
    assert amounts == sorted(amounts)
    assert printed[0].startswith("good")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_list_of_a_million_objects_counts_what_it_has_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    settings = replace(Settings(), checkpoints=Checkpoints(mirror=("s3://bucket",)), cwd=str(tmp_path))
    with object_store(mirror_keys("job", 200, 5000), latency_s=0.1) as store, stderr_is_a_terminal(monkeypatch) as terminal:
        monkeypatch.setenv("AWS_ENDPOINT_URL", store.url)
        assert list_mirrors(settings, "job", as_json=False) == 0
        wait_for(lambda: not terminal.rows, "the end of the bar")
    seen = [int(number.replace(",", "")) for number in re.findall(r"listing the mirror +\S* *([\d,]+) entries", "\n".join(terminal.lines))]
    assert seen[-1] > 200
    assert seen == sorted(seen)
    assert capsys.readouterr().out.count("it was removed meanwhile") == 200, "each is named, as none of these manifests has bytes"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_journal_of_58_mb_is_shown_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = identity.node_name()
    directory = tmp_path / "months" / "nodes" / node
    directory.mkdir(parents=True)
    n_bytes = write_months(directory / "journal.jsonl", node, monkeypatch, 115.0, view_every_s=1e9)
    assert n_bytes > 57e6
    monkeypatch.setattr("checkpointing.command_line.progress._DELAY_S", 0.2)
    with stderr_is_a_terminal(monkeypatch) as terminal:
        view, _ = whole_view_of(JobFiles("months", node, directory))
        wait_for(lambda: not terminal.rows, "the end of the bar")
        stdio.say("a line after it")
        wait_for(lambda: terminal.rows == ["supervise: a line after it"], "the line alone")
    assert len(view.incidents) > 100
    shown = "\n".join(terminal.lines)
    assert re.search(r"(checking|reading) the journal of months .* MiB of \d+ MiB, [\d.]+ MiB/s, \d+ s left", shown)
