"""`supervise print kubernetes`: a Job that runs CMD under supervision, one pod on each node (docs/guides/kubernetes.md).

YAML is a superset of JSON: every text that comes from outside is written as JSON.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from typing import TYPE_CHECKING, Final

import click

from supervisor.cli import stdio
from supervisor.cli.invocation import BEFORE_CMD, JOB, Invocation, setting_options
from supervisor.cli.printing.job_words import option_words, over_nodes
from supervisor.cli.printing.node_facts import node_facts
from supervisor.errors import ExitCode, SuperviseError
from supervisor.node.health_watch import has_gpus

if TYPE_CHECKING:
    from collections.abc import Sequence

#: The port of the rendezvous on the first pod.
PORT: Final = 29400
STATE: Final = "/state"
#: A pod's host name is that of the Job, a dash and an index, and may have 63 characters (RFC 1123).
_NAME: Final = re.compile(r"[a-z]([-a-z0-9]{0,50}[a-z0-9])?")
#: Exit codes after which another pod can help: another node, another try, or the end came from outside (docs/reference/exit-codes.md).
AGAIN: Final = (
    ExitCode.BAD_NODE,
    ExitCode.BUG,
    ExitCode.REQUEUE,
    *(128 + signum for signum in (signal.SIGHUP, signal.SIGKILL, signal.SIGTERM)),
)

_CLAIM: Final = """\
# The journal and the logs outlive the pods. If there is such a claim already, leave this out.
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: {name}-state}}
spec:
  accessModes: [{access}]
  resources: {{requests: {{storage: 20Gi}}}}
---
"""
_SERVICE: Final = """\
# The pods find each other by name, also before they are ready.
apiVersion: v1
kind: Service
metadata: {{name: {name}}}
spec:
  clusterIP: None
  publishNotReadyAddresses: true
  selector: {{app.kubernetes.io/instance: {name}}}
  ports: [{{name: rendezvous, port: {port}}}]
---
"""
_JOB: Final = """\
apiVersion: batch/v1
kind: Job
metadata: {{name: {name}}}
spec:
  # indexed: a pod that takes the place of another has its host name, and so its journal
  completionMode: Indexed
  completions: {nodes}
  parallelism: {nodes}
  backoffLimit: {backoff}
  podFailurePolicy:
    rules:
      # a node that was drained, preempted or lost is not a failure of the job
      - action: Ignore
        onPodConditions: [{{type: DisruptionTarget, status: "True"}}]
      # 75: stopped, to continue later
      - action: Ignore
        onExitCodes: {{containerName: train, operator: In, values: [75]}}
      # any other code is final: supervise gave it up, or a person interrupted it (130)
      - action: FailJob
        onExitCodes: {{containerName: train, operator: NotIn, values: {again}}}
  template:
    metadata:
      labels: {{app.kubernetes.io/name: supervise, app.kubernetes.io/instance: {name}}}{annotations}
    spec:
      restartPolicy: Never
      # the volumes belong to this group: an image that does not run as root can write its journal
      securityContext: {{fsGroup: 1000, fsGroupChangePolicy: OnRootMismatch}}
      terminationGracePeriodSeconds: {grace_s}{subdomain}
      containers:
        - name: train
          image: {image}
          # a list of words, without a shell: supervise is process 1, gets TERM, and reaps
          command:
{command}
          env:
            # a pod cannot read its own grace period
            - {{name: SUPERVISE_STOP_LEFT_S, value: "{grace_s}"}}{ports}
          # the deciding loop turns: nothing else is a reason to end a pod
          startupProbe:
            exec: {{command: {live}}}
            periodSeconds: 5
            timeoutSeconds: 10
            failureThreshold: 120
          livenessProbe:
            exec: {{command: {live}}}
            periodSeconds: 20
            timeoutSeconds: 10
            failureThreshold: 3
          # the ranks train
          readinessProbe:
            exec: {{command: {ready}}}
            periodSeconds: 20
            timeoutSeconds: 10
          # the failure and the action: supervise prints them last
          terminationMessagePolicy: FallbackToLogsOnError
          resources: {{limits: {limits}}}
          volumeMounts:
            - {{name: state, mountPath: {state}}}
            - {{name: shm, mountPath: /dev/shm}}
      volumes:
        - {{name: state, persistentVolumeClaim: {{claimName: {name}-state}}}}
        # of loader workers and NCCL; it is memory of the pod
        - {{name: shm, emptyDir: {{medium: Memory, sizeLimit: 16Gi}}}}"""


@click.command(options_metavar=BEFORE_CMD)
@setting_options(*JOB, takes_command=True)
@click.option("--image", metavar="IMAGE", default="IMAGE", help="Image with your job and supervise in it.")
@click.option("--nodes", type=click.IntRange(min=1), default=1, metavar="N", help="Pods of the job, one on each node; default 1.")
@click.option("--gpus", type=click.IntRange(min=0), default=0, metavar="N", help="GPUs of each pod; default none.")
@click.option(
    "--pod-grace-s", type=click.IntRange(min=1), default=120, metavar="N", help="Seconds to save before a pod is killed; default 120."
)
def print_command(invocation: Invocation, *, image: str, nodes: int, gpus: int, pod_grace_s: int) -> int:
    """The options of a run stand before `--`; --job names the Job. Look at it, and hand it to `kubectl apply -f -`."""
    if not invocation.command:
        hint = "Write it after `--`, as in `supervise print kubernetes --image IMAGE -- torchrun train.py`."
        raise SuperviseError("no command given", hint=hint, exit_code=ExitCode.USAGE)
    settings = invocation.settings()
    given = {key: str(settings.value(key)) for key in ("job.name", "metrics.listen") if settings.origin(key).kind == "command line"}
    name = given.get("job.name", "train")
    words = option_words(invocation, without=("job.name", "job.state_dir"))
    address, _, port = given.get("metrics.listen", "").rpartition(":")
    reached = port if address else ""  # a port alone is on the pod's loopback interface
    document = manifest(name, words, invocation.command, image=image, nodes=nodes, gpus=gpus, grace_s=pod_grace_s, metrics_port=reached)
    if not gpus and has_gpus(os.environ) and (here := node_facts(os.environ).gpus):
        stdio.say(f"the pods ask for no GPU, and this node has {here}: --gpus {here} asks for as many")
    stdio.write(sys.stdout, document)
    return 0


def manifest(  # noqa: PLR0913  the fields to fill in, each by name
    name: str,
    options: Sequence[str],
    command: Sequence[str],
    *,
    image: str,
    nodes: int,
    gpus: int,
    grace_s: int,
    metrics_port: str = "",
) -> str:
    """Return the manifest. options: of supervise. Raises SuperviseError (64) for a name or a command that cannot be."""
    if not _NAME.fullmatch(name):
        hint = "Name it with --job: up to 52 small letters, digits and '-', a letter first."
        raise SuperviseError(f"no name for a Job: {name!r}", hint=hint, exit_code=ExitCode.USAGE)
    torchrun = {"nnodes": str(nodes), "rdzv-backend": "c10d", "rdzv-endpoint": f"{name}-0.{name}:{PORT}", "rdzv-id": name}
    before, added, after = over_nodes(command, torchrun if nodes > 1 else {})
    words = ["supervise", "--job", name, "--state-dir", STATE, *options, "--", *before, *added, *after]
    probe = ["supervise", "status", "--job", name, "--probe"]
    limits = {"nvidia.com/gpu": gpus} if gpus else {}
    scrape = f'\n      annotations: {{prometheus.io/scrape: "true", prometheus.io/port: "{metrics_port}"}}'
    ports = f"\n          ports: [{{name: metrics, containerPort: {metrics_port}}}]"
    job = _JOB.format(
        name=name,
        nodes=nodes,
        # so many failures of a node or of supervise: each is a start that continues from the newest checkpoint
        backoff=6 * nodes,
        again=[int(code) for code in AGAIN],
        annotations=scrape if metrics_port else "",
        grace_s=grace_s,
        subdomain=f"\n      subdomain: {name}" if nodes > 1 else "",
        image=json.dumps(image),
        command="\n".join(f"            - {json.dumps(word)}" for word in words),
        ports=ports if metrics_port else "",
        live=json.dumps([*probe, "live"]),
        ready=json.dumps([*probe, "ready"]),
        limits=json.dumps(limits),
        state=STATE,
    )
    claim = _CLAIM.format(name=name, access="ReadWriteOnce" if nodes == 1 else "ReadWriteMany")
    return claim + (_SERVICE.format(name=name, port=PORT) if nodes > 1 else "") + job
