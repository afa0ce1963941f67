"""The findings of the rules: each rule is a row, each finding a line with a sentence and its repair."""

from __future__ import annotations

from supervisor.core.values import Struct


class Rule(Struct, frozen=True):
    """One rule. sees: its findings, for the docs; write: what to write instead. cards: which cards show it: "hang", "race", or neither."""

    name: str
    sees: str
    write: str
    cards: tuple[str, ...] = ()


class ScriptFinding(Struct, frozen=True):
    """A rule's finding. line: where; lines: first and last of each part of the script in which a rank waits because of it."""

    rule: Rule
    line: int
    text: str
    lines: tuple[tuple[int, int], ...] = ()

    def holds(self, line: int) -> bool:
        """Return whether a rank that is in this line may stand there because of it."""
        return line == self.line or any(first <= line <= last for first, last in self.lines)


RANK_TEST = Rule(
    "collective-under-rank-test",
    "a collective (`dist.barrier()`, `accelerator.wait_for_everyone()`, …) that only some ranks call: it is under `if rank == 0:`, or "
    "after a `return`, `continue` or `break` that only some ranks take",
    "let all ranks call it, outside of the test of the rank",
    ("hang",),
)
HANDLER = Rule(
    "except-skips-collective",
    "an `except` that goes on (`continue`, `return`, `pass`) between collectives: a rank that raises skips one",
    "raise again; or have all ranks agree first: dist.all_reduce a flag of who failed, and skip on all",
    ("hang",),
)
SAVE = Rule(
    "save-on-all-ranks",
    "`torch.save` to one path on all ranks at once",
    "save on one rank (if dist.get_rank() == 0:) and have the others wait in dist.barrier()",
)
LOAD = Rule(
    "load-without-barrier",
    "a load of what one rank saves, on the other ranks, with no collective between the two",
    "dist.barrier() on all ranks between the save and the load",
    ("race",),
)
UNEVEN = Rule(
    "uneven-shards",
    "shards of different length (`data[rank::world_size]`, `i % world_size == rank`, `range(5 - rank)`) in a loop with collectives, and "
    "nothing drops or pads the rest",
    "give all ranks as many batches: DistributedSampler pads, or data[: len(data) // world_size * world_size]; or model.join()",
    ("hang",),
)
EPOCH = Rule(
    "no-set-epoch",
    "a `DistributedSampler` that shuffles, in a loop of epochs without `set_epoch`: each epoch has the same order",
    "sampler.set_epoch(epoch) first in the loop",
)
SEED = Rule(
    "one-seed",
    "one seed on all ranks where the loop over the data draws noise from it: all ranks draw the same",
    "seed again with the rank once the model is made: torch.manual_seed(seed + rank)",
)
DEVICES = Rule(
    "cuda-visible-devices",
    "`CUDA_VISIBLE_DEVICES` deleted from the environment, or set after torch was imported",
    "set it where the command is started, and use the GPU that LOCAL_RANK names",
)
#: In the order of the guide.
RULES = (RANK_TEST, HANDLER, SAVE, LOAD, UNEVEN, EPOCH, SEED, DEVICES)
