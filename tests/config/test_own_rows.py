"""Rows of the user's own: [recover.CAUSE], each checked with its place, and signatures of a file."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from supervisor.cli import main
from supervisor.config import loading, recover_rows, signatures
from supervisor.config.policy import to_policy
from supervisor.core.model import Cause, Knob, Launcher
from supervisor.errors import ExitCode, SuperviseError
from supervisor.knobs import resume

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from supervisor.config.settings import Settings

ROW = '[recover.cuda_oom]\nset = { batch_size = 8, activation_checkpointing = true, "env:MODE" = "careful" }\n'
SIGNATURE = (
    '[[signature]]\nid = "our.solver"\ncause = "data_error"\nwhere = ["exception", "line"]\n'
    "anchors = ['solver']\npattern = 'solver diverged'\nweight = 0.95\n"
)
SIGNATURES = '[classify]\nsignatures = ["mine.toml"]\n'
KNOBS = '[knobs]\ndeclared = ["batch_size=--bs", "activation_checkpointing=--ac"]\n'
COMMAND = ("--", "python", "train.py", "--bs", "32")


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    def call(text: str, name: str = "supervise.toml") -> Path:
        (tmp_path / name).write_text(text, encoding="utf-8")
        (tmp_path / name).chmod(0o600)
        return tmp_path / name

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    return call


def test_a_row_is_read_with_its_place_and_shown(load: Callable[[str], Settings], tmp_path: Path) -> None:
    settings = load(ROW)
    (row,) = settings.recover
    assert row.cause == "cuda_oom"
    assert row.sets == (("batch_size", "8"), ("activation_checkpointing", "on"), ("env:MODE", "careful"))
    assert row.place == f"{tmp_path / 'supervise.toml'}:2"
    assert loading.settings_shown(settings)["recover.cuda_oom.set"].value == "batch_size=8, activation_checkpointing=on, MODE=careful"


ROW_WITH_KEY = '[recover.cuda_oom]\nset = { batch_size = 8, "env:WANDB_API_KEY" = "hunter2", "env:MODE" = "careful" }\n'


def test_a_secret_of_a_row_reaches_the_attempt_but_no_policy_and_no_screen(load: Callable[[str], Settings]) -> None:
    settings = load(ROW_WITH_KEY)
    policy = to_policy(settings, Launcher.PLAIN, (Knob("batch_size", "32", "--bs"),))
    (cause, sets) = policy.recover[0]
    assert cause == "cuda_oom"
    assert "hunter2" not in json.dumps(sets) + str(loading.settings_shown(settings))
    assert (sets[0], sets[2]) == (("batch_size", "8"), ("env:MODE", "careful")), "what is no secret stays"
    assert recover_rows.with_values(settings.recover, sets) == settings.recover[0].sets
    with pytest.raises(SuperviseError, match=r"a row is missing: \[recover.cuda_oom\] set env:WANDB_API_KEY"):
        recover_rows.with_values((), sets)


def test_a_secret_in_the_words_that_resume_is_in_no_policy_and_is_used_all_the_same(load: Callable[[str], Settings]) -> None:
    settings = load('[knobs.resume]\nargs = "--resume {resume} --hub-token hunter2"\n[checkpoints]\npaths = ["c/*.pt"]\n')
    way = resume.declared_way(settings)
    assert way is not None
    policy = to_policy(settings, Launcher.PLAIN, (way.knob,))
    assert "hunter2" not in policy.knobs[0].how
    assert policy.knobs[0].how.startswith("--resume {resume} --hub-token <")
    assert way.args == "--resume {resume} --hub-token hunter2"


def test_rows_of_several_files_count_and_of_one_cause_the_stronger(load: Callable[[str], Settings], tmp_path: Path) -> None:
    home = tmp_path / "home" / "supervise"
    home.mkdir(parents=True)
    (home / "config.toml").write_text('[recover.cuda_oom]\nset = { batch_size = 4 }\n[recover.nan_loss]\nset = { "env:LR" = 0.1 }\n')
    assert {row.cause: row.sets for row in load('[recover.cuda_oom]\nset = { batch_size = "08" }\n').recover} == {
        "cuda_oom": (("batch_size", "8"),),
        "nan_loss": (("env:LR", "0.1"),),
    }


def test_a_secret_that_a_flag_of_a_row_has_is_in_no_policy(load: Callable[[str], Settings]) -> None:
    settings = load('[recover.cuda_oom]\nset = { "--hub-token" = "hunter2hunter2", "--lr" = 0.1, "--safe" = true, "a.b=" = 2 }\n')
    policy = to_policy(settings, Launcher.PLAIN, tuple(Knob(name, "", name) for name in ("--hub-token", "--lr", "--safe", "a.b=")))
    ((_, sets),) = policy.recover
    assert dict(sets)["--hub-token"].startswith("<")
    assert sets[1:] == (("--lr", "0.1"), ("--safe", "on"), ("a.b=", "2"))
    assert "hunter2" not in str(loading.settings_shown(settings))
    assert dict(recover_rows.with_values(settings.recover, sets))["--hub-token"] == "hunter2hunter2"
    assert str(settings.recover[0]).endswith(", --lr=0.1, --safe, a.b=2")


def test_a_row_of_a_cause_that_no_signature_names_is_refused_before_anything_starts(
    write: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    row = '[recover.solver_diverged]\nset = { "env:DAMPING" = 0.5 }\n'
    file = write(row)
    for command in ([], ["plan"]):
        assert main.main([*command, *COMMAND]) == ExitCode.CONFIG
        printed = capsys.readouterr().err
        assert f"[recover.solver_diverged] has no effect: no signature in use names the cause solver_diverged ({file}:2)" in printed
        assert 'Write a [[signature]] with cause = "solver_diverged"' in printed
    write(SIGNATURE.replace("data_error", "solver_diverged"), "mine.toml")
    write(SIGNATURES + row)
    assert main.main(["plan", "--json", "--cause", "solver_diverged", *COMMAND]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert planned["sequence"][0]["reason"] == "your row [recover.solver_diverged] sets DAMPING=0.5"
    assert planned["sequence"][-1]["kind"] == "stop"


def test_the_signature_that_was_to_name_a_cause_and_is_not_in_use_is_named_with_the_reason(
    write: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    signature = SIGNATURE.replace("data_error", "solver_diverged").replace("weight =", "confidence =")
    mine = write(signature, "mine.toml")
    write(SIGNATURES + '[recover.solver_diverged]\nset = { "env:DAMPING" = 0.5 }\n')
    assert main.main(["plan", *COMMAND]) == ExitCode.CONFIG
    printed = " ".join(capsys.readouterr().err.split())
    assert "no signature in use names the cause solver_diverged" in printed
    assert f"of {mine} is not in use: " in printed
    assert "Correct the signature that is not in use." in printed


@pytest.mark.parametrize("name", ["Solver", "ab", "our-solver"])
def test_a_name_that_no_cause_may_have_is_answered_with_the_form_of_one(
    write: Callable[..., Path], capsys: pytest.CaptureFixture[str], name: str
) -> None:
    write(f'[recover.{name}]\nset = {{ "env:DAMPING" = 0.5 }}\n')
    assert main.main(["plan", *COMMAND]) == ExitCode.CONFIG
    assert "one of your own signatures: 3 to 40 small letters, digits and _." in " ".join(capsys.readouterr().err.split())


def test_a_signature_is_in_use_beside_ours(load: Callable[[str], Settings], write: Callable[..., Path], tmp_path: Path) -> None:
    write(SIGNATURE, "mine.toml")
    catalogue, problems = signatures.configured(load(SIGNATURES))
    assert not problems
    row = catalogue.row("our.solver")
    assert row is not None
    assert (row.cause, row.anchors, row.where, row.weight) == (Cause.DATA_ERROR, ("solver",), ("exception", "line"), 0.95)
    assert row.origin == str(tmp_path / "mine.toml")
    assert row.pattern.search("rank 3: solver diverged at 7")
    assert len(catalogue.rows) > 100


@pytest.mark.parametrize(
    ("text", "wrong", "remedy"),
    [
        (
            "[recover.cuda_om]\nset = { batch_size = 8 }\n",
            "unknown cause: [recover.cuda_om] in {file}:2: the nearest is cuda_oom",
            "Write [recover.cuda_oom].",
        ),
        (
            "[recover.preempted]\nset = { batch_size = 8 }\n",
            "no row can answer this cause: [recover.preempted] in {file}:2",
            "Leave the row out.",
        ),
        (
            "[recover.cuda_oom]\nset = { batch_sise = 8 }\n",
            "unknown knob: batch_sise: recover.cuda_oom.set in {file}:2: the nearest is batch_size",
            "Write batch_size",
        ),
        (
            "[recover.cuda_oom]\nset = { MODE = 8 }\n",
            "unknown knob: MODE: recover.cuda_oom.set in {file}:2: they are batch_size",
            '"env:NAME"',
        ),
        (
            "[recover.cuda_oom]\nset = { batch_size = 0 }\n",
            "recover.cuda_oom.set, batch_size = 0 in {file}:2: expected a whole number from 1",
            "Give batch_size",
        ),
        (
            "[recover.cuda_oom]\nset = { batch_size = true }\n",
            "batch_size = True in {file}:2: expected a whole number from 1",
            "Give batch_size",
        ),
        (
            "[recover.cuda_oom]\nset = { cpu_offload = false }\n",
            "cpu_offload = False in {file}:2: expected true, which turns it on",
            "Give",
        ),
        ("[recover.nan_loss]\nset = { skip_window = 7 }\n", 'skip_window = 7 in {file}:2: expected steps as in "100:120"', "Give"),
        (
            '[recover.cuda_oom]\nset = { "env:RANK" = 0 }\n',
            "wrong variable: recover.cuda_oom.set in {file}:2: $RANK is set by",
            "Leave env:RANK out",
        ),
        ('[recover.cuda_oom]\nset = { "env:A B" = 0 }\n', "'A B' is not a name of a variable", "Leave"),
        (
            '[recover.nan_loss]\nset = { "--" = 1 }\n',
            "recover.nan_loss.set in {file}:2: '--' is not a flag",
            "as the command has it",
        ),
        (
            '[recover.nan_loss]\nset = { "=" = 1 }\n',
            "recover.nan_loss.set in {file}:2: '=' is not a place",
            "as the command has it",
        ),
        ('[recover.nan_loss]\nset = { "" = 1 }\n', "unknown knob: : recover.nan_loss.set in {file}:2", '"--flag" for a flag'),
        ('[recover.nan_loss]\nset = { "--c:lr" = 1 }\n', "'--c:lr' is not a flag of the command: declare a knob", "as the command has it"),
        (
            '[recover.nan_loss]\nset = { "--lr" = "" }\n',
            "--lr = '' in {file}:2: expected a text of one line that is not empty",
            "Give --lr",
        ),
        ('[recover.nan_loss]\nset = { "--lr" = "-x" }\n', "--lr = '-x' in {file}:2: expected a text", "does not begin with -"),
        (
            '[recover.nan_loss]\nset = { "--amp" = false }\n',
            "--amp = False in {file}:2: expected a text",
            "true, which",
        ),
        ('[recover.nan_loss]\nset = { "--lr" = [1] }\n', "--lr = [1] in {file}:2: expected a text", "a number"),
        ('[recover.nan_loss]\nset = { "lr" = 1 }\n', "unknown knob: lr", '"key=" for one of Hydra'),
        ("[recover.X]\nset = { batch_size = 8 }\n", "unknown cause: [recover.X] in {file}:2", "docs/reference/causes.md"),
        ("[recover.cuda_oom]\nset = {}\n", "recover.cuda_oom.set in {file}:2: expected a table", "Write it as in set = {"),
        ("[recover.cuda_oom]\nsets = { batch_size = 8 }\n", "unknown setting: recover.cuda_oom.sets in {file}:2", "Write set = {"),
        ("recover = 3\n", "wrong type: recover in {file}:1", "Write [recover.CAUSE]"),
    ],
)
def test_a_wrong_row_is_refused_with_its_place_and_a_remedy(
    load: Callable[[str], Settings], tmp_path: Path, text: str, wrong: str, remedy: str
) -> None:
    with pytest.raises(SuperviseError) as refused:
        load(text)
    assert wrong.format(file=tmp_path / "supervise.toml") in refused.value.message
    assert remedy in refused.value.hint
    assert refused.value.exit_code == ExitCode.CONFIG


def test_a_row_that_could_never_act_is_refused_before_anything_starts(
    write: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(ROW)
    for command in ([], ["plan"]):
        assert main.main([*command, *COMMAND]) == ExitCode.CONFIG
        printed = capsys.readouterr().err
        assert f"[recover.cuda_oom] has no effect: the command has no knob batch_size ({file}:2)" in printed
        assert "--knob batch_size=--bs" in printed
    assert not (file.parent / ".supervise").exists()


def test_the_plan_shows_both(write: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    mine = write(SIGNATURE + SIGNATURE.replace("our.solver", "our.slow").replace("diverged", "(a+)+$"), "mine.toml")
    file = write(KNOBS + ROW + SIGNATURES)
    assert main.main(["plan", *COMMAND]) == 0
    text = capsys.readouterr().out
    assert re.search(rf"\[recover.cuda_oom\] +sets batch_size=8, activation_checkpointing=on, MODE=careful +{file}:4", text)
    assert re.search(rf"our.solver +means data_error in exception, line +{mine}", text)
    assert main.main(["plan", "--cause", "cuda_oom", *COMMAND]) == 0
    ladder = capsys.readouterr().out
    assert ladder.index("\nusers_row ") < ladder.index("\nmemory_held_by_others ")
    assert main.main(["plan", "--json", "--cause", "cuda_oom", *COMMAND]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["recover"][0]["set"] == {"batch_size": "8", "activation_checkpointing": "on", "env:MODE": "careful"}
    assert [(row["id"], row["cause"], row["problem"]) for row in data["signatures"]][:1] == [("our.solver", "data_error", "")]
    assert [(row["id"], "limit its repeats" in row["problem"]) for row in data["signatures"]][1:] == [("our.slow", True)]
    assert data["sequence"][0]["reason"] == "your row [recover.cuda_oom] sets batch_size=8, activation_checkpointing=on, MODE=careful"
