"""[[loss.rule]]: a list of tables, each checked with its place; and the rules that are in use."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from supervisor.classify.losses.rules import RuleKind
from supervisor.config import loading, loss_rules
from supervisor.errors import ExitCode, SuperviseError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from supervisor.config.settings import Settings

OWN = '[[loss.rule]]\nid = "reward.nan"\nwords = ["reward"]\npattern = {pattern}\n'


def test_a_users_loss_rules_add_to_ours_replace_them_and_switch_them_off(load: Callable[[str], Settings]) -> None:
    settings = load(
        OWN.format(pattern=r"'reward=(?P<value>\S+)'")
        + 'times = 3\n[[loss.rule]]\nid = "loss.jump"\nkind = "jump"\nthreshold = 10\n'
        + '[[loss.rule]]\nid = "loss.no_progress"\nenabled = false\n'
    )
    rules = {rule.id: rule for rule in loss_rules.configured(settings)}
    assert list(rules) == ["loss.nan", "loss.inf", "loss.jump", "reward.nan"]
    assert (rules["loss.jump"].threshold, rules["loss.jump"].times, rules["loss.jump"].names) == (10.0, 2, None)
    own = rules["reward.nan"]
    assert (own.kind, own.times, own.words, own.is_of_losses) == (RuleKind.NAN, 3, ("reward",), False)
    assert own.pattern is not None
    match = own.pattern.search("step 3 reward=nan")
    assert match is not None
    assert match["value"] == "nan"
    assert "reward.nan" in [row.value for row in loading.settings_shown(settings).values()]


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        (OWN.format(pattern="'(?P<value>'"), "wrong pattern: loss.rule.pattern of reward.nan in {file}:4: it is not a regular expression"),
        (OWN.format(pattern="'reward'"), "{file}:4: it has no group for the number"),
        (
            OWN.format(pattern=r"'(?:(x+x+)+y)(?P<value>\S+)'"),
            "wrong pattern: loss.rule.pattern of reward.nan in {file}:4: its search of one line may take too long (without end)",
        ),
        ('[[loss.rule]]\nid = "a"\nnames = "(?:x|x_?|xx)+_los"\n', "loss.rule.names of a in {file}:3: its search of one line may take too"),
        ('[[loss.rule]]\nid = "a"\nnames = "("\n', "wrong pattern: loss.rule.names of a in {file}:3"),
        ('[[loss.rule]]\nid = "a"\nwords = ["loss"]\n', "words and pattern belong together: loss.rule a in {file}:1"),
        ('[[loss.rule]]\nkind = "nan"\n', "no id: [[loss.rule]] in {file}:1"),
        ('[[loss.rule]]\nid = "a"\nkind = "high"\n', "loss.rule.kind = 'high' from file {file}:3: expected one of nan, inf, jump"),
        ('[[loss.rule]]\nid = "a"\ntime = 3\n', "unknown setting: loss.rule.time in {file}:3: the nearest is times"),
        ('[[loss.rule]]\nid = "a"\n[[loss.rule]]\nid = "a"\n', "two loss rules are called a: {file}:3"),
        ('[loss]\nrule = "a"\n', "loss.rule in {file}: it is a list of tables"),
    ],
)
def test_a_wrong_rule_is_refused_with_its_place(load: Callable[[str], Settings], tmp_path: Path, text: str, wrong: str) -> None:
    with pytest.raises(SuperviseError) as refused:
        load(text)
    assert wrong.format(file=tmp_path / "supervise.toml") in refused.value.message
    assert refused.value.hint
    assert refused.value.exit_code == ExitCode.CONFIG
