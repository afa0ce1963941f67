"""The unit as text: systemd accepts it, README explains all of it, and it says what the exit codes promise."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from supervisor.errors import ExitCode

ROOT = Path(__file__).parents[2]
UNITS = ROOT / "supervisor/cli/systemd/units"
UNIT = UNITS / "supervise@.service"
EVERY = sorted(path for path in UNITS.iterdir() if path.suffix in {".service", ".timer"})
README = (ROOT / "systemd/README.md").read_text()
#: The exposure that `systemd-analyze security` may give, in tenths: what GPUs permit.
EXPOSURE = 50

needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed (Debian: apt-get install systemd)"
)


def analyze(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = ["systemd-analyze", "--no-pager", *map(str, arguments)]
    return subprocess.run(command, text=True, capture_output=True, timeout=60, check=False)  # noqa: S603 - our own arguments


def settings(unit: Path = UNIT) -> list[tuple[str, str]]:
    lines = [line for line in unit.read_text().splitlines() if line and line[0] not in "#["]
    return [(key, value) for key, _, value in (line.partition("=") for line in lines)]


@needs_systemd
@pytest.mark.parametrize("unit", EVERY, ids=lambda unit: unit.name)
def test_systemd_accepts_the_unit(unit: Path) -> None:
    verified = analyze("verify", "--recursive-errors=no", unit)
    assert (verified.returncode, verified.stderr) == (0, "")


def test_the_links_in_the_checkout_show_what_the_package_has() -> None:
    shown = {path.name: path.read_text() for path in (ROOT / "systemd").iterdir() if path.name != "README.md"}
    assert shown == {path.name: path.read_text() for path in UNITS.iterdir()}


@needs_systemd
@pytest.mark.parametrize(
    ("good", "bad", "message"),
    [
        ("OOMPolicy=continue", "OOMPolcy=continue", "Unknown key 'OOMPolcy'"),
        ("KillMode=mixed", "KillMode=gentle", "Failed to parse kill mode"),
        ("/usr/bin/env", "/no/such/program", "is not executable"),
    ],
)
def test_a_planted_mistake_is_found(tmp_path: Path, good: str, bad: str, message: str) -> None:
    text = UNIT.read_text()
    assert good in text
    planted = tmp_path / UNIT.name
    planted.write_text(text.replace(good, bad))
    verified = analyze("verify", "--recursive-errors=no", planted)
    assert verified.returncode != 0
    assert message in verified.stderr


@needs_systemd
@pytest.mark.parametrize("unit", [unit for unit in EVERY if unit.suffix == ".service"], ids=lambda unit: unit.name)
def test_the_unit_is_as_confined_as_gpus_permit(unit: Path) -> None:
    secured = analyze("security", "--offline=true", f"--threshold={EXPOSURE}", unit)
    assert secured.returncode == 0, secured.stdout[-200:]


def test_readme_explains_each_directive_and_no_other() -> None:
    explained = {name for row in README.splitlines() if row.startswith("| `") for name in re.findall(r"`(\w+)=`", row.split(" | ")[0])}
    assert explained == {key for unit in EVERY for key, _ in settings(unit)}


@pytest.mark.parametrize("name", ["supervise@.service", "supervise-doctor.service"])
def test_the_unit_starts_after_the_gpu_services_and_may_read_the_kernels_log(name: str) -> None:
    given = settings(UNITS / name)
    after = {unit for key, value in given if key == "After" for unit in value.split()}
    assert {f"{unit}.service" for unit in ("nvidia-persistenced", "nvidia-fabricmanager", "nvidia-imex", "openibd")} <= after
    assert ("SupplementaryGroups", "systemd-journal") in given


def test_the_settings_listed_as_left_out_are_left_out() -> None:
    table = README.split("## What is left out")[1].split("## ")[0]
    left_out = {name for row in table.splitlines() if row.startswith("| ") for name in re.findall(r"[A-Z]\w+(?!=)", row.split(" | ")[0])}
    assert left_out & {key for key, _ in settings()} <= {"ProtectSystem"}
    assert ("ProtectSystem", "strict") not in settings()


def test_exit_codes_that_no_restart_helps_are_not_restarted() -> None:
    given = dict(settings())["RestartPreventExitStatus"].split()
    final = {ExitCode.USAGE, ExitCode.DETERMINISTIC, ExitCode.BAD_NODE, ExitCode.CONFIG}
    not_started = {126, 127, 216, 217}  # env(1) found no supervise; no such group, no such user
    interrupted = {128 + signal.SIGINT}  # a person's
    assert {int(code) for code in given} == {*map(int, final), *not_started, *interrupted}
    assert ExitCode.REQUEUE not in {int(code) for code in given}


def test_a_stop_is_no_failure_and_a_requeue_that_nobody_asked_for_is_started_again() -> None:
    given = dict(settings())
    assert {int(code) for code in given["SuccessExitStatus"].split()} == {128 + signal.SIGTERM, int(ExitCode.REQUEUE)}
    assert given["RestartForceExitStatus"].split() == [str(int(ExitCode.REQUEUE))], "on-failure leaves out what counts as success"


def test_the_watchdog_is_the_main_process_own() -> None:
    given = dict(settings())
    assert (given["Type"], given["NotifyAccess"], given["KillMode"], given["OOMPolicy"]) == ("notify", "main", "mixed", "continue")
    assert given["ExecStart"] == "/usr/bin/env supervise systemd run %i", "the main process is supervise: env becomes it"
    assert given["User"] not in {"", "root", "0"}
