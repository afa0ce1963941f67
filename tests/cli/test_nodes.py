"""`supervise nodes`: who is in use, lost or excluded; an excluded node begins no job, and Slurm is asked for others."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from supervisor.cli import nodes
from supervisor.cli import slurm as batch
from supervisor.config.settings import JobSection, Settings
from supervisor.core.values import replace
from supervisor.errors import ExitCode, SuperviseError
from supervisor.job import identity
from supervisor.launch import system_command
from supervisor.node import exclusions
from supervisor.node.gpu_quarantine import GpuQuarantine, QuarantinedGpu
from supervisor.run import start
from tests.cli.jobs.job_of_nodes import JobOfNodes
from tests.support import preloaded
from tests.support.few import few_rows
from tests.support.recorded_job import RecordedJob
from tests.support.supervised import clean_environment

if TYPE_CHECKING:
    from collections.abc import Sequence

HERE = identity.node_name()
PAGE = Path(__file__).parents[2] / "docs" / "guides" / "nodes.md"
#: Slurm's scontrol: keeps what it is asked, and does as UPDATE and REQUEUE say.
SCONTROL = """#!/bin/bash
echo "$@" >> "$CALLS"
case $1 in
    -o) echo "JobId=4711 ExcNodeList=$BEFORE MinCPUsNode=1" ;;
    requeue) exit "$REQUEUE" ;;
    update) [[ $3 != *typo* ]] && exit "$UPDATE" || exit 1 ;;
esac
"""


def put_scontrol(place: Path) -> None:
    """Put the recording scontrol into a directory."""
    program = place / "scontrol"
    program.write_text(SCONTROL)
    program.chmod(0o755)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return dataclasses.replace(Settings(), job=JobSection(state_dir=str(tmp_path / "state")))


def ledger(settings: Settings, node: str) -> GpuQuarantine:
    return GpuQuarantine(Path(settings.job.state_dir), node)


def listed(settings: Settings, capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, object]]:
    capsys.readouterr()
    assert nodes.ls(settings, None, as_json=True) == 0
    return {row["node"]: row for row in json.loads(capsys.readouterr().out)["nodes"]}


def test_an_exclusion_holds_until_the_node_is_allowed_and_leaves_its_gpus_as_they_are(settings: Settings) -> None:
    gpu_quarantine = ledger(settings, "gpu-2")
    gpu = QuarantinedGpu("GPU-a", "0000:3b:00.0", "xid 79", "line", 1000.0, "bert", "run-1")
    gpu_quarantine.quarantine(gpu)
    gpu_quarantine.exclude("hf_token=SECRETVALUE123 and its fan is loud", 1000.0)
    (node_exclusion,) = exclusions.excluded(Path(settings.job.state_dir))
    assert (node_exclusion.node, node_exclusion.t, node_exclusion.by) == ("gpu-2", 1000.0, "person")
    assert node_exclusion.reason.endswith("its fan is loud")
    assert "SECRETVALUE123" not in gpu_quarantine.path.read_text()
    gpu_quarantine.clear("all", 1001.0)
    assert gpu_quarantine.exclusion() == node_exclusion, "that is for GPUs"
    gpu_quarantine.quarantine(replace(gpu, t=1002.0))
    assert gpu_quarantine.allow(1003.0) == node_exclusion
    assert (gpu_quarantine.exclusion(), gpu_quarantine.allow(1004.0), [held.uuid for held in gpu_quarantine.held(1004.0)]) == (
        None,
        None,
        ["GPU-a"],
    )
    assert not ledger(settings, "gpu-3").exclusion()


def test_each_node_is_listed_with_its_state_what_it_has_out_of_use_why_and_since_when(
    settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    root = Path(settings.job.state_dir)
    job = JobOfNodes(RecordedJob, root, HERE, "gpu-2", "gpu-3.cluster")
    job.meet(1, 1)
    job.train(5, 7)
    job.fail(10, "gpu-3.cluster", lost=True)
    job.meet(20, 2, HERE, "gpu-2")
    job.close()
    ledger(settings, "gpu-2").quarantine(QuarantinedGpu("GPU-a", "", "xid 79", "line", 2e9, "bert", "run-1"))
    assert nodes.exclude(settings, "gpu-3", "its disk fails") == 0
    assert nodes.exclude(settings, "gpu-9", "") == 0
    rows = listed(settings, capsys)
    assert list(rows) == [HERE, "gpu-2", "gpu-3.cluster", "gpu-9"]
    assert [(row["state"], row["number"], bool(row["excluded"]), len(row["gpus"])) for row in rows.values()] == [  # type: ignore[arg-type]
        ("training", 0, False, 0),
        ("training", 1, False, 1),
        ("training", None, True, 0),
        ("not in use", None, True, 0),
    ]
    assert nodes.ls(settings, None, as_json=False) == 0
    text = capsys.readouterr().out
    assert re.search(r"^GPU-a  gpu-2  2033-05-18 \d\d:\d\d  2033-05-25 \d\d:\d\d  xid 79$", text, re.MULTILINE), text
    assert "its disk fails" in text
    assert "no reason was given" in text
    assert text.count("EXCLUDED") == 2
    for key in (*rows[HERE], *rows["gpu-9"]["excluded"], *rows["gpu-2"]["gpus"][0]):  # type: ignore[misc, index]
        assert f"`{key}`" in PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["../x", "", "a b", ".hidden"])
def test_an_invalid_node_name_is_refused(settings: Settings, name: str) -> None:
    with pytest.raises(SuperviseError, match="not the name of a node") as caught:
        nodes.exclude(settings, name, "why")
    assert caught.value.exit_code == ExitCode.USAGE


def test_a_node_that_is_not_excluded_cannot_be_allowed(settings: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    nodes.exclude(settings, "gpu-9", "why")
    with pytest.raises(SuperviseError, match="no such node is excluded: gpu-8: gpu-9 is"):
        nodes.allow(settings, "gpu-8")
    assert nodes.allow(settings, "gpu-9") == 0
    assert "jobs may begin again on gpu-9 (was: why)" in capsys.readouterr().out


@pytest.mark.process
def test_no_job_begins_on_an_excluded_node_and_the_error_names_the_remedy(tmp_path: Path) -> None:
    supervise = functools.partial(preloaded.command_text, cwd=tmp_path, environ=clean_environment())
    call_nodes = functools.partial(supervise, "nodes")
    assert call_nodes("exclude", HERE, "--why", "its disk fails").returncode == 0
    refused = supervise("--", "true")
    assert refused.returncode == ExitCode.BAD_NODE
    assert f"{HERE}: its disk fails" in refused.stderr
    assert f"supervise nodes allow {HERE}" in refused.stderr
    assert not list((tmp_path / ".supervise").glob("*/nodes/*/journal.jsonl")), "nothing began"
    assert call_nodes("allow", HERE).returncode == 0
    assert supervise("--", "true").returncode == 0


STEP = {"SLURM_JOB_ID": "7100", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_NODES": "3", "SLURM_STEP_NODELIST": "n[1-3]"}


@pytest.mark.parametrize(
    ("excluded", "nnodes", "environ", "refused"),
    [
        (["n2"], "3", STEP, "a node that the job cannot begin without is excluded since .*: n2: its disk fails"),
        (["n2"], "2:3", STEP, None),
        (["n2", "n3.cluster"], "2:3", STEP, "cannot begin without"),
        (["n9"], "3", STEP, None),
        (["n2"], "", STEP, "cannot begin without"),  # no torchrun: each node is a part of it
        (["n2"], "3", {}, None),
        (["n1"], "1:3", STEP, "this node is excluded"),
        (["n2", "n1"], "3", STEP, "this node is excluded"),
    ],
)
def test_all_nodes_of_a_step_end_at_once_where_too_few_of_them_are_fit(
    settings: Settings, excluded: list[str], nnodes: str, environ: dict[str, str], refused: str | None
) -> None:
    for node in excluded:
        nodes.exclude(settings, node, "its disk fails")
    command = ["python", "-m", "torch.distributed.run", f"--nnodes={nnodes}", "train.py"] if nnodes else ["python", "train.py"]
    with contextlib.nullcontext() if refused is None else pytest.raises(SuperviseError, match=refused) as caught:
        start.require_allowed_nodes(settings, Path(settings.job.state_dir), "n1", command, environ)
    assert caught is None or caught.value.exit_code == ExitCode.BAD_NODE


@pytest.mark.process
@pytest.mark.parametrize(
    ("excluded", "before", "requeue", "update", "calls", "code", "line"),
    few_rows(
        [
            ((), "(null)", 0, 0, ["requeue 4711"], 0, ""),
            (("a.x", "b"), "(null)", 0, 0, ["-o show job 4711", "requeue 4711", "update JobId=4711 ExcNodeList=a,b"], 0, "without a, b"),
            (("b",), "n[1-3]", 0, 0, ["-o show job 4711", "requeue 4711", "update JobId=4711 ExcNodeList=n[1-3],b"], 0, "without b"),
            (
                ("b",),
                "(null)",
                0,
                1,
                ["-o show job 4711", "requeue 4711", "update JobId=4711 ExcNodeList=b"],
                0,
                "may begin on an excluded node",
            ),
            (("b",), "(null)", 1, 0, ["-o show job 4711", "requeue 4711"], 1, "does not requeue job 4711"),
            (("b",), "n1\x01$(id)", 0, 0, ["-o show job 4711", "requeue 4711", "update JobId=4711 ExcNodeList=b"], 0, "without b"),
        ],
        2,
    ),
    ids=["none", "some", "beside the job's own", "not permitted", "not requeued", "no list of nodes"],
)
def test_slurm_is_asked_for_other_nodes_once_it_has_taken_the_job_back(  # noqa: PLR0913, PLR0917  a case
    settings: Settings,
    tmp_path: Path,
    excluded: Sequence[str],
    before: str,
    requeue: int,
    update: int,
    calls: list[str],
    code: int,
    line: str,
) -> None:
    for node in excluded:
        nodes.exclude(settings, node, "why")
    put_scontrol(tmp_path)
    environ = clean_environment(SLURM_JOB_ID="4711", CALLS=str(tmp_path / "calls"), BEFORE=before, REQUEUE=str(requeue), UPDATE=str(update))
    environ["PATH"] = f"{tmp_path}:{environ['PATH']}"
    done = preloaded.command_text("slurm", "requeue", "--state-dir", settings.job.state_dir, cwd=tmp_path, environ=environ)
    assert (done.returncode, (tmp_path / "calls").read_text().splitlines()) == (code, calls)
    assert line in done.stderr
    assert bool(done.stderr) == bool(line)


#: Slurm's scontrol as it answers somebody without an operator's rights (22.05), and as it answers an operator.
DENIES = "echo 'slurm_update error: Invalid user id' >&2; exit 1"
DRAIN = "update NodeName=gpu-9 State=DRAIN Reason=supervise: its disk fails"


@pytest.mark.process
@pytest.mark.parametrize(
    ("then", "line"),
    [
        ("exit 0", "Slurm drains gpu-9 (supervise: its disk fails); `scontrol update NodeName=gpu-9 State=RESUME` ends that"),
        (DENIES, "Slurm does not drain gpu-9: slurm_update error: Invalid user id; ask an operator for `scontrol update"),
        ("exec sleep 1000", "Slurm does not drain gpu-9: no answer within 0.3 s"),
        (None, "Slurm does not drain gpu-9: scontrol cannot be run here"),
    ],
    ids=["permitted", "denied", "no answer", "no scontrol"],
)
def test_slurm_is_asked_to_drain_a_node_where_that_is_wanted_and_its_refusal_leaves_the_node_excluded(  # noqa: PLR0913, PLR0917  a case
    settings: Settings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    then: str | None,
    line: str,
) -> None:
    monkeypatch.setattr(system_command, "SCONTROL_S", 0.3 if then == "exec sleep 1000" else 30.0)
    if then is not None:
        program = tmp_path / "scontrol"
        program.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\n{then}\n')
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin" if then is not None else str(tmp_path))
    assert nodes.exclude(settings, "gpu-9.cluster", "its disk fails", drain=True) == 0
    (warning,) = capsys.readouterr().err.splitlines()
    assert line in warning
    assert then is None or (tmp_path / "calls").read_text() == DRAIN + "\n"
    assert [node_exclusion.node for node_exclusion in exclusions.excluded(Path(settings.job.state_dir))] == ["gpu-9.cluster"]


def test_a_node_is_drained_only_where_that_is_wanted(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "scontrol"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/called\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert nodes.exclude(settings, "gpu-9", "its disk fails") == 0
    assert not (tmp_path / "called").exists()


@pytest.mark.process
@pytest.mark.parametrize(
    ("excluded", "out_of_use", "environ", "update", "calls", "code", "line"),
    [
        ((), (), {}, 0, [], 1, ""),
        (("n9",), ("n8",), {}, 0, [], 1, ""),  # other nodes are unfit, and were not the reason
        (("n2",), (), {}, 0, ["requeue 4711", "update JobId=4711 ExcNodeList=n2"], 0, "requeued without n2"),
        (("n9",), ("n1.x",), {}, 0, ["requeue 4711", "update JobId=4711 ExcNodeList=n9,n1"], 0, "requeued without n9, n1"),
        (
            ("n5",),
            (),
            {"SLURM_HET_SIZE": "2"},
            0,
            ["requeue 4711", "update JobId=4711+0 ExcNodeList=n5", "update JobId=4711+1 ExcNodeList=n5"],
            0,
            "requeued without n5",
        ),
        (("n2",), (), {}, 1, ["requeue 4711", *["update JobId=4711 ExcNodeList=n2"] * 2, "hold 4711"], 0, "requeued and held"),
        (("n2", "typo"), (), {}, 0, ["requeue 4711", *(f"update JobId=4711 ExcNodeList={n}" for n in ("n2,typo", "n2"))], 0, "without n2"),
    ],
    ids=["fit", "others", "excluded", "gpu", "component", "not permitted", "unknown"],
)
def test_a_job_that_ended_for_want_of_a_fit_node_returns_on_others(  # noqa: PLR0913, PLR0917  a case
    settings: Settings,
    tmp_path: Path,
    excluded: Sequence[str],
    out_of_use: Sequence[str],
    environ: dict[str, str],
    update: int,
    calls: list[str],
    code: int,
    line: str,
) -> None:
    for node in excluded:
        nodes.exclude(settings, node, "why")
    for node in out_of_use:
        ledger(settings, node).quarantine(QuarantinedGpu("GPU-a", "", "xid 79", "line", time.time(), "bert", "run-1"))
    put_scontrol(tmp_path)
    job = {
        "SLURM_JOB_ID": "4711",
        "SLURM_JOB_NODELIST": "n[1-2]",
        "SLURM_JOB_NODELIST_HET_GROUP_0": "n1",
        "SLURM_JOB_NODELIST_HET_GROUP_1": "n5",
    }
    given = clean_environment(**job, **environ, CALLS=str(tmp_path / "calls"), BEFORE="(null)", REQUEUE="0", UPDATE=str(update))
    given["PATH"] = f"{tmp_path}:{given['PATH']}"
    (tmp_path / "calls").touch()
    done = preloaded.command_text("slurm", "requeue", "--elsewhere", "--state-dir", settings.job.state_dir, cwd=tmp_path, environ=given)
    lines = (tmp_path / "calls").read_text().splitlines()
    assert (done.returncode, [row for row in lines if not row.startswith("-o show")]) == (code, calls)
    assert line in done.stderr
    assert bool(done.stderr) == bool(line)


@pytest.mark.process
def test_a_ledger_that_cannot_be_read_hides_no_other_one_from_slurm(settings: Settings, tmp_path: Path) -> None:
    nodes.exclude(settings, "b", "why")
    (Path(settings.job.state_dir) / ".gpus" / "a.jsonl").mkdir()
    put_scontrol(tmp_path)
    environ = clean_environment(SLURM_JOB_ID="4711", CALLS=str(tmp_path / "calls"), BEFORE="(null)", REQUEUE="0", UPDATE="0")
    environ["PATH"] = f"{tmp_path}:{environ['PATH']}"
    done = preloaded.command_text("slurm", "requeue", "--state-dir", settings.job.state_dir, cwd=tmp_path, environ=environ)
    assert (done.returncode, (tmp_path / "calls").read_text().splitlines()[-1]) == (0, "update JobId=4711 ExcNodeList=b")
    assert "may begin on an excluded node again: cannot use the ledger of the node" in done.stderr


def test_outside_of_slurm_nothing_is_requeued(tmp_path: Path) -> None:
    with pytest.raises(SuperviseError, match="SLURM_JOB_ID is not set"):
        batch.requeue(tmp_path, {})


@pytest.mark.parametrize(
    ("lives", "highest", "code"),
    [
        ({"n1": [(0, None, 0)], "n2": [(0, 90, 75)], "n3": [(0, 91, 75)]}, 137, 75),  # n1 was killed
        ({"n1": [(0, 30, 75)], "n2": [(0, 90, 0)]}, 75, 0),  # n1 left, and the job was done without it
        ({"n1": [(0, 99, 75)], "n2": [(0, 90, 0)]}, 75, 0),  # n1 could not reach the others, and waited longer
        ({"n1": [(0, 30, 75)], "n2": [(0, 90, 1)]}, 75, 1),
        ({"n1": [(0, 30, 75), (60, None, 0)], "n2": [(0, 31, 75), (61, None, 0)]}, 137, 137),  # both killed, in their second life
        ({"n1": [(0, 30, 0)], "n2": [(40, 50, 75)]}, 75, 75),  # begun anew on another node
        ({}, 127, 127),
        ({"n1": [(0, 30, 75)]}, 0, 0),
    ],
    ids=[
        "a node killed",
        "done without one",
        "done while one waited",
        "given up without one",
        "all killed",
        "anew",
        "no journal",
        "all done",
    ],
)
def test_a_job_has_one_exit_code_whatever_nodes_that_were_lost_or_left_ended_with(
    tmp_path: Path, lives: dict[str, list[tuple[float, float | None, int]]], highest: int, code: int
) -> None:
    for node, starts in lives.items():
        for began, ended, own in starts:
            job = RecordedJob(tmp_path / "state", "slurm-4711", node)
            job.T0 += began
            job.begin()
            if ended is not None:
                job.end(own, ended - began)
            job.close()
    RecordedJob(tmp_path / "state", "slurm-4712").end(130)
    assert batch.job_exit_code(tmp_path / "state", "slurm-4711", highest) == code


@pytest.mark.process
def test_a_batch_script_gets_the_exit_code_of_its_job(tmp_path: Path) -> None:
    job = RecordedJob(tmp_path / "state", "slurm-4711", "n1")
    job.begin()
    job.end(75)
    environ = clean_environment(SLURM_JOB_ID="4711")
    done = preloaded.command_text("slurm", "exit-code", "--state-dir", "state", "137", cwd=tmp_path, environ=environ)
    assert (done.returncode, done.stdout, done.stderr) == (0, "75\n", "")
