"""What is written down holds no secret that could be known as one."""

from __future__ import annotations

import pytest

from supervisor.classify import redact
from tests.support.figures import costs_at_most


@pytest.mark.parametrize(
    "arguments",
    [
        ["--token", "hunter2"],
        ["--hf-token=hunter2"],
        ["--db.password", "hunter2"],
        ["-api_key", "hunter2"],
        ["env", "WANDB_API_KEY=hunter2", "python"],
        ["--auth", "hunter2", "--lr", "1"],
        ["postgres://user:hunter2@host/db"],
        ["--header", "Authorization: Bearer hunter2"],
        ["sh", "-c", "train.py --secret hunter2"],
    ],
)
def test_a_secret_of_a_command_is_a_digest(arguments: list[str]) -> None:
    told = redact.command(arguments)
    assert len(told) == len(arguments)
    assert "hunter2" not in " ".join(told)
    assert "<sha256:" in " ".join(told)


@pytest.mark.parametrize(
    "argument",
    [
        "--max-tokens=512",
        "--tokenizer=gpt2",
        "--num_token=3",
        "--token-file=/x",
        "--author=me",
        "--lr=0.1",
        "s3://bucket/key",
        "--seed=1",
        "a:b@c",
    ],
)
def test_what_is_innocent_stays(argument: str) -> None:
    assert redact.command([argument, "next"]) == (argument, "next")
    assert redact.text(f"given {argument} here") == f"given {argument} here"


def test_the_flag_after_a_secret_flag_is_no_value() -> None:
    assert redact.command(["--token", "--lr", "1"]) == ("--token", "--lr", "1")


def test_two_values_can_be_told_apart_and_one_twice_is_the_same() -> None:
    one, two, again = (redact.text(f"token={value}") for value in ("a", "b", "a"))
    assert one == again != two


@pytest.mark.bench
@pytest.mark.parametrize(
    "line", ["x" * 2_000_000, "a-" * 1_000_000, "token" * 400_000, " " * 2_000_000, "a://" * 500_000, "x=" * 1_000_000]
)
def test_a_line_of_megabytes_costs_no_more_than_it_must(line: str) -> None:
    with costs_at_most(5):
        redact.text(line)
