"""Settings: the order of their sources, the origin of each value, and the refusals."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from supervisor.cli.start.config import settings_table
from supervisor.config import loading, secret_files
from supervisor.config.policy import to_policy
from supervisor.config.settings import ROWS, Origin, Settings
from supervisor.core.model import Knob, Launcher, Policy
from supervisor.core.policy_settings import Gpus, Restart, Stop
from supervisor.errors import ExitCode, SuperviseError
from supervisor.report.layout import Surface
from supervisor.report.table import render_table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

KEY = "checks-requests-with-this"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return a home directory of its own; the configuration of whoever runs the tests must not matter."""
    (tmp_path / "jobs").mkdir()
    (tmp_path / "home" / "supervise").mkdir(parents=True)
    return tmp_path


@pytest.fixture
def load(home: Path) -> Callable[..., Settings]:
    def call(
        flags: dict[str, Any] | None = None,
        environ: dict[str, str] | None = None,
        named: str | None = None,
        assignments: Sequence[str] = (),
    ) -> Settings:
        environ = {"XDG_CONFIG_HOME": str(home / "home"), **(environ or {})}
        return loading.load(flags or {}, environ, home / "jobs", named, assignments=assignments, system_file=home / "etc.toml")

    return call


def local(home: Path, text: str) -> Path:
    path = home / "jobs" / "supervise.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_without_any_configuration_all_values_are_the_defaults_of_the_table(load: Callable[..., Settings]) -> None:
    settings = load()
    assert {row.key: settings.value(row.key) for row in ROWS} == {row.key: row.default for row in ROWS}
    assert {settings.origin(row.key).kind for row in ROWS} == {"default"}


def test_each_place_wins_over_the_next_and_each_value_says_where_it_came_from(home: Path, load: Callable[..., Settings]) -> None:
    def write(path: Path, keys: str) -> None:
        path.write_text(f"[restart]\n{keys}", encoding="utf-8")

    write(home / "etc.toml", "intensity = 1\nmax_attempts = 1\nscratch_limit_s = 1\nbatch_drift = false\n[hang]\ntrain_s = 1\n")
    write(home / "home" / "supervise" / "config.toml", "max_attempts = 2\nscratch_limit_s = 2\nbatch_drift = false\n[hang]\ntrain_s = 2\n")
    path = local(home, "[restart]\nscratch_limit_s = 3\n\nbatch_drift = false\n[hang]\ntrain_s = 3\n")
    settings = load(
        {"checkpoints.keep": "5"}, {"SUPERVISE_RESTART_BATCH_DRIFT": "yes", "SUPERVISE_HANG_TRAIN_S": "4"}, assignments=["hang.train_s=5"]
    )
    restart = settings.restart
    assert (restart.intensity, restart.max_attempts, restart.scratch_limit_s, restart.batch_drift) == (1, 2, 3.0, True)
    assert (settings.hang.train_s, settings.checkpoints.keep) == (5.0, 5)
    assert settings.origin("restart.intensity") == Origin("file", f"{home / 'etc.toml'}:2")
    assert settings.origin("restart.max_attempts") == Origin("file", f"{home / 'home' / 'supervise' / 'config.toml'}:2")
    assert settings.origin("restart.scratch_limit_s") == Origin("file", f"{path}:2")
    assert settings.origin("restart.batch_drift") == Origin("environment", "SUPERVISE_RESTART_BATCH_DRIFT")
    assert str(settings.origin("checkpoints.keep")) == "command line --keep"
    assert str(settings.origin("hang.train_s")) == "command line --set hang.train_s"


def test_a_file_that_is_named_replaces_the_one_found_and_must_exist(home: Path, load: Callable[..., Settings]) -> None:
    local(home, "[restart]\nintensity = 1\n")
    other = home / "other.toml"
    other.write_text("restart.max_attempts = 7\n", encoding="utf-8")
    for settings in (load(named=str(other)), load(environ={"SUPERVISE_CONFIG": "../other.toml"})):
        assert (settings.restart.intensity, settings.restart.max_attempts) == (3, 7)
    with pytest.raises(SuperviseError, match="no such configuration file"):
        load(named="missing.toml")


SAMPLES: dict[type, tuple[str, object]] = {
    str: ("text", "text"),
    int: ("7", 7),
    float: ("7", 7.0),
    bool: ("yes", True),
    tuple: ("'a b' c", ("a b", "c")),
}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.key)
def test_every_setting_can_be_set_from_the_environment_from_a_file_and_by_set(
    row: Any,  # noqa: ANN401  a Row
    home: Path,
    load: Callable[..., Settings],
) -> None:
    assert not row.env.startswith("SUPERVISE_JOB_")
    text, value = SAMPLES[row.kind]
    if row.choices:
        text = value = row.choices[-1]
    if row.maximum is not None and row.kind in (int, float):
        value = row.kind(min(value, row.maximum))
        text = str(value)
    if row.key == "alerts.heartbeat_url":
        text = value = "https://host/path"
    if row.key == "knobs.resume.args":
        text = value = "--resume {resume}"
    assert load(environ={row.env: text}).value(row.key) == value
    section, _, leaf = row.key.rpartition(".")
    (home / "etc.toml").write_text(f"[{section}]\n{leaf} = {json.dumps(value)}\n", encoding="utf-8")
    assert load().value(row.key) == value
    assert load(assignments=[f"{row.key}={json.dumps(value)}"]).value(row.key) == value


@pytest.mark.parametrize(
    ("text", "named", "nearest"),
    [
        ("[restart]\nintensty = 3\n", "restart.intensty", "restart.intensity"),
        ("[job]\ncheckpoint.paths = []\n", "job.checkpoint", "checkpoints.sse"),
        ("[stop]\nmax_attempts = 3\n", "stop.max_attempts", "restart.max_attempts"),
        ("[restrat]\nintensity = 3\n", "restrat", "restart"),
        ("grace_s = 3\n", "grace_s", "stop.grace_s"),
    ],
)
def test_an_unknown_key_names_itself_its_line_and_the_nearest(
    home: Path, load: Callable[..., Settings], text: str, named: str, nearest: str
) -> None:
    path = local(home, text)
    with pytest.raises(SuperviseError) as caught:
        load()
    assert caught.value.exit_code == ExitCode.CONFIG
    assert caught.value.message.startswith(f"unknown setting: {named} in {path}")
    assert f"the nearest is {nearest}" in caught.value.message


def test_an_unknown_variable_names_the_nearest_and_foreign_ones_are_left_alone(load: Callable[..., Settings]) -> None:
    with pytest.raises(
        SuperviseError, match=r"SUPERVISE_RESTART_INTENSTY in the environment: the nearest is SUPERVISE_RESTART_INTENSITY"
    ) as caught:
        load(environ={"SUPERVISE_RESTART_INTENSTY": "1"})
    assert caught.value.exit_code == ExitCode.CONFIG
    handed_to_ranks = {"SUPERVISE_JOB_RESUME_FROM": "x", "SUPERVISE_JOB_NAME": "y"}
    of_a_service = ("SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_HTTP", "PORT", "PORT_80_TCP", "PORT_80_TCP_ADDR")
    kubernetes = {f"SUPERVISE_{named}{name}": "x" for named in ("", "UI_", "WEB_UI_") for name in of_a_service}
    assert load(environ={**handed_to_ranks, **kubernetes, "SUPERVISE_RESTART_INTENSITY": ""}).origins == ()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x = " + "[" * 3000 + "]" * 3000, "its values are nested too deeply"),
        ('job.state_dir = "a\\u0000b"', "expected text without a NUL character"),
        ("checkpoints.paths = ['a', \"b\\u0000\"]", "expected text without a NUL character"),
        ("quite_another_thing = 1", "unknown setting: quite_another_thing in "),
    ],
)
def test_a_file_that_cannot_be_settings_is_reported_as_such(home: Path, load: Callable[..., Settings], text: str, expected: str) -> None:
    path = local(home, text)
    with pytest.raises(SuperviseError, match=re.escape(expected)) as caught:
        load()
    assert caught.value.exit_code == ExitCode.CONFIG
    assert str(path) in caught.value.message
    assert "nearest" not in str(caught.value)


def test_a_command_that_only_reads_is_warned_and_keeps_the_valid_settings(home: Path) -> None:
    local(home, "[job]\nstate_dir = 'there'\nnaem = 'x'\n[restart]\nintensity = 'many'\nmax_attempts = 7\n")
    environ = {"XDG_CONFIG_HOME": str(home / "home"), "SUPERVISE_TYPO": "1", "SUPERVISE_HANG_TRAIN_S": "40"}
    warnings: list[SuperviseError] = []
    settings = loading.load({}, environ, home / "jobs", system_file=home / "etc.toml", warn=warnings.append)
    assert (settings.job.state_dir, settings.restart.max_attempts, settings.hang.train_s) == ("there", 7, 40.0)
    assert settings.restart.intensity == Settings().restart.intensity
    assert [error.message.split(" in ")[0].split(" = ")[0] for error in warnings] == [
        "unknown setting: job.naem",
        "wrong value: restart.intensity",
        "unknown setting: SUPERVISE_TYPO",
    ]
    local(home, "[job\n")
    settings = loading.load({"job.name": "j"}, {}, home / "jobs", system_file=home / "etc.toml", warn=warnings.append)
    assert (settings.job.name, len(warnings)) == ("j", 4)


@pytest.mark.parametrize("row", [row for row in ROWS if row.kind in (int, float)], ids=lambda row: row.key)
def test_every_number_has_two_bounds(row: Any, load: Callable[..., Settings]) -> None:  # noqa: ANN401  a Row
    for text in ("1e10", "inf", "nan", "9" * 400, "-1"):
        with pytest.raises(SuperviseError, match=re.escape(row.key)):
            load(environ={row.env: text})
    for bound in (row.minimum, row.maximum):
        assert load(environ={row.env: str(row.kind(bound))}).value(row.key) == bound


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("restart.intensity = 'many'", "restart.intensity = 'many' from file FILE:1: expected an integer"),
        ("restart.intensity = 2.5", "restart.intensity = 2.5 from file FILE:1: expected an integer"),
        ("restart.intensity = true", "restart.intensity = True from file FILE:1: expected an integer"),
        ("restart.intensity = -1", "restart.intensity = -1 from file FILE:1: expected an integer, at least 0"),
        ("stop.grace_s = 1e10", "stop.grace_s = 10000000000.0 from file FILE:1: expected a number, at least 0 and at most 1000000"),
        (f"stop.grace_s = 1{'0' * 400}", f"stop.grace_s = 1{'0' * 199}... from file FILE:1: expected a number"),
        (f"stop.grace_s = -1{'0' * 400}", "expected a number, at least 0"),
        (f"restart.intensity = 1{'0' * 400}", "from file FILE:1: expected an integer, at least 0 and at most 1000000000"),
        (f"restart.intensity = 1{'0' * 5000}", "is not TOML: FILE"),
        ("stop.grace_s = inf", "stop.grace_s = inf from file FILE:1: expected a number, at least 0"),
        ("stop.grace_s = nan", "stop.grace_s = nan from file FILE:1: expected a number, at least 0"),
        ("stop.grace_s = true", "stop.grace_s = True from file FILE:1: expected a number"),
        ("job.resumes_itself = 1", "job.resumes_itself = 1 from file FILE:1: expected true or false"),
        ("checkpoints.paths = [1]", "checkpoints.paths = [1] from file FILE:1: expected a list of strings"),
        ("terminal.log_format = 'xml'", "terminal.log_format = 'xml' from file FILE:1: expected one of auto, console, json, ecs"),
        ('knobs.resume.args = "--from \'"', "expected words as a shell would read them"),
        ("knobs.resume.args = '--r {ckpt}'", "from file FILE:1: expected no placeholder but {resume}, the checkpoint's path, and {step}"),
        ("knobs.resume.args = '--r {x} {resume}'", "expected no placeholder but {resume}"),
        ("knobs.resume.args = '--resume'", "'--resume' from file FILE:1: it has no {resume} and no {step}"),
        ("job.name = 'a/b'", "job.name = 'a/b' from file FILE:1: expected a name of up to 64 letters"),
        ("job.state_dir = ''", "job.state_dir = '' from file FILE:1: expected something that is not empty"),
        ("checkpoints.paths = ['']", "checkpoints.paths = [''] from file FILE:1: expected something that is not empty"),
        ("job.name = {a = 1}", "job.name = {'a': 1} from file FILE:1: expected a string"),
        ("restart = 3", "restart in FILE:1: it is a section"),
        ("restart = [", "is not TOML: FILE"),
    ],
)
def test_a_wrong_value_names_its_key_place_and_the_expected_form(
    home: Path, load: Callable[..., Settings], text: str, expected: str
) -> None:
    path = local(home, text)
    with pytest.raises(SuperviseError) as caught:
        load()
    assert expected.replace("FILE", str(path)) in caught.value.message
    assert caught.value.exit_code == ExitCode.CONFIG


def test_a_wrong_flag_is_a_usage_error(load: Callable[..., Settings]) -> None:
    with pytest.raises(SuperviseError, match=r"checkpoints\.keep = 'x' from command line --keep: expected an integer") as caught:
        load({"checkpoints.keep": "x"})
    assert caught.value.exit_code == ExitCode.USAGE


@pytest.mark.parametrize(
    ("flag", "value", "expected"),
    [
        ("job.name", "a/b", "'a/b' from command line --job: expected a name"),
        ("job.name", "", "expected something that is not empty"),
        ("job.state_dir", "", "expected something that is not empty"),
        ("checkpoints.paths", ("",), "expected something that is not empty"),
        ("knobs.resume.args", "", "expected something that is not empty"),
        ("knobs.resume.args", "--resume {ckpt}", "expected no placeholder but {resume}"),
        ("knobs.resume.args", "--resume", "it has no {resume} and no {step}"),
        ("knobs.resume.switch", "--resume {resume}", "expected words without a path"),
        ("knobs.resume.switch", "  ", "expected words, not blanks"),
    ],
)
def test_a_flag_that_says_nothing_or_would_not_work_is_a_usage_error(
    load: Callable[..., Settings], flag: str, value: str | tuple[str, ...], expected: str
) -> None:
    with pytest.raises(SuperviseError) as caught:
        load({flag: value})
    assert expected in caught.value.message
    assert caught.value.exit_code == ExitCode.USAGE


@pytest.mark.parametrize("url", ["s3://AKIAKEY:geheim@bucket/prefix", "s3://AKIAKEY:ge/heim@bucket/prefix"])
def test_keys_in_a_mirrors_address_are_refused_and_not_repeated(load: Callable[..., Settings], url: str) -> None:
    with pytest.raises(SuperviseError) as caught:
        load({"checkpoints.mirror": (url,)})
    assert caught.value.exit_code == ExitCode.USAGE
    assert "AWS_ACCESS_KEY_ID" in str(caught.value)
    assert not any(part in f"{caught.value} {caught.value.hint}" for part in ("heim", "AKIAKEY"))
    with pytest.raises(SuperviseError):
        load({}, {"SUPERVISE_CHECKPOINTS_MIRROR": url})
    assert load({"checkpoints.mirror": ("s3://bucket/a@b:c", "/mnt/a@b:c")}).checkpoints.mirror


@pytest.mark.parametrize("url", ["s3://", "s3:///prefix", "gs://bucket/prefix", "file://host/mirror", "http://bucket"])
def test_a_mirror_that_is_no_place_is_refused_with_the_settings(load: Callable[..., Settings], url: str) -> None:
    with pytest.raises(SuperviseError, match="expected s3://BUCKET/PREFIX, file:///DIRECTORY or a directory") as caught:
        load({"checkpoints.mirror": ("/nfs/mirror", url)})
    assert caught.value.exit_code == 64
    assert load({"checkpoints.mirror": ("file:///nfs/mirror", "s3://bucket", "mirror")}).checkpoints.mirror


def test_arguments_without_a_placeholder_are_taken_where_the_checkpoint_is_named_otherwise(load: Callable[..., Settings]) -> None:
    args = {"knobs.resume.args": "--init_from=resume '--x={}' '{\"a\": 1}' dir=${out}"}
    assert load({**args, "job.resumes_itself": True}).knobs.resume.args == args["knobs.resume.args"]
    assert load({"knobs.resume.args": "--from-step {step}"}).knobs.resume.args == "--from-step {step}"


def test_a_switch_declares_that_the_script_resumes_itself(load: Callable[..., Settings]) -> None:
    settings = load({"knobs.resume.switch": "--init_from=resume"})
    assert settings.knobs.resume.kind == "switch"
    assert settings.resumes_itself
    assert to_policy(settings, Launcher.PLAIN).resumes_itself
    with_path = load({"knobs.resume.switch": "--again", "knobs.resume.args": "--from {resume}"})
    assert (with_path.knobs.resume.kind, with_path.resumes_itself) == ("path", False)


def test_a_string_is_no_list_and_a_flag_is_verbatim(home: Path, load: Callable[..., Settings]) -> None:
    local(home, "checkpoints.paths = 'a b/*.pt'\n")
    with pytest.raises(SuperviseError, match=re.escape('expected a list of strings, as in ["a b/*.pt"]')) as caught:
        load()
    assert caught.value.exit_code == ExitCode.CONFIG
    local(home, "checkpoints.paths = ['a b/*.pt']\n")
    assert load().checkpoints.paths == ("a b/*.pt",)
    assert load({"checkpoints.paths": ("x y/*.pt", "z")}).checkpoints.paths == ("x y/*.pt", "z")


def test_the_file_of_a_key_is_refused_from_a_file_found_in_the_working_directory(home: Path, load: Callable[..., Settings]) -> None:
    local(home, "[ui]\ntoken_file = '/run/x'\n")
    with pytest.raises(SuperviseError, match="found in the working directory"):
        load()
    assert load(named="supervise.toml").value("ui.token_file") == "/run/x"


def test_the_token_of_the_page_comes_from_a_file_or_systemd(home: Path, load: Callable[..., Settings]) -> None:
    assert secret_files.ui_token(load(), {}) == ""
    (home / "ui-token").write_text(f"{KEY}\n", encoding="utf-8")
    named = load(environ={"SUPERVISE_UI_TOKEN_FILE": "ui-token"})
    assert secret_files.ui_token(named, {"CREDENTIALS_DIRECTORY": str(home)}) == KEY
    assert secret_files.ui_token(load(environ={"SUPERVISE_UI_TOKEN_FILE": str(home / "ui-token")}), {}) == KEY
    with pytest.raises(SuperviseError, match=r"cannot read the token of the page: missing: No such file"):
        secret_files.ui_token(load(environ={"SUPERVISE_UI_TOKEN_FILE": "missing"}), {})


def test_systemds_state_directory_is_weaker_than_all_that_a_person_wrote(home: Path, load: Callable[..., Settings]) -> None:
    systemd = {"STATE_DIRECTORY": "/var/lib/supervise/a:/var/lib/supervise/b"}
    assert load(environ=systemd).job.state_dir == "/var/lib/supervise/a"
    local(home, "job.state_dir = 'here'\n")
    assert load(environ=systemd).job.state_dir == "here"


def test_a_jobs_address_holds_from_any_directory_where_the_state_directory_is_not_the_default(
    home: Path, load: Callable[..., Settings]
) -> None:
    assert load().address("j") == "--job j"
    there = f"--job j --state-dir '{home}/jobs/a b'"
    assert load({"job.state_dir": "a b"}).address("j") == there
    assert load(environ={"SUPERVISE_STATE_DIR": str(home / "jobs" / "a b")}).address("j") == there
    assert load(environ={"STATE_DIRECTORY": "/var/lib/supervise"}).address("j") == "--job j --state-dir /var/lib/supervise"
    (home / "jobs" / "given.toml").write_text("job.state_dir = 'a b'\n", encoding="utf-8")
    assert load(named="given.toml").address("j") == there


def test_show_prints_every_setting_its_value_and_origin_and_no_secret(load: Callable[..., Settings]) -> None:
    token = "https://user:pw@hooks.example.org/T0KEN"  # noqa: S105  a made-up one
    settings = load({"job.name": "j"}, {"SUPERVISE_ALERTS_HEARTBEAT_URL": token})
    table, shown = render_table(settings_table(settings), Surface(folds=False)), loading.settings_shown(settings)
    assert list(shown) == [row.key for row in ROWS]
    assert [line.split()[0] for line in table.splitlines()] == ["setting", *shown]
    assert shown["job.name"] == loading.ShownSetting("j", "command line --job")
    address = shown["alerts.heartbeat_url"].value
    assert str(address).startswith("hooks.example.org (<hidden:")
    for secret in ("T0KEN", "pw@"):
        assert secret not in table + str(shown) + repr(settings)


def test_the_policy_of_default_settings_is_the_policys_own_default(load: Callable[..., Settings]) -> None:
    assert to_policy(load(), Launcher.ELASTIC) == Policy(checkpoints_learned=True)
    assert to_policy(load({"instrument.enabled": False}), Launcher.ELASTIC) == Policy()
    settings = load({"checkpoints.paths": ("*.pt",), "job.resumes_itself": True, "stop.grace_s": "7"})
    policy = to_policy(settings, Launcher.PLAIN)
    assert policy == Policy(
        launcher=Launcher.PLAIN, checkpoints_declared=True, checkpoints_learned=True, resumes_itself=True, stop=Stop(grace_s=7.0)
    )
    settings = load({"restart.max_attempts": "9", "restart.batch_drift": True, "knobs.batch_change": False, "gpus.minimum": "2"})
    knob = Knob("batch_size", "32", "--bs")
    wanted = Policy(
        checkpoints_learned=True, batch_change=False, knobs=(knob,), restart=Restart(max_attempts=9, batch_drift=True), gpus=Gpus(minimum=2)
    )
    assert to_policy(settings, Launcher.ELASTIC, (knob,)) == wanted


def test_arguments_that_could_never_be_used_are_a_usage_error(load: Callable[..., Settings]) -> None:
    off = "instrument.enabled"
    given = {"knobs.resume.args": "--init_from=resume", "job.resumes_itself": True}
    assert load(given).knobs.resume.kind == "switch"
    assert load({**given, off: False, "checkpoints.paths": ("ckpt/*.pt",)})
    with pytest.raises(SuperviseError, match="none is declared or learned") as caught:
        load({**given, off: False})
    assert caught.value.exit_code == ExitCode.USAGE


def test_ladder_steps_for_networks_are_named_with_or_without_commas_and_an_unknown_one_is_refused(load: Callable[..., Settings]) -> None:
    allowed = to_policy(load({"network.allow": ("interface, ib_disable", "interface")}), Launcher.ELASTIC, environ={"NCCL_IB_DISABLE": "0"})
    assert (allowed.network.allow, allowed.variables) == (("interface", "ib_disable"), (("NCCL_IB_DISABLE", "0"),))
    with pytest.raises(
        SuperviseError, match=r"network\.allow \(command line --set network\.allow\): there is no step 'ib' of the ladder to allow"
    ) as refused:
        to_policy(load(assignments=["network.allow=ib"]), Launcher.ELASTIC)
    assert refused.value.exit_code == ExitCode.USAGE
    assert "p2p_disable" in refused.value.hint
    with pytest.raises(SuperviseError, match="longer_timeout needs the instrumentation"):
        to_policy(load({"network.allow": ("longer_timeout",), "instrument.enabled": False}), Launcher.ELASTIC)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("s3://bucket/ckpt/*.pt", "--mirror takes s3://BUCKET/PREFIX"),
        ("file:///data/ckpt/*.pt", "expected paths of this machine"),
        ("$SCRATCH/ckpt/*.pt", "only a shell fills in $NAME"),
        ("ckpt/${RUN}/*.pt", "only a shell fills in $NAME"),
        ("ckpt/{best,last}.pt", "one pattern for each of {a,b}"),
    ],
)
def test_a_pattern_that_could_match_nothing_is_refused_before_a_crash_shows_it(
    load: Callable[..., Settings], pattern: str, expected: str
) -> None:
    with pytest.raises(SuperviseError, match=r"^wrong value: checkpoints\.paths") as caught:
        load({"checkpoints.paths": ("ckpt/*.pt", pattern)})
    assert expected in caught.value.message
    for literal in ("ckpt/[$]RUN/*.pt", "cost$/*.pt", "~/a:b/{step}/*.pt", "C:/x/*.pt"):
        assert load({"checkpoints.paths": (literal,)}).checkpoints.paths == (literal,)
