"""The command line: our options, the job's options, and the exit codes."""

from __future__ import annotations

import functools
import json
import os
import re
import resource
import subprocess
import sys
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pytest

from supervisor.cli import commands, main
from supervisor.cli.commands import COMMANDS, load_command
from supervisor.cli.jobs.log_output import LogSelection
from supervisor.config.settings import ROWS
from tests.support import preloaded
from tests.support.few import few, few_rows
from tests.support.recorded_job import RecordedJob

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisor.config.settings import Settings
    from supervisor.report.terminal import TerminalWriter

ROOT = Path(main.__file__).parents[2]
HEAVY = ("rich", "prometheus_client", "jinja2", "torch", "boto3", "psutil", "tenacity", "asyncio")


def supervise(*arguments: str, cwd: Path, **kwargs: Any) -> subprocess.CompletedProcess[str]:  # noqa: ANN401  subprocess.run's own
    """Run the command for real, with nothing in its environment but where it is installed."""
    options: dict[str, Any] = {"env": {"PYTHONPATH": str(ROOT)}, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **kwargs}
    command = [sys.executable, "-P", "-m", "supervisor", *arguments]
    return subprocess.run(command, cwd=cwd, text=True, timeout=120, check=False, **options)  # noqa: S603  our own code


@pytest.fixture
def takeovers() -> list[bool]:
    """Return whether each call of `run` was to take the lock over."""
    return []


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, takeovers: list[bool]) -> list[tuple[Settings, list[str]]]:
    """Return what `run` would have been called with; the loop itself has tests of its own."""
    calls: list[tuple[Settings, list[str]]] = []

    def run(settings: Settings, command: list[str], _terminal: TerminalWriter, *, takeover: bool = False) -> int:
        calls.append((settings, command))
        takeovers.append(takeover)
        return 42

    monkeypatch.setitem(sys.modules, "supervisor.run.start", types.SimpleNamespace(run=run))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return calls


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[Any, ...]]:
    """Return what the reading functions would have been called with."""
    calls: list[tuple[Any, ...]] = []

    def reader(name: str) -> Callable[..., int]:
        def call(_settings: Settings, *arguments: object, **named: object) -> int:
            calls.append((name, *arguments, *named.values()))
            return 0

        return call

    for name in ("status", "why", "logs"):
        monkeypatch.setattr(f"supervisor.cli.jobs.{name}.{name}", reader(name))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    return calls


VERBATIM = ["sh", "-c", "a  b", "--", "--job", "", "-q", "\udcff"]


@pytest.mark.parametrize("before", [[], ["run"]])
def test_everything_behind_the_first_separator_is_the_command_verbatim(
    started: list[tuple[Settings, list[str]]], before: list[str]
) -> None:
    assert main.main([*before, "--", *VERBATIM]) == 42
    assert started[0][1] == VERBATIM


def test_every_flag_arrives_at_its_setting_before_and_behind_run(started: list[tuple[Settings, list[str]]]) -> None:
    flags = [
        *(
            "--job",
            "j",
            "--state-dir",
            "s",
            "--resumes-itself",
            "--model-parallel",
            "8",
            "--checkpoints",
            "a/*.pt",
            "--checkpoints",
            "b c/*",
        ),
        *("--resume-switch", "--again", "--resume-args", "--resume {resume}", "--knob", "batch_size=--bs", "--no-batch-change"),
        *("--allow-batch-drift", "--min-gpus", "2", "--mirror", "s3://b/p", "--mirror", "/m", "--keep", "3", "--check-nodes", "doubt"),
        *("--on-hang", "warn", "--standby", "on", "--trace"),
    ]
    assert main.main([*flags, "--", "true"]) == main.main(["run", *flags, "--", "true"]) == 42
    expected = {
        "job.name": "j", "job.state_dir": "s", "job.resumes_itself": True, "job.model_parallel": 8,
        "checkpoints.paths": ("a/*.pt", "b c/*"),
        "knobs.resume.args": "--resume {resume}", "knobs.resume.switch": "--again",
        "knobs.declared": ("batch_size=--bs",), "knobs.batch_change": False, "restart.batch_drift": True,
        "gpus.minimum": 2, "checkpoints.mirror": ("s3://b/p", "/m"), "checkpoints.keep": 3, "health.check_nodes": "doubt",
        "hang.action": "warn", "standby.mode": "on", "job.trace": True,
    }  # fmt: skip
    assert set(expected) == {row.key for row in ROWS if row.flag} - {"ui.listen"}, "where the page of `supervise ui` is served"
    for settings, _ in started:
        assert {key: settings.value(key) for key in expected} == expected
        assert all(settings.origin(key).kind == "command line" for key in expected)


def test_a_run_has_few_flags_and_takes_all_other_settings_by_set(started: list[tuple[Settings, list[str]]]) -> None:
    assert len([param for param in load_command("run").params if isinstance(param, click.Option)]) == 20
    words = ["--set", "restart.intensity=5", "run", "--set", "restart.intensity=6", "--set", "terminal.verbosity=quiet", "--", "true"]
    assert main.main(words) == 42
    settings = started[0][0]
    assert (settings.restart.intensity, settings.terminal.verbosity) == (6, "quiet")
    assert str(settings.origin("restart.intensity")) == "command line --set restart.intensity"


@pytest.mark.parametrize("command", ["plan", "drill", "print slurm", "print kubernetes", "config show", "status", "checkpoints prune"])
def test_every_command_that_has_settings_takes_a_file_and_assignments(command: str) -> None:
    shown = {name for param in load_command(command).params for name in param.opts if not getattr(param, "hidden", False)}
    assert {"--config", "--set", "--job", "--state-dir"} <= shown
    assert not shown & {"--resume-args", "--knob", "--on-hang", "--takeover"}


def test_a_takeover_is_asked_for_once_and_is_no_setting(started: list[tuple[Settings, list[str]]], takeovers: list[bool]) -> None:
    assert main.main(["--takeover", "--", "true"]) == main.main(["run", "--takeover", "--", "true"]) == main.main(["--", "true"]) == 42
    assert takeovers == [True, True, False]
    assert len(started) == 3


def test_a_flag_behind_run_wins_over_the_same_before_it(started: list[tuple[Settings, list[str]]]) -> None:
    main.main(["--job", "a", "--keep", "3", "run", "--job", "b", "--", "true"])
    assert (started[0][0].job.name, started[0][0].checkpoints.keep) == ("b", 3)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--keep", "3"], "no command given\nsupervise: Write it after `--`"),
        (["--"], "nothing follows `--`"),
        (["run", "--"], "nothing follows `--`"),
        (["stats"], "no such command: stats\nsupervise: Did you mean `supervise status`? Write `supervise -- stats …` to run it as a job."),
        (["verfiy", "x"], "Did you mean `supervise checkpoints verify`?"),
        (
            ["checkpoints", "verfiy", "x"],
            "no such command: checkpoints verfiy\nsupervise: Did you mean `supervise checkpoints verify`? `supervise",
        ),
        (["config", "set"], "no such command: config set\nsupervise: `supervise config --help` lists all of them."),
        (["nothing-like-it"], "no such command: nothing-like-it\nsupervise: Write `supervise -- nothing-like-it …` to run it as a job."),
        (["help", "stats"], "Did you mean `supervise status`?"),
        (
            ["status", "train"],
            "unexpected extra argument (train)\nsupervise: A job is named with --job, as in `supervise status --job NAME`.",
        ),
        (["torchrun", "train.py"], "no such command: torchrun\nsupervise: Write `supervise -- torchrun …`"),
        (["accelerate", "launch", "train.py"], "no such command: accelerate\nsupervise: Write `supervise -- accelerate …`"),
        (["nccl"], "Did you mean `supervise print nccl`?"),
        (["config", "shw"], "Did you mean `supervise config show`?"),
        (["config"], "missing command"),
        (["run", "train.py"], "unexpected extra argument (train.py)\nsupervise: Write the job's command after `--`"),
        (["--takover", "--", "true"], "no such option: --takover\nsupervise: The nearest is --takeover"),
        (["--keep", "--", "true"], "requires an argument"),
        (["--keep", "many", "--", "true"], "checkpoints.keep = 'many' from command line --keep: expected an integer"),
        (["--keep=-1", "--", "true"], "expected an integer, at least 0"),
        (["drill", "resume"], "no command given\nsupervise: Write it after `--`, as in `supervise drill … -- torchrun train.py`"),
        (["status", "--keep", "3"], "no such option: --keep\nsupervise: --set SECTION.KEY=VALUE gives any setting"),
        (["--max-attempts", "3", "--", "true"], "no such option: --max-attempts\nsupervise: --set SECTION.KEY=VALUE gives any setting"),
        (["--set", "terminal.log_format=xml", "--", "true"], "expected one of auto, console, json, ecs"),
        (["stop", "train"], "unexpected extra argument (train)\nsupervise: A job is named with --job, as in `supervise stop --job NAME`."),
        (["report", "train"], "A job is named with --job, as in `supervise report --job NAME`."),
        (["bundle", "1", "train"], "A job is named with --job, as in `supervise bundle --job NAME`."),
        (["bundle", "train"], "'train' is not a number\nsupervise: Write the number of an incident"),
        (["plan", "train.py"], "Write the job's command after `--`, as in `supervise plan -- torchrun train.py`."),
        (["print", "slurm", "train.py"], "Write the job's command after `--`, as in `supervise print slurm -- torchrun train.py`."),
        (["ls", "train"], "unexpected extra argument (train)\nsupervise: Run `supervise ls --help` for its options."),
        (["status", "--", "true"], "`supervise status` takes no command: true"),
        (["config", "show", "x", "--", "true"], "unexpected extra argument (x)"),
        (["ls", "--", "true"], "`supervise ls` takes no command: true"),
        (["ui", "--listen", "no-such-host.invalid:9410"], "no address to listen at: ui.listen = 'no-such-host.invalid:9410'"),
        (["why", "first"], "invalid value for INCIDENT: 'first' is not a number\nsupervise: Write the number of an incident"),
        (["logs", "--rank", "-1"], "invalid value for --rank: -1 is less than 0"),
        (["logs", "--rank", "x"], "invalid value for --rank: 'x' is not a number"),
        (["doctor", "--watch", "soon"], "invalid value for --watch: 'soon' is not a number"),
        (["drill", "explode", "--", "true"], "invalid value for KIND: 'explode' is not one of 'kill', "),
        (
            ["logs", "--since", "noon"],
            "invalid value for --since: 'noon' is not a time: write 30s, 10m, 2h, 1d, 14:05 or 2026-11-23T14:05",
        ),
    ],
)
def test_a_command_line_that_is_wrong_is_64_with_what_helps(
    started: list[tuple[Settings, list[str]]], capfd: pytest.CaptureFixture[str], arguments: list[str], text: str
) -> None:
    assert main.main(arguments) == 64
    out, err = capfd.readouterr()
    assert (out, started) == ("", [])
    assert text in err
    assert err.startswith("supervise: error: ")
    assert len(err.splitlines()) == 2


def test_without_a_word_the_help_is_shown(started: list[tuple[Settings, list[str]]], capfd: pytest.CaptureFixture[str]) -> None:
    assert main.main(["--help"]) == 0
    help_text = capfd.readouterr().out
    assert main.main([]) == 64
    out, err = capfd.readouterr()
    assert out == help_text + "\n"
    assert err.startswith("supervise: error: no command given\n")
    Path("supervise.toml").write_text('[job]\ncommand = ["train.py"]\n', encoding="utf-8")
    assert main.main([]) == 42
    assert (started[0][1], capfd.readouterr().out) == (["train.py"], "")


def test_help_and_version_are_commands_too(capfd: pytest.CaptureFixture[str]) -> None:
    assert main.main(["version"]) == main.main(["--version"]) == 0
    first, second = capfd.readouterr().out.splitlines()
    assert first == second
    for words in ([], ["why"], ["checkpoints", "verify"]):
        assert main.main([*words, "--help"]) == 0
        out = capfd.readouterr().out
        assert main.main(["help", *words]) == 0
        assert capfd.readouterr().out == out


WITHOUT_KEY = 'kind="webhook", url="http://a.b", secret_file="none"'


@pytest.mark.process
@pytest.mark.parametrize(
    ("arguments", "environ", "code", "text"),
    few_rows(
        [
            (["--set", "health.evict_on=foo"], {}, 64, "health.evict_on (command line --set health.evict_on): there is no check 'foo'"),
            (["--mirror", "s3://"], {}, 64, "checkpoints.mirror = (not shown) from command line --mirror: expected s3://BUCKET/PREFIX, "),
            ([], {"SUPERVISE_CHECKPOINTS_MIRROR": "gs://bucket/x"}, 78, "expected s3://BUCKET/PREFIX, file:///DIRECTORY or a directory"),
            (["--config", "none.toml"], {}, 78, "no such configuration file: "),
            ([], {"SUPERVISE_CONFIG": "none.toml"}, 78, "no such configuration file: "),
            ([], {"SUPERVISE_EVICT_ON": "foo"}, 78, "health.evict_on (environment SUPERVISE_EVICT_ON): there is no check 'foo'"),
            ([], {"SUPERVISE_HEALTH_THRESHOLDS": "foo=1"}, 78, "health.thresholds (environment SUPERVISE_HEALTH_THRESHOLDS): "),
            (["--set", 'alerts.sink=[{kind="webhook", url="http://"}]'], {}, 64, "expected an address such as https://HOST/PATH"),
            (["--set", f"alerts.sink=[{{{WITHOUT_KEY}}}]"], {}, 78, "cannot read the key of the alert sink webhook: none"),
            ([], {"SUPERVISE_CLASSIFY_SIGNATURES": "none.toml"}, 78, "cannot read signatures"),
        ],
        4,
    ),
)
def test_a_wrong_setting_leaves_nothing_behind(tmp_path: Path, arguments: list[str], environ: dict[str, str], code: int, text: str) -> None:
    """No run is opened that `why` would later call a death."""
    done = preloaded.command_text(*arguments, "--", "true", cwd=tmp_path, environ={"PYTHONPATH": str(ROOT), **environ})
    assert (done.returncode, list(tmp_path.iterdir())) == (code, [])
    assert text in done.stderr
    assert len(done.stderr.splitlines()) == 2


@pytest.mark.process
def test_a_wrong_setting_blocks_no_reading(tmp_path: Path) -> None:
    RecordedJob(tmp_path / ".supervise", "j").close()
    (tmp_path / "supervise.toml").write_text("[job\n", encoding="utf-8")
    done = preloaded.command_text("status", cwd=tmp_path, environ={"PYTHONPATH": str(ROOT), "SUPERVISE_TYPO": "1"})
    assert done.returncode == 0
    assert "job j on" in done.stdout
    assert [line.partition(": ")[2].partition(":")[0] for line in done.stderr.splitlines()] == ["warning", "warning"]


def test_configuration_that_is_wrong_is_78(started: list[tuple[Settings, list[str]]], capfd: pytest.CaptureFixture[str]) -> None:
    Path("supervise.toml").write_text("[restart]\nintensty = 3\n", encoding="utf-8")
    assert main.main(["--", "true"]) == 78
    assert "unknown setting: restart.intensty in " in capfd.readouterr().err
    assert main.main(["--config", "/dev/null", "--", "true"]) == 78  # no plain file
    assert started == []


def test_the_reading_commands_get_what_they_were_asked(read: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    for arguments in (
        ["status"], ["--job", "j", "status", "--json"], ["why"], ["why", "--job", "j", "2"], ["logs"],
        ["logs", "--rank", "3", "--attempt", "2", "-f", "-n", "5", "--times"], ["logs", "--first-failure", "--run", "r"],
    ):  # fmt: skip
        assert main.main(arguments) == 0
    assert read == [
        ("status", None, False, False, False, False), ("status", "j", True, False, False, False),
        ("why", None, None, False, False), ("why", "j", 2, False, False),
        ("logs", None, None, LogSelection(), False, None),
        ("logs", None, 2, LogSelection(rank=3, lines=5, times=True, follow=True), False, None),
        ("logs", None, None, LogSelection(), True, "r"),
    ]  # fmt: skip
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    main.main(["status"])
    assert read[-1] == ("status", "slurm-4711", False, False, False, False)


def test_a_bug_of_ours_is_70_in_one_line_that_names_the_traceback(
    monkeypatch: pytest.MonkeyPatch, started: list[tuple[Settings, list[str]]], capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    del started
    for error in (ZeroDivisionError("on purpose"), BrokenPipeError(32, "of some link of ours")):

        def run(_settings: Settings, _command: list[str], _terminal: TerminalWriter, *, takeover: bool, error: Exception = error) -> int:
            assert not takeover
            raise error

        monkeypatch.setitem(sys.modules, "supervisor.run.start", types.SimpleNamespace(run=run))
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        assert main.main(["--", "true"]) == 70
        (line,) = capfd.readouterr().err.splitlines()
        match = re.search(r"the traceback is in (\S+)$", line)
        assert match is not None
        assert type(error).__name__ in line
        assert "Traceback (most recent call last)" in Path(match[1]).read_text(encoding="utf-8")


LIGHT = [
    ["--help"],
    ["run", "--help"],
    ["config", "show"],
    ["--version"],
    ["status", "--help"],
    ["stop", "--help"],
    ["ls", "--help"],
    ["completion", "bash"],
    ["why", "--help"],
    ["logs", "--help"],
    ["nonsense"],
]


CALLED = {"--help": set(), "--version": {"about"}, "nonsense": set(), "why --help": {"jobs.why"}, "-- true": {"start.run"}}
#: Prints the modules that each command line has imported when it is over, each in a fork of its own.
IMPORTED = """
import json, os, sys
from supervisor.cli.main import main
for arguments in json.loads(sys.argv[1]):
    if not (pid := os.fork()):
        os.dup2(2, 1)
        main(arguments)
        os.write(int(sys.argv[2]), (json.dumps([" ".join(arguments), *sys.modules]) + "\\n").encode())
        os._exit(0)
    os.waitpid(pid, 0)
"""


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Return what each quick command line, and one that runs a job, imported."""
    lines = [*LIGHT, ["--", "true"]]
    with (tmp_path_factory.mktemp("imported") / "modules").open("w+") as file:
        command = [sys.executable, "-P", "-c", IMPORTED, json.dumps(lines), str(file.fileno())]
        options: dict[str, Any] = {"env": {"PYTHONPATH": str(ROOT)}, "pass_fds": [file.fileno()], "stderr": subprocess.DEVNULL}
        subprocess.run(command, cwd=Path(file.name).parent, timeout=120, check=True, **options)  # noqa: S603  our own code
        file.seek(0)
        modules = {row[0]: set(row[1:]) for row in map(json.loads, file)}
    assert set(modules) == {" ".join(line) for line in lines}
    return modules


@pytest.mark.process
@pytest.mark.parametrize("arguments", LIGHT, ids=" ".join)
def test_a_quick_answer_imports_no_heavy_module(imported: dict[str, set[str]], arguments: list[str]) -> None:
    modules = imported[" ".join(arguments)]
    assert "supervisor.cli.main" in modules
    assert {module.partition(".")[0] for module in modules}.isdisjoint(HEAVY)
    assert arguments != ["--help"] or "supervisor.core.model" not in modules


@pytest.mark.process
@pytest.mark.parametrize("line", CALLED)
def test_a_command_s_file_is_imported_when_it_is_called(imported: dict[str, set[str]], line: str) -> None:
    names = {name.removeprefix("supervisor.cli.") for name in imported[line]}
    assert names & {place.partition(":")[0] for place, _ in COMMANDS.values()} == CALLED[line]


@pytest.mark.parametrize("path", COMMANDS)
def test_every_command_of_the_table_has_a_file_and_shows_its_line_and_more(capfd: pytest.CaptureFixture[str], path: str) -> None:
    assert main.main([*path.split(), "--help"]) == 0
    shown = " ".join(capfd.readouterr().out.split())
    place, line = COMMANDS[path]
    assert f"Usage: supervise {path} " in shown
    assert line in shown
    assert bool(load_command(path).help != line) == bool(place)


@pytest.mark.bench("only")  # what is imported for it is held above
@pytest.mark.process
def test_help_costs_at_most_150_ms_of_cpu(tmp_path: Path) -> None:
    def cpu_s() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert supervise("--help", cwd=tmp_path).returncode == 0
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    # the least of several: what others do to the caches in between is not ours
    assert min(cpu_s() for _ in range(7)) <= 0.15


@pytest.mark.process
def test_an_empty_environment_will_do(tmp_path: Path) -> None:
    done = supervise("config", "show", "--json", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert list(json.loads(done.stdout)) == [row.key for row in ROWS]


@pytest.mark.process
@pytest.mark.parametrize("closed", few([[1], [2], [1, 2], [0, 1, 2]]), ids=str)
def test_closed_standard_streams_harm_nothing_and_no_file_takes_their_place(tmp_path: Path, closed: list[int]) -> None:
    (tmp_path / "supervise.toml").write_text("restart.intensity = 2\n", encoding="utf-8")

    def close() -> None:
        for fd in closed:
            os.close(fd)

    done = supervise("config", "show", cwd=tmp_path, preexec_fn=close)
    assert done.returncode == 0
    assert done.stderr == ""
    assert ("restart.intensity" in done.stdout) == (1 not in closed)
    assert supervise("nonsense", cwd=tmp_path, preexec_fn=close).returncode == 64
    assert (tmp_path / "supervise.toml").read_text(encoding="utf-8") == "restart.intensity = 2\n"


@pytest.mark.process
@pytest.mark.parametrize(
    ("closed", "commands"), few_rows([([0, 1, 2], ["status"]), *((closed, ["status", "why", "logs"]) for closed in ([0, 1, 2], [1], [2]))])
)
def test_a_job_runs_and_is_looked_at_whatever_streams_are_closed(tmp_path: Path, closed: list[int], commands: list[str]) -> None:
    def close() -> None:
        for fd in closed:
            os.close(fd)

    done = supervise("--", "sh", "-c", "echo it ran; touch ran", cwd=tmp_path, preexec_fn=close)
    assert (done.returncode, "it ran" in done.stdout) == (0, 1 not in closed)
    assert (tmp_path / "ran").exists()
    for command in commands:
        assert supervise(command, cwd=tmp_path, preexec_fn=close).returncode == 0


@pytest.mark.process
def test_a_stderr_that_is_full_ends_no_command(tmp_path: Path) -> None:
    for job in ("a", "b"):  # two, so that there is something to be told
        written = RecordedJob(tmp_path / ".supervise", job)
        written.begin()
        written.start(5)
        written.succeed(10)
        written.close()
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        done = supervise("status", cwd=tmp_path, stderr=full)
        assert supervise("nonsense", cwd=tmp_path, stderr=full).returncode == 64
    assert (done.returncode, "job b on" in done.stdout) == (0, True)


@pytest.mark.process
def test_a_working_directory_may_have_any_name(tmp_path: Path) -> None:
    place = tmp_path / "c\udcff"
    place.mkdir()
    run = functools.partial(preloaded.command_text, cwd=place, environ={"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]})
    done = run("--", "echo", "it ran")
    assert (done.returncode, done.stdout) == (0, "it ran\n")
    assert "c\\udcff" in json.loads(run("status", "--json").stdout)["state_dir"].encode("unicode_escape").decode()


@pytest.mark.process
@pytest.mark.parametrize("arguments", few([["status"], ["--", "true"], ["config", "show"]]), ids=str)
def test_a_working_directory_that_was_deleted_is_reported(tmp_path: Path, arguments: list[str]) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    done = supervise(*arguments, cwd=gone, preexec_fn=gone.rmdir)
    assert (done.returncode, done.stderr.splitlines()[0]) == (78, "supervise: error: no working directory: it was deleted")


@pytest.fixture(scope="module")
def failed_job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return where a job ran and failed, so that every command has something to print."""
    place = tmp_path_factory.mktemp("failed job")
    job = RecordedJob(place / ".supervise")
    job.begin()
    job.start(1)
    job.log(1, "rank-0.out", b"x" * 200_000 + b"\n")
    job.give_up(5)
    return place


READING = [
    *(["status"], ["status", "--json"], ["why"], ["logs"], ["config", "show"], ["config", "show", "--json"]),
    *(["classify", "."], ["classify", "--json", "."], ["--help"], ["classify", "--help"], ["--version"]),
]


#: Calls each command line in a process of its own, and prints how it ended; to the end of the interpreter, which writes what is left.
READ = """
import json, os, sys
from supervisor.cli.main import main
for arguments in json.loads(sys.argv[1]):
    if not (pid := os.fork()):
        sys.exit(main(arguments))
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), *arguments, file=sys.stderr, flush=True)
"""


@pytest.mark.process
@pytest.mark.parametrize(("unbuffered", "lines"), few_rows([("", READING[1:4]), ("", READING), ("1", READING)]))
def test_a_reader_that_has_read_enough_is_no_error(failed_job: Path, unbuffered: str, lines: list[list[str]]) -> None:
    environ = {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": unbuffered}
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-P", "-c", READ, json.dumps(lines)]
    done = subprocess.run(command, cwd=failed_job, stdout=writer, stderr=subprocess.PIPE, env=environ, text=True, timeout=120, check=False)  # noqa: S603  our own code
    os.close(writer)
    assert done.stderr.splitlines() == [" ".join(["0", *arguments]) for arguments in lines]


@pytest.mark.process
@pytest.mark.parametrize("unbuffered", few(["", "1"]), ids=["buffered", "unbuffered"])
def test_a_full_stdout_is_reported_and_is_no_bug(tmp_path: Path, unbuffered: str) -> None:
    environ = {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": unbuffered}
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        done = supervise("config", "show", cwd=tmp_path, stdout=full, env=environ)
    assert done.returncode == 78
    assert done.stderr.startswith("supervise: error: cannot write to stdout: No space left on device\n")


@pytest.mark.process
@pytest.mark.parametrize("encoding", few(["ascii", "latin-1", "utf-8"]))
def test_any_text_can_be_printed_to_any_terminal(tmp_path: Path, encoding: str) -> None:
    environ = {"PYTHONPATH": str(ROOT), "PYTHONIOENCODING": f"{encoding}:strict", "SUPERVISE_JOB": "ok"}
    done = supervise("config", "show", "--state-dir", "→ \udcff", cwd=tmp_path, env=environ)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\\udcff" in done.stdout


@pytest.mark.process
@pytest.mark.parametrize("safe_path", few([False, True]))
def test_a_working_directory_with_modules_of_our_names_is_passed_by(tmp_path: Path, safe_path: bool) -> None:  # noqa: FBT001  a parameter
    for name in ("supervisor.py", "health.py", "checkpointing.py", "click.py"):
        (tmp_path / name).write_text("raise SystemExit('the wrong one')\n", encoding="utf-8")
    code = "import sys\nsys.argv = ['supervise', 'config', 'show']\n"
    environ = {"PYTHONPATH": str(ROOT)}
    if safe_path:
        done = supervise("config", "show", cwd=tmp_path, env=environ)
    else:
        # as the console script does it: its own directory first, the working directory nowhere
        code += "sys.path.pop(0)\nfrom supervisor.cli.main import main\nsys.exit(main())"
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=120, check=False)  # noqa: S603  our own code
    assert (done.returncode, done.stderr) == (0, "")


def test_the_version_is_the_distributions(capfd: pytest.CaptureFixture[str]) -> None:
    assert main.main(["--version"]) == 0
    assert re.fullmatch(r"supervise \d+\.\d+\.\d+\S*\n", capfd.readouterr().out)


@pytest.mark.process
def test_a_package_of_the_user_s_that_is_named_as_ours_is_passed_by(tmp_path: Path) -> None:
    (tmp_path / "supervisor").mkdir()
    (tmp_path / "supervisor" / "__init__.py").write_text("raise RuntimeError('this is theirs')\n")
    script = Path(sys.executable).with_name("supervise")
    environ = os.environ | {"PYTHONPATH": str(tmp_path)}
    for command in (["--help"], ["--", sys.executable, "-c", "print(40 + 2)"]):
        done = subprocess.run([script, *command], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=120, check=False)  # noqa: S603  our own
        assert done.returncode == 0, done.stderr
        assert "theirs" not in done.stderr
    assert done.stdout == "42\n"


@pytest.mark.parametrize(("group", "text"), [("checkpoints", "latest"), ("config", "show")])
def test_a_group_alone_is_a_mistake_that_names_its_commands(capfd: pytest.CaptureFixture[str], group: str, text: str) -> None:
    assert main.main([group]) == 64
    message, help_ = capfd.readouterr().err.splitlines()
    assert message == f"supervise: error: missing command: supervise {group} ..."
    assert text in help_
    assert f"supervise {group} --help" in help_


def test_the_help_calls_things_by_their_names(capfd: pytest.CaptureFixture[str]) -> None:
    assert main.main(["drill", "--help"]) == 0
    out = capfd.readouterr().out
    assert out.startswith("Usage: supervise drill [OPTIONS] KIND -- CMD...\n")
    assert main.main(["run", "--help"]) == 0
    out += capfd.readouterr().out
    assert {"--checkpoints GLOB", "--mirror URL", "--set SECTION.KEY=VALUE", "--knob NAME=WHERE"} <= {
        " ".join(words) for words in re.findall(r"^  (--\S+) (\S+)", out, flags=re.MULTILINE)
    }


def test_each_command_that_a_person_calls_is_in_one_group_of_the_help_and_each_flag_of_a_group_is_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    grouped = [name for names in commands.GROUPS.values() for name in names]
    assert sorted(grouped) == sorted(path for path in commands.COMMANDS if " " not in path and path not in commands.HIDDEN)
    assert main.main(["--help"]) == 0
    out = capsys.readouterr().out
    flags = {param.opts[0] for param in load_command("run").params}
    assert {flag for names in commands.OPTIONS.values() for flag in names} <= flags
    assert re.findall(r"^(\w[\w ]*):$", out, re.MULTILINE) == [*commands.GROUPS, *commands.OPTIONS, "More"], "commands first"
    assert all(len(re.findall(rf"^  {name} ", out, re.MULTILINE)) == 1 for name in grouped)


def test_a_process_that_can_start_no_thread_names_the_limits(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    def fails(_arguments: list[str]) -> int:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(main, "_dispatch", fails)
    assert main.main(["status"]) == 75
    error, hint = capfd.readouterr().err.splitlines()
    assert re.fullmatch(r"supervise: error: no thread can be started: ulimit -v is \w+, ulimit -u is \w+", error)
    assert "Raise the one that is too low" in hint
