"""The laws of a decision about a failure, by what is true of the job: the rules of docs/explanation/recovery.md without the ladders.

A law returns what is violated, "" for nothing. It judges only where the truth is plain: the evidence reached the core, and the remedy is
known. So a step that is missing from a ladder breaks a law.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING

from health.nvidia.xids import Retry, lookup
from supervisor.core.budget import family
from supervisor.core.causes import CAUSE_TABLE, GUARDS
from supervisor.core.model import BEFORE_FIRST_STEP, FROM_OUTSIDE, Cause, FailureVerdict, Phase, Plan, PlanKind
from supervisor.errors import ExitCode
from tests.simulation.faults import Strike
from tests.simulation.networks import DEBUG, EARLY, GROUP_TIMEOUT
from tests.simulation.world import ABSOLUTE, BLIND, COUNTED

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.simulation.invariants import Watch

    Past = Sequence["Record"]
    Law = Callable[["Record", Past, Watch], str]

#: The steps of [recover.CAUSE] and for what supervise changed, which stand before those of the cause.
USERS_ROW = "users_row"
OWN_CHANGE = "own_change"
FIRST = {*GUARDS, USERS_ROW, OWN_CHANGE}
#: What leaves the training as it is: by what is set, the step that --set network.allow=must name for it.
HARMLESS = {
    "env:NCCL_SOCKET_IFNAME": "interface",
    "env:GLOO_SOCKET_IFNAME": "interface",
    "env:NCCL_P2P_DISABLE": "p2p_disable",
    "env:NCCL_IB_DISABLE": "ib_disable",
    "env:NCCL_SHM_DISABLE": "shm_disable",
    "env:SUPERVISE_JOB_GROUP_TIMEOUT_S": "longer_timeout",
    "group_timeout": "longer_timeout",
    DEBUG: "",
}
OF_TRANSPORTS = {"p2p_disable": "P2P", "ib_disable": "NET/IB", "shm_disable": "SHM"}
DAY_S = 86_400.0
#: An outage lasts no longer, and ends no more attempts at one step.
OUTAGE_S, LASTS = 900.0, 2
#: A decision follows its failure at most so much later: evidence is collected, ranks are ended, nodes report.
REPORT_S = 60.0
#: A timeout is made longer so often, and to this limit.
TIMES, LONGEST_S = 2, 14_400
#: Restarts in a row before an unexplained failure of NCCL's network is waited for.
PLAIN_RESTARTS = 2
#: As much memory, held by others or in pieces, is no small matter.
LEAST = 1 << 30
#: Switches that save memory; the last one changes the numbers.
SWITCHES = ("activation_checkpointing", "cpu_offload", "mixed_precision")
#: Half of the first wait for storage: the other half is jitter.
LEAST_WAIT_S = 15.0
#: The exit code of a job that a person interrupted: 128 and SIGINT.
INTERRUPTED = 130


@dataclass(slots=True)
class Record:
    """A decision. strike: the true fault, None if not all of its evidence reached the core. progressed: the run got further since."""

    attempt: int
    t: float
    verdict: FailureVerdict
    plan: Plan
    strike: Strike | None
    resume: str
    progressed: bool = False
    passed: bool = False  # the run got well past its step

    @property
    def is_over(self) -> bool:
        """Whether the run got beyond it."""
        return self.progressed or self.passed

    @property
    def changed(self) -> bool:
        """Whether the plan changes the job."""
        plan = self.plan
        return bool(plan.changes or plan.rejected or plan.exclude or plan.nproc is not None or plan.all_ranks)

    @property
    def stops(self) -> bool:
        """Whether the run ends with it."""
        return self.plan.kind is PlanKind.STOP

    @property
    def early(self) -> bool:
        """Whether it was before the first step, and could be seen to be."""
        return self.strike is not None and self.strike.at < 0 and not self.strike.stepless

    def fact(self, name: str) -> str:
        """Return a fact from the text of the strike."""
        return next((value for key, value in self.strike.facts if key == name), "") if self.strike else ""

    def rows(self, source: str, name: str) -> list[dict[str, str]]:
        """Return what the observers found beside the strike."""
        facts = self.strike.beside if self.strike else ()
        return [{"text": fact.text, **dict(fact.fields)} for fact in facts if (fact.source, fact.name) == (source, name)]

    @property
    def interface(self) -> str:
        """Return the interface in use if it is known to fail, "" else."""
        used = [row for row in self.rows("network", "interface") if row.get("used") == "yes"]
        return next((row["name"] for row in used if row["state"] == "down" or row["reaches"] != "all"), "")

    def amount(self, name: str) -> int:
        """Return it in bytes."""
        return int(self.fact(name) or 0)


def broken(record: Record, past: Past, books: Watch) -> str:
    """Return the first law that a decision breaks, "" for none."""
    known = record.strike is not None and record.strike.cause is record.verdict.cause
    for law in (*ALWAYS, *(OF_CAUSE.get(record.verdict.cause, ()) if known and record.plan.strategy not in FIRST else ())):
        violated = law(record, past, books)
        if violated:
            return violated
    return ""


def _unanswered(record: Record, past: Past) -> list[Record]:
    # what failed while a person's stop was under way was answered by that, and shows nothing
    return [r for r in past if r.verdict.cause is record.verdict.cause and not r.is_over and r.plan.strategy != "stop"]


def _clear(record: Record) -> bool:
    return record.strike is not None and record.strike.clear


def _seen(record: Record, books: Watch) -> bool:
    """Whether a heartbeat, or the absence of any rank, shows where it happened."""
    strike = record.strike
    return strike is not None and (books.job.sight != BLIND or strike.phase is Phase.UNKNOWN)


def caps(record: Record, past: Past, books: Watch) -> str:
    """The user's cap, and the attempts of a run."""
    policy = books.job.policy
    if record.stops or record.verdict.cause in FROM_OUTSIDE:
        return ""
    # what failed while a person's stop was under way was answered by that
    charged = sum(r.plan.charged and r.plan.strategy != "stop" and r.verdict.cause not in FROM_OUTSIDE for r in past)
    if policy.max_restarts is not None and charged >= policy.max_restarts:
        return f"restart after {charged + 1} charged failures, and --max-restarts is {policy.max_restarts}"
    if 0 < policy.restart.max_attempts <= charged + 1:
        return f"restart after {charged + 1} charged failures, and restart.max_attempts is {policy.restart.max_attempts}"
    return ""


def consent(record: Record, _past: Past, books: Watch) -> str:
    """Only what is enabled, and only where it is clear."""
    if not record.changed:
        return ""
    plan = record.plan
    if plan.strategy in {USERS_ROW, OWN_CHANGE}:  # users_row has what the user consented to, and what is taken back is the user's own
        return ""
    harmless = not (plan.rejected or plan.exclude or plan.nproc is not None) and all(c.knob in HARMLESS for c in plan.changes)
    by_health = any(fact.source == "health" for fact in record.verdict.because)  # an examination is sure of what it reads
    if record.strike is not None and not record.strike.clear and not harmless and not by_health:
        return "the job is changed on evidence that is not sure"
    loose = [c.knob for c in record.plan.changes if not c.knob.startswith("env:") and books.enabled(c.knob) is None]
    return f"{loose} set, and nobody enabled that" if loose else ""


def users_row(record: Record, past: Past, books: Watch) -> str:
    """The user's row of the cause: it answers once, before all but the guards, and sets what it says."""
    cause, plan = record.verdict.cause, record.plan
    row = dict(books.job.policy.recover).get(cause.value, ())
    used = any(r.plan.strategy == USERS_ROW and r.verdict.cause is cause for r in past)
    if plan.strategy == USERS_ROW:
        sets = tuple((change.knob, change.new) for change in plan.changes)
        return "" if sets == row and not used else f"{sets} set, and the user's row of {cause} is {row}{' and was used' * used}"
    left = row and not used and not all(books.overrides.get(name) == value for name, value in row)
    return "the user's row is not taken" if left and plan.strategy not in {*GUARDS, OWN_CHANGE, "stop"} else ""


def permitted(record: Record, _past: Past, books: Watch) -> str:
    """Of the network, only what network.allow names, and no variable of the user's own."""
    policy = books.job.policy
    theirs = {f"env:{name}" for name, _ in policy.variables}
    loose = [c.knob for c in record.plan.changes if HARMLESS.get(c.knob) and HARMLESS[c.knob] not in policy.network.allow]
    loose += [c.knob for c in record.plan.changes if c.knob in theirs]
    return f"{loose} set, and the user did not permit that" if loose else ""


def other_ranks(record: Record, _past: Past, books: Watch) -> str:
    """Where a loader says that another number of ranks saved, they come back with their GPUs, or the run ends; no file is blamed."""
    plan, strike = record.plan, record.strike
    if plan.strategy in {*GUARDS, "stop"} or strike is None or strike.remedy != "all_ranks":
        return ""
    if plan.strategy != OWN_CHANGE or plan.rejected:
        return "a loader's words about the ranks are not answered as such"
    answered = plan.all_ranks if books.fit else record.stops and plan.exit_code == ExitCode.BAD_NODE
    return "" if answered else f"the GPUs are {'in use again' if books.fit else 'still out of use'}, and nothing follows from it"


def recurring(record: Record, past: Past, books: Watch) -> str:
    """The same failure so many times without progress, or the infrastructure's."""
    policy, mine = books.job.policy, family(record.verdict.cause)
    if record.verdict.cause in FROM_OUTSIDE or record.stops:
        return ""
    # what failed while a person's stop was under way was answered by that
    judged = [r for r in past if r.plan.strategy != "stop"]
    if mine == "infrastructure":
        alike = [r for r in judged if family(r.verdict.cause) == mine and not (r.progressed or r.changed)]
    else:
        alike = [r for r in judged if r.verdict.fingerprint == record.verdict.fingerprint and r.plan.charged and not r.progressed]
        alike = [r for r in alike if record.t - r.t <= DAY_S or (books.job.sight == ABSOLUTE and r.strike is not None and r.strike.at >= 0)]
    return f"failure number {len(alike) + 1} of a kind is answered by a restart" if len(alike) + 1 >= policy.recurring_stop else ""


def _reads(record: Record) -> bool:
    """Whether an import or a read of data failed."""
    return CAUSE_TABLE[record.verdict.cause].of_reads or "FileNotFoundError" in record.verdict.summary


def _at_the_end(record: Record, past: Past) -> bool:
    """Whether an attempt failed so after its steps: nothing may be left to train, and the end of the script reads the same again."""
    here = record.verdict.fingerprint.rpartition(":")[0]
    return any(r.verdict.fingerprint.rpartition(":")[0] == here and not r.early for r in past)


def own_code(record: Record, past: Past, books: Watch) -> str:
    """A program that fails before its first step, and did not train before: what it reads may be missing for a while.

    It ends the run at once where the cause is sure and stays, else where it comes again.
    """
    if (books.trained and record.plan.strategy == "start_again") or record.plan.strategy == OWN_CHANGE:
        return ""
    if record.plan.strategy == "own_code_before_first_step" and books.trained and _reads(record) and not _at_the_end(record, past):
        return "a program that trained is ended, and what it cannot read may come back"
    plainly = record.early and record.strike and record.strike.phase in BEFORE_FIRST_STEP and _seen(record, books)
    alike = [r for r in past if r.early and r.verdict.fingerprint == record.verdict.fingerprint and not (r.is_over or r.changed)]
    lasts = record.verdict.confidence >= 0.8 and not record.verdict.transient
    if record.plan.strategy == "own_code_before_first_step" and not (lasts or alike):
        return "one failure before the first step ends the run, and is not sure or may pass"
    if record.plan.strategy == "same_place" and plainly and alike and not books.trained:
        return "a start that fails twice alike does not end with the rank's own code"
    waits = record.plan.strategy == "wait_for_name"
    return "" if record.stops or not plainly or waits or not (lasts or alike) else "a restart before the first step"


def stepless(record: Record, past: Past, books: Watch) -> str:
    """A program of which no step is ever seen: one restart, and the same at once again is its answer."""
    strike, before = record.strike, past[-1] if past else None
    if strike is None or not strike.stepless or not _seen(record, books):
        return ""
    again = before is not None and not (before.changed or before.is_over) and before.verdict.fingerprint == record.verdict.fingerprint
    twice = again and before is not None and before.strike is not None and before.strike.stepless
    if twice and not record.stops:
        return "a program's own answer is asked for a third time"
    return "one failure without a step ends the run" if before is None and record.stops else ""


def race(record: Record, past: Past, _books: Watch) -> str:
    """A rank that read what another one was writing: no checkpoint is at fault, and one restart is all that it gets without progress."""
    if not record.fact("race_writer") or not _clear(record):
        return ""
    if record.plan.rejected:
        return f"{record.plan.rejected} rejected, and another rank was writing what was read"
    before = [r for r in _unanswered(record, past) if r.fact("race_writer") and not r.changed]
    if before and not record.stops:
        return "the same race is met by the same again"
    return (
        "a race is not named to the user"
        if not any("os.replace" in text for text in (record.plan.todo, record.plan.next_ladder_step, *record.plan.notes))
        else ""
    )


def start_tries(record: Record, past: Past, books: Watch) -> str:
    """The infrastructure before the first step of the run: so many tries, then 75."""
    mine = family(record.verdict.cause)
    if not record.early or not _seen(record, books) or not all(r.early and _seen(r, books) for r in past):
        return ""
    tries = sum(1 for r in past if family(r.verdict.cause) == mine)
    # what failed was no start of the user's own command; a name may come late
    other = record.plan.strategy in {OWN_CHANGE, "wait_for_name"}
    if other or tries < books.job.policy.start_tries or record.plan.exit_code == ExitCode.REQUEUE:
        return ""
    return f"try number {tries + 1} of a start is not answered with 75"


def _comparable(record: Record, twin: Record, books: Watch) -> bool:
    """Whether the steps of two failures tell where they were: absolute ones do, and those that were counted from scratch."""
    policy = books.job.policy
    loads_unseen = policy.resumes_itself and not policy.checkpoints_declared
    return books.job.sight == ABSOLUTE or (books.job.sight == COUNTED and not (record.resume or twin.resume or loads_unseen))


def _may_pass(record: Record) -> bool:
    """Whether a failure may be one outage: of what is outside of the program, and only its repetition tells."""
    outside = family(record.verdict.cause) == "infrastructure" or record.verdict.cause in {Cause.HANG_NO_ERROR, Cause.HOST_OOM}
    return outside and record.verdict.transient


def _went_past(record: Record, between: Past, books: Watch) -> bool:
    """Whether an attempt between two failures got past the place of both, by the steps that it counted from scratch: that is progress."""
    at = record.strike.at if record.strike is not None else -1
    further = (r for r in between if r.strike is not None and r.strike.at > at + books.job.policy.same_place_steps)
    return books.job.sight == "counted" and any(_comparable(record, r, books) for r in further)


def same_place(record: Record, past: Past, books: Watch) -> str:
    """The same failure at the same place, and nothing changed or gained."""
    strike = record.strike
    differs = record.changed or record.plan.trace  # a traced attempt names what an untraced one hides
    differs = differs or (books.trained and record.plan.strategy == "start_again")  # what is read may be there by then
    if record.stops or differs or strike is None or not _seen(record, books) or record.amount("other_bytes"):
        return ""
    same: list[Record] = []  # at this very step, of what may be one outage
    for index, twin in enumerate(past):
        other = twin.strike
        if other is None or twin.is_over or twin.verdict.fingerprint != record.verdict.fingerprint:
            continue
        near = (
            _comparable(record, twin, books)
            and strike.at >= 0
            and other.at >= 0
            and abs(strike.at - other.at) <= books.job.policy.same_place_steps
        )
        both_early = record.early and twin.early and {strike.phase, other.phase} <= BEFORE_FIRST_STEP
        at_a_file = record.verdict.cause is Cause.CHECKPOINT_CORRUPT  # what dies of two otherwise is the same with each
        elsewhere = at_a_file and bool(record.resume and twin.resume) and record.resume != twin.resume
        # what trained once is not called unable to start
        may_pass_early = family(record.verdict.cause) == "infrastructure" or books.trained
        if _may_pass(record) and (may_pass_early if both_early else near):
            same += [twin] if near and strike.at == other.at else []
            continue
        if near and _went_past(record, past[index + 1 :], books):
            continue
        if near or (both_early and not elsewhere):
            return f"the same failure as in attempt {twin.attempt}, at the same place, is met by the same again"
    further = same and any(r.strike is None or r.strike.at > strike.at for r in past if r.t >= same[0].t)
    # the core counts from failure to failure, the books from decision to decision
    if len(same) >= LASTS and record.t - same[0].t >= OUTAGE_S + REPORT_S and not further:
        return f"the same failure at one step since attempt {same[0].attempt} is met by the same again"
    return ""


def held_by_others(record: Record, _past: Past, _books: Watch) -> str:
    """Memory that a stranger holds."""
    if record.amount("other_bytes") < LEAST:
        return ""
    if record.changed:
        return "the job is changed although another process holds the memory"
    if record.stops:
        return "" if record.plan.exit_code == ExitCode.BAD_NODE else "a stranger holds the memory, and the exit code is not 69"
    return "" if record.plan.alert else "no alert names the holder of the memory"


def in_pieces(record: Record, _past: Past, books: Watch) -> str:
    """Memory in pieces: the allocator before all else."""
    name = "env:PYTORCH_CUDA_ALLOC_CONF"
    if not _clear(record) or record.amount("other_bytes") or record.amount("reserved_unallocated") < LEAST or name in books.overrides:
        return ""
    return "" if [c.knob for c in record.plan.changes] == [name] else "memory in pieces is not answered by the allocator"


def _shrinks(record: Record, books: Watch) -> bool:
    trial, strike = books.trial, record.strike
    return bool(
        trial
        and strike
        and strike.phase is not Phase.UNKNOWN
        and books.enabled("batch_size")
        and books.enabled("grad_accum")
        and trial.micro > 1
    )


def batch_smaller(record: Record, past: Past, books: Watch) -> str:
    """A micro-batch above 1 is made smaller, odd or even."""
    if not _seen(record, books) and not _unanswered(record, past):
        return ""
    whole = record.amount("reserved_unallocated") < LEAST or "env:PYTORCH_CUDA_ALLOC_CONF" in books.overrides
    if not _clear(record) or record.amount("other_bytes") or not whole or not _shrinks(record, books):
        return ""
    if any(r.plan.strategy == OWN_CHANGE and {c.knob for c in r.plan.changes} & {"batch_size", "grad_accum"} for r in past):
        return ""  # a smaller one did not start, was taken back, and is not tried again in this run
    knobs = {c.knob for c in record.plan.changes}
    return "" if knobs and knobs <= {"batch_size", "grad_accum"} else "the micro-batch could be smaller"


def sizes_heeded(record: Record, _past: Past, books: Watch) -> str:
    """No micro-batch is tried that the message rules out, and none is passed over that fits with a tenth to spare."""
    need, room = record.amount("allocated") + record.amount("asked"), record.amount("allocated") + record.amount("free")
    knob, trial = books.enabled("batch_size"), books.trial
    new = next((int(c.new) for c in record.plan.changes if c.knob == "batch_size"), 0)
    if not (record.fact("free") and new and trial and knob and books.enabled("grad_accum")) or knob.counts == "global":
        return ""
    if new > 1 and new * need > trial.micro * room:
        return f"a micro-batch of {new} is tried, and the message of {trial.micro} rules it out"
    accum = books.enabled("grad_accum")
    share = trial.micro * (1 if accum is None or accum.counts == "derived" else trial.accum)
    passed = [m for m in range(new + 1, trial.micro) if share % m == 0 and m * need <= 0.89 * trial.micro * room]
    return f"micro-batches of {passed} fit, and {new} is tried" if passed else ""


def step_unknown(record: Record, past: Past, books: Watch) -> str:
    """The first time, where nothing shows at which step, the batch and the switches stay."""
    if _seen(record, books) or any(r.verdict.cause is Cause.CUDA_OOM for r in past):
        return ""
    changed = {c.knob for c in record.plan.changes if not c.knob.startswith("env:")}
    return f"{changed} set, and nothing shows at which step the memory ran out" if changed else ""


def numbers_last(record: Record, _past: Past, books: Watch) -> str:
    """What changes the numbers is turned on after all that keeps them, and is reported."""
    if "mixed_precision" not in {c.knob for c in record.plan.changes}:
        return ""
    if not any("changes the numbers" in note for note in record.plan.notes):
        return "mixed precision is turned on, and no note says that the numbers change"
    left = [n for n in SWITCHES[:-1] if books.enabled(n) and n not in books.overrides]
    return f"mixed precision is turned on before {left}" if left else ""


def switched(record: Record, past: Past, books: Watch) -> str:
    """Declared memory knobs are turned on before the run is given up."""
    if not _seen(record, books) and not _unanswered(record, past):
        return ""
    if not _clear(record) or record.changed or record.amount("other_bytes"):
        return ""
    left = [n for n in SWITCHES if books.enabled(n) and n not in books.overrides]
    return f"{left} are left" if left else ""


def workers_halved(record: Record, past: Past, books: Watch) -> str:
    """Fewer loader workers at the second time."""
    again = any(CAUSE_TABLE[r.verdict.cause].of_workers and not r.is_over and r.plan.strategy != "stop" for r in past)
    if not _clear(record) or not again or books.enabled("num_workers") is None or books.trial is None or not books.trial.workers:
        return ""
    return "" if [c.knob for c in record.plan.changes] == ["num_workers"] else "the workers could be halved"


def exhausted(record: Record, past: Past, _books: Watch) -> str:
    """Nothing that differs is left: no plain restart again."""
    if not _clear(record) or record.stops or record.changed or record.amount("other_bytes"):
        return ""
    before = _unanswered(record, past)
    if record.resume and _may_pass(record):
        return ""
    return "the same again, and nothing was changed" if before else ""


def steps_back(record: Record, past: Past, books: Watch) -> str:
    """A suspect checkpoint is left alone where an older one is known."""
    strike, policy = record.strike, books.job.policy
    # another rank was writing it: it is no suspect; nor is it where too many batches are bad, which an older one meets too
    if record.fact("race_writer") or (record.fact("left_out") and record.stops):
        return ""
    if strike is None or not _clear(record) or books.steps_back >= policy.steps_back or record.plan.rejected:
        return ""
    if record.verdict.cause is Cause.NAN_LOSS:
        return (
            "a suspect checkpoint is kept, and an older one is known"
            if len([p for p in books.verified if p not in books.rejected]) > 1 and books.job.names_older and policy.checkpoints_declared
            else ""
        )
    guilty = strike.phase is Phase.LOAD or record.verdict.cause is Cause.CHECKPOINT_CORRUPT
    again = [r for r in _unanswered(record, past) if r.resume == record.resume and r.early and r.strike and r.strike.phase is Phase.LOAD]
    untrained = takewhile(lambda r: r.strike is None or r.strike.at < 0, reversed(past))
    if any(r.plan.rejected and r.resume != record.resume and r.verdict.fingerprint == record.verdict.fingerprint for r in untrained):
        return ""  # it failed alike on another one: both are cleared
    older = [path for path in books.verified if path != record.resume and path not in books.rejected]
    if not guilty or strike.phase is not Phase.LOAD or not record.resume or not again or not older or not _seen(record, books):
        return ""
    return f"{record.resume} was at fault twice, and an older one is known"


def window_skipped(record: Record, past: Past, books: Watch) -> str:
    """The data is gone around before the run is given up."""
    tried = any(r.plan.strategy == "skip_window" for r in past)
    if not _clear(record) or record.changed or books.enabled("skip_window") is None or tried or books.job.sight != "absolute":
        return ""
    return "the window of data could be skipped" if record.strike and record.strike.at >= 0 else ""


def gpu_out(record: Record, _past: Past, books: Watch) -> str:
    """A GPU that failed by itself is not used again."""
    strike, xid = record.strike, record.fact("xid")
    known = lookup(int(xid)) if xid else None
    if strike is None or not strike.clear or not record.fact("gpu_uuid") or (known and known.retry is Retry.YES) or not books.job.gpus:
        return ""
    return "" if record.plan.exclude == (strike.gpu,) else f"{strike.gpu} failed and stays in use"


def same_gpu(record: Record, past: Past, books: Watch) -> str:
    """Again on the same GPU it is the GPU's, over several the program's."""
    strike = record.strike
    if strike is None or not strike.clear or not strike.gpu or not _seen(record, books) or record.plan.rejected:
        return ""
    mine = [r for r in past if r.verdict.cause is record.verdict.cause and r.strike and r.strike.gpu and not r.is_over]
    placed = all(r.strike and r.strike.at >= 0 for r in (*mine, record)) or record.fact("gpu_uuid")
    if not placed or not mine or (family(record.verdict.cause) == "native" and not _of_hardware(record, mine, books)):
        return ""
    elsewhere = [r for r in mine if r.strike and r.strike.gpu != strike.gpu and r.verdict.fingerprint == record.verdict.fingerprint]
    if elsewhere:
        return "" if record.stops or record.changed else "the same failure on several GPUs is met by a restart"
    here = [r for r in mine if r.strike and r.strike.gpu == strike.gpu]
    return f"{strike.gpu} failed again and stays in use" if here and not record.plan.exclude else ""


def _of_hardware(record: Record, mine: Sequence[Record], books: Watch) -> bool:
    """Whether a crash speaks against a GPU: its rank is known to use it, others were there to tell them apart, and the places differ."""
    ranks = books.trial.ranks if books.trial else 0
    for_each = ranks == len(books.job.gpus) - len(books.world.quarantined)
    uses = record.verdict.cause is Cause.CUDA_ILLEGAL_ACCESS or bool(record.verdict.gpu) or for_each
    several = ranks > 1
    at = [r.strike.at if r.strike else -1 for r in (*mine, record)]
    apart = books.job.sight == "absolute" and all(abs(step - at[-1]) > books.job.policy.same_place_steps for step in at[:-1])
    return uses and several and apart and min(at) >= 0


def traced(record: Record, _past: Past, books: Watch) -> str:
    """A collective that did not come back is traced the next time, unless an interface that is down explains it."""
    if record.interface or (record.verdict.cause is Cause.GLOO_ERROR and not record.fact("timeout")):
        return ""
    return "" if record.stops or record.changed or record.plan.trace or books.traced else "nothing will show what hangs the next time"


def _tried(record: Record, past: Past, strategy: str) -> int:
    """Return how often it answered this cause at most since the last progress: the core may count less as progress than the books do."""
    return sum(1 for r in past if r.verdict.cause is record.verdict.cause and r.plan.strategy == strategy)


def interface_left(record: Record, past: Past, books: Watch) -> str:
    """An interface that fails is left for one that reaches all nodes."""
    policy = books.job.policy
    taken = {books.overrides.get("env:NCCL_SOCKET_IFNAME"), books.overrides.get("env:GLOO_SOCKET_IFNAME")}
    others = [r["name"] for r in record.rows("network", "interface") if (r["state"], r["reaches"]) == ("up", "all")]
    fits = [name for name in others if name not in taken]
    free = {"NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"} - {name for name, _ in policy.variables}
    if not record.interface or not fits or not free or "interface" not in policy.network.allow or _tried(record, past, "interface"):
        return ""
    return "" if record.changed else f"interface {record.interface} fails, and {fits[0]} is not used"


def transport_left(record: Record, past: Past, books: Watch) -> str:
    """Transports that may be at fault are switched off, one at a time, before the run continues as it was or is given up."""
    policy, cause = books.job.policy, record.verdict.cause
    if record.changed or record.interface or not _unanswered(record, past):
        return ""
    if cause is Cause.HANG_NO_ERROR and record.fact("hang_kind") != "waiting":
        return ""
    named = "ib_disable" if record.fact("hca") else "shm_disable" if record.fact("segment") else ""
    shown = " ".join(row["text"] for row in record.rows("nccl", "transports"))
    kept = {*(knob.removeprefix("env:") for knob in books.overrides), *(name for name, _ in policy.variables)}
    left = [
        ladder_step
        for ladder_step, transport in OF_TRANSPORTS.items()
        if ladder_step in policy.network.allow
        and f"NCCL_{ladder_step.partition('_')[0].upper()}_DISABLE" not in kept
        and not _tried(record, past, ladder_step)
        and (ladder_step == named if named else books.traced and (not shown or transport in shown))
    ]
    return f"{left} could be tried" if left else ""


def time_given(record: Record, past: Past, books: Watch) -> str:
    """A rank that is merely late is given more time, unless the script's own timeout passed, which no variable changes."""
    strike, timeout_s = record.strike, record.amount("timeout")
    if strike is None or strike.remedy != "longer_timeout" or "longer_timeout" not in books.job.policy.network.allow:
        return ""
    if books.trial is not None and books.trial.world == 1:
        return ""  # nobody waits for it
    given = int(books.overrides.get("group_timeout") or books.overrides.get(GROUP_TIMEOUT) or 0)
    if timeout_s >= LONGEST_S or timeout_s < given or _tried(record, past, "longer_timeout") >= TIMES:
        return ""
    return "" if record.changed else "a rank is late, and is given no more time"


def hanging_gpu(record: Record, past: Past, books: Watch) -> str:
    """A GPU whose rank hangs at several places goes out of use."""
    strike = record.strike
    if strike is None or strike.remedy != "another_gpu" or not strike.clear or books.job.sight != "absolute":
        return ""
    mine = [r.strike for r in past if CAUSE_TABLE[r.verdict.cause].stands_still and record.t - r.t <= DAY_S]
    if not mine or not all(s is not None and s.gpu == strike.gpu for s in mine):
        return ""
    named = {dict(r.verdict.facts).get("hang_ranks") for r in (*past, record) if CAUSE_TABLE[r.verdict.cause].stands_still}
    if len(named) > 1:
        return ""  # the looks at the ranks named several
    apart = any(s is not None and s.at >= 0 and abs(s.at - strike.at) > books.job.policy.same_place_steps for s in mine)
    return f"{strike.gpu} hangs again and stays in use" if apart and strike.gpu not in record.plan.exclude else ""


def named_by_torch(record: Record, _past: Past, books: Watch) -> str:
    """What differs between ranks is named by torch in the next attempt."""
    known = DEBUG in books.overrides or DEBUG.removeprefix("env:") in dict(books.job.policy.variables)
    if record.strike is None or record.strike.remedy != "name_it" or known or record.stops:
        return ""
    return "" if [c.knob for c in record.plan.changes] == [DEBUG] else "nothing will name what differs the next time"


def named_and_ended(record: Record, past: Past, books: Watch) -> str:
    """What torch has named, and a restart would meet, ends the run."""
    strike = record.strike
    if strike is None or strike.remedy not in {"name_it", "repair"} or record.stops:
        return ""
    early = strike.remedy == "repair" and 0 <= strike.at <= EARLY and not record.resume and books.job.sight == "absolute"
    again = any(r.plan.strategy == "name_unsynced" for r in _unanswered(record, past))
    return "what torch has named is met by a restart" if early or again else ""


def network_waited_for(record: Record, past: Past, _books: Watch) -> str:
    """A network that is down, or failed again and again, is given time."""
    again = record.verdict.cause is Cause.NCCL_NETWORK and len(_unanswered(record, past)) >= PLAIN_RESTARTS
    if record.stops or record.changed or record.plan.trace or not (record.interface or again):
        return ""
    return "" if record.plan.delay_s >= LEAST_WAIT_S else "the network is not waited for"


def waited_for(record: Record, _past: Past, _books: Watch) -> str:
    """Storage is given time."""
    return "" if record.stops or record.plan.delay_s >= LEAST_WAIT_S else "storage is not waited for"


def left_out(record: Record, _past: Past, _books: Watch) -> str:
    """A script that left out more batches than it may would do so again."""
    strike = record.strike
    is_so = strike is not None and ("left_out", "11") in strike.facts and strike.cause is record.verdict.cause
    return "more batches are left out than may be, and the run continues" if is_so and not record.stops else ""


def interrupted(record: Record, _past: Past, _books: Watch) -> str:
    """What a person interrupted ends with 130, and nobody starts it again."""
    return "" if record.stops and record.plan.exit_code == INTERRUPTED else "an interrupted job continues, or does not end with 130"


def does_not_fit(record: Record, past: Past, books: Watch) -> str:
    """What does not fit together will not fit the next time."""
    strike = record.strike
    certain = record.early and _clear(record) and not record.verdict.transient and _seen(record, books)
    met = strike is not None and bool(_unanswered(record, past))
    return "what does not fit is started again" if (certain or met) and not record.stops else ""


ALWAYS: tuple[Law, ...] = (caps, consent, users_row, permitted, other_ranks, recurring)
#: What each step owes its causes. Which causes those are is read from their rows, before any test takes a step out of a ladder.
OF_STEP: dict[str, tuple[Law, ...]] = {
    "memory_held_by_others": (held_by_others,),
    "expandable_segments": (in_pieces,),
    "halve_batch": (step_unknown, sizes_heeded, batch_smaller),
    "memory_knobs": (switched, numbers_last),
    "halve_workers": (workers_halved,),
    "exhausted": (exhausted,),
    "longer_timeout": (time_given,),
    "interface": (interface_left,),
    "same_gpu_hangs": (hanging_gpu,),
    **dict.fromkeys(OF_TRANSPORTS, (transport_left,)),
    "start_tries": (start_tries,),
    "trace_collectives": (traced,),
    "wait_for_network": (network_waited_for,),
    "name_unsynced": (named_by_torch,),
    "unsynced": (named_and_ended,),
    "environment_at_fault": (does_not_fit,),
    "exclude_gpu": (gpu_out,),
    "same_gpu_twice": (same_gpu,),
    "raced": (race,),
    "step_back": (steps_back,),
    "skip_window": (window_skipped,),
    "batches_left_out": (left_out,),
    "wait_for_storage": (waited_for,),
    "interrupted": (interrupted,),
    "own_code_before_first_step": (own_code, stepless),
    "same_place": (same_place,),
}
OF_CAUSE: dict[Cause, tuple[Law, ...]] = {
    cause: tuple(dict.fromkeys(law for step in row.ladder for law in OF_STEP.get(step, ()))) for cause, row in CAUSE_TABLE.items()
}
