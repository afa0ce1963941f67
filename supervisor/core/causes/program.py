"""Causes in the training program, and ends from outside or without a known cause. Pure."""

from __future__ import annotations

from supervisor.core.causes.row import GUARDS, LAST, NATIVE, OWN_CODE, READS, SUSPECTS, CauseRow, Family, Hint, line
from supervisor.core.model import Cause

ROWS: dict[Cause, CauseRow] = {
    Cause.NAN_LOSS: CauseRow(
        meaning="The loss or the gradients are NaN or infinite",
        proof="a check that stopped the program: loss is NaN, anomaly mode, the loss scale at its minimum",
        changes_job=True,
        ladder=(*SUSPECTS, "batches_left_out", "step_back", "skip_window", "exhausted", "same_place", LAST),
        hints=(
            line(
                "go back to an earlier checkpoint; lower the learning rate, clip gradients, look at the batch of that step; bf16 "
                "instead of fp16"
            ),
        ),
    ),
    Cause.EXIT_STUCK: CauseRow(
        meaning="The training was over, and a rank did not leave",
        is_seen=True,
        proof=(
            "two looks at all ranks after the last step that the script or its Trainer named, or past the end of their scripts, and "
            "for 10 minutes no byte, no CPU time and no open checkpoint; it is ended by --on-hang restart alone"
        ),
        family=Family.KILLED,
        breaks_collectives=False,
        exit_code=124,
        after_training=True,
        ladder=("training_over",),
        hints=(line("look at what rank {hang_ranks} does at its exit, at {hang_code}", "look at what the ranks do at their exit"),),
    ),
    Cause.EXIT_ABORT: CauseRow(
        meaning="The training was over, and a rank died in its teardown",
        is_seen=True,
        proof=(
            "an abort, a crash or an error of a destructor or of destroy_process_group after the last step that was named, of which a "
            "verified checkpoint exists, or after the end of the script"
        ),
        family=Family.NATIVE,
        breaks_collectives=False,
        after_training=True,
        ladder=("training_over",),
        hints=(line("call destroy_process_group() and close loggers and writers before the script ends; nothing is to be trained again"),),
    ),
    Cause.USER_CODE: CauseRow(
        meaning="The training program itself failed",
        names="exception",
        proof="an exception that no other cause explains, or an exit code that the program chose",
        may_be_of_cache=True,
        ladder=(*SUSPECTS, "raced", "start_again", "wait_for_name", *OWN_CODE),
        hints=(
            line(
                Hint("see where it leaves with 0 (sys.exit, a return, a handler of TERM), and why the others do not", ("left_early",)),
                "look at {peer}, which refused or ended the connection; else correct the program",
                "correct the program, at {file}:{line}",
                "correct the program",
            ),
        ),
    ),
    Cause.DEPENDENCY: CauseRow(
        meaning="A library is missing, or libraries do not match each other",
        names="exception",
        proof=(
            "a module that is not installed, undefined symbols, GLIBC or ABI versions, a shared library that is missing, torch "
            "without CUDA, versions that a package refuses, 'Illegal instruction' in the output: built for another processor"
        ),
        of_reads=True,
        may_be_of_cache=True,
        ladder=(*SUSPECTS, *READS),
        hints=(line("run {install}", "install what provides {module}, or correct the import", "install versions that fit each other"),),
    ),
    Cause.PREEMPTED: CauseRow(
        meaning="A scheduler, the machine or its administrator ended the job from outside",
        proof="Slurm's cancel, preemption and time limit, a spot notice, torchrun's or Lightning's message about a TERM",
        family=Family.INFRASTRUCTURE,
        ends_by_kill=True,
        ladder=("requeue",),
        hints=(line("start it again: it resumes from its newest checkpoint; ask for more time if a limit ended it"),),
    ),
    Cause.INTERRUPTED: CauseRow(
        meaning="A person stopped the job with Ctrl-C",
        is_seen=True,
        proof="KeyboardInterrupt as the last exception, SIGINT, torchrun's or DeepSpeed's message about an INT",
        family=Family.KILLED,
        breaks_collectives=False,
        ends_by_kill=True,
        ladder=("interrupted",),
        hints=(line("start it again where it should continue: nothing failed"),),
    ),
    Cause.SEGFAULT: CauseRow(
        meaning="Native code accessed invalid memory",
        proof="SIGSEGV or SIGBUS, 'Segmentation fault', faulthandler's stacks",
        family=Family.NATIVE,
        ladder=NATIVE,
        hints=(line("look at the innermost frames of faulthandler's stack (python -X faulthandler): change the library there"),),
    ),
    Cause.UNKNOWN_NATIVE_ABORT: CauseRow(
        meaning="Native code aborted without a known reason",
        proof="SIGABRT, SIGILL or SIGFPE, 'terminate called', a failed assertion in C++, glibc's 'double free'",
        family=Family.NATIVE,
        breaks_collectives=False,
        ladder=NATIVE,
        hints=(line("read the lines before the abort; a core dump or gdb names the library"),),
    ),
    Cause.KILLED_UNKNOWN: CauseRow(
        meaning="A process was killed, and no evidence shows by whom",
        is_seen=True,
        proof="SIGKILL (or another signal) without a record of the kernel, the cgroup or a scheduler; an INT to one rank of several",
        family=Family.KILLED,
        breaks_collectives=False,
        ends_by_kill=True,
        of_peers=True,
        ladder=(*GUARDS, LAST),
        hints=(
            line(
                "look at the kernel's log of that node and time (journalctl -k): lack of memory is the usual reason; then ask who "
                "may kill there"
            ),
            line(Hint("look at what the save needs: it may hold the state a second time", ("in_save",))),
        ),
    ),
    Cause.UNKNOWN: CauseRow(
        meaning="Something failed, and no evidence shows convincingly why",
        is_seen=True,
        proof="a launcher's footer alone, an exit code 1 without a traceback, no evidence",
        breaks_collectives=False,
        may_be_of_cache=True,
        ladder=(*SUSPECTS, *OWN_CODE),
        hints=(line("look at the other ranks' and nodes' logs from before the first failure; classify all of them together"),),
    ),
    Cause.NONE: CauseRow(
        meaning="No sign of a failure",
        is_seen=True,
        proof="a log with none of the evidence above",
        family=Family.KILLED,
        breaks_collectives=False,
        ladder=(*GUARDS, LAST),
        hints=(line("do nothing; if the job did fail, the evidence is in another log"),),
    ),
}
