"""--set SECTION.KEY=VALUE: the meaning of a value, its origin, and the refusals."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from supervisor.config import loading
from supervisor.errors import ExitCode, SuperviseError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from supervisor.config.settings import Settings


@pytest.fixture
def assign(tmp_path: Path) -> Callable[..., Settings]:
    def call(*assignments: str, **flags: str) -> Settings:
        given = {name.replace("__", "."): value for name, value in flags.items()}
        nowhere = tmp_path / "none"
        return loading.load(given, {"XDG_CONFIG_HOME": str(nowhere)}, tmp_path, assignments=assignments, system_file=nowhere / "x.toml")

    return call


@pytest.mark.parametrize(
    ("assignment", "value"),
    [
        ("restart.intensity=5", 5),
        (" restart.intensity = 5", 5),
        ("hang.train_s=5", 5.0),
        ("restart.batch_drift=true", True),
        ("job.state_dir=/state", "/state"),
        ("job.state_dir='a b'", "a b"),
        ("job.state_dir=5", "5"),
        ("job.state_dir=a=b", "a=b"),
        ("knobs.resume.args=--resume {resume}", "--resume {resume}"),
        ('checkpoints.paths=["a/*.pt", "b"]', ("a/*.pt", "b")),
        ("checkpoints.paths=ckpt/*.pt", ("ckpt/*.pt",)),
        ("checkpoints.paths='a b'", ("a b",)),
        ("checkpoints.paths=[]", ()),
        ("network.allow=interface,ib_disable", ("interface,ib_disable",)),
    ],
)
def test_a_value_is_toml_and_a_bare_word_is_a_text(assign: Callable[..., Settings], assignment: str, value: object) -> None:
    key = assignment.partition("=")[0].strip()
    settings = assign(assignment)
    assert settings.value(key) == value
    assert str(settings.origin(key)) == f"command line --set {key}"


def test_the_last_assignment_of_a_key_counts(assign: Callable[..., Settings]) -> None:
    assert assign("restart.intensity=5", "restart.intensity=6").restart.intensity == 6


def test_tables_are_assigned_as_a_whole_and_shown_with_their_origin(assign: Callable[..., Settings]) -> None:
    settings = assign(
        'alerts.sink=[{kind="slack", url="https://hooks.slack.com/T0KEN"}]', 'recover.cuda_oom.set={batch_size=8, "env:MODE"="x"}'
    )
    assert [(sink.kind, sink.severity) for sink in settings.alerts.sinks] == [("slack", "info")]
    assert [row.sets for row in settings.recover] == [(("batch_size", "8"), ("env:MODE", "x"))]
    shown = loading.settings_shown(settings)
    assert [row.origin for key, row in shown.items() if key.startswith(("alerts.sink[0].kind", "recover."))] == [
        "command line --set alerts.sink",
        "command line --set recover.cuda_oom.set",
    ]
    assert "T0KEN" not in str(shown)


@pytest.mark.parametrize(
    ("assignment", "message", "hint"),
    [
        (
            "restart.intensty=3",
            "unknown setting: restart.intensty: the nearest is restart.intensity",
            "Write --set restart.intensity=VALUE;",
        ),
        ("quite_another=3", "unknown setting: quite_another", "`supervise config show` lists all settings."),
        ("restart=3", "wrong type: restart in --set restart: it is a section, not a value", "Write --set restart.KEY=VALUE."),
        ("restart.intensity", "wrong --set: 'restart.intensity': expected SECTION.KEY=VALUE", "as in --set restart.intensity=5;"),
        ("a b=3", "wrong --set: 'a b=3': expected SECTION.KEY=VALUE", "as in --set restart.intensity=5;"),
        (
            "restart.intensity=x",
            "restart.intensity = 'x' from command line --set restart.intensity: expected an integer",
            "its default is 3",
        ),
        ("restart.intensity=-1", "expected an integer, at least 0", "its default is 3"),
        ("restart.intensity=3\n[job]\nname='x'", "expected an integer", "its default is 3"),
        ("restart.batch_drift=maybe", "restart.batch_drift = 'maybe' from command line --set restart.batch_drift", "true or false"),
        ("checkpoints.paths=['a", "expected a list of strings", "checkpoints.paths"),
        ("job.name=", "expected something that is not empty", "job.name"),
        ("checkpoints.mirror=s3://AKIAKEY:geheim@bucket", "checkpoints.mirror = (not shown)", "AWS_ACCESS_KEY_ID"),
        ("alerts.sink=3", "wrong type: alerts.sink in --set alerts.sink: it is a list of tables", "[[alerts.sink]]"),
        ('alerts.sink=[{kind="slak"}]', "alerts.sink.kind = 'slak'", "slack"),
        ("recover.cuda_om.set={a=1}", "unknown cause: [recover.cuda_om]", "cuda_oom"),
        ("knobs.resume.args=--resume", "it has no {resume} and no {step}", "--resume {resume}"),
    ],
)
def test_a_wrong_assignment_is_a_usage_error_that_names_the_nearest(
    assign: Callable[..., Settings], assignment: str, message: str, hint: str
) -> None:
    with pytest.raises(SuperviseError) as caught:
        assign(assignment)
    assert message in caught.value.message
    assert hint in caught.value.hint
    assert caught.value.exit_code == ExitCode.USAGE


def test_a_setting_is_not_given_by_its_flag_and_by_set(assign: Callable[..., Settings]) -> None:
    with pytest.raises(SuperviseError, match=r"given twice: checkpoints\.keep: by --keep and by --set") as caught:
        assign("checkpoints.keep=3", checkpoints__keep="4")
    assert caught.value.exit_code == ExitCode.USAGE
    with pytest.raises(SuperviseError, match=r"given twice: checkpoints\.keep: by --keep and by --set") as caught:
        assign("checkpoints={bandwidth_mib_s = 2, keep = 3}", checkpoints__keep="4")
    assert caught.value.exit_code == ExitCode.USAGE
