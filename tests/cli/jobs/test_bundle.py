"""`supervise bundle`: what it holds, what it must never hold, how large it may be, and what it writes."""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
import os
import re
import subprocess
import sys
import tarfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from health.doctor import Diagnosis
from health.model import KERNEL, Reading, Readings
from supervisor.classify import redact
from supervisor.classify.redact import KnownSecrets
from supervisor.cli.bundle import archive, command, known, sources
from supervisor.cli.bundle.archive import BundleContents
from supervisor.cli.jobs.job_files import find_job, state_root, view_of
from supervisor.config import loading
from supervisor.config.settings import Settings
from supervisor.core.model import Evidence
from supervisor.errors import SuperviseError
from supervisor.job import digest_key, identity
from supervisor.view.reading import read_view
from tests.support.canaries import CANARY
from tests.support.few import few
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from health.model import Json
    from tests.support.recorded_job import RecordedJob

MIB = 1 << 20
FOUND: Json = {"kind": "oom", "line": "Memory cgroup out of memory"}
WELL = Diagnosis((), (), 0.1, 1.0, Readings([Reading("kernel_log", KERNEL, "kernel.findings", [FOUND])]))


def packed(written: RecordedJob, number: int | None = None, *, most: int = 64 * MIB, secrets: KnownSecrets | None = None) -> BundleContents:
    """Collect a bundle of a job whose node is well."""
    place = find_job(state_root(written.settings), written.job)
    subject = sources.find_subject(place, view_of(place)[0], number)
    contents = BundleContents(secrets or KnownSecrets(), most)
    sources.fill(contents, subject, written.settings, lambda: WELL, asks_stacks=False)
    return contents


def content(contents: BundleContents, name: str) -> bytes:
    return next(member.content for member in contents.members if member.name == name)


def failed(written: RecordedJob, *facts: Evidence) -> None:
    written.begin()
    written.start(1)
    written.progress(5, 3, step=3)
    written.fail(10, *facts)
    written.restart(20)
    written.succeed(60)


def keep_incident(written: RecordedJob, number: int, card: str) -> None:
    kept = written.directory / "incidents" / f"{number:04d}"
    kept.mkdir(parents=True)
    (kept / "card.txt").write_text(card, "utf-8")
    (kept / "evidence.json").write_text(json.dumps([{"text": card}]), "utf-8")


def test_the_bundle_holds_the_incidents_files_and_lists_the_missing_ones(written: RecordedJob) -> None:
    failed(written)
    keep_incident(written, 1, "-- incident 1 of job train")
    for name in ("rank-0.err", "rank-1.err", "rank-1.out", "agent.log"):
        written.log(1, name, f"{name} of attempt 1\n".encode())
    written.log(2, "rank-1.err", b"of attempt 2\n")
    contents = packed(written)
    assert [member.name for member in contents.members] == [
        "card.txt", "evidence.json", "status.json", "settings.txt", "versions.json", "doctor.json", "kernel-findings.json", *(
        ["nvidia-smi.txt"] if any(member.name == "nvidia-smi.txt" for member in contents.members) else []),
        "journal.jsonl", "logs/rank-1.out", "logs/rank-1.err", "logs/agent.log", "logs/rank-0.err",
    ]  # fmt: skip
    assert content(contents, "logs/rank-1.err") == b"rank-1.err of attempt 1\n", "of the attempt that failed"
    assert json.loads(content(contents, "kernel-findings.json")) == [FOUND]
    assert json.loads(content(contents, "status.json"))["job"] == "train"
    assert json.loads(content(contents, "versions.json"))["packages"]["click"]
    assert dict(contents.left_out)["supervise.log"] == "No such file or directory"
    manifest = json.loads(contents.manifest({"job": "train"}))
    assert {row["name"] for row in manifest["members"]} == {member.name for member in contents.members}
    assert {"name": "supervise.log", "why": "No such file or directory"} in manifest["left_out"]


@pytest.mark.process
def test_the_bundle_holds_the_output_of_nvidia_smi(written: RecordedJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nvidia-smi").write_text('#!/bin/sh\necho "asked: $*"\n')
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    failed(written)
    assert content(packed(written), "nvidia-smi.txt") == b"asked: -q\n"


def test_its_journal_is_a_journal_of_the_time_around_the_incident(written: RecordedJob, tmp_path: Path) -> None:
    failed(written, Evidence("log", "exception", f"RuntimeError: token={CANARY}", 1))
    journal = content(packed(written), "journal.jsonl")
    assert CANARY.encode() not in journal
    (tmp_path / "journal.jsonl").write_bytes(journal)
    view = read_view(tmp_path / "journal.jsonl")
    assert (view.problems, [incident.number for incident in view.incidents]) == ([], [1])
    assert view.run is not None


def test_a_secret_has_one_digest_in_all_members_and_the_key_is_in_none(written: RecordedJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "_diagnosis", lambda _: WELL)
    before = redact._key  # noqa: SLF001  what `use_key` replaces
    try:
        job_directory = identity.job_files(written.directory)
        job_directory.mkdir(parents=True, exist_ok=True)  # the journal has a thread, which may not have made it yet
        digest_key.use(job_directory, makes=True)
        digest = redact.digest("hunter2")  # as the run wrote it
        redact.use_key(b"of the process that makes the bundle")
        failed(written, Evidence("log", "exception", f"RuntimeError: token={digest}", 1))
        written.log(1, "rank-0.err", b"password=hunter2\n")
        subject = sources.find_subject(place := find_job(state_root(written.settings), written.job), view_of(place)[0], None)
        contents, _ = command.collect(written.settings, subject, 64 * MIB, 0.0, asks_stacks=False)
    finally:
        redact.use_key(before)
    for name in ("journal.jsonl", "logs/rank-0.err"):
        assert digest.encode() in content(contents, name), name
    key = (job_directory / digest_key.NAME).read_bytes()
    assert not any(key in member.content or key.hex().encode() in member.content for member in contents.members)


def test_a_later_part_of_a_long_run_is_not_in_the_bundle(written: RecordedJob) -> None:
    written.begin()
    written.start(1)
    written.fail(10)
    written.restart(20)
    for hour in range(2, 5):
        written.progress(3600 * hour, 100 * hour, step=100 * hour)
    written.succeed(3600 * 6)
    journal = content(packed(written), "journal.jsonl").decode()
    assert '"step":4' in journal
    assert '"step":300' not in journal


def test_an_incident_of_an_earlier_run_has_the_output_of_that_run(root: Path, make_job: type[RecordedJob]) -> None:
    first = make_job(root)
    failed(first)
    second = make_job(root, anew=True)
    second.begin(run_id="run-2")
    second.start(1)
    second.succeed(5)
    kept = second.directory / "runs" / "run-1" / "0001"
    kept.mkdir(parents=True)
    (kept / "rank-1.err").write_bytes(b"of run 1\n")
    second.log(1, "rank-1.err", b"of run 2\n")
    contents = packed(second, 1)
    assert content(contents, "logs/rank-1.err") == b"of run 1\n"
    assert [incident.number for incident in read_of(content(contents, "journal.jsonl"), root)] == [1]


def read_of(journal: bytes, place: Path) -> list[Any]:
    (place / "slice.jsonl").write_bytes(journal)
    return read_view(place / "slice.jsonl").incidents


def test_a_job_without_an_incident_has_a_bundle_too_and_a_wrong_number_is_an_error(written: RecordedJob) -> None:
    written.begin()
    written.start(1)
    written.progress(5, 3, step=3)
    written.log(1, "rank-0.out", b"hello\n")
    written.close()
    contents = packed(written)
    assert content(contents, "logs/rank-0.out") == b"hello\n"
    assert "card.txt" not in [member.name for member in contents.members]
    with pytest.raises(SuperviseError, match="no such incident: job train: 7") as error:
        packed(written, 7)
    assert error.value.exit_code == 64


def test_below_the_cap_a_text_keeps_its_end_and_the_rest_is_left_out() -> None:
    contents = BundleContents(KnownSecrets(), 1000)
    contents.add("a.json", "", lambda: ["x" * 500], archive.document)
    contents.add("b.json", "", lambda: ["x" * 500], archive.document)
    contents.add("c.txt", "", lambda: "".join(f"line {number}\n" for number in range(1000)))
    contents.add("d.txt", "", lambda: "too late")
    assert [(member.name, member.is_cut) for member in contents.members] == [("a.json", False), ("c.txt", True)]
    assert contents.members[1].content.startswith(b"line 9")
    assert contents.members[1].content.endswith(b"line 999\n")
    assert sum(len(member.content) for member in contents.members) <= 1000
    assert [name for name, _ in contents.left_out] == ["b.json", "d.txt"]


@pytest.mark.parametrize("shift", few(range(0, 40, 5), 2))
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("other", [b"x" * 99 + b"\n", b"token=" + b"z" * 993 + b"\n"], ids=["as long", "shorter by its digests"])
def test_a_secret_that_the_cut_divides_is_not_left_in_half(shift: int, parts: int, other: bytes, tmp_path: Path) -> None:
    """The beginning of what is read moves through a name and its value; so does the place where the output was rotated."""
    most, line = 4096, b"retry with api_key=" + CANARY.encode() + b" now\n"
    behind = most + sources._CONTEXT_BYTES - shift  # noqa: SLF001  how much of what is read lies behind the secret's line
    data = line + other * (behind // len(other)) + b"y" * (behind % len(other) - 1) + b"\n"
    files = [tmp_path / f"rank-0.out.{number}" for number in range(parts)]
    for number, path in enumerate(files):
        path.write_bytes(data if parts == 1 else data[: 10 + shift] if number == 0 else data[10 + shift :])
    contents = BundleContents(KnownSecrets(), MIB)
    contents.add("log", "", partial(sources._end_of_all, files, most), most_bytes=most)  # noqa: SLF001
    (member,) = contents.members
    assert not any(CANARY[-size:].encode() in member.content for size in (len(CANARY), 8, 5))
    assert 1000 < len(member.content) <= most


def test_one_line_without_an_end_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "rank-0.out").write_bytes(b"z" * 4 * MIB)
    contents = BundleContents(KnownSecrets(), 64 * MIB)
    contents.add("log", "", lambda: sources._end_of_all([tmp_path / "rank-0.out"], MIB), most_bytes=MIB)  # noqa: SLF001
    assert not contents.members
    assert "are one line" in contents.left_out[0][1]


def test_a_colour_between_a_name_and_its_value_hides_nothing() -> None:
    contents = BundleContents(KnownSecrets(), MIB)
    contents.add("log", "", f"\x1b[33mapi_key\x1b[0m\x1b[1m=\x1b[0m\x1b[32m'{CANARY}'\x1b[0m\nnext\n".encode)
    assert CANARY.encode() not in contents.members[0].content
    assert contents.members[0].content.endswith(b"\nnext\n")


def test_the_values_of_settings_and_environment_are_hidden_under_any_name(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("k3y-0f-pagerduty\n")
    (tmp_path / "supervise.toml").write_text(
        '[[alerts.sink]]\nkind = "slack"\nurl = "https://hooks.slack.com/services/T0/B0/s1ack0part"\n'
        f'[[alerts.sink]]\nkind = "pagerduty"\nsecret_file = "{tmp_path / "key"}"\n'
    )
    (tmp_path / "supervise.toml").chmod(0o600)
    settings = loading.load({}, {}, tmp_path, str(tmp_path / "supervise.toml"))
    settings = replace(settings, job=replace(settings.job, command=("train.py", "--hf-token", "a-w0rd-of-argv")))
    environ = {
        "MY_SECRET": "fr0m-env",
        "PROXY": "http://me:pr0xypass@proxy:3128",
        "TOKEN_DIR": str(tmp_path),
        "LANG": "C.UTF-8",
        "API_KEY": "ab",
    }
    secrets = known.known_secrets(settings, environ, ())
    for value in ("s1ack0part", "k3y-0f-pagerduty", "a-w0rd-of-argv", "fr0m-env", "pr0xypass"):
        assert value not in secrets.hidden_in(f"layer {value} of {value}"), value
    ordinary = f"in {tmp_path} at C.UTF-8, ab"
    assert secrets.hidden_in(ordinary) == ordinary


def texts_in(data: bytes) -> Iterator[bytes]:
    """Yield the bytes, and what each word of them is in base64."""
    yield data
    for word in re.findall(rb"[A-Za-z0-9+/_-]{12,}={0,2}", data):
        bare = word.rstrip(b"=")
        with contextlib.suppress(binascii.Error):
            yield base64.b64decode(bare + b"=" * (-len(bare) % 4), altchars=b"-_" if set(b"-_") & set(bare) else None)


SCRIPT = """
import base64, json, os, sys
sys.path.insert(0, {repository!r})
from tests.support.canaries import CANARY, PLANTED
for text in PLANTED.values():
    print("form", text)
    print("form", base64.b64encode(text.encode()).decode(), file=sys.stderr)
    print(json.dumps({{"message": text}}), file=sys.stderr)
bare = os.environ["DEPLOY_TOKEN"]
print("bare", bare, repr(sys.argv), base64.b64encode(bare.encode()).decode(), bare.encode().hex())
print(dict(os.environ))
raise RuntimeError("cannot log in to https://user:" + bare + "@host/x?X-Amz-Signature=" + bare + ", header Authorization: Bearer " + bare)
"""


@pytest.mark.process
@pytest.mark.slow
def test_planted_secrets_are_nowhere_in_the_bundle_of_a_real_job(tmp_path: Path) -> None:
    """In the rank's output, its traceback, its argv and environment, the settings and their file, in plain text, JSON and base64."""
    others = {"DEPLOY_TOKEN": "d3pl0y-7f9Kx2", "HTTPS_PROXY": "http://me:pr0xy-8h3Jd1@p:3128", "DB_PASSWORD": "db p4ss w0rd"}
    values = [CANARY, "d3pl0y-7f9Kx2", "pr0xy-8h3Jd1", "db p4ss w0rd", "sl4ckPath9", "4rgv-5t6y7u", "s1gn3r-0p9o8i"]
    (tmp_path / "key").write_text(values[-1])
    config = tmp_path / "config.toml"
    config.write_text(
        '[[alerts.sink]]\nkind = "slack"\nurl = "http://127.0.0.1:9/services/T0/B0/sl4ckPath9"\n'
        f'[[alerts.sink]]\nkind = "webhook"\nurl = "http://127.0.0.1:9/hooks/{CANARY}"\nsecret_file = "{tmp_path}/key"\n'
    )
    config.chmod(0o600)
    (tmp_path / "train.py").write_text(SCRIPT.format(repository=str(Path(__file__).parents[3])))
    environ = {
        **os.environ,
        **others,
        "SUPERVISE_CONFIG": str(config),
    }
    environ["SUPERVISE_STATE_DIR"] = str(tmp_path / "state")

    def supervise(*words: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "supervisor", *words]
        return subprocess.run(argv, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=100, check=False)  # noqa: S603  ours

    ended = supervise("--job", "j", "--set", "health.enabled=false", "--", sys.executable, "train.py", "--api-key", "4rgv-5t6y7u")
    assert "incident 1 of job j" in ended.stderr, ended.stderr
    before = set(tmp_path.iterdir())
    listed = supervise("bundle", "--job", "j", "--dry-run")
    assert (listed.returncode, set(tmp_path.iterdir())) == (0, before), listed.stderr
    assert "logs/rank-0.err" in listed.stdout
    done = supervise("bundle", "--job", "j", "--output", "b.tar.gz")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "b.tar.gz").stat().st_mode & 0o777 == 0o600
    shown = {"stdout": (listed.stdout + done.stdout).encode()}
    with tarfile.open(tmp_path / "b.tar.gz") as tar:
        for member in tar.getmembers():
            file = tar.extractfile(member)
            assert file is not None
            shown[member.name.partition("/")[2]] = file.read()
    assert {"MANIFEST.json", "card.txt", "evidence.json", "journal.jsonl", "logs/rank-0.out", "logs/rank-0.err", "doctor.json"} <= set(
        shown
    )
    assert b"RuntimeError: cannot log in to https://user:<hidden:" in shown["logs/rank-0.err"], "the failure can still be read"
    left = [(name, value) for name, data in shown.items() for text in texts_in(data) for value in values if value.encode() in text]
    assert not left
    again = supervise("bundle", "--job", "j", "--output", "b.tar.gz")
    assert (again.returncode, "it is there already" in again.stderr) == (64, True)


def test_a_process_of_the_job_that_lives_gives_its_secrets_away_to_be_hidden() -> None:
    """The shell that packs the bundle need not have what the job was started with."""
    environ = {"DEPLOY_TOKEN": "d3pl0y-7f9Kx2", "PATH": os.environ["PATH"]}
    script = [sys.executable, "-c", "import time; print(flush=True); time.sleep(60)", "--api-key", "4rgv-5t6y7u"]
    with subprocess.Popen(script, env=environ, stdout=subprocess.PIPE) as job:  # noqa: S603  ours
        assert job.stdout is not None
        job.stdout.readline()
        secrets = known.known_secrets(Settings(), {}, (job.pid, 2**22 + 1))
        job.kill()
    assert "d3pl0y-7f9Kx2" not in secrets.hidden_in("a d3pl0y-7f9Kx2")
    assert "4rgv-5t6y7u" not in secrets.hidden_in("a 4rgv-5t6y7u")


@pytest.mark.slow
@pytest.mark.process
def test_the_ranks_of_a_job_that_runs_are_asked_for_their_stacks(tmp_path: Path) -> None:
    environ = {**os.environ, "SUPERVISE_STATE_DIR": str(tmp_path / "state")}
    (tmp_path / "train.py").write_text(
        "import time\ndef stuck_here():\n    open('started', 'w').close()\n    time.sleep(600)\nstuck_here()\n"
    )
    argv = [sys.executable, "-m", "supervisor"]
    with subprocess.Popen(  # noqa: S603  ours
        [*argv, "--job", "j", "--set", "health.enabled=false", "--", sys.executable, "train.py"],
        cwd=tmp_path,
        env=environ,
        stderr=subprocess.DEVNULL,
    ) as job:
        try:
            wait_for((tmp_path / "started").exists, "the job's rank", 60)
            wait_for(lambda: '"rank":0' in next((tmp_path / "state").glob("j/nodes/*/journal.jsonl")).read_text(), "its record", 20)
            options = ["bundle", "--job", "j", "--stacks", "-o", "b.tar.gz"]
            subprocess.run([*argv, *options], cwd=tmp_path, env=environ, check=True, timeout=100)  # noqa: S603  ours
        finally:
            job.terminate()
            job.wait(60)
    with tarfile.open(tmp_path / "b.tar.gz") as tar:
        (answer,) = [member for member in tar.getmembers() if member.name.endswith("/stacks/rank-0-now.txt")]
        file = tar.extractfile(answer)
        assert file is not None
        assert b"in stuck_here" in file.read()
