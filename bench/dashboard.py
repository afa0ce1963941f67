"""Write docs/operations/grafana-dashboard.json from the table of its panels.

python bench/dashboard.py             # write it
python bench/dashboard.py --check     # exit status 1 if it is not up to date
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILE = Path(__file__).parents[1] / "docs/operations/grafana-dashboard.json"
#: What every query selects: the jobs that are chosen at the top of the page.
JOBS = 'job_name=~"$job"'
_COLUMNS = 24


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel. queries: (expression, legend); `%` in an expression is JOBS. kind: Grafana's type. unit: Grafana's name of it."""

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    width: int = 12
    kind: str = "timeseries"
    text: str = ""
    stacked: bool = False


#: What all nodes of a job share is the same on each: its greatest value, not a sum.
_SHARED = "max by (job_name) (supervise_{}{{%}})"


_STATES = "max by (job_name, state) (supervise_time_seconds{%})"
_RECOVERY = "max by (job_name) (supervise_recovery_seconds_{}{{%}}{})"


def shared(name: str) -> str:
    """Return the query of a metric that all nodes share."""
    return _SHARED.format(name)


SECTIONS: tuple[tuple[str, tuple[Panel, ...]], ...] = (
    (
        "The job",
        (
            Panel(
                "ETTR",
                "percentunit",
                ((shared("ettr_ratio"), "{{job_name}}"),),
                4,
                "stat",
                "the share of the wall clock that made new steps",
            ),
            Panel("goodput", "percentunit", ((shared("goodput_ratio"), "{{job_name}}"),), 4, "stat"),
            Panel("step", "none", ((shared("step"), "{{job_name}}"),), 4, "stat"),
            Panel("attempt", "none", ((shared("attempt"), "{{job_name}}"),), 4, "stat"),
            Panel(
                "age of the checkpoint",
                "s",
                (("time() - max by (job_name) (supervise_checkpoint_last_verified_timestamp_seconds{%})", "{{job_name}}"),),
                4,
                "stat",
                "what a failure now would lose",
            ),
            Panel("restarts left", "none", (("min by (job_name) (supervise_restarts_left{%})", "{{job_name}}"),), 4, "stat"),
            Panel("stage", "none", (("max by (job_name, stage) (supervise_stage{%}) == 1", "{{job_name}} {{stage}}"),)),
            Panel(
                "since the last progress",
                "s",
                (("time() - max by (job_name) (supervise_last_progress_timestamp_seconds{%})", "{{job_name}}"),),
            ),
            Panel(
                "ranks", "none", (("sum by (job_name) (supervise_ranks{%})", "{{job_name}}"), (shared("world_size"), "{{job_name}} wanted"))
            ),
            Panel(
                "runs",
                "none",
                (
                    ("count by (job_name, run) (supervise_run_info{%})", "{{job_name}} {{run}}: nodes"),
                    ("count by (version) (supervise_build_info{%})", "version {{version}}"),
                ),
            ),
        ),
    ),
    (
        "The training",
        (
            Panel("steps per second", "none", ((shared("steps_per_second"), "{{job_name}}"),)),
            Panel("loss", "none", ((shared("loss"), "{{job_name}}"),)),
            Panel(
                "hangs and warnings",
                "none",
                ((shared("hang"), "{{job_name}} hangs"), (shared("training_warnings"), "{{job_name}} warnings of loss and pace")),
            ),
            Panel(
                "who makes the others wait",
                "none",
                (("max by (job_name, node, rank) (supervise_straggler{%})", "{{job_name}} node {{node}} rank {{rank}}"),),
            ),
            Panel(
                "where a step goes",
                "percentunit",
                (("max by (job_name, node, part) (supervise_step_time_ratio{%})", "{{job_name}} {{node}} {{part}}"),),
                stacked=True,
            ),
            Panel(
                "memory of the ranks that hold most",
                "bytes",
                (("max by (job_name, rank, kind) (supervise_rank_memory_bytes{%})", "{{job_name}} rank {{rank}} {{kind}}"),),
            ),
            Panel(
                "until memory is used up",
                "s",
                (("min by (job_name, of) (supervise_out_of_memory_timestamp_seconds{%}) - time()", "{{job_name}} {{of}}"),),
            ),
        ),
    ),
    (
        "Where the time goes",
        (
            Panel(
                "share of the run by state",
                "percentunit",
                (
                    (
                        f"{_STATES} / on (job_name) group_left () sum by (job_name) ({_STATES})",
                        "{{job_name}} {{state}}",
                    ),
                ),
                stacked=True,
            ),
            Panel(
                "age of the run",
                "s",
                (("time() - min by (job_name) (supervise_run_start_timestamp_seconds{%})", "{{job_name}}"),),
            ),
        ),
    ),
    (
        "Failures",
        (
            Panel(
                "restarts per hour, by cause",
                "none",
                (("max by (job_name, cause) (increase(supervise_restarts_total{%}[1h])) > 0", "{{job_name}} {{cause}}"),),
                kind="timeseries",
            ),
            Panel(
                "failures of the run, by cause and decision",
                "none",
                (("max by (job_name, cause, action) (supervise_incidents_total{%}) > 0", "{{job_name}} {{cause}}: {{action}}"),),
            ),
            Panel(
                "mean time to recovery",
                "s",
                (
                    (
                        f"{_RECOVERY.format('sum', '')} / {_RECOVERY.format('count', ' > 0')}",
                        "{{job_name}}",
                    ),
                ),
                text="from a failure to the first step after it",
            ),
            Panel("an incident is open", "none", ((shared("incident_open"), "{{job_name}}"),)),
        ),
    ),
    (
        "Checkpoints",
        (
            Panel(
                "verified",
                "none",
                (
                    (shared("checkpoint_last_verified_step"), "{{job_name}} step"),
                    (shared("checkpoints_verified_total"), "{{job_name}} how many"),
                ),
            ),
            Panel("not in every mirror", "bytes", (("sum by (job_name) (supervise_mirror_backlog_bytes{%})", "{{job_name}}"),)),
            Panel(
                "checkpoints not in every mirror",
                "none",
                (
                    ("sum by (job_name) (supervise_mirror_backlog_checkpoints{%})", "{{job_name}}"),
                    (shared("mirror_failing"), "{{job_name}} uploads fail"),
                ),
            ),
            Panel(
                "mirror behind",
                "s",
                (
                    (shared("mirror_behind_seconds"), "{{job_name}} behind"),
                    (
                        "time() - max by (job_name) (supervise_mirror_last_success_timestamp_seconds{%})",
                        "{{job_name}} since the last upload",
                    ),
                ),
            ),
        ),
    ),
    (
        "Nodes and GPUs",
        (
            Panel(
                "checks that are not ok",
                "none",
                (('supervise_health_check_status{%, result!="ok"} == 1', "{{instance}} {{check}}: {{result}}"),),
            ),
            Panel("GPUs out of use", "none", (("supervise_gpu_quarantined{%} == 1", "{{instance}} GPU {{gpu}}"),)),
            Panel(
                "power",
                "watt",
                (("supervise_gpu_power_watts{%}", "{{instance}} GPU {{gpu}}"), ("max(supervise_gpu_power_limit_watts{%})", "limit")),
            ),
            Panel("temperature", "celsius", (("supervise_gpu_temperature_celsius{%}", "{{instance}} GPU {{gpu}}"),)),
            Panel("busy", "percentunit", (("supervise_gpu_utilization_ratio{%}", "{{instance}} GPU {{gpu}}"),)),
            Panel(
                "memory used",
                "percentunit",
                (("supervise_gpu_memory_used_bytes{%} / supervise_gpu_memory_bytes{%}", "{{instance}} GPU {{gpu}}"),),
            ),
            Panel("clock", "hertz", (("supervise_gpu_sm_clock_hertz{%}", "{{instance}} GPU {{gpu}}"),)),
            Panel("uncorrectable errors", "none", (("supervise_gpu_ecc_uncorrected_total{%} > 0", "{{instance}} GPU {{gpu}}"),)),
            Panel(
                "supervise itself",
                "none",
                (
                    ("supervise_journal_degraded{%}", "{{instance}} journal degraded"),
                    ("(time() - supervise_metrics_timestamp_seconds{%}) > bool 60", "{{instance}} metrics are old"),
                ),
            ),
        ),
    ),
)


def _panel(number: int, panel: Panel, x: int, y: int) -> dict[str, Any]:
    source = {"type": "prometheus", "uid": "${datasource}"}
    height = 4 if panel.kind == "stat" else 8
    targets = [
        {"refId": chr(ord("A") + at), "datasource": source, "expr": expression.replace("%", JOBS), "legendFormat": legend}
        for at, (expression, legend) in enumerate(panel.queries)
    ]
    custom = {"stacking": {"mode": "normal"}, "fillOpacity": 60} if panel.stacked else {"fillOpacity": 0}
    fields = {
        "id": number, "title": panel.title, "type": panel.kind, "datasource": source, "description": panel.text,
        "gridPos": {"x": x, "y": y, "w": panel.width, "h": height}, "targets": targets,
        "fieldConfig": {"defaults": {"unit": panel.unit, **({} if panel.kind == "stat" else {"custom": custom})}, "overrides": []},
    }  # fmt: skip
    return fields if panel.kind == "stat" else {**fields, "options": {"legend": {"displayMode": "list", "placement": "bottom"}}}


def dashboard() -> dict[str, Any]:
    """Return the dashboard as Grafana imports it."""
    panels: list[dict[str, Any]] = []
    y = 0
    for title, section in SECTIONS:
        panels.append(
            {"id": len(panels) + 1, "type": "row", "title": title, "gridPos": {"x": 0, "y": y, "w": _COLUMNS, "h": 1}, "panels": []}
        )
        y, x, height = y + 1, 0, 0
        for panel in section:
            if x + panel.width > _COLUMNS:
                x, y = 0, y + height
            panels.append(_panel(len(panels) + 1, panel, x, y))
            height = panels[-1]["gridPos"]["h"]
            x += panel.width
        y += height
    source = {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"}
    jobs = {
        "name": "job", "type": "query", "label": "job", "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "query": "label_values(supervise_build_info, job_name)", "refresh": 2, "multi": True, "includeAll": True, "allValue": ".*",
    }  # fmt: skip
    return {
        "title": "supervise", "uid": "supervise", "tags": ["supervise"], "schemaVersion": 39, "version": 1, "editable": True,
        "time": {"from": "now-24h", "to": "now"}, "refresh": "30s", "templating": {"list": [source, jobs]}, "panels": panels,
    }  # fmt: skip


def main() -> int:
    """Write the file, or compare it; return the exit status."""
    text = json.dumps(dashboard(), indent=1) + "\n"
    if FILE.exists() and FILE.read_text(encoding="utf-8") == text:
        return 0
    if "--check" in sys.argv[1:]:
        print(f"stale: {FILE.name}; run `python bench/dashboard.py`")
        return 1
    FILE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
