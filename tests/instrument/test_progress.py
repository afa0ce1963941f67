"""Progress is what the training did, with every kind of optimizer; UNKNOWN where it cannot be known."""
# ruff: noqa: ANN401 - torch's optimizers take anything

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from supervisor.instrument._supervise_shim import layout
from supervisor.instrument._supervise_shim.heartbeat import HeartbeatWriter, state_step

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def beat() -> Iterator[HeartbeatWriter]:
    """A heartbeat that is hooked as in a rank."""
    writer = HeartbeatWriter(1, 2, 0)
    handle = register_optimizer_step_post_hook(writer.on_step)
    yield writer
    handle.remove()


def _parameter() -> torch.nn.Parameter:
    parameter = torch.nn.Parameter(torch.ones(3))
    parameter.grad = torch.ones(3)
    return parameter


def _optimizer(kind: Any = torch.optim.SGD, **options: Any) -> Any:
    return kind([_parameter()], lr=0.01, **options)


def test_one_optimizer(beat: HeartbeatWriter) -> None:
    optimizer = _optimizer()
    for _ in range(10):
        optimizer.step()
    assert (beat.steps, beat.step, beat.phase) == (10, None, "train")


def test_two_optimizers_of_a_gan_make_one_step(beat: HeartbeatWriter) -> None:
    generator, discriminator = _optimizer(torch.optim.Adam), _optimizer(torch.optim.Adam)
    for _ in range(10):
        discriminator.step()
        generator.step()
    assert (beat.steps, beat.step) == (10, 10)


def test_five_critic_steps_per_generator_step_count_as_the_critics(beat: HeartbeatWriter) -> None:
    generator, critic = _optimizer(), _optimizer()
    for _ in range(4):
        for _ in range(5):
            critic.step()
        generator.step()
    assert beat.steps == 20


def test_one_optimizer_per_parameter_makes_one_step_per_pass(beat: HeartbeatWriter) -> None:
    optimizers = [_optimizer() for _ in range(7)]
    for _ in range(10):
        for optimizer in optimizers:
            optimizer.step()
    assert beat.steps == 10


def test_a_new_optimizer_per_epoch_continues_the_count(beat: HeartbeatWriter) -> None:
    for _ in range(3):
        optimizer = _optimizer()
        for _ in range(10):
            optimizer.step()
    assert 28 <= beat.steps <= 30  # the first step with a new one may be taken for a second optimizer of the same step


def test_no_optimizer_is_kept_alive(beat: HeartbeatWriter) -> None:
    optimizer = _optimizer()
    optimizer.step()
    gone = weakref.ref(optimizer)
    del optimizer
    gc.collect()
    assert gone() is None
    assert beat.steps == 1


def test_an_optimizer_class_of_the_users_own(beat: HeartbeatWriter) -> None:
    class Mine(torch.optim.Optimizer):
        def __init__(self, params: Any, lr: float) -> None:
            super().__init__(params, {"lr": lr})

        def step(self, closure: Any = None) -> None:  # noqa: ARG002 - torch's signature
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.data -= group["lr"]
                    self.state[parameter]["step"] = self.state[parameter].get("step", 100) + 1

    optimizer = _optimizer(Mine)
    for _ in range(10):
        optimizer.step()
    assert (beat.steps, beat.step) == (10, 110)


def test_a_scaler_that_skips_steps_does_not_make_them(beat: HeartbeatWriter) -> None:
    optimizer = _optimizer(torch.optim.Adam)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for index in range(10):
        parameter = optimizer.param_groups[0]["params"][0]
        parameter.grad = None
        scaler.scale((parameter * (float("inf") if index % 2 else 1.0)).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    assert (beat.steps, beat.step) == (5, 5)


def test_a_resume_far_below_the_high_water_mark_says_where_it_is(beat: HeartbeatWriter) -> None:
    optimizer = _optimizer(torch.optim.Adam)
    for _ in range(50):
        optimizer.step()
    early = _optimizer(torch.optim.Adam)
    early.step()
    saved = early.state_dict()
    saved["state"][0]["step"] = torch.tensor(7.0)
    optimizer.load_state_dict(saved)
    beat.enter(layout.LOAD)  # as torch.load does; what comes after is looked at afresh
    optimizer.step()
    assert (beat.steps, beat.step) == (51, 8)


def test_the_scripts_own_word_counts_for_more(beat: HeartbeatWriter) -> None:
    optimizer = _optimizer(torch.optim.Adam)
    optimizer.step()
    assert beat.step == 1
    beat.report_step(4000)
    optimizer.step()
    assert (beat.step, beat.steps) == (4000, 2)


def _first_step(beat: HeartbeatWriter) -> int:
    return beat._view[layout.BEGAN] - 1  # noqa: SLF001  what the supervisor reads


def test_where_the_training_began_is_the_optimizers_count_or_the_scripts_first_word(beat: HeartbeatWriter) -> None:
    optimizer = _optimizer(torch.optim.Adam)
    assert _first_step(beat) == -1  # not known
    optimizer.step()
    assert _first_step(beat) == 0
    beat.report_step(41)  # the script resumed, and made its optimizer anew
    assert _first_step(beat) == 40
    for micro_step in range(42, 90):
        beat.report_step(micro_step)  # counts more than the optimizer does
    assert _first_step(beat) == 40


def test_an_optimizer_that_was_loaded_says_where_the_training_began() -> None:
    optimizer = _optimizer(torch.optim.Adam)
    optimizer.step()
    saved = optimizer.state_dict()
    saved["state"][0]["step"] = torch.tensor(40.0)
    second = HeartbeatWriter(1, 2, 0)
    optimizer.load_state_dict(saved)
    handle = register_optimizer_step_post_hook(second.on_step)
    optimizer.step()
    handle.remove()
    assert _first_step(second) == 40


@pytest.mark.parametrize("word", ["x", None, 1 << 70])
def test_a_word_that_is_no_step_is_passed_over(beat: HeartbeatWriter, word: Any) -> None:
    beat.report_step(word)
    assert beat.step is None
    beat.report_step(3)
    assert beat.step == 3


class _Held:
    def __init__(self, *steps: Any) -> None:
        self.state = {index: {"step": step} for index, step in enumerate(steps)}


@pytest.mark.parametrize(
    ("optimizer", "step"),
    [
        (_Held(torch.tensor(5.0)), 5),
        (_Held(5), 5),
        (_Held(torch.tensor([6])), 6),
        (_Held(0, torch.tensor(9.0), 3), 9),  # the first parameter got no gradient
        (_Held(), None),
        (_Held("12"), None),
        (_Held(torch.empty((), device="meta")), None),  # a device's tensor is never waited for
    ],
)
def test_the_optimizers_own_count(optimizer: _Held, step: int | None) -> None:
    assert state_step(optimizer) == step


def test_an_optimizer_of_any_other_kind_costs_no_step(beat: HeartbeatWriter) -> None:
    class Odd:
        @property
        def state(self) -> None:
            raise RuntimeError

    beat.on_step(Odd(), (), {})
    beat.on_step(object(), (), {})
    assert beat.step is None


@pytest.mark.parametrize(
    ("phase", "flags", "age_s", "proven"),
    [
        (layout.IMPORT, 0, 1, layout.IMPORT),
        (layout.IMPORT, 0, 61, layout.UNKNOWN),  # it may train without torch
        (layout.IMPORT, layout.FLAG_AUTOGRAD, 3600, layout.IMPORT),
        (layout.INIT, layout.FLAG_AUTOGRAD | layout.FLAG_ELSEWHERE, 1, layout.UNKNOWN),
        (layout.LOAD, layout.FLAG_AUTOGRAD | layout.FLAG_ELSEWHERE | layout.FLAG_BACKWARD, 1, layout.LOAD),
        (layout.TRAIN, layout.FLAG_ELSEWHERE, 3600, layout.TRAIN),
    ],
)
def test_the_phase_before_the_first_step_is_reported_only_where_proven(phase: int, flags: int, age_s: int, proven: int) -> None:
    assert layout.proven_phase(phase, flags, age_s * 10**9) == proven
