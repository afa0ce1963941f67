"""What a rank records for `supervise drill resume`: equal states have equal rows, and each difference shows in its own part."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.jobs import light

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Attempt

pytestmark = pytest.mark.process

TRAIN = (
    light.IMPORT
    + """
import copy, torch
def new():
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(4, 4, dtype=kind) for kind in (torch.float32, torch.bfloat16, torch.complex64)))
    return model, light_sgd(torch, model.parameters())
def steps(model, optimizer, *numbers):
    for number in numbers:
        for at, parameter in enumerate(model.parameters()):
            parameter.grad = torch.full_like(parameter, number + 1 + at)
        optimizer.step(); optimizer.zero_grad()
first = new(); steps(*first, 0, 1)
saved = copy.deepcopy([first[0].state_dict(), first[1].state_dict()]); steps(*first, 2)
def loaded(optimizer=True):
    made = new(); made[0].load_state_dict(saved[0])
    if optimizer:
        made[1].load_state_dict(copy.deepcopy(saved[1]))
    return made
steps(*loaded(), 2)                                                          # 1: went on
steps(*loaded(optimizer=False), 2)                                           # 2: without its momentum
steps(*loaded(), 9)                                                          # 3: with other data
changed = loaded(); changed[1].param_groups[0]["lr"] = 0.5; steps(*changed, 2)  # 4: with another rate
one_bit = loaded(); next(one_bit[0].parameters()).data.view(torch.int32)[0, 0] ^= 1; steps(*one_bit, 2)  # 5: with one bit flipped
"""
)


def test_equal_states_have_equal_rows_and_a_difference_shows_where_it_is(attempt: Attempt, tmp_path: Path) -> None:
    (attempt.job_dir / "drill").write_text(json.dumps({"kind": "resume", "records": str(tmp_path)}))
    done = attempt.run("-c", TRAIN, env=attempt.env(RANK="3", LOCAL_RANK="0"))
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (tmp_path / "rank-3-attempt-1.jsonl").read_text().splitlines()]
    assert [row["optimizer"] for row in rows] == [0, 0, 0, 1, 2, 3, 4, 5]
    last, went_on, *others = rows[2:]
    assert len({row["weights"] for row in rows[:3]}) == 3
    parts = ("weights", "state", "gradients", "settings")
    assert {name: went_on[name] for name in parts} == {name: last[name] for name in parts}
    differing = [[name for name in parts if row[name] != last[name]] for row in others]
    assert differing == [["state"], ["gradients"], ["settings"], ["weights"]]
    assert last["settings"] == [{"lr": 0.05}]
    assert last["steps"] == 2
