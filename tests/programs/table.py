"""The table: real programs, the faults that are put into them, and what is known of each cell; docs/reference/known-programs.md has it.

A program is a folder of `scripts/`, which a test copies into a directory of its own, and a command that runs there. Each trains 40 steps
and saves after 10, 20, 30 and 40. A cell without a note passes. `wrong` holds the reason why it does not: it is expected to fail, and a
test that passes fails then. `unseen` cells were not run yet. Each program gets the faults of EACH; the others are spread.
"""

from __future__ import annotations

from dataclasses import dataclass

TORCHRUN = ("torchrun", "--standalone", "--nproc-per-node=2")
FLAGS = ("--batch-size=8", "--accum=1")
BATCH = ("--knob", "batch_size=--batch-size", "--knob", "grad_accum=--accum")
HF = ("train.py", "--use_cpu", "--max_steps=40", "--save_steps=10", "--save_strategy=steps", "--report_to=none", "--disable_tqdm=true")
HF = (*HF, "--output_dir=out", "--optim=sgd", "--learning_rate=0.01", "--per_device_train_batch_size=8", "--logging_strategy=no")
LIGHTNING_CLI = ("cli.py", "fit", "--trainer.accelerator=cpu", "--trainer.devices=2", "--trainer.strategy=ddp", "--trainer.max_steps=40")
LIGHTNING_CLI = (*LIGHTNING_CLI, "--trainer.enable_progress_bar=false", "--trainer.default_root_dir=runs", "--data.batch_size=8")
LIGHTNING_CLI = (*LIGHTNING_CLI, "--trainer.callbacks+=ModelCheckpoint", "--trainer.callbacks.save_top_k=-1")
LONGER_NANOGPT = ("--max_iters={steps}", "--eval_interval={every}")
LONGER_HF = ("--max_steps={steps}", "--save_steps={every}")

LIGHTNING_REPEATS = "after a resume at the end of an epoch, Lightning 2.6.6 trains twice on the first batch, without supervise too"


@dataclass(frozen=True, slots=True)
class TrainingProgram:
    """A program and how it is run.

    framework: what it is written with; the README has a row for each. saved: a glob of its checkpoints. options: what supervise needs to
    resume it. oom_options: what it needs beside to fit its memory. worker_flags: what gives it a loader worker. one_file: each save
    overwrites the one before. inexact: why its weights after a resume are not those of an uninterrupted run, with supervise or without:
    they are not compared. drifts: it cannot accumulate gradients, so that a smaller batch is another training. longer: the words that
    make it longer, where the command holds its length; `{steps}` in all, a save after each `{every}`. world: its ranks.
    """

    name: str
    framework: str
    title: str
    folder: str
    command: tuple[str, ...]
    saved: str
    options: tuple[str, ...] = ()
    oom_options: tuple[str, ...] = ()
    families: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    worker_flags: tuple[str, ...] = ()
    one_file: bool = False
    inexact: str = ""
    drifts: bool = False
    longer: tuple[str, ...] = ()
    world: int = 2

    @property
    def launcher(self) -> str:
        """The words that start it."""
        return " ".join(self.command[: 2 if self.command[1] == "launch" else 1])

    @property
    def directory(self) -> str:
        """The directory that holds its checkpoints; "." where they lie beside the script."""
        return self.saved.partition("/")[0] if "/" in self.saved else "."


@dataclass(frozen=True, slots=True)
class Injection:
    """A fault: the hook's words, what the test does from outside, and what has to come out.

    words: `{rank}` is the program's last rank. act: the name of a method of `Drive`. causes: the cause of each failed attempt, each
    a set of right answers. resumed: for each later attempt, the steps from which it may continue. ends: the exit codes, of each start.
    """

    name: str
    title: str
    words: str
    act: str = "watch"
    causes: tuple[frozenset[str], ...] = ()
    resumed: tuple[frozenset[int], ...] = ()
    ends: tuple[int, ...] = (0,)
    finishes: bool = True
    tolerance: float = 0.0


@dataclass(frozen=True, slots=True)
class RightOutcome:
    """An outcome that is right for a program though another one is the fault's: why, the cause of each failed attempt, the exit codes.

    A stop is right where the bare program fails too. names: the torn checkpoint is named at the terminal. With two exit codes, a command
    that helps is named there as well, and how to start again; after both the training continues where it was.
    """

    reason: str
    causes: tuple[frozenset[str], ...]
    ends: tuple[int, ...] = (65,)
    names: bool = True

    @property
    def is_stop(self) -> bool:
        """Whether the run ends without the training's end."""
        return self.ends[0] != 0


@dataclass(frozen=True, slots=True)
class Cell:
    """What is known of a program under a fault."""

    program: str
    fault: str
    outcome: RightOutcome | None = None
    wrong: str = ""
    unseen: bool = False
    fast: bool = False


def _one(*names: str) -> frozenset[str]:
    return frozenset(names)


KILLED = _one("killed_unknown")


def _at(*steps: int) -> frozenset[int]:
    return frozenset(steps)


PROGRAMS = (
    TrainingProgram(
        "nanogpt",
        "nanoGPT",
        "nanoGPT's form, `python`",
        "nanogpt",
        ("python", "train.py", "--batch_size=8", "--gradient_accumulation_steps=2"),
        "out/ckpt.pt",
        one_file=True,
        longer=LONGER_NANOGPT,
        world=1,
    ),
    TrainingProgram(
        "nanogpt-torchrun",
        "nanoGPT",
        "nanoGPT's form, `torchrun`",
        "nanogpt",
        (*TORCHRUN, "train.py", "--batch_size=8", "--gradient_accumulation_steps=2"),
        "out/ckpt.pt",
        one_file=True,
        longer=LONGER_NANOGPT,
    ),
    TrainingProgram(
        "plain",
        "a loop of your own",
        "a loop without an optimizer",
        "plain",
        ("python", "train.py", *FLAGS),
        "model.pt",
        oom_options=BATCH,
        one_file=True,
        world=1,
    ),
    TrainingProgram("numpy", "a loop of your own", "numpy alone", "numpy_only", ("python", "train.py"), "states/state-*.npz", world=1),
    TrainingProgram(
        "elastic",
        "DDP, as in torch's tutorial on fault tolerance",
        "torch's tutorial on fault tolerance",
        "elastic",
        (*TORCHRUN, "train.py", "8", "2", "--batch_size=8"),
        "snapshot.pt",
        oom_options=("--knob", "batch_size=--batch_size", "--allow-batch-drift"),
        worker_flags=("--workers=1",),
        one_file=True,
        drifts=True,
    ),
    TrainingProgram(
        "mingpt",
        "Hydra, as minGPT-ddp",
        "minGPT-ddp's form with Hydra",
        "mingpt",
        (*TORCHRUN, "main.py", "trainer_config.batch_size=8", "trainer_config.grad_accum=1"),
        "snapshot.pt",
        oom_options=("--knob", "batch_size=trainer_config.batch_size=", "--knob", "grad_accum=trainer_config.grad_accum="),
        families=("hydra",),
        one_file=True,
    ),
    TrainingProgram("fsdp", "FSDP2 with DCP", "FSDP2 with DCP", "fsdp", (*TORCHRUN, "train.py", *FLAGS), "ckpt/step-*", oom_options=BATCH),
    TrainingProgram(
        "fsdp-async",
        "FSDP2 with DCP",
        "FSDP2 with DCP's `async_save`",
        "fsdp",
        (*TORCHRUN, "train.py", *FLAGS, "--asynchronous"),
        "ckpt/step-*",
        oom_options=BATCH,
    ),
    TrainingProgram(
        "hf-auto",
        "HF Trainer",
        "HF Trainer that resumes by itself, `torchrun`",
        "huggingface",
        (*TORCHRUN, *HF),
        "out/checkpoint-*",
        families=("huggingface",),
        environment=(("AUTO", "1"),),
        longer=LONGER_HF,
    ),
    TrainingProgram(
        "hf",
        "HF Trainer",
        "HF Trainer, `torchrun`",
        "huggingface",
        (*TORCHRUN, *HF),
        "out/checkpoint-*",
        families=("huggingface",),
        worker_flags=("--dataloader_num_workers=1",),
        longer=LONGER_HF,
    ),
    TrainingProgram(
        "hf-auto-accelerate",
        "HF Trainer",
        "HF Trainer that resumes by itself, `accelerate launch`",
        "huggingface",
        ("accelerate", "launch", "--cpu", "--num_processes=1", *HF),
        "out/checkpoint-*",
        families=("huggingface",),
        environment=(("AUTO", "1"),),
        longer=LONGER_HF,
        world=1,
    ),
    TrainingProgram(
        "hf-accelerate",
        "HF Trainer",
        "HF Trainer, `accelerate launch`",
        "huggingface",
        ("accelerate", "launch", "--cpu", "--num_processes=1", *HF),
        "out/checkpoint-*",
        families=("huggingface",),
        longer=LONGER_HF,
        world=1,
    ),
    TrainingProgram(
        "lightning-cli",
        "LightningCLI",
        "LightningCLI, `torchrun`",
        "lightning",
        (*TORCHRUN, *LIGHTNING_CLI),
        "runs/lightning_logs/version_*/checkpoints/*.ckpt",
        inexact=LIGHTNING_REPEATS,
        families=("lightning",),
        longer=("--trainer.max_steps={steps}",),
    ),
    TrainingProgram(
        "lightning",
        "Lightning's Trainer",
        "Lightning that starts its ranks, `python`",
        "lightning",
        ("python", "train.py", *FLAGS),
        "checkpoints/*.ckpt",
        inexact=LIGHTNING_REPEATS,
        oom_options=BATCH,
        families=("lightning",),
    ),
    TrainingProgram(
        "fabric",
        "Lightning Fabric",
        "Lightning Fabric, `torchrun`",
        "fabric",
        (*TORCHRUN, "train.py", *FLAGS),
        "checkpoints/step-*.ckpt",
        oom_options=BATCH,
        families=("lightning",),
    ),
    TrainingProgram(
        "accelerate",
        "accelerate",
        "accelerate's `save_state`, `accelerate launch`",
        "accelerate",
        ("accelerate", "launch", "--cpu", "--num_processes=1", "train.py", "--batch_size=8", "--gradient_accumulation_steps=1"),
        "out/step_*",
        oom_options=("--knob", "batch_size=--batch_size", "--knob", "grad_accum=--gradient_accumulation_steps"),
        world=1,
    ),
    TrainingProgram(
        "trl",
        "trl's SFTTrainer",
        "trl's SFTTrainer, `torchrun`",
        "trl",
        (*TORCHRUN, *HF, "--bf16=false"),
        "out/checkpoint-*",
        families=("huggingface",),
        longer=LONGER_HF,
    ),
    TrainingProgram(
        "mpirun",
        "ranks that `mpirun` starts",
        "ranks of a script like `mpirun`",
        "mpirun",
        ("./launch.sh", "2", "python", "train.py", *FLAGS),
        "ckpt/step-*.pt",
        oom_options=BATCH,
    ),
)

FAULTS = (
    Injection("kill", "kill", "hold:25:{rank}", "kill", (KILLED,), (_at(20),)),
    Injection("torn", "newest checkpoint torn", "hold:35:{rank}", "tear_and_kill", (KILLED,), (_at(20, 30),)),
    Injection("term", "TERM, started again", "hold:25:{rank}", "term", resumed=(_at(20, 25),), ends=(143, 0)),
    Injection("oom", "out of memory", "oom:4", causes=(_one("cuda_oom"),), tolerance=1e-3),
    Injection("first-save", "kill in the first save", "save:10", "kill", (KILLED,), (_at(0),)),
    Injection("later-save", "kill in a later save", "hold:25:0 save:30", "kill_in_a_later_save", (KILLED,), (_at(20),)),
    Injection("supervisor", "supervisor killed, started again", "hold:25:{rank}", "kill_supervisor", (KILLED,), (_at(20),), (137, 0)),
    Injection("import", "ImportError", "import:0", causes=(_one("dependency"),), ends=(1,), finishes=False),
    Injection("value", "ValueError before training", "value:0", causes=(_one("user_code"),), ends=(1,), finishes=False),
    Injection("sample", "broken sample", "sample:60", causes=(_one("data_error", "user_code"),) * 2, ends=(65,), finishes=False),
    Injection("nan", "silent NaN", "hold:15:0 nan:25", "warned_of_nan", finishes=False),
    Injection("raise", "NaN raised", "raise:25", causes=(_one("nan_loss"),), resumed=(_at(10, 20),)),
    Injection("worker", "loader worker killed", "worker:60", "kill", (_one("dataloader_worker"),), (_at(0, 10),)),
    Injection("full", "disk full in a save", "hold:15:0", "fill", (_one("disk_full"),), (_at(10, 20),)),
    Injection(
        "two", "two kills", "hold:15:{rank} hold:35:0", "kill_twice", (KILLED, KILLED), (_at(10), _at(30, 31))
    ),  # 31: LIGHTNING_REPEATS
)
#: Each program gets these. A torn checkpoint has a kill in it, so the kill alone is tried with a few.
EACH = ("torn", "term", "oom")
#: Fault → the programs that get it.
SPREAD = {
    "kill": ("nanogpt", "plain", "numpy", "hf-accelerate", "lightning"),
    "first-save": ("nanogpt", "fsdp"),
    "later-save": ("nanogpt-torchrun", "fsdp-async"),
    "supervisor": ("nanogpt", "numpy"),
    "import": ("plain", "hf-accelerate"),
    "value": ("numpy", "mpirun"),
    "sample": ("numpy", "elastic"),
    "nan": ("nanogpt", "nanogpt-torchrun"),
    "raise": ("plain", "nanogpt"),
    "worker": ("elastic", "hf"),
    "full": ("fsdp", "fabric"),
    "two": ("numpy", "trl"),
}
#: What a stranger changed is never moved, and the bare program dies of it; where an option of ours resumes it, it would begin from scratch.
ONLY_FILE = RightOutcome(
    "a file that a stranger tore is not moved: the run stops and names the command that puts its copy back; with it the training continued",
    (KILLED, _one("checkpoint_corrupt")),
    (65, 0),
)
LINKED = RightOutcome(
    "what a stranger tore is not moved, and the copy of a replaced file is a link, torn with it: the run stops and names what is torn",
    (KILLED, _one("checkpoint_corrupt")),
)
NEWEST = RightOutcome(
    "what a stranger tore is not moved: the run stops and names the command that moves it away; with it the training continued",
    (KILLED, _one("checkpoint_corrupt")),
    (65, 0),
)
MET_ONCE = RightOutcome("one attempt fails on the torn one; then it is moved away", (KILLED, _one("checkpoint_corrupt")), (0,), names=False)
#: (program, fault) → why another outcome is right.
OUTCOMES = {
    **{(name, "torn"): ONLY_FILE for name in ("nanogpt", "nanogpt-torchrun", "elastic", "mingpt")},
    **{(name, "torn"): LINKED for name in ("plain", "lightning")},
    **{(name, "torn"): NEWEST for name in ("hf-auto", "hf-auto-accelerate", "mpirun", "fabric")},
    **{(name, "torn"): MET_ONCE for name in ("fsdp", "fsdp-async")},
    ("numpy", "torn"): RightOutcome(
        "the script takes the newest file by itself, and numpy's files are of no known format: it ends with numpy's own error",
        (KILLED, *(_one("data_error", "checkpoint_corrupt"),) * 2),
        (1,),
        names=False,
    ),
    ("numpy", "sample"): RightOutcome(
        "no step of numpy is seen, so an error of the script's own is met once, with its own exit code",
        (_one("data_error", "user_code"),),
        (1,),
    ),
    ("numpy", "oom"): RightOutcome("a MemoryError is the machine's memory, and no batch was declared", (_one("host_oom"),) * 2),
}
FAST = (("numpy", "kill"),)
#: (program, fault) → why it does not work today.
WRONG: dict[tuple[str, str], str] = {}
#: Program → its faults that were not run yet.
UNSEEN: dict[str, str] = {}
#: Programs without a row, and why.
NOT_RUN = {
    "DeepSpeed ZeRO-2 and ZeRO-3": "on a CPU its start compiles an operator for shared memory and waits for a lock file; not tried again",
    "torchtitan": "its Trainer calls `torch.cuda.set_device` where there is no accelerator, so the bare program fails on a CPU",
}


def cells() -> list[Cell]:
    """Return each cell of the table, program after program."""
    rows = []
    for program in PROGRAMS:
        for fault in (fault.name for fault in FAULTS if fault.name in EACH or program.name in SPREAD[fault.name]):
            key = (program.name, fault)
            is_unseen = fault in UNSEEN.get(program.name, "").split()
            rows.append(Cell(*key, OUTCOMES.get(key), WRONG.get(key, ""), unseen=is_unseen, fast=key in FAST))
    return rows
