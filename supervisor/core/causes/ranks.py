"""Causes between ranks and nodes: collectives, the network, and how they meet. Pure."""

from __future__ import annotations

from supervisor.core.causes.row import ENVIRONMENT, GUARDS, LAST, PROGRAM, SUSPECTS, CauseRow, Family, Hint, line
from supervisor.core.model import Cause

_TRANSPORTS = ("p2p_disable", "ib_disable", "shm_disable")
#: The ladder for ranks that wait for a file that nobody removes, or pass their timeout.
_LATE = (*SUSPECTS, "left_file", "longer_timeout")

ROWS: dict[Cause, CauseRow] = {
    Cause.NCCL_TIMEOUT: CauseRow(
        meaning="A collective did not finish in time, and no other evidence says why: a rank did not reach it, or is far behind",
        is_seen=True,
        proof="NCCL's watchdog: 'ran for N milliseconds before timing out', with collective and sequence number",
        family=Family.INFRASTRUCTURE,
        breaks_collectives=False,
        exit_code=124,
        stands_still=True,
        of_peers=True,
        group_timeout_s=600.0,
        ladder=(*_LATE, "interface", "same_gpu_hangs", *_TRANSPORTS, "start_tries", "trace_collectives", "same_place", LAST),
        hints=(
            line(
                Hint("make all ranks call the same collectives in the same order", ("mismatch",)),
                "look at what rank {hang_ranks} did, at {hang_code}",
                "find the missing rank: it has no timeout, or a lower sequence number; look at its stack, data and I/O",
            ),
        ),
    ),
    Cause.NCCL_NETWORK: CauseRow(
        meaning="The network between GPUs failed: InfiniBand, RoCE or sockets",
        proof="NCCL's remote error and system error, ibv_* failures, 'Got completion with error', a peer that closed its connection",
        family=Family.INFRASTRUCTURE,
        breaks_collectives=False,
        of_peers=True,
        ladder=(*SUSPECTS, "interface", *_TRANSPORTS, "wait_for_name", "start_tries", "trace_collectives", "wait_for_network", LAST),
        hints=(
            line(
                Hint(
                    "check the port or host that the evidence names (ibstat, link counters, cabling), and NCCL_IB_HCA", ("over_infiniband",)
                ),
                "check the host that the evidence names, its interfaces, and NCCL_SOCKET_IFNAME",
            ),
            line(Hint("restart the server of the other end: it keeps the communicator of a trainer that is gone", ("with_a_server",))),
        ),
    ),
    Cause.NCCL_INIT: CauseRow(
        meaning="NCCL could not start: versions, devices or plugins do not match",
        proof=(
            "invalid usage, 'Duplicate GPU detected', no CUDA device, versions that differ between nodes, a missing requested "
            "network plugin"
        ),
        ladder=(*SUSPECTS, *ENVIRONMENT),
        hints=(
            line(
                "give each rank a GPU of its own, and make driver, CUDA, NCCL and torch equal on all nodes; NCCL_DEBUG=INFO shows the rest"
            ),
            line(Hint("restart the server of the other end: it keeps the communicator of a trainer that is gone", ("with_a_server",))),
        ),
    ),
    Cause.GLOO_ERROR: CauseRow(
        meaning="A gloo connection broke, and no failed peer is known",
        is_seen=True,
        proof="gloo's 'Connection closed by peer', 'connectFullMesh failed', 'Timed out waiting'",
        family=Family.INFRASTRUCTURE,
        breaks_collectives=False,
        of_peers=True,
        group_timeout_s=1800.0,
        ladder=(*_LATE, "interface", "wait_for_name", "start_tries", "trace_collectives", "wait_for_network", LAST),
        hints=(
            line(
                Hint("look for the missing peer on the other nodes; name the interface with GLOO_SOCKET_IFNAME", ("several_nodes",)),
                "look at what rank {hang_ranks} did, at {hang_code}",
                "look for the rank that did not come: the one without a time-out of its own",
            ),
        ),
    ),
    Cause.RENDEZVOUS: CauseRow(
        meaning="The ranks, or their nodes, did not reach each other",
        proof=(
            "errors of torch's rendezvous and TCPStore, of init_process_group, of etcd; an address in use; a coordinator that does "
            "not answer"
        ),
        family=Family.INFRASTRUCTURE,
        breaks_collectives=False,
        of_peers=True,
        ladder=(*SUSPECTS, "interface", "wait_for_name", "start_tries", "wait_for_network", LAST),
        hints=(
            line(
                "check that MASTER_ADDR and MASTER_PORT are reachable from all nodes and free, and that all nodes start within the "
                "time allowed"
            ),
        ),
    ),
    Cause.NODE_LOST: CauseRow(
        meaning="A node of the job was lost, or left",
        is_seen=True,
        names="summary",
        proof="the coordinator: the node's supervise ended, it was silent for 60 s, or it could not be reached and no other made steps",
        family=Family.INFRASTRUCTURE,
        breaks_collectives=False,
        of_saves=True,
        ladder=(*GUARDS, LAST),
        hints=(
            line(
                "start the same command on {node} again, or on another machine; its kernel log and `supervise why` there say more",
                "start the same command on that node again, or on another machine; its kernel log and `supervise why` there say more",
            ),
        ),
    ),
    Cause.DDP_UNSYNCED: CauseRow(
        meaning="The ranks differ: in collectives, shapes or parameters",
        proof=(
            "DDP's 'Expected to have finished reduction', 'verify_params', mismatched collectives or sizes, a barrier that "
            "some ranks never reach"
        ),
        ladder=(*SUSPECTS, "name_unsynced", "unsynced", *PROGRAM),
        hints=(
            line(
                Hint("use them in the loss, or pass find_unused_parameters=True to DistributedDataParallel", ("unused",)),
                Hint("use the parameter once in a forward pass; checkpoint activations with use_reentrant=False", ("twice",)),
                Hint(
                    "make all ranks call the same collectives in the same order: none for one rank alone, equally many batches",
                    ("collectives",),
                ),
                "find where the ranks diverge: a branch on rank or data, unused parameters (find_unused_parameters=True), a "
                "shorter last batch",
            ),
        ),
    ),
    Cause.HANG_NO_ERROR: CauseRow(
        meaning="The job stood still",
        is_seen=True,
        names="hang",
        proof=(
            "two looks at all ranks that show the same ([hangs](hangs.md)); a watchdog's or a person's stop after silence: "
            "stack dumps, heartbeat monitors, 'no progress'"
        ),
        family=Family.KILLED,
        breaks_collectives=False,
        exit_code=124,
        stands_still=True,
        of_peers=True,
        may_pass=True,
        group_timeout_s=600.0,
        ladder=(*_LATE, "step_back", "same_gpu_hangs", *_TRANSPORTS, "trace_collectives", "same_place", LAST),
        hints=(
            line(
                Hint("make all ranks call the same collectives in the same order", ("mismatch",)),
                "look at what rank {hang_ranks} did, at {hang_code}",
                "compare the stacks of all ranks at that time",
            ),
        ),
    ),
}
