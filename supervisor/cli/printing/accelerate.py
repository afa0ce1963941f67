"""`supervise print accelerate`: a configuration of accelerate for this node (docs/guides/clusters.md).

Its keys are those of accelerate.commands.config.config_args.ClusterConfig (1.0 to 1.15), which refuses every other one; a key left out
has accelerate's default. `enable_cpu_affinity` is such a key, and `accelerate launch` of 1.15 does not pass it on: only its flag works.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import click

from supervisor.cli.invocation import Invocation, setting_options
from supervisor.cli.printing.node_facts import NodeFacts, print_for_this_node

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

#: accelerate's word for what all GPUs can, and why.
_PRECISIONS: Final = {"bf16": ("bf16", "8.0 or more"), "fp16": ("fp16", "7.0 or more, and bf16 needs 8.0"), "fp32": ("'no'", "below 7.0")}


@click.command()
@setting_options()
def print_command(_invocation: Invocation) -> int:
    """Write it into a file, and start `supervise -- accelerate launch --config_file FILE train.py`."""
    return print_for_this_node(lambda facts: configuration(facts, os.environ))


def configuration(facts: NodeFacts, environ: Mapping[str, str]) -> Iterator[str]:
    """Yield the lines of the file. environ: of the job to be."""
    yield f"# accelerate on {facts.title()}"
    if len(facts.numa_nodes) > 1 and "CUDA_VISIBLE_DEVICES" not in environ:  # accelerate counts the node's GPUs, not those that are visible
        yield "# supervise -- accelerate launch --config_file FILE --enable_cpu_affinity train.py"
        yield "# The GPUs hang on several NUMA nodes: the flag keeps each process on the processors of its GPU's (it needs nvidia-ml-py)."
    else:
        yield "# supervise -- accelerate launch --config_file FILE train.py"
    if facts.gpus > 1:
        yield "# one process for each GPU"
        yield "distributed_type: MULTI_GPU"
    else:
        yield "# one GPU: one process" if facts.gpus else "# print it on a node of the job: here one process is all that is known to fit"
        yield "distributed_type: 'NO'"
    yield f"num_processes: {facts.ranks}"
    if facts.gpus:
        yield "# several nodes: on each of them, num_processes being that of all:"
        flag = "" if facts.gpus > 1 else "--multi_gpu "  # which the file says already
        yield f"# {flag}--num_machines=N --num_processes=N*{facts.ranks} --machine_rank=RANK --main_process_ip=HOST"
    if facts.precision:
        value, reason = _PRECISIONS[facts.precision]
        yield f"# compute capability of each GPU: {reason}. What the script gives to Accelerator(mixed_precision=...) comes first"
        yield f"mixed_precision: {value}"
    for line in facts.loaders():
        yield f"# {line}"
