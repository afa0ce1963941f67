"""The address at which the ranks meet, from the command and its environment: a port only where a process of this command binds it."""

from __future__ import annotations

import pytest

from supervisor.errors import ExitCode, SuperviseError
from supervisor.launch.rendezvous_ports import NOWHERE, Rendezvous, endpoint, is_of_several_nodes, of, require_usable

RUN = ("python", "-m", "torch.distributed.run")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("", Rendezvous((), (29500,))),
        ("--master-port 1234", Rendezvous((), (1234,))),
        ("--master_port=1234 --master_addr n7 --nnodes 2", Rendezvous((), (1234,))),
        ("--rdzv-endpoint=n7:1234 --nnodes 2", Rendezvous((), (1234,))),
        ("--nnodes 2 --node-rank 1 --master-addr n7 --master-port 1234", Rendezvous(("n7:1234",))),
        ("--nnodes 2 --node-rank 1 --master-addr fd00::7 --master-port 1234", Rendezvous(("[fd00::7]:1234",))),
        ("--nnodes 2 --node-rank 1", NOWHERE),
        ("--nnodes 2 --node-rank 1 --master-addr n1", NOWHERE),
        ("--nnodes 2 --node-rank 1 --master-addr n1.cluster", NOWHERE),
        ("--standalone", NOWHERE),
        ("--stand", NOWHERE),
        ("--master-p 1234", Rendezvous((), (1234,))),
        ("--master-port 0", NOWHERE),
        ("--rdzv-endpoint n7", NOWHERE),
        ("--rdzv-backend c10d --rdzv-endpoint n7:1234", NOWHERE),
        ("--nnodes 1:4 --rdzv-backend c10d --rdzv-endpoint n7:1234", Rendezvous(("n7:1234",))),
        ("--nnodes 2 --rdzv_backend c10d --rdzv_endpoint n7", Rendezvous(("n7:29400",))),
        ("--nnodes 2 --rdzv-backend c10d --rdzv-endpoint n1:1234", NOWHERE),
        ("--nnodes 2 --rdzv-backend c10d --rdzv-endpoint localhost:0", NOWHERE),
        ("--rdzv-backend etcd-v2 --rdzv-endpoint keys:2379", Rendezvous(("keys:2379",))),
        ("--rdzv-backend own --rdzv-endpoint keys:2379", NOWHERE),
    ],
)
def test_of_torchrun(options: str, expected: Rendezvous) -> None:
    assert of([*RUN, *options.split(), "train.py", "--master-port", "77"], {}, "n1") == expected


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"PET_MASTER_PORT": "1234"}, Rendezvous((), (1234,))),
        ({"PET_STANDALONE": "1"}, NOWHERE),
        ({"PET_NNODES": "2", "PET_RDZV_BACKEND": "c10d", "PET_RDZV_ENDPOINT": "n7:1234"}, Rendezvous(("n7:1234",))),
        ({"PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_MASTER_ADDR": "n7", "PET_MASTER_PORT": "1234"}, Rendezvous(("n7:1234",))),
        ({"MASTER_ADDR": "n7", "MASTER_PORT": "1234", "RANK": "1"}, Rendezvous((), (29500,))),  # it reads none of these
    ],
    ids=["port", "standalone", "c10d", "static", "of-ranks"],
)
def test_of_torchruns_own_variables(environ: dict[str, str], expected: Rendezvous) -> None:
    assert of([*RUN, "train.py"], environ, "n1") == expected


@pytest.mark.parametrize(
    ("command", "environ", "expected"),
    [
        ([*RUN, "--nnodes", "2", "train.py"], {}, True),
        ([*RUN, "--nnodes=1:4", "train.py"], {}, True),
        ([*RUN, "train.py"], {"PET_NNODES": "2"}, True),
        ([*RUN, "--nnodes", "1", "train.py"], {"SLURM_NNODES": "2", "MASTER_ADDR": "n7"}, False),
        ([*RUN, "--standalone", "train.py"], {}, False),
        (["python", "train.py"], {"WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8"}, True),
        (["python", "train.py"], {"WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "8", "SLURM_NNODES": "2"}, False),
        (["python", "train.py"], {"SLURM_NNODES": "2", "MASTER_ADDR": "n7"}, True),
        (["python", "train.py"], {"SLURM_NNODES": "2"}, False),
        (["python", "train.py"], {}, False),
        ([], {}, False),
    ],
    ids=["two", "range", "variable", "one", "standalone", "ranks", "ranks-of-one", "slurm", "array-of-one", "plain", "none"],
)
def test_whether_other_nodes_are_to_find_this_one(command: list[str], environ: dict[str, str], *, expected: bool) -> None:
    assert is_of_several_nodes(command, environ) is expected


MASTER = {"MASTER_ADDR": "n7", "MASTER_PORT": "1234"}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, NOWHERE),
        (MASTER, Rendezvous(("n7:1234",))),
        ({**MASTER, "RANK": "3"}, Rendezvous(("n7:1234",))),
        ({**MASTER, "RANK": "0"}, Rendezvous((), (1234,))),
        ({**MASTER, "SLURM_PROCID": "0"}, Rendezvous((), (1234,))),
        ({**MASTER, "SLURM_PROCID": "0", "RANK": "4"}, Rendezvous(("n7:1234",))),
        ({**MASTER, "MASTER_ADDR": "n1"}, NOWHERE),
        ({**MASTER, "MASTER_ADDR": "127.0.0.1", "RANK": "1"}, NOWHERE),
        ({**MASTER, "RANK": "0", "TORCHELASTIC_RUN_ID": "x"}, NOWHERE),
        ({**MASTER, "MASTER_PORT": "x"}, NOWHERE),
        ({**MASTER, "MASTER_PORT": "99999999"}, NOWHERE),
    ],
    ids=["none", "no-rank", "rank-3", "rank-0", "slurm", "both", "here", "loopback", "under-an-agent", "no-port", "too-large"],
)
@pytest.mark.parametrize("command", [("python", "train.py"), ()], ids=["plain", "no-command"])
def test_of_ranks(command: tuple[str, ...], environ: dict[str, str], expected: Rendezvous) -> None:
    assert of(command, environ, "n1") == expected


@pytest.mark.parametrize(
    ("address", "port", "text", "hint"),
    [
        (" 127.0.0.1", "29500", "MASTER_ADDR=' 127.0.0.1' has a blank in it", "Set MASTER_ADDR=127.0.0.1."),
        ("n7\n", "29500", "MASTER_ADDR='n7\\n' has a blank in it", "Set MASTER_ADDR=n7."),
        ("[::1]", "29500", "MASTER_ADDR='[::1]' has brackets, which no resolver takes", "Set MASTER_ADDR=::1."),
        ("n7", "295OO", "MASTER_PORT='295OO' is not a port", "Set MASTER_PORT to a number up to 65535."),
        ("n7", "295000", "MASTER_PORT='295000' is not a port", "Set MASTER_PORT to a number up to 65535."),
    ],
)
def test_an_address_that_can_never_be_one_is_refused_before_the_start(address: str, port: str, text: str, hint: str) -> None:
    environ = {"MASTER_ADDR": address, "MASTER_PORT": port, "RANK": "0", "WORLD_SIZE": "2"}
    with pytest.raises(SuperviseError) as raised:
        require_usable(["python", "train.py"], environ)
    assert (raised.value.message, raised.value.hint) == (f"the ranks cannot meet: {text}", hint)
    assert raised.value.exit_code == ExitCode.CONFIG


@pytest.mark.parametrize(
    ("command", "environ"),
    [
        ("python train.py", {"MASTER_ADDR": "::1", "MASTER_PORT": " 29500", "RANK": "0"}),  # torch reads the port as a number
        ("python train.py", {"MASTER_ADDR": "n7"}),
        ("python train.py", {"MASTER_ADDR": " n7", "MASTER_PORT": "29500"}),  # one process, which meets nobody
        ("torchrun train.py", {"MASTER_ADDR": " n7", "MASTER_PORT": "29500", "RANK": "0"}),  # its ranks get their own
        ("bash run.sh", {"MASTER_ADDR": " n7", "MASTER_PORT": "29500", "RANK": "0"}),  # a shell takes the blank away
    ],
)
def test_a_rendezvous_that_may_be_correct_is_not_refused(command: str, environ: dict[str, str]) -> None:
    require_usable(command.split(), environ)


@pytest.mark.parametrize(
    ("command", "environ", "expected"),
    [
        ("python train.py", {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1234", "RANK": "1"}, ("127.0.0.1", 1234)),
        ("python train.py", {}, None),
        ("torchrun --nnodes=2 --node-rank=1 --master-addr=n7 --master-port=1234 train.py", {}, ("n7", 1234)),
        ("torchrun --nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=n7 train.py", {}, ("n7", 29400)),
        ("torchrun --standalone train.py", {}, None),
        ("torchrun --nnodes=2 --rdzv-backend=own --rdzv-endpoint=n1:1 train.py", {}, None),
    ],
)
def test_where_ranks_and_agents_look_for_each_other(command: str, environ: dict[str, str], expected: tuple[str, int] | None) -> None:
    assert endpoint(command.split(), environ) == expected
