"""The words between supervisor and agent."""

from __future__ import annotations

import json
import socket

import pytest

from supervisor.agent.link import Admit, AgentLink, Command, Go, Publish, ScriptArgs, StopCommand, parse
from supervisor.agent.messages import AgentFinished


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ({"do": "go", "attempt": 1}, Go(1)),
        (
            {"do": "go", "attempt": 2, "env": {"A": 1}, "unset": ["B"], "args": ["-x"], "replace": {"{r}": "p"}},
            Go(2, env={"A": "1"}, unset=("B",), args=("-x",), replace={"{r}": "p"}),
        ),
        ({"do": "stop", "attempt": 3, "signum": 15, "grace_s": 2, "then": "wait"}, StopCommand(3, 15, 2.0)),
        (
            {"do": "stop", "attempt": 3, "signum": 2, "grace_s": 0.5, "then": "exit", "exit_code": 130},
            StopCommand(3, 2, 0.5, exit_code=130),
        ),
        (
            {"do": "go", "attempt": 2, "script_args": {"from": ["--bs", "32"], "to": ["--bs", "16"]}, "nproc": 2},
            Go(2, script_args=ScriptArgs(("--bs", "32"), ("--bs", "16")), nproc=2),
        ),
        ({"do": "publish", "attempt": 3, "kind": "stop", "exit_code": 65, "reason": "r"}, Publish(3, "stop", 65, "r")),
        (
            {"do": "publish", "attempt": 3, "kind": "restart", "reason": "r", "overrides": [["batch_size", "16"]], "rejected": ["c.pt"]},
            Publish(3, "restart", 0, "r", (("batch_size", "16"),), ("c.pt",)),
        ),
        ({"do": "admit", "attempt": 3}, Admit(3)),
    ],
)
def test_a_line_is_a_command(line: dict[str, object], command: Command) -> None:
    assert parse(json.dumps(line).encode()) == command


@pytest.mark.parametrize(
    "line",
    [
        *(b"", b"[]", b'{"do":"go"}', b'{"do":"dance","attempt":1}', b'{"do":"stop","attempt":1}', b'{"do":"go","attempt":1,"env":3}'),
        b'{"do":"go","attempt":1,"script_args":{"from":[]}}',
        b'{"do":"publish","attempt":1,"kind":"stop","overrides":[["a"]]}',
    ],
)
def test_anything_else_is_a_bug_and_says_so(line: bytes) -> None:
    with pytest.raises(ValueError, match="command"):
        parse(line)


def test_a_broken_link_ends_the_commands_and_does_not_fail_the_sender() -> None:
    ours, theirs = socket.socketpair()
    link = AgentLink(ours)
    theirs.sendall(b'{"do":"admit","attempt":1}\n')
    link.send(AgentFinished(1))
    assert json.loads(theirs.makefile("rb").readline()) == {"ev": "finished", "attempt": 1}
    theirs.close()
    link.send(AgentFinished(1))
    assert list(link.commands()) == [Admit(1)]
    ours.close()
