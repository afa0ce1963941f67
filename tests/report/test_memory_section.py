"""Memory on the card, in the report, in `status` and in an alert."""

from __future__ import annotations

import pytest

from supervisor.alerts import text as alert_text
from supervisor.alerts.model import AlertAction, AlertEvent, AlertSeverity, OutgoingAlert
from supervisor.alerts.text import AlertDetail
from supervisor.alerts.threads import Notification, NotificationState
from supervisor.core.model import Cause, Evidence, RankMemory
from supervisor.core.training_events import MemoryForecast
from supervisor.core.values import replace
from supervisor.core.watch.memory import forecast_text
from supervisor.report.layout import Surface, Tone
from supervisor.report.memory_section import forecast_facts, held_facts, rank_facts
from supervisor.report.status_page import rank_table, rendered, status_page
from supervisor.view.status import ForecastStatus
from tests.cli.jobs.statuses import running

GIB = 1 << 30
NOW = 1_000_000.0
OF_GPU = MemoryForecast(NOW, 1, "gpu 3", "rank 3 needs 71.2 GiB of 79.1 GiB at most in a step", NOW + 2400, 900, 12_412, 3)
OF_HOST = MemoryForecast(NOW, 1, "host", "the machine: 50.0 GiB of 64.0 GiB used", NOW + 600, 60)


def gpu(rank: int, reserved: int) -> Evidence:
    fields = (("reserved", str(reserved * GIB)),)
    return Evidence("heartbeat", "gpu_memory", f"{reserved - 1} GiB allocated and {reserved} GiB reserved", rank, fields=fields)


@pytest.mark.parametrize(
    ("left_s", "doubt_s", "step", "words"),
    [
        (2400, 900, 12_412, "in about 40 minutes (±15), at step ~12,400"),
        (60, 5, None, "in about 1 minutes (±1)"),
        (30, 5, 7, "within a minute, at step ~7"),
        (-5, 5, None, "within a minute"),
        (3 * 3600, 1900, 1_234_567, "in about 3 hours (±1), at step ~1,230,000"),
        (5 * 86400, 86400 * 0.6, None, "in about 5 days (±1)"),
    ],
)
def test_the_time_until_memory_runs_out_is_described_in_round_figures(left_s: float, doubt_s: float, step: int | None, words: str) -> None:
    forecast = replace(OF_HOST, out_t=NOW + left_s, doubt_s=doubt_s, step=step)
    assert forecast_text(forecast, NOW) == f"out of memory {words}: {forecast.text}"


def test_the_nearest_forecast_stands_first_with_the_remaining_time() -> None:
    first, second = forecast_facts((OF_GPU, OF_HOST), NOW + 300)
    assert first.text.startswith("out of memory in about 5 minutes (±1): the machine")
    assert second.text.startswith("out of memory on the GPU of rank 3 in about 35 minutes (±15), at step ~12,400: rank 3 needs")
    assert (first.label, second.label, first.tone) == ("memory", "", Tone.WARNING)


def test_the_card_names_the_holders_of_the_gpu_with_the_failed_rank_first() -> None:
    evidence = [gpu(rank, 70 - rank) for rank in range(8)] + [Evidence("memory", "held", "rank 0 1.0 GiB")]
    facts = held_facts(Cause.CUDA_OOM, 5, evidence)
    assert [fact.text for fact in facts] == [
        "rank 5: 64 GiB allocated and 65 GiB reserved",
        "rank 0: 69 GiB allocated and 70 GiB reserved",
        "rank 1: 68 GiB allocated and 69 GiB reserved",
        "ranks 2-4, 6, 7: 68.0 GiB reserved at most",
    ]
    assert held_facts(Cause.CUDA_OOM, None, []) == []


@pytest.mark.parametrize("cause", [Cause.HOST_OOM, Cause.SHM_EXHAUSTED, Cause.DATALOADER_WORKER])
def test_the_card_names_who_held_the_hosts_memory(cause: Cause) -> None:
    evidence = [gpu(0, 70), Evidence("memory", "held", "rank 1 3.0 GiB (2.0 GiB more in 20 min), rank 0 1.0 GiB")]
    (fact,) = held_facts(cause, 1, evidence)
    assert fact.text == "at the last look: rank 1 3.0 GiB (2.0 GiB more in 20 min), rank 0 1.0 GiB"
    assert held_facts(Cause.USER_CODE, 1, evidence) == []


def test_the_report_has_what_is_known_of_the_ranks_that_held_most() -> None:
    ranks = (RankMemory(3, 2 * GIB, 3 * GIB, 60 * GIB, 70 * GIB, 65 * GIB, 80 * GIB, GIB), RankMemory(0, GIB))
    assert [fact.text for fact in rank_facts(ranks)] == [
        (
            "Rank 3: 70.0 GiB of its GPU's 80.0 GiB reserved, 65.0 GiB allocated at most, 2.0 GiB of the node's memory, "
            "3.0 GiB in its loader workers and other processes, 1.0 GiB pinned"
        ),
        "Rank 0: 1.0 GiB of the node's memory",
    ]


def test_status_has_a_line_and_a_column_where_torch_tells() -> None:
    status = running()
    forecast = ForecastStatus("gpu 3", forecast_text(OF_GPU, NOW), 2400.0, 900.0, 3, 12_412)
    first = replace(status.ranks[0], gpu_reserved_bytes=70 * GIB, gpu_limit_bytes=80 * GIB)
    full_status = replace(status, forecasts=(forecast,), ranks=(first, *status.ranks[1:]))
    line = next(fact for fact in status_page(full_status, "").facts if fact.label == "memory")
    assert line.text.startswith("out of memory on the GPU of rank 3 in about 40 minutes (±15), at step ~12,400")
    assert "70.0 GiB of 80.0 GiB" in rendered(full_status, "", Surface(100))
    assert "GPU memory" not in [column.name for column in rank_table(status).columns]


def test_an_alert_says_when_at_which_step_and_whose() -> None:
    alert = OutgoingAlert(
        "run-1", "bert", AlertEvent.MEMORY_FORECAST, AlertSeverity.WARNING, 0, 1, NOW, AlertAction.NONE, rank=3,
        when="memory on the GPU of rank 3 in about 40 minutes (±15), at step ~12,400",
    )  # fmt: skip
    sent = Notification("ab" * 16, NotificationState.FIRING, alert, alert.severity)
    assert alert_text.title(sent, AlertDetail.SUMMARY) == "LOOK: bert: out of memory on the GPU of rank 3 in about 40 minutes (±15)"
    sentence = "Out of memory on the GPU of rank 3 in about 40 minutes (±15), at step ~12,400, if it continues to grow as it did."
    assert alert_text.sentences(sent, AlertDetail.SUMMARY).startswith(sentence)
    assert ("rank", "3") in alert_text.facts(sent, AlertDetail.SUMMARY)
    assert alert_text.title(sent, AlertDetail.NONE) == "LOOK: bert"
