"""Completion for bash, zsh and fish: `supervise completion`, and the answers that the shell then asks for.

click makes both from the commands themselves. A fact that it cannot know is here: that everything after `--` is the job's own command,
which the shell completes by itself.
"""

from __future__ import annotations

import os
import sys
from pathlib import PurePath
from typing import Final

import click
from click import shell_completion
from click.shell_completion import CompletionItem

from supervisor.cli import stdio
from supervisor.cli.invocation import COMPLETE_VARIABLE
from supervisor.errors import ExitCode, SuperviseError

SHELLS: Final = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", metavar="[bash|zsh|fish]", required=False, type=click.Choice(SHELLS))
def command(shell: str | None) -> int:
    """For bash write `eval "$(supervise completion bash)"` into ~/.bashrc, for zsh the same with zsh into ~/.zshrc.

    For fish: `supervise completion fish > ~/.config/fish/completions/supervise.fish`. The default is the shell that $SHELL names.
    """
    name = shell or PurePath(os.environ.get("SHELL", "")).name
    if name not in SHELLS:
        hint = f"Name one: supervise completion {'|'.join(SHELLS)}."
        raise SuperviseError(f"no completion for this shell: $SHELL is {name or 'not set'}", hint=hint, exit_code=ExitCode.USAGE)
    root = click.get_current_context().find_root().command
    stdio.write(sys.stdout, _completion_of(name, root).source().strip())
    return 0


def answer(root: click.Command, instruction: str) -> int:
    """Answer what the shell's script asks. `instruction`: as the script writes it, bash_complete or zsh_complete. Returns 0."""
    shell, _, instruction_kind = instruction.partition("_")
    if shell not in SHELLS or instruction_kind != "complete":
        return ExitCode.USAGE
    completion = _completion_of(shell, root)
    words, incomplete = completion.get_completion_args()
    items = [CompletionItem(incomplete, type="file")] if "--" in words else completion.get_completions(words, incomplete)
    stdio.write(sys.stdout, "\n".join(completion.format_completion(item) for item in items))
    return 0


def _completion_of(shell: str, root: click.Command) -> shell_completion.ShellComplete:
    completion = shell_completion.get_completion_class(shell)
    assert completion is not None  # noqa: S101  SHELLS are click's own
    return completion(root, {}, "supervise", COMPLETE_VARIABLE)
