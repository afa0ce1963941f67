"""The memory of a node or of a GPU will be used up: it is reported once, and once that it is over. It ends nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.core.actions import Alert, PrintMessage

if TYPE_CHECKING:
    from supervisor.core.state import JobState, Step
    from supervisor.core.training_events import MemoryForecast

MEMORY_FORECAST = "memory_forecast"
_UNITS = ((2 * 86400.0, 86400.0, "days"), (2 * 3600.0, 3600.0, "hours"), (0.0, 60.0, "minutes"))


def on_memory_forecast(state: JobState, event: MemoryForecast) -> Step:
    """Keep the newest forecast of each amount of memory; report the first, and its end."""
    others = tuple(forecast for forecast in state.attempt.forecasts if forecast.subject != event.subject)
    state = state.with_attempt(forecasts=others if event.is_over else (*others, event))
    if event.is_over:
        return state, (PrintMessage("info", f"memory: over: {event.text}"),)
    if event.is_repeat:
        return state, ()
    text = f"{forecast_text(event, event.t)}; the job continues"
    return state, (Alert(MEMORY_FORECAST, state.attempt.number, text, culprit=(event.rank, ""), when=when_text(event, event.t)),)


def forecast_text(forecast: MemoryForecast, now: float) -> str:
    """Return a forecast as a sentence: `out of memory in about 40 minutes (±15), at step ~12,400: …`."""
    return f"out of {when_text(forecast, now)}: {forecast.text}"


def when_text(forecast: MemoryForecast, now: float) -> str:
    """Return the memory that will be used up, and when: `memory in about 40 minutes (±15), at step ~12,400`."""
    left_s = max(0.0, forecast.out_t - now)
    unit_s, unit = next((unit_s, unit) for least_s, unit_s, unit in _UNITS if left_s >= least_s)
    doubt = max(1, round(forecast.doubt_s / unit_s))
    step = "" if forecast.step is None else f", at step ~{_rounded(forecast.step):,}"
    kind = f"memory on the GPU of rank {forecast.rank}" if forecast.subject.startswith("gpu") else "memory"
    when = f"in about {round(left_s / unit_s)} {unit} (±{doubt})" if left_s >= unit_s else "within a minute"
    return f"{kind} {when}{step}"


def _rounded(step: int) -> int:
    """Return a step with three figures: the rest would be made up."""
    unit: int = 10 ** max(0, len(str(step)) - 3)
    return round(step / unit) * unit
