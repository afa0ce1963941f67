"""The closed list of log events, with the texts of the table in docs/reference/log-events.md."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal, Self

LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["auto", "console", "json", "ecs"]
#: An item for the writing threads: the event's name, its level, all its fields.
LogRecord = tuple[str, LogLevel, dict[str, object]]


class LogEvent(StrEnum):
    """Every event that is logged: `noun.past_verb`, its level, its fields, and in Markdown when it is logged.

    info_if: when it is logged as info in place of its level.
    """

    level: LogLevel
    fields: tuple[str, ...]
    when: str
    info_if: str

    def __new__(cls, name: str, level: LogLevel, fields: str, when: str, info_if: str = "") -> Self:
        """Keep the columns of the row beside the name."""
        event = str.__new__(cls, name)
        event._value_ = name
        event.level, event.fields, event.when, event.info_if = level, tuple(fields.split()), when, info_if
        return event

    def fields_of(self, source: object) -> dict[str, object]:
        """Return those of its fields that a value has under the same names."""
        return {name: getattr(source, name) for name in self.fields if hasattr(source, name)}

    RUN_STARTED = "run.started", "info", "words", "a new run begins; `words`: the number of words of its command"
    RUN_CONTINUED = "run.continued", "info", "words", "the last run continues: it was requeued or restarted, or its supervisor died"
    RUN_FINISHED = "run.finished", "info", "exit_code incidents lost_s", "the supervisor ends; what the run's failures cost"
    LOCK_LOST = "lock.lost", "error", "", "another supervisor took the job over; this one stops its ranks"
    LAUNCHER_STARTED = (
        "launcher.started",
        "info",
        "attempt pid torch nnodes nproc max_restarts rdzv_backend tee versions",
        "the agent that runs the ranks reported that it started; `versions`: those that the ranks will import, by name",
    )
    LAUNCHER_EXITED = (
        "launcher.exited",
        "warning",
        "attempt process code signal",
        "the agent or the guardian ended while it should have run",
    )
    LAUNCHER_REPLACED = (
        "launcher.replaced",
        "warning",
        "launcher reason",
        "torch's elastic agent is not the one we know: plain torchrun runs instead",
    )
    AGENT_REPORTED = (
        "agent.reported",
        "info",
        "what",
        (
            "the agent reported something that decides nothing, such as where the ranks meet (`what` is `rendezvous`); the other fields "
            "are its own"
        ),
    )
    REQUEST_LOST = (
        "request.lost",
        "warning",
        "request error",
        "the agent's link did not take a request; `launcher.exited` reports that the agent is gone",
    )
    REQUEST_REFUSED = "request.refused", "error", "request text", "the guardian found a request malformed and did nothing"
    ATTEMPT_BEGUN = (
        "attempt.begun",
        "info",
        "attempt reason resume_from resume_step overrides gpus nproc",
        (
            "an attempt is ordered; the last three fields are what differs from the user's own command: knobs, visible GPUs, ranks on "
            "this node"
        ),
    )
    ATTEMPT_STARTED = (
        "attempt.started",
        "info",
        "attempt ranks world_size",
        "every rank of the attempt exists on this node; for a plain command this is the command itself, until `ranks.discovered`",
    )
    ATTEMPT_TIMED = (
        "attempt.timed",
        "info",
        "attempt after total_s parts trained",
        (
            "an attempt made its first training step, or ended without one (`trained` is false): the seconds since the launch or the "
            "failure, and [their parts](pages.md#where-the-time-of-a-start-went)"
        ),
    )
    RANKS_DISCOVERED = (
        "ranks.discovered",
        "info",
        "attempt ranks world_size",
        "a plain command (`accelerate launch`) started these ranks by itself, as their environment shows",
    )
    PEER_STOPPED = (
        "peer.stopped",
        "warning",
        "attempt node text kind",
        "another node ended the attempt for all nodes: this node's ranks are being stopped; `kind`: failure, left, membership or void",
    )
    ATTEMPT_ENDED = (
        "attempt.ended",
        "warning",
        "attempt outcome reason resume_from resume_step ranks world_size ran_s step steps_seen phase first_dead code signal",
        (
            "no rank of the attempt is left on this node; the one line that sums it up: `ranks` were here, the rank `first_dead` failed "
            "first, with `code` or `signal`"
        ),
        "it did not fail",
    )
    STANDBY_REPORTED = (
        "standby.reported",
        "info",
        "attempt ready private_mib pids text",
        "the standbys beside an attempt's ranks changed: how many are ready and what they cost, or why there is none",
    )
    STANDBY_USED = (
        "standby.used",
        "info",
        "attempt ranks cold",
        "these local ranks of the attempt began as standbys; `cold`: why another one did not, logged once for each reason",
    )
    RANK_EXITED = (
        "rank.exited",
        "warning",
        "attempt rank pid at_ns code signal core_dumped",
        "a rank ended, well or not",
        "it ended with 0",
    )
    RANK_MISSED = (
        "rank.missed",
        "warning",
        "attempt uninstrumented",
        "these ranks sent no heartbeat within 600 s; their progress is unknown",
    )
    NODES_GATHERED = (
        "nodes.gathered",
        "info",
        "attempt node nodes number members world_size coordinator",
        (
            "the nodes of an attempt have met, and agree on a checkpoint before any rank starts; this one is `node`, and the attempt's "
            "number is `number` from now on, on all of them"
        ),
    )
    NODE_BEGUN = (
        "node.begun",
        "info",
        "attempt text first_step loaded_step",
        "another node reported how its ranks began: the first step of their training, and the step of the checkpoint that they loaded",
    )
    NODES_AWAITED = (
        "nodes.awaited",
        "info",
        "attempt count within_s",
        (
            "fewer nodes are at the rendezvous than `--nnodes` needs: `count` more are waited for, 0 once they are there; the run stops "
            "after `within_s` without them"
        ),
    )
    NODES_ANNOUNCED = "nodes.announced", "info", "attempt count", "other nodes asked to join"
    NODES_DECIDED = (
        "nodes.decided",
        "info",
        "attempt kind elsewhere cause node rank step by reason",
        "the decision of the nodes about an attempt, the same on all of them: what failed, on which `node`, and which node decided (`by`)",
    )
    INCIDENT_OPENED = "incident.opened", "warning", "incident attempt rank summary", "something failed"
    EVIDENCE_COLLECTED = (
        "evidence.collected",
        "info",
        "incident attempt facts",
        "the evidence of a failure is complete; `facts` are counted here and kept in `incidents/`",
    )
    PLAN_DECIDED = (
        "plan.decided",
        "warning",
        "incident attempt step cause confidence rank plan strategy exit_code reason delay_s next changes rejected exclude nproc",
        "the answer to a failure is decided; `next`: the answer to the same failure after it",
    )
    INCIDENT_CLOSED = (
        "incident.closed",
        "error",
        "incident attempt outcome step took_s cause confidence rank plan strategy exit_code",
        (
            "the first progress after a failure, or the end of the run; the one line that sums it up: its cause, the last action, "
            "and how long it was open. If nothing was decided before the end, the fields from `cause` on are null"
        ),
        "it was resolved",
    )
    CHECKPOINT_SELECTED = (
        "checkpoint.selected",
        "info",
        (
            "attempt chosen n_found torn dangerous refused older repaired agreement overrides rejected node_offers this_node_leaves "
            "peer_leaves not_finite notes unused torn_in_use kept_copies programs resume_differs cannot_work remedy unfit "
            "not_excluded batch ever_loaded silent is_foreign has_saved without_tracker advised_move passed_over"
        ),
        (
            "the checkpoint for the next attempt is selected, out of how many; `older`: the next older ones; `repaired`: the files moved "
            "or put back. From `agreement` on: of an agreement of several nodes, its number, what all run with, what each node had if "
            "they found nothing in common (or how each resumes, if `resume_differs`), and whether this or another node leaves for it; "
            "`programs`: what ranks of any node were seen to run; `ever_loaded`: whether any were seen to load; "
            "`silent`: from which no byte came; `is_foreign`: another training saved the chosen one; `has_saved`: whether ranks were seen "
            "to save; `without_tracker`: the newest whole one that its framework does not find, and the file that is missing; "
            "`advised_move`: the command that moves `torn_in_use` away; `passed_over`: newer ones that may be whole; "
            "`cannot_work`: what differs between the nodes so that no attempt can "
            "work; `remedy`: what helps if they found nothing in common; `unfit`: the nodes that failed the node check, `not_excluded`: "
            "those of them whose ledger could not be written; "
            "`batch`: how the attempt keeps the global batch"
        ),
    )
    CHECKPOINT_VERIFIED = (
        "checkpoint.verified",
        "info",
        "attempt checkpoint made_in",
        "a checkpoint that appeared while the job ran is good",
    )
    RESUME_CONFIRMED = (
        "resume.confirmed",
        "info",
        "attempt step path confirmed resume_from",
        (
            "how an attempt began: at a step from `path`; from scratch, if that is null and it is confirmed; else unknown. `resume_from`: "
            "the checkpoint that the command was given"
        ),
    )
    CHECKPOINT_COPIED = (
        "checkpoint.copied",
        "info",
        "path step copy",
        "a copy is held of a checkpoint that the attempt did not visibly load, and may overwrite",
    )
    SAVES_SHARED = (
        "saves.shared",
        "warning",
        "path ranks",
        "two ranks of this node saved to one file at one moment of the training; once in a run. `ranks`: their numbers on this node",
    )
    SAVES_MISSED = (
        "saves.missed",
        "warning",
        "path patterns instead",
        "ranks saved checkpoints, and the declared patterns find none of them; once in a run. `instead`: the pattern that finds them",
    )
    CHECKPOINT_PRUNED = (
        "checkpoint.pruned",
        "info",
        "path step outcome",
        "a checkpoint of this job that `checkpoints.keep` does not keep: removed, or why it stays",
    )
    CHECKPOINT_RESTORED = (
        "checkpoint.restored",
        "info",
        "outcome path step mirror passed_over",
        (
            "the disk had no checkpoint and the mirrors were asked: restored, nothing, or why not; `passed_over`: newer copies that were "
            "not taken, and why"
        ),
    )
    MIRROR_REPORTED = (
        "mirror.reported",
        "warning",
        "what",
        "the reader process copied a checkpoint to a mirror, began or ended a trouble, or died; the other fields are its own",
        "all is well",
    )
    EVENT_FAILED = (
        "event.failed",
        "error",
        "error traceback",
        "an internal error: an event of the reader process was not taken; the job and the process continue",
    )
    STOP_REQUESTED = "stop.requested", "info", "signum left_s time_left_follows", "a person, systemd or Slurm asked us to stop"
    SAVE_REQUESTED = (
        "save.requested",
        "info",
        "attempt left_s",
        "the ranks were asked to save now; `left_s`: until they are stopped, null where nodes are to join after it",
    )
    SAVE_FINISHED = "save.finished", "info", "attempt", "every rank that can save on request has saved after the request"
    PROGRAM_RECOGNISED = (
        "program.recognised",
        "info",
        "attempt programs values batchnorm",
        "a rank's instrumentation saw which framework trains ([programs](programs.md)), and its values",
    )
    GPUS_LISTED = "gpus.listed", "info", "gpus", "the GPUs that the job can see on this node, in CUDA's order, and why one is out of use"
    GPU_QUARANTINED = (
        "gpu.quarantined",
        "warning",
        "attempt index uuid pci reason evidence",
        "a GPU was put out of use on this node; `index` is nvidia-smi's ([the ledger](commands.md#gpus-out-of-use))",
    )
    GPU_RELEASED = (
        "gpu.released",
        "info",
        "uuid pci reason",
        "a GPU is back in use by itself: it was reset since, and NVML finds it well; `reason`: why it was out of use",
    )
    HEALTH_CHECKED = (
        "health.checked",
        "info",
        "attempt findings command_nproc",
        "this node was examined before the attempt after `attempt`: the findings, and the ranks that the command runs here",
    )
    HANG_SUSPECTED = (
        "hang.suspected",
        "info",
        "attempt still_s limit_s phase",
        "no rank made progress for longer than the limit of its phase: the ranks are examined",
    )
    HANG_CONFIRMED = (
        "hang.confirmed",
        "warning",
        "attempt hang acting",
        "two looks at the ranks showed the same; `hang` has the kind and the sentence. `acting`: who acts for all nodes, empty: this one",
    )
    HANG_CLEARED = "hang.cleared", "info", "attempt still_s text", "a rank made progress again, or moved between two looks"
    LOSS_CHANGED = (
        "loss.changed",
        "warning",
        "attempt rule kind name text rank step is_over",
        "a number that the ranks print or report became strange by a loss rule, or is good again",
    )
    MEMORY_PREDICTED = (
        "memory.predicted",
        "warning",
        "attempt subject text out_t doubt_s step rank is_repeat is_over",
        "memory (`subject`: host, or gpu and the rank) will be used up at `out_t`, Unix seconds; at another time; or not any more",
    )
    PACE_CHANGED = (
        "pace.changed",
        "warning",
        "attempt kind text rank is_over node",
        "one rank, or one node, makes the others wait, or each step takes longer than it did; or that is over",
    )
    HEALTH_CHANGED = "health.changed", "warning", "findings", "this node became worse, or well again, while the job ran"
    STACKS_DUMPED = "stacks.dumped", "info", "attempt ranks", "SIGQUIT: the stacks of all ranks were requested; the terminal shows them"
    PROCESSES_LEFT = (
        "processes.left",
        "warning",
        "attempt left",
        (
            "the attempt is over and these processes (`pid`, `why`) remain: KILL did not end them, or they are to be left alone. Not "
            "logged if none remains"
        ),
    )
    SURVIVORS_LISTED = "survivors.listed", "info", "processes", "the job is done, and processes of it live on: they are left alone"
    OUTPUT_DROPPED = (
        "output.dropped",
        "warning",
        "dropped_bytes error",
        "the log disk was too slow or full: bytes of the ranks' logs were dropped; the terminal still shows them",
    )
    JOURNAL_DEGRADED = "journal.degraded", "warning", "text", "the journal did not answer in time: decisions are kept in memory"
    JOURNAL_RECOVERED = "journal.recovered", "info", "", "the journal answers again, and holds everything"
    ALERT_RAISED = (
        "alert.raised",
        "warning",
        "kind attempt text",
        "a person must know what no incident shows; the kinds are in [alerts](alert-format.md#events)",
    )
    ALERT_SENT = "alert.sent", "info", "sink event_id host", "an alert was delivered"
    ALERT_FAILED = (
        "alert.failed",
        "warning",
        "outcome sink event_id host reason tries waiting",
        (
            "an alert was not delivered. `outcome`: `delayed` (tried again; logged at the 1st, 2nd, 4th, 8th … try), `refused` (given up), "
            "`left` (for the next start), `unsaved` (alerts.jsonl cannot be written), `unmade` (a defect of supervise)"
        ),
    )
    ALERT_DROPPED = "alert.dropped", "error", "sink total", "too many alerts waited for the sink: the oldest were dropped"
    LOG_LOST = (
        "log.lost",
        "warning",
        "lines file error",
        "`lines` lines of this log, or small files of an incident (`file`: which one, or how many), could not be written",
    )
