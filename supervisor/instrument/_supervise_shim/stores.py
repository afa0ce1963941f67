"""Lets ranks use a store elsewhere, and make a second process group, while torchrun's agent serves theirs (TORCHELASTIC_USE_AGENT_STORE).

A store elsewhere: torch takes *every* endpoint for the agent's, so that with `tcp://` at a port of the script's own no rank serves, and all
wait (pytorch #191957). And a second `init_process_group`: the store outlives the first process group, whose addresses the ranks would read.
"""
# ruff: noqa: ANN401 - the functions of torch that are wrapped take and return anything

from __future__ import annotations

import os
import sys

from .layout import quiet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable  # noqa: UP035 - 3.8


class AgentStore:
    """Wraps how torch makes a store. Nothing is changed where no agent serves one; report_world: gets for how many ranks each is."""

    def __init__(self, report_world: Callable[[int], None]) -> None:
        self._report_world = report_world
        self._made_for = 0
        self._groups = {}  # type: dict[int, int] # process groups that were made by the agent's store, by their number of ranks
        self.identify()

    def identify(self) -> None:
        """Read from the environment where the agent serves; a standby does so again when it becomes a rank."""
        served = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        self._port = os.environ.get("MASTER_PORT", "") if served else ""  # of the agent's: the script may change the variable

    def watch(self, module: Any) -> None:
        """Wrap the function of torch.distributed.rendezvous that makes a store for tcp:// and env://."""
        inner, use_agent_store = getattr(module, "_create_c10d_store", None), getattr(module, "_torchelastic_use_agent_store", None)
        if inner is None:
            return

        def wrapper(hostname: Any, port: Any, rank: Any, world_size: Any, *args: Any, **kwargs: Any) -> Any:
            self._report_world(world_size)
            if not self._port or use_agent_store is None:
                return inner(hostname, port, rank, world_size, *args, **kwargs)
            if str(port) == self._port:
                store = inner(hostname, port, rank, world_size, *args, **kwargs)
                self._made_for = world_size
                before = self._groups.get(world_size, 0)
                return sys.modules["torch._C._distributed_c10d"].PrefixStore(f"group {before}", store) if before else store
            module._torchelastic_use_agent_store = lambda: False  # noqa: SLF001 - torch has no other way
            try:
                return inner(hostname, port, rank, world_size, *args, **kwargs)
            finally:
                module._torchelastic_use_agent_store = use_agent_store  # noqa: SLF001

        module._create_c10d_store = wrapper  # noqa: SLF001

    @quiet
    def _let_others_ask(self) -> None:
        """Where the script uses our functions in which ranks wait for each other: show where to ask, also before it calls the first."""
        for name in ("supervisor.agent.step_agreement", "checkpointing.training.ranks"):  # the script has imported it, or what needs it
            module = sys.modules.get(name)
            if module is not None:
                module.show_place()
                return

    def group_made(self) -> None:
        """`init_process_group` has returned: the next one by the agent's store must not read what this one wrote."""
        self._let_others_ask()
        if self._made_for:
            self._groups[self._made_for] = self._groups.get(self._made_for, 0) + 1
            self._made_for = 0
