"""Dashboard and alert rules against the metrics that exist, by promtool, and by a real Prometheus that scrapes a real run."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from supervisor.core.model import Cause, PlanKind
from supervisor.core.state import Stage
from supervisor.report.metrics.exposition import Samples, exposition
from supervisor.report.metrics.samples import samples_of
from supervisor.report.metrics.table import JOB, Metric
from supervisor.view.spans import TimeState
from tests.report.metrics.facts import live, recorded
from tests.support.ports import free_port
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.supervised import Supervised

ROOT = Path(__file__).parents[2]
OPERATIONS = ROOT / "docs/operations"
RULES = OPERATIONS / "prometheus-rules.yml"
HERE = Path(__file__).parent
#: By name on the wire: a summary has two.
ON_THE_WIRE = {
    name: metric for metric in Metric for name in ([f"{metric}_sum", f"{metric}_count"] if metric.kind == "summary" else [metric.value])
}
#: Labels that Prometheus itself adds.
ADDED = {"instance", "job"}
#: The values of labels that are a closed list.
VALUES = {
    "stage": {stage.value for stage in Stage},
    "state": {state.value for state in TimeState},
    "cause": {cause.value for cause in Cause} | {"membership", "takeover"},
    "action": {kind.value for kind in PlanKind},
    "result": {"ok", "degraded", "failed", "unknown"},
}


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"] for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    document: list[dict[str, Any]] = json.loads((OPERATIONS / "grafana-dashboard.json").read_text(encoding="utf-8"))["panels"]
    return document


EXPRESSIONS = {rule["alert"]: rule["expr"] for rule in rules()} | {
    f"{panel['title']} {target['refId']}": target["expr"] for panel in panels() for target in panel.get("targets", ())
}


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_an_expression_names_metrics_labels_and_values_that_are_there(name: str) -> None:
    expression = EXPRESSIONS[name]
    unknown = set(re.findall(r"\bsupervise_\w+", expression)) - ON_THE_WIRE.keys()
    assert not unknown
    for metric, matchers in re.findall(r"\b(supervise_\w+)\{([^}]*)\}", expression):
        for label, operator, value in re.findall(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"', matchers):
            assert label in {*ON_THE_WIRE[metric].labels, JOB}, (metric, label)
            if label in VALUES:
                assert set(value.split("|") if "~" in operator else [value]) <= VALUES[label], (label, value)
    grouped = {label for words in re.findall(r"\b(?:by|on|group_left)\s*\(([^)]*)\)", expression) for label in re.findall(r"\w+", words)}
    assert grouped <= {label for metric in Metric for label in metric.labels} | {JOB} | ADDED


def test_every_metric_is_shown_by_the_dashboard() -> None:
    shown = {match for expression in EXPRESSIONS.values() for match in re.findall(r"\bsupervise_\w+", expression)}
    assert set(ON_THE_WIRE) - shown == set()


def test_a_rule_says_what_and_which_command_shows_more() -> None:
    for rule in rules():
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}
        assert set(rule["annotations"]) == {"summary", "description"}
        assert re.search(r"\bsupervise [a-z]+|journal|disk", rule["annotations"]["description"] + rule["annotations"]["summary"]), rule[
            "alert"
        ]


def test_every_command_in_a_rule_is_one() -> None:
    from supervisor.cli.commands import COMMANDS  # noqa: PLC0415  loads click

    for rule in rules():
        for words in re.findall(r"supervise ((?:[a-z]+ ?){1,2})", rule["annotations"]["description"]):
            first, _, rest = words.strip().partition(" ")
            is_prose = first in {"on", "of", "died"}
            assert is_prose or first in COMMANDS or f"{first} {rest}".strip() in COMMANDS, (rule["alert"], words)


def test_the_dashboard_is_up_to_date_and_its_panels_do_not_overlap() -> None:
    done = subprocess.run(
        [sys.executable, "bench/dashboard.py", "--check"], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")
    taken: set[tuple[int, int]] = set()
    for panel in panels():
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells
    assert len({panel["id"] for panel in panels()}) == len(panels())


# what needs Debian's package prometheus

PROMTOOL, PROMETHEUS = shutil.which("promtool"), shutil.which("prometheus")
with_promtool = pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed (Debian: apt-get install prometheus)")


def promtool(*words: str | Path, given: bytes | None = None) -> None:
    done = subprocess.run([str(PROMTOOL), *words], input=given, capture_output=True, timeout=120, check=False)  # noqa: S603  Prometheus's own
    assert done.returncode == 0, (done.stdout + done.stderr).decode()
    assert not done.stderr.strip() or b"SUCCESS" in done.stdout + done.stderr, done.stderr.decode()


@pytest.mark.slow
@with_promtool
def test_promtool_finds_nothing_wrong_with_the_rules_and_each_fires_where_it_should_and_not_before(tmp_path: Path) -> None:
    promtool("check", "rules", RULES)
    shutil.copy(RULES, tmp_path)
    tests = yaml.safe_load((HERE / "rules-test.yml").read_text(encoding="utf-8"))
    fired = {row["alertname"] for test in tests["tests"] for row in test["alert_rule_test"] if row.get("exp_alerts")}
    assert fired == {rule["alert"] for rule in rules()}, "a rule that no test lets fire"
    (tmp_path / "rules-test.yml").write_text((HERE / "rules-test.yml").read_text(encoding="utf-8"))
    promtool("test", "rules", tmp_path / "rules-test.yml")


@pytest.mark.slow
@with_promtool
def test_promtool_finds_nothing_wrong_with_the_page(tmp_path: Path) -> None:
    del tmp_path
    promtool("check", "metrics", given=exposition(Samples(samples_of(live(), recorded()), "bert")))


@pytest.fixture
def prometheus(tmp_path: Path) -> Iterator[Callable[[int], Callable[..., Any]]]:
    """Give a function that starts a Prometheus which scrapes a port, and returns one that asks its API."""
    running: list[subprocess.Popen[bytes]] = []

    def start(target: int) -> Callable[..., Any]:
        port = free_port()
        scrapes = [{"job_name": "supervise", "scrape_interval": "1s", "static_configs": [{"targets": [f"127.0.0.1:{target}"]}]}]
        config = {"global": {"evaluation_interval": "1s"}, "scrape_configs": scrapes, "rule_files": [str(RULES)]}
        (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
        with (tmp_path / "prometheus.log").open("wb") as log:
            words = [
                str(PROMETHEUS),
                f"--config.file={tmp_path / 'prometheus.yml'}",
                f"--storage.tsdb.path={tmp_path / 'tsdb'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ]
            running.append(subprocess.Popen(words, stdout=log, stderr=log))  # noqa: S603  Debian's own

        def ask(path: str, **query: str) -> Any:  # noqa: ANN401  JSON
            url = f"http://127.0.0.1:{port}/api/v1/{path}?{urllib.parse.urlencode(query)}"
            with contextlib.suppress(urllib.error.URLError, ConnectionError), urllib.request.urlopen(url, timeout=10) as answer:
                return json.load(answer)["data"]
            return None

        wait_for(lambda: ask("status/buildinfo"), "Prometheus", 60, alive=lambda: running[-1].poll() is None)
        return ask

    yield start
    for process in running:
        process.terminate()
        process.wait(30)


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.skipif(PROMETHEUS is None, reason="prometheus is not installed (Debian: apt-get install prometheus)")
def test_a_real_prometheus_scrapes_a_real_run_and_its_rules_and_panels_have_answers(
    supervise: Callable[..., Supervised], prometheus: Callable[[int], Callable[..., Any]]
) -> None:
    from tests.e2e.test_metrics import TRAIN  # noqa: PLC0415  its job

    port = free_port()
    run = supervise(sys.executable, "-c", TRAIN, options=["--set", f"metrics.listen={port}"])
    ask = prometheus(port)

    def value(query: str) -> float | None:
        result = (ask("query", query=query) or {}).get("result")
        return float(result[0]["value"][1]) if result else None

    wait_for(lambda: value('up{job="supervise"}') == 1, "a scrape", 60, alive=run.alive)
    wait_for(lambda: value('supervise_restarts_total{cause="killed_unknown"}') == 1, "the restart", 60, alive=run.alive)
    wait_for(lambda: (value("supervise_steps_per_second") or 0) > 0, "the pace", 60, alive=run.alive)
    assert (value("sum(supervise_time_seconds)") or 0) > 0
    for title, expression in EXPRESSIONS.items():
        assert ask("query", query=expression.replace("$job", ".*")) is not None, title
    groups = wait_for(
        lambda: (page := ask("rules")["groups"]) and all(rule["health"] == "ok" for rule in page[0]["rules"]) and page, "the rules", 60
    )
    assert len(groups[0]["rules"]) == len(rules())
    (metadata,) = [ask("metadata", metric="supervise_time_seconds")["supervise_time_seconds"]]
    assert metadata[0]["type"] == "gauge"
    (run.place / "end").touch()
    assert run.exit_code() == 0
    wait_for(lambda: value('up{job="supervise"}') == 0, "the end", 30)
