"""The core's Policy, made from the settings and from the facts of the command."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from supervisor.config.health import thresholds
from supervisor.config.intervals import BACKOFF_BASE_S, BACKOFF_CAP_S
from supervisor.core.model import RESUME, Knob, Launcher, Policy
from supervisor.core.nodes.replicas import ONE_RANK, Replica, node_group
from supervisor.core.policy_settings import NetworkSection
from supervisor.core.values import replace
from supervisor.errors import SuperviseError
from supervisor.strategies.network import OPTIONAL
from supervisor.strategies.situation import VARIABLES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from supervisor.config.settings import Settings

#: Set by what starts a command again: Slurm, Kubernetes, and systemd for the process of a unit.
_OF_A_SCHEDULER = ("SLURM_JOB_ID", "KUBERNETES_SERVICE_HOST", "SYSTEMD_EXEC_PID")


def to_policy(  # noqa: PLR0913  facts of the command, each by name
    settings: Settings,
    launcher: Launcher,
    knobs: tuple[Knob, ...] = (),
    allocator: str = "",
    *,
    likely: tuple[tuple[str, str], ...] = (),
    health: bool = False,
    nodes: int = 0,
    least_nodes: int = 0,
    per_node: int = 0,
    replica: Replica = ONE_RANK,
    environ: Mapping[str, str] = MappingProxyType({}),
) -> Policy:
    """Return what decisions depend on; `knobs`, `allocator` and `likely` are from KnobSet.

    health: whether this node can be examined. environ: the user's own environment. nodes, least_nodes, per_node (ranks of one): as the
    command says, 0: it does not.
    Raises SuperviseError for an unknown check, or a row [recover.CAUSE] of a knob that the command does not have.
    """
    require_knobs(settings, knobs, likely)
    return Policy(
        launcher=launcher,
        restart=settings.restart,
        stop=settings.stop,
        gpus=settings.gpus,
        node_rules=settings.nodes,
        network=NetworkSection(network_allow(settings)),
        resumes_itself=settings.resumes_itself,
        checkpoints_declared=bool(settings.checkpoints.paths),
        checkpoints_learned=settings.instrument.enabled,
        backoff_base_s=BACKOFF_BASE_S,
        backoff_cap_s=BACKOFF_CAP_S,
        knobs=tuple(map(_without_secrets, knobs)),
        likely=likely,
        trace=settings.job.trace,
        batch_change=settings.knobs.batch_change,
        recover=_recover(settings),
        clears=settings.clear_gpu_command(),
        allocator=allocator,
        variables=tuple((name, environ[name]) for name in VARIABLES if environ.get(name)),
        health=health,
        nodes=nodes or 1,
        least_nodes=least_nodes,
        replica_size=replica.size,
        replica_source=replica.source,
        node_group=node_group(per_node, replica.size),
        check_nodes=settings.health.check_nodes,
        is_scheduled=any(environ.get(name) for name in _OF_A_SCHEDULER),
        evict_on=evict_on(settings),
        on_hang="" if settings.origin("hang.action").kind == "default" else settings.hang.action,
        on_nan=settings.loss.on_nan,
    )


def _recover(settings: Settings) -> tuple[tuple[str, tuple[tuple[str, str], ...]], ...]:
    """Return the user's rows without the secrets in them: the policy is part of the state, which the journal keeps and other nodes read."""
    if not settings.recover:
        return ()
    from supervisor.config import recover_rows  # noqa: PLC0415  few have rows of their own

    return recover_rows.without_secrets(settings.recover)


def _without_secrets(knob: Knob) -> Knob:
    """Return the knob as the journal has it. A knob is set by the settings, never by these words."""
    if knob.name != RESUME:
        return knob
    from supervisor.classify import redact  # noqa: PLC0415  its patterns take 25 ms

    return replace(knob, how=redact.text(knob.how))


def require_knobs(settings: Settings, knobs: tuple[Knob, ...], likely: tuple[tuple[str, str], ...]) -> None:
    """Raise SuperviseError for a row [recover.CAUSE] that could never act: of a knob that is not there, or a cause that nothing names."""
    if settings.recover:
        from supervisor.config import recover_rows  # noqa: PLC0415  few have rows of their own

        recover_rows.require_knobs(settings.recover, knobs, likely)
        if recover_rows.has_own_causes(settings.recover):
            from supervisor.config import signatures  # noqa: PLC0415  as above

            catalogue, unused = signatures.configured(settings)
            recover_rows.require_causes(settings.recover, (row.cause for row in catalogue.rows), unused)


def network_allow(settings: Settings) -> tuple[str, ...]:
    """Return the steps for networks that may act. Raises SuperviseError for an unknown one."""
    names = tuple(name.strip() for text in settings.network.allow for name in text.split(",") if name.strip())
    unknown = [name for name in names if name not in OPTIONAL]
    if unknown:
        raise SuperviseError(
            f"network.allow ({settings.origin('network.allow')}): there is no step {unknown[0]!r} of the ladder to allow",
            hint=f"Name one of docs/explanation/recovery.md: {', '.join(OPTIONAL)}.",
            exit_code=settings.origin("network.allow").exit_code,
        )
    if "longer_timeout" in names and not settings.instrument.enabled:
        raise SuperviseError(
            f"network.allow ({settings.origin('network.allow')}): longer_timeout needs the instrumentation, which is switched off",
            hint="Leave instrument.enabled = true, or leave longer_timeout out.",
            exit_code=settings.origin("network.allow").exit_code,
        )
    return tuple(dict.fromkeys(names))


def evict_on(settings: Settings) -> tuple[str, ...]:
    """Return the checks that end a healthy attempt. Raises SuperviseError for an unknown one, and for a wrong threshold."""
    thresholds(settings)
    if not settings.health.evict_on:
        return ()
    from health import registry  # noqa: PLC0415  it imports every check

    checks = registry.checks()
    unknown = [name for name in settings.health.evict_on if name not in checks]
    if unknown:
        raise SuperviseError(
            f"health.evict_on ({settings.origin('health.evict_on')}): there is no check {unknown[0]!r}",
            hint=f"Name one of docs/guides/health.md: {', '.join(sorted(checks))}.",
            exit_code=settings.origin("health.evict_on").exit_code,
        )
    return settings.health.evict_on
