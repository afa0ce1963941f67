"""Stories: a job's life as rows of what each attempt did and what must have been decided then, played to the core.

A story (tests/scenarios/stories/*.toml) says what the world is: policy, ranks, GPUs, checkpoints that are there. Each row of `attempt` says
how far that attempt came, how it failed, and what is expected of the decision. The driver is the shell around the core: it answers
SelectCheckpoint with the newest checkpoint that is not to be avoided, and lets timers pass. `causes` plays the story for each of them:
"@recurring" are all whose ladder has that step, "@infrastructure" all of that family. Those of `but` are left out. `still_out` are the GPUs
that the ledger keeps out of use when the evidence of that attempt is collected.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from supervisor.classify.logs.match import claims
from supervisor.config import signatures
from supervisor.core import actions as act
from supervisor.core import events
from supervisor.core.causes import CAUSE_TABLE
from supervisor.core.machine import decide, initial
from supervisor.core.model import Cause, CheckpointRef, Claim, Evidence, Gpu, Knob, Launcher, Phase, Policy, RankExit, RankInfo
from supervisor.core.state import JobState, Stage
from tests.support import policies

STORIES: dict[str, dict[str, Any]] = {
    f"{path.stem}:{story['name']}": story
    for path in sorted((Path(__file__).parent / "stories").glob("*.toml"))
    for story in tomllib.loads(path.read_text(encoding="utf-8"))["story"]
}
CATALOGUE, _ = signatures.read()


def causes_of(story: dict[str, Any]) -> set[Cause]:
    """The causes for which a story is played."""

    def named(words: list[str]) -> set[Cause]:
        groups = [
            {cause for cause, row in CAUSE_TABLE.items() if word[1:] in {*row.ladder, row.family}}
            if word.startswith("@")
            else {Cause[word.upper()]}  # one of ours: a slip is no cause of the user's own
            for word in words
        ]
        return set().union(*groups)

    return named(story["causes"]) - named(story.get("but", []))


#: (story, cause) for each time that a story is played.
PLAYED = [(name, cause) for name, story in STORIES.items() for cause in Cause if cause in causes_of(story)]


def policy_of(row: dict[str, Any]) -> Policy:
    """A policy from its row; knobs are tables there."""
    given = dict(row)
    given["knobs"] = tuple(Knob(**{"how": f"--{k['name']}", **k}) for k in row.get("knobs", ()))
    given["recover"] = tuple((cause, tuple(sets.items())) for cause, sets in row.get("recover", {}).items())
    given["variables"] = tuple((name, value) for name, value in row.get("variables", ()))
    given["launcher"] = Launcher(row.get("launcher", "elastic"))
    return policies.policy_from({"checkpoints_declared": True, "start_window_s": 0.0, **given})


@dataclass
class World:
    """What is around the core: the state, the time, the checkpoints on disk, and what was decided since the failure."""

    story: dict[str, Any]
    cause: Cause
    state: JobState = field(default_factory=initial)
    t: float = 0.0
    files: dict[str, int | None] = field(default_factory=dict)
    done: list[act.Action] = field(default_factory=list)
    reached: list[tuple[Cause, str]] = field(default_factory=list)

    def tell(self, event: events.Event) -> None:
        """Give the core an event, and answer what it asks for."""
        self.state, actions = decide(self.state, event)
        self.done += actions
        for action in actions:
            if isinstance(action, act.SelectCheckpoint):
                self.tell(self.selected(action.rejected))
            elif isinstance(action, act.SetTimer) and action.name in {"backoff", "own_signal"}:
                self.t += action.delay_s
                self.tell(events.TimerFired(self.t, action.name, action.token))

    def selected(self, avoid: tuple[str, ...]) -> events.CheckpointSelected:
        """The newest checkpoint that is not to be avoided."""
        good = [path for path in self.files if path not in avoid]
        chosen = good[-1] if good else None
        refused = tuple((path, "poisoned") for path in self.files if path in avoid)
        ref = CheckpointRef(chosen, self.files[chosen], "structure") if chosen else None
        named = good[:-1] if self.story.get("names_older", True) else []
        older = tuple(CheckpointRef(path, self.files[path], "") for path in named)
        return events.CheckpointSelected(self.t, self.state.attempt.number, ref, len(self.files), refused=refused, older=older)

    def start(self, changed: dict[str, Any] | None = None, *, continues: bool = False) -> None:
        """A supervisor starts."""
        if not continues:
            self.files = {f"{step}.pt": step for step in self.story.get("checkpoints", ())}
        policy = policy_of(policies.changed(self.story.get("policy", {}), changed or {}))
        self.tell(events.SupervisorStarted(self.t, "run", policy, continues=continues, command_digest="command", last_alive_t=self.t))

    def ranks(self, row: dict[str, Any]) -> tuple[RankInfo, ...]:
        """The ranks of this node: as many as the row has, or the last plan left."""
        count = row.get("ranks") or self.state.run.nproc or self.story.get("ranks", 2)
        return tuple(RankInfo(rank, rank, 100 + rank, 1) for rank in range(count))

    def play(self, row: dict[str, Any]) -> None:
        """One attempt: it starts, gets so far, and fails or ends well."""
        if "gpus" in row:
            self.tell(events.GpusListed(self.t, gpus_of(row["gpus"], row.get("quarantined", ()))))
        if row.get("requeued"):
            self.done = []
            self.start(row.get("policy"), continues=True)
        if "nproc" in row:
            self.tell(events.LauncherStarted(self.t, 77, None, 1, row["nproc"]))
        number = self.state.attempt.number
        ranks = self.ranks(row)
        world = len(ranks) + self.story.get("elsewhere", 0)
        self.t += 1.0
        self.tell(events.ProgramIdentified(self.t, number, (("script", row.get("script", "as written")),)))
        self.tell(events.AttemptStarted(self.t, number, ranks, world))
        if "program" in row:
            seen = row["program"]
            values = tuple(seen.get("values", {}).items())
            self.tell(events.ProgramSeen(self.t, number, tuple(seen["programs"]), values, batchnorm=seen.get("batchnorm", False)))
        # what the dead still say is answered with nothing
        self.tell(events.RankExited(self.t, number - 1, RankExit(0, 100, 1, signal=9)))
        self.tell(events.AttemptEnded(self.t, number - 1, "failed"))
        if row.get("steps_seen", 0):
            self.tell(events.ProgressObserved(self.t, number, row.get("step"), row["steps_seen"], Phase.TRAIN))
        for step in row.get("saves", ()):
            path = row.get("path", f"{step}.pt")
            self.files.pop(path, None)
            self.files[path] = step
            self.tell(events.CheckpointVerified(self.t, number, CheckpointRef(path, step, "structure"), made_in=number))
        for step in row.get("finds", ()):
            self.tell(events.CheckpointVerified(self.t, number, CheckpointRef(f"{step}.pt", step, "structure")))
        self.t += row.get("lasts_s", 60.0)
        if row.get("ends") == "well":
            self.tell(events.AttemptEnded(self.t, number, "succeeded"))
            return
        self.done = []
        rank = row.get("rank", 0)
        death = (
            RankExit(rank, 100 + rank, 1, code=row.get("code", 1)) if "signal" not in row else RankExit(rank, 0, 1, signal=row["signal"])
        )
        self.tell(events.RankExited(self.t, number, death))
        self.tell(events.AttemptEnded(self.t, number, "failed"))
        incident = self.state.run.incident.number if self.state.run.incident else 0
        now = gpus_of(self.story["gpus"], row["still_out"]) if "still_out" in row else ()
        self.tell(events.EvidenceCollected(self.t, number, incident, self.evidence(row, rank), row.get("jitter", 0.5), now))

    def evidence(self, row: dict[str, Any], rank: int) -> tuple[Evidence, ...]:
        """What the observers found: a claim for the story's cause, and the culprit's heartbeat."""
        cause = Cause(row.get("cause", self.cause))
        if cause is Cause.NONE:
            return (Evidence("log", "read", "3 lines", line=3), Evidence("log", "ended_well", "training finished", t=3.0, line=3))
        facts = [Evidence("exit", "exit_code", "1", rank=rank, t=self.t)]
        if "signal" in row:
            facts = [Evidence("exit", "signal", str(row["signal"]), rank=rank, t=self.t)]
        if cause is not Cause.UNKNOWN and not row.get("signal_only"):
            claim = Claim(cause, row.get("sure", 0.97), transient=row.get("transient", False))
            name, fields = row.get("kind", f"{cause}.story"), tuple(row.get("facts", {}).items())
            free = row.get("free_text", False)
            evidence = Evidence("error_file", name, f"{name}: it failed", rank, self.t - 0.1, free_text=free, fields=fields, claim=claim)
            facts.append(evidence)
        if "says" in row:
            raised = Evidence("error_file", "exception", row["says"], rank, self.t - 0.1)
            facts = [fact for fact in facts if fact.claim is None] + [raised, *claims(raised, CATALOGUE)]
        if "line" in row:
            trace = f'  File "/home/me/train.py", line {row["line"]}, in main\n    raise'
            facts.append(Evidence("error_file", "traceback", trace, rank, self.t - 0.1))
        if "late_path" in row:
            facts.append(Evidence("host", "late_path", row["late_path"], rank))
        facts += of_network(row)
        if "phase" in row:
            facts += [Evidence("heartbeat", "phase", row["phase"], rank=rank), Evidence("heartbeat", "optimizer", "made", rank=rank)]
        facts += [Evidence("heartbeat", name, row[name], rank=rank) for name in ("loading", "loaded") if name in row]
        if "step" in row:
            facts.append(Evidence("heartbeat", "step", str(row["step"]), rank=rank))
        if "counted" in row:
            facts.append(Evidence("heartbeat", "steps", str(row["counted"]), rank=rank))
        return tuple(facts)

    def of(self, kind: type[Any]) -> list[Any]:
        """The actions of a kind since the failure."""
        return [action for action in self.done if isinstance(action, kind)]


def of_network(row: dict[str, Any]) -> list[Evidence]:
    """What the observers of the network and of the ranks' phases found."""
    facts = [Evidence("network", "interface", port["name"], fields=tuple(port.items())) for port in row.get("interfaces", ())]
    facts += [Evidence("nccl", "transports", row["transports"])] if "transports" in row else []
    return [*facts, *(Evidence("heartbeat", "phase", phase, rank=int(rank)) for rank, phase in row.get("phases", {}).items())]


def gpus_of(count: int, quarantined: Any = ()) -> tuple[Gpu, ...]:  # noqa: ANN401 (a list of a file)
    """GPUs of a node, numbered."""
    return tuple(Gpu(i, f"GPU-{i}", f"0000:{i + 1:02x}:00.0", "xid 79" if i in quarantined else "") for i in range(count))


def play_story(name: str, cause: Cause) -> list[tuple[Cause, str]]:
    """Play a story for a cause; AssertionError where a decision is not the expected one. Returns the (cause, step) that answered."""
    story = STORIES[name]
    world = World(story, cause)
    if "gpus" in story:
        world.tell(events.GpusListed(0.0, gpus_of(story["gpus"], story.get("quarantined", ()))))
    world.start()
    for number, row in enumerate(story["attempt"], 1):
        assert world.state.stage is not Stage.ENDED or row.get("requeued"), f"{name}: it ended before attempt {number}: {world.done[-1:]}"
        world.play(row)
        checked(world, row, f"{name} [{cause}], row {number}")
    return world.reached


def checked(world: World, row: dict[str, Any], where: str) -> None:
    """Compare what was decided with what the row expects."""
    reports = world.of(act.ReportDecision)
    if row.get("ends") == "well":
        assert world.state.run.exit_code == 0, where
        return
    report = reports[0]
    plan, verdict = report.plan, report.verdict
    summary = f"{where}: {verdict.cause} {verdict.confidence} -> {plan}"
    assert verdict.cause is Cause(row.get("cause", world.cause)), summary
    world.reached.append((verdict.cause, plan.strategy))
    begun = world.of(act.BeginAttempt)
    values: dict[str, Any] = {
        "ladder_step": plan.strategy,
        "exit_code": plan.exit_code if plan.kind == "stop" else None,
        "changes": {change.knob: change.new for change in plan.changes},
        "rejected": list(plan.rejected),
        "exclude": [q.gpu.uuid for q in world.of(act.Quarantine)],
        "nproc": plan.nproc,
        "alerts": [alert.kind for alert in world.of(act.Alert)],
        "overrides": dict(begun[-1].overrides) if begun else {},
        "handed": list(begun[-1].gpus) if begun else [],
        "begins_with": begun[-1].nproc or 0 if begun else None,
        "traced": begun[-1].trace if begun else None,
        "resume": begun[-1].resume.path if begun and begun[-1].resume else "",
        "charged": plan.charged,
        "delay_s": plan.delay_s,
    }
    for key, value in values.items():
        if key in row["then"]:
            assert row["then"][key] == value, f"{key} is {value!r} in {summary}"
    unknown = set(row["then"]) - set(values) - {"notes", "next", "todo", "untold", "stops", "reason", "alerted"}
    assert not unknown, unknown
    for words in row["then"].get("notes", ()):
        assert any(words in line for line in (*plan.notes, *(say.text for say in world.of(act.PrintMessage)))), summary
    assert row["then"].get("alerted", "") in " ".join(alert.text for alert in world.of(act.Alert)), summary
    for words in row["then"].get("untold", ()):
        assert not any(words in line for line in plan.notes), summary
    for key, text in (("next", plan.next_ladder_step), ("todo", plan.todo), ("reason", plan.reason)):
        assert row["then"].get(key, "") in text, summary
    assert (plan.kind == "stop") == bool("exit_code" in row["then"] or row["then"].get("stops")), summary
    assert plan.reason, summary
    assert plan.next_ladder_step, summary
