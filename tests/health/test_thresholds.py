"""A site's own thresholds replace ours; an invalid threshold is refused."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from health.thresholds import Thresholds, thresholds


@pytest.mark.process
def test_an_unknown_threshold_is_refused_with_the_setting_s_name() -> None:
    environ = {**os.environ, "SUPERVISE_HEALTH_THRESHOLDS": "hbm=1"}
    command = [sys.executable, "-m", "supervisor", "doctor", "--json"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, check=False)  # noqa: S603  ours
    assert "health.thresholds (environment SUPERVISE_HEALTH_THRESHOLDS): there is no threshold 'hbm'" in done.stderr
    assert (done.returncode, done.stdout) == (78, "")


def test_a_threshold_of_the_site_s_stands_in_for_ours() -> None:
    chosen = thresholds(["disk_used_share=0.8", " retired_pages = 30"])
    assert (chosen.disk_used_share, chosen.retired_pages) == (0.8, 30)
    assert (chosen.hbm_max_c, thresholds([])) == (Thresholds().hbm_max_c, Thresholds())


@pytest.mark.parametrize(
    "word", ["write_s", "write_s=", "write_s=fast", "write_s=nan", "write_s=inf", "write_s=-1", "retired_pages=1.5", "=1"]
)
def test_a_word_that_is_no_number_is_no_threshold(word: str) -> None:
    with pytest.raises(ValueError, match=r"NUMBER|no threshold"):
        thresholds([word])
