"""The words between supervisor and agent."""

from __future__ import annotations

import json
import socket

import pytest

from supervisor.agent.link import SupervisorLink
from supervisor.agent.messages import (
    Admit,
    AgentFinished,
    Command,
    Complete,
    Go,
    PublishCoordinator,
    Renumber,
    ScriptArgs,
    Start,
    StopCommand,
    decode_command,
    encode,
)


@pytest.mark.parametrize(
    ("command", "line"),
    [
        (Go(1), {"do": "go", "attempt": 1}),
        (
            Go(2, env={"A": "1"}, unset=("B",), args=("-x",), replace={"{r}": "p"}),
            {"do": "go", "attempt": 2, "env": {"A": "1"}, "unset": ["B"], "args": ["-x"], "replace": {"{r}": "p"}},
        ),
        (
            Go(2, script_args=ScriptArgs(("--bs", "32"), ("--bs", "16")), nproc=2),
            {"do": "go", "attempt": 2, "script_args": {"before": ["--bs", "32"], "after": ["--bs", "16"]}, "nproc": 2},
        ),
        (Start(Go(2, {"A": "1"})), {"do": "start", "go": {"attempt": 2, "env": {"A": "1"}}}),
        (PublishCoordinator(2, 4711, "k"), {"do": "publish_coordinator", "attempt": 2, "port": 4711, "key": "k"}),
        (Renumber(2, 7), {"do": "renumber", "attempt": 2, "number": 7}),
        (Complete(7), {"do": "complete", "attempt": 7}),
        (StopCommand(3, 15, 2.0), {"do": "stop", "attempt": 3, "signum": 15, "grace_s": 2}),
        (StopCommand(3, 2, 0.5, exit_code=130), {"do": "stop", "attempt": 3, "signum": 2, "grace_s": 0.5, "exit_code": 130}),
        (
            StopCommand(3, 15, 0.5, 65, for_all=True),
            {"do": "stop", "attempt": 3, "signum": 15, "grace_s": 0.5, "exit_code": 65, "for_all": True},
        ),
        (Admit(3), {"do": "admit", "attempt": 3}),
    ],
)
def test_a_line_is_a_command(command: Command, line: dict[str, object]) -> None:
    assert decode_command(json.dumps(line).encode()) == command
    assert decode_command(encode(command)) == command


@pytest.mark.parametrize(
    "line",
    [
        *(b"", b"[]", b'{"do":"go"}', b'{"do":"dance","attempt":1}', b'{"do":"stop","attempt":1}', b'{"do":"go","attempt":1,"env":3}'),
        *(b'{"do":"go","attempt":"1"}', b'{"do":"go","attempt":1,"env":{"A":1}}', b'{"do":"go","attempt":1,"args":"-x"}'),
        *(b'{"do":"go","attempt":1,"dance":1}', b'{"do":"start","attempt":1}', b'{"do":"start","go":{}}'),
        b'{"do":"go","attempt":1,"script_args":{"before":[]}}',
        b'{"do":"publish","attempt":1,"kind":"stop","overrides":[["a"]]}',
    ],
)
def test_anything_else_is_a_bug_and_says_so(line: bytes) -> None:
    with pytest.raises(ValueError, match="not a command"):
        decode_command(line)


def test_a_broken_link_ends_the_commands_and_does_not_fail_the_sender() -> None:
    our_end, their_end = socket.socketpair()
    link = SupervisorLink(our_end)
    their_end.sendall(b'{"do":"admit","attempt":1}\n')
    link.send(AgentFinished(1))
    assert json.loads(their_end.makefile("rb").readline()) == {"ev": "finished", "attempt": 1}
    their_end.close()
    link.send(AgentFinished(1))
    assert list(link.commands()) == [Admit(1)]
    our_end.close()
