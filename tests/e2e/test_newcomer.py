"""The first hour of a user who has read little: each mistake is reported, at once and with a hint."""

from __future__ import annotations

import socket
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.alert_sinks import webhook

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Supervised, Surroundings

pytestmark = pytest.mark.process


def words(run: Supervised) -> str:
    """Return the output as one line, however it was folded."""
    return " ".join(run.stderr.split())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--resume-args", "--resume {ckpt}"], "no placeholder but {resume}"),
        pytest.param(["--resume-args", "--resume"], "Write '--resume {resume}'", marks=pytest.mark.slow),
        pytest.param(["--checkpoints", ""], "checkpoints.paths = ['']", marks=pytest.mark.slow),
        (["--job", "a/b"], "a name of up to 64 letters"),
        pytest.param(["--state-dir", ""], "job.state_dir = ''", marks=pytest.mark.slow),
    ],
)
def test_an_option_that_cannot_be_meant_is_64_and_nothing_is_started(
    supervise: Callable[..., Supervised], options: list[str], message: str
) -> None:
    run = supervise("touch", "started", options=options)
    assert run.exit_code() == 64
    assert message in words(run)
    assert not (run.place / "started").exists()


@pytest.mark.parametrize("kind", ["a directory", pytest.param("a link to", marks=pytest.mark.slow)])
def test_a_configuration_that_is_no_file_is_78_and_named(supervise: Callable[..., Supervised], tmp_path: Path, kind: str) -> None:
    path = tmp_path / "supervise.toml"
    path.mkdir() if kind == "a directory" else path.symlink_to("missing.toml")
    run = supervise("true")
    assert run.exit_code() == 78
    assert f"{path}: it is {kind}" in words(run)


def test_a_missing_torchrun_is_reported_with_the_source_of_torch(
    supervise: Callable[..., Supervised], surroundings: type[Surroundings]
) -> None:
    without = 'program="$(command -v "$1")"; shift; PATH=/usr/bin:/bin exec "$program" "$@"'
    run = supervise("torchrun", "train.py", around=surroundings(prefix=("sh", "-c", without, "sh")))
    assert run.exit_code() == 64
    assert "no such command: torchrun" in run.stderr
    assert "https://pytorch.org/get-started/locally" in run.stderr


@pytest.mark.slow  # tests/agent/test_teardown.py shows it of the agent
def test_arguments_that_torchrun_does_not_take_are_reported_in_its_name(supervise: Callable[..., Supervised]) -> None:
    run = supervise("torchrun", "--bogus", "train.py")
    assert run.exit_code() == 2
    assert "usage: torchrun [-h]" in run.stderr
    assert "evidence torchrun: error: unrecognized arguments: --bogus" in words(run)


@pytest.mark.slow
def test_a_working_directory_deleted_by_the_job_is_named_and_no_rank_starts_there(
    supervise: Callable[..., Supervised], surroundings: type[Surroundings], tmp_path: Path
) -> None:
    place = tmp_path / "work"
    place.mkdir()
    deletes = f"echo begun; rm -rf {place}; kill -9 $$"
    run = supervise("bash", "-c", deletes, around=surroundings(prefix=("env", "-C", str(place))))
    assert run.exit_code() == 1
    assert f"the working directory {place} was deleted".replace(" ", "") in "".join(run.stderr.split())  # a long path is folded too
    assert run.stdout.count("begun") == 1
    run.wait_for_nothing_left()


@pytest.mark.slow
def test_a_long_message_hides_neither_the_exceptions_type_nor_its_cause(supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    script = tmp_path / "long.py"
    script.write_text("raise ImportError(\"cannot import name 'x' from 'y'; \" + 'y' * 3000)\n")
    run = supervise(sys.executable, str(script))
    assert run.exit_code() == 1
    assert "raised ImportError: cannot import name 'x'" in words(run)
    assert "user_code, 85 % sure" in words(run)  # by the signature of the whole message, not of what the card shows of it


@pytest.mark.slow
def test_an_alert_that_reached_nobody_is_reported_at_the_end(supervise: Callable[..., Supervised]) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/x"
        run = supervise("false", options=["--set", "restart.max_attempts=1", *webhook(url)])
        assert run.exit_code() == 1
    assert "1 alert was not delivered to 127.0.0.1: Connection refused; kept in" in words(run)
