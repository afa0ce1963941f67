"""The list of hosts in --rdzv-endpoint, as it is read and as torchrun gets one host of it."""

from __future__ import annotations

import pytest

from supervisor.errors import SuperviseError
from supervisor.knobs import host_list
from supervisor.knobs.host_list import HostList
from supervisor.knobs.torchrun import Torchrun, agent_argv


def listed(*words: str, interpreter: str | None = "/python", **environ: str) -> HostList | None:
    """Return the list of a torchrun command with these words."""
    return host_list.of(Torchrun(("torchrun",), (*words, "train.py", "--hosts=a,b"), "torchrun", interpreter), environ)


@pytest.mark.parametrize(
    ("endpoint", "hosts"),
    [
        ("a:1,b:2,c:3", (("a", 1), ("b", 2), ("c", 3))),
        ("a,b,c:29500", (("a", 29500), ("b", 29500), ("c", 29500))),
        ("a,b,c", (("a", 29400), ("b", 29400), ("c", 29400))),
        ("[::1]:5,[::2]:5,::3", (("::1", 5), ("::2", 5), ("::3", 5))),
    ],
)
def test_a_list_has_a_port_for_each_host_or_one_for_all(endpoint: str, hosts: tuple[tuple[str, int], ...]) -> None:
    found = listed("--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}", "--rdzv-id=j", "--local-addr=a")
    assert found == HostList("j", hosts, "a")
    assert listed(PET_RDZV_BACKEND="c10d", PET_RDZV_ENDPOINT=endpoint) == HostList("none", hosts)
    assert found.acceptors == tuple((host, port + 1) for host, port in hosts)


def test_no_list_is_left_to_torch() -> None:
    assert listed("--rdzv-backend=c10d", "--rdzv-endpoint=a:1") is None
    assert listed("--rdzv-backend=of-my-own", "--rdzv-endpoint=a,b,c") is None
    assert host_list.of(None, {}) is None


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--rdzv-backend=c10d", "--rdzv-endpoint=a:1,b:1"), "2 hosts, and it takes 3"),
        (("--rdzv-backend=c10d", "--rdzv-endpoint=a:1,b:1,a:1"), "some twice"),
        (("--rdzv-backend=c10d", "--rdzv-endpoint=a:1,,b:1"), "'' is no HOST:PORT"),
        (("--rdzv-backend=c10d", "--rdzv-endpoint=a:x,b,c"), "'a:x' is no HOST:PORT"),
        (("--rdzv-backend=c10d", "--rdzv-endpoint=a:65535,b,c"), "'a:65535' is no HOST:PORT"),
        (("--rdzv-endpoint=a,b,c",), "the static rendezvous"),
    ],
)
def test_a_list_that_cannot_be_used_is_refused(words: tuple[str, ...], why: str) -> None:
    with pytest.raises(SuperviseError, match=why) as error:
        listed(*words)
    assert error.value.exit_code == 64
    assert error.value.hint


def test_stock_torchrun_cannot_use_a_list() -> None:
    with pytest.raises(SuperviseError, match="the interpreter of torchrun is not known"):
        listed("--rdzv-backend=c10d", "--rdzv-endpoint=a,b,c", interpreter=None)


def test_torchrun_gets_one_host_behind_the_options_of_the_user() -> None:
    words = ("--rdzv-backend=c10d", "--rdzv-endpoint=a,b:7,::3", "--rdzv-conf=is_host=1,last_call_timeout=2")
    found = listed(*words)
    assert found is not None
    assert found.options("b", is_here=False) == ("--rdzv-endpoint=b:7", "--rdzv-conf=last_call_timeout=2,is_host=0")
    assert found.options("::3", is_here=True)[0] == "--rdzv-endpoint=[::3]:7"
    assert found.options("of no list", is_here=True)[0] == "--rdzv-endpoint=of no list:7"
    command = Torchrun(("torchrun",), (*words, "train.py", "--x"), "torchrun", "/python")
    argv = agent_argv(command, "/python", link_fd="1", output_fd="2", grace_s=1.0, streams="two", options=("--rdzv-endpoint=b:7",))
    assert argv[argv.index("--") :] == ["--", *words, "--rdzv-endpoint=b:7", "train.py", "--x"]
