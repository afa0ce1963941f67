"""Recognises the launcher of a command (torchrun, accelerate, DeepSpeed), with its own options, as each launcher's parser reads them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from supervisor.core.values import Struct
from supervisor.knobs import launcher_options, torchrun
from supervisor.knobs.python_command import split_python

if TYPE_CHECKING:
    from collections.abc import Sequence

    from supervisor.knobs.launcher_options import LauncherOption

#: Short options, each with its long name.
_SHORT: Final = {"torchrun": (("-r", "--redirects"), ("-t", "--tee")), "accelerate": (("-t", "--tee"),)} | {
    "deepspeed": (("-H", "--hostfile"), ("-i", "--include"), ("-e", "--exclude"))
}
#: Options that take no value, with hyphens.
_FLAGS: Final = {
    "torchrun": torchrun.FLAGS,
    "accelerate": frozenset(
        {"-h", "--help", "--quiet", "-q", "--cpu", "--multi-gpu", "--tpu", "--enable-cpu-affinity", "--dynamo-use-fullgraph"}
        | {"--dynamo-use-dynamic", "--dynamo-use-regional-compilation", "--use-deepspeed", "--use-fsdp", "--use-parallelism-config"}
        | {"--use-megatron-lm", "--same-network", "-m", "--module", "--no-python", "--tpu-cluster", "--no-tpu-cluster", "--tpu-use-sudo"}
        | {"--downcast-bf16", "--fp8-use-autocast-during-eval", "--debug"}
    ),
    "deepspeed": frozenset(
        {"-h", "--help", "--module", "--no-python", "--no-local-rank", "--no-ssh", "--no-ssh-check", "--force-multi", "--save-pid"}
        | {"--elastic-training", "--bind-cores-to-rank"}
    ),
}
_MODULES: Final = {
    "accelerate.commands.launch": "accelerate-launch",
    "accelerate.commands.accelerate_cli": "accelerate",
    "deepspeed.launcher.runner": "deepspeed",
}


class LauncherCommand(Struct, frozen=True):
    """A launcher's name, "" for a command without one, and the words after it: its own options, the script, the script's arguments."""

    name: str
    args: tuple[str, ...] = ()

    def options(self) -> tuple[LauncherOption, ...]:
        """Return its own options that take a value, in their order."""
        return launcher_options.options(self.args, _FLAGS[self.name], _SHORT[self.name]) if self.name else ()

    def words(self) -> set[str]:
        """Return the words in front of its script, with hyphens."""
        own = self.args[: launcher_options.script_index(self.args, _FLAGS[self.name])] if self.name else ()
        return {word.replace("_", "-") for word in own}


def recognise(command: Sequence[str], path: str | None) -> LauncherCommand:
    """Return the launcher that a command starts. path: where its interpreter is looked for."""
    run = torchrun.recognise(command, path=path)
    if run is not None:
        return LauncherCommand("torchrun", run.args)
    python = split_python(command)
    if python is None:
        name, args = (Path(command[0]).name if command else ""), tuple(command[1:])
    else:
        name = _MODULES.get(python.target, "") if python.kind == "module" else Path(python.target).name if python.kind == "script" else ""
        args = python.arguments
    if name == "accelerate":
        return LauncherCommand("accelerate", args[1:]) if args[:1] == ("launch",) else LauncherCommand("")
    return LauncherCommand({"accelerate-launch": "accelerate", "deepspeed": "deepspeed"}.get(name, ""), args)
