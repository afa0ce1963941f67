"""A site's own thresholds, and the checks and probes of packages: used where the settings name them, and only there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from health.thresholds import Thresholds, thresholds

if TYPE_CHECKING:
    from pathlib import Path

PROBE = """
from health.model import Reading
def read(ask):
    yield Reading("rack", "host", "rack.water_c", 41.5)
"""
CHECK = """
from health.model import CheckResult, Result
NEEDS = ("rack",)
def check(now, before, limits):
    yield CheckResult("rack_water", "host", Result.FAILED, f"water of {now.number('rack.water_c')} degrees, {limits.hbm_max_c}")
"""
POINTS = (
    "[supervise.probes]\nrack = rackprobe\n[supervise.checks]\nrack_water = rackcheck\nrack_broken = rackbroken\nrack_bare = rackprobe\n"
)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Return a directory of packages, with one that offers a probe and three checks."""
    info = tmp_path / "rack-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rack\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(POINTS)
    (tmp_path / "rackprobe.py").write_text(PROBE)
    (tmp_path / "rackcheck.py").write_text(CHECK)
    (tmp_path / "rackbroken.py").write_text("import no_such_thing\n")
    return tmp_path


def _doctor(site: Path, plugins: str, limits: str = "") -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(part for part in (str(site), os.environ.get("PYTHONPATH", "")) if part)
    environ = {**os.environ, "PYTHONPATH": path, "SUPERVISE_HEALTH_PLUGINS": plugins, "SUPERVISE_HEALTH_THRESHOLDS": limits}
    command = [sys.executable, "-m", "supervisor", "doctor", "--json"]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)  # noqa: S603  ours


@pytest.mark.process
def test_a_package_s_probe_and_check_are_used_where_they_are_named(site: Path) -> None:
    done = _doctor(site, "rack rack_water", "hbm_max_c=88")
    rows = [row for row in json.loads(done.stdout)["results"] if row["check"] == "rack_water"]
    assert [row["reason"] for row in rows] == ["water of 41.5 degrees, 88.0"]
    assert done.returncode == 69
    assert "rack_water" not in _doctor(site, "rack").stdout, "that it is installed is no consent"


@pytest.mark.process
@pytest.mark.parametrize(
    ("plugins", "limits", "said"),
    [
        ("rock", "", "health.plugins (environment SUPERVISE_HEALTH_PLUGINS): no package offers a check or probe 'rock'"),
        ("gpu_ecc", "", "'gpu_ecc' is one of ours"),
        ("rack_broken", "", "rack_broken: ModuleNotFoundError: No module named 'no_such_thing'"),
        ("rack_bare", "", "rack_bare: its module has no NEEDS, or no check()"),
        ("", "hbm=1", "health.thresholds (environment SUPERVISE_HEALTH_THRESHOLDS): there is no threshold 'hbm'"),
    ],
)
def test_what_cannot_be_used_is_refused_with_the_setting_s_name(plugins: str, limits: str, said: str, site: Path) -> None:
    done = _doctor(site, plugins, limits)
    assert said in done.stderr
    assert (done.returncode, done.stdout) == (78, "")


def test_a_threshold_of_the_site_s_stands_in_for_ours() -> None:
    chosen = thresholds(["disk_used_share=0.8", " retired_pages = 30"])
    assert (chosen.disk_used_share, chosen.retired_pages) == (0.8, 30)
    assert (chosen.hbm_max_c, thresholds([])) == (Thresholds().hbm_max_c, Thresholds())


@pytest.mark.parametrize(
    "word", ["write_s", "write_s=", "write_s=fast", "write_s=nan", "write_s=inf", "write_s=-1", "retired_pages=1.5", "=1"]
)
def test_what_is_no_number_is_no_threshold(word: str) -> None:
    with pytest.raises(ValueError, match=r"NUMBER|no threshold"):
        thresholds([word])
