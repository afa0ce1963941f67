"""A Slurm of its own on loopback: munged, slurmctld and slurmd as the test's processes. Needs root and Debian's slurm-wlm.

It tracks processes by control groups, as Slurm does unless a site says otherwise: so its signals reach the tasks of a step, and no child of
theirs. Slurm 22.05 needs those of version 1 for that, where no systemd runs.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.support.network import Network
from tests.support.ports import free_port
from tests.support.supervised import clean_environment
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_DAEMONS = ("munged", "slurmctld", "slurmd")
_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
_FREEZER = Path("/sys/fs/cgroup/freezer")
#: Two partitions over all nodes: a job in `high` preempts one in `low`, which gets 20 s.
_CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={place}/munge.sock
CredType=cred/munge
SlurmctldPort={controller}
StateSaveLocation={place}/state
SlurmdSpoolDir={place}/spool-%n
SlurmctldPidFile={place}/slurmctld.pid
SlurmdPidFile={place}/slurmd-%n.pid
SlurmctldLogFile={place}/slurmctld.log
SlurmdLogFile={place}/slurmd-%n.log
ProctrackType=proctrack/cgroup
FirstJobId={first}
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,sched_min_interval=0
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
KillWait=10
OverTimeLimit=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
MpiDefault=none
{nodes}
PartitionName=low Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 PreemptMode=REQUEUE GraceTime=20
PartitionName=high Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
"""
_CGROUP_CONF = f"""
CgroupPlugin=cgroup/v1
CgroupAutomount=no
CgroupMountpoint={_FREEZER.parent}
"""


@dataclass(slots=True)
class SlurmCluster:
    """The nodes and their controller. `place` is its directory; paths of sockets must be short. nodes: the slurmd of each."""

    place: Path
    environ: dict[str, str]
    network: Network | None = None
    jobs: list[str] = field(default_factory=list)
    nodes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def run(self, *words: str, cwd: Path | None = None) -> str:
        """Run one of Slurm's commands; return what it prints."""
        done = subprocess.run(words, cwd=cwd, env=self.environ, capture_output=True, text=True, timeout=120, check=False)  # noqa: S603
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout

    def submit(self, script: str, cwd: Path, *options: str) -> str:
        """Submit a batch script; return the job's number."""
        path = cwd / f"job-{len(self.jobs)}.sh"
        path.write_text(script)
        self.jobs.append(self.run("sbatch", "--parsable", *options, str(path), cwd=cwd).strip())
        return self.jobs[-1]

    def job(self, number: str) -> dict[str, str]:
        """Return what `scontrol show job` knows."""
        return dict(pair.split("=", 1) for pair in self.run("scontrol", "-o", "show", "job", number).split() if "=" in pair)

    def start_now(self, number: str) -> None:
        """Let a job begin that was taken back, without Slurm's wait of two minutes.

        Slurm compares whole seconds: in the second of the requeue it would take the credential of this start for one of the revoked start.
        """
        taken_back = datetime.fromisoformat(self.job(number)["SubmitTime"])
        now = datetime.now  # Slurm's records have local time
        wait_for(lambda: now() - taken_back > timedelta(seconds=2), "the second of the requeue to pass", 20)
        self.run("scontrol", "update", f"jobid={number}", "StartTime=now")

    def wait_for_state(self, number: str, state: str, deadline_s: float = 90) -> dict[str, str]:
        """Await a state of a job; where it does not come, its record is printed."""
        try:
            return wait_for(lambda: (job := self.job(number)).get("JobState") == state and job, f"job {number} to be {state}", deadline_s)
        except pytest.fail.Exception:
            print(self.run("date"), self.job(number))  # noqa: T201  for the report of the failure
            raise


@pytest.fixture
def slurm(request: pytest.FixtureRequest) -> Iterator[SlurmCluster]:
    """Give a cluster of one node, or of so many as the test asks for: each is a slurmd here, and has a network namespace for its job."""
    missing = [name for name in (*_DAEMONS, "sbatch", "srun") if shutil.which(name, path=_PATH) is None]
    if missing or os.geteuid() != 0:
        pytest.skip(f"needs root and Slurm (Debian: apt-get install slurm-wlm); missing: {', '.join(missing) or 'root'}")
    if not os.access(_FREEZER, os.W_OK):
        pytest.skip(f"needs a writable {_FREEZER}: boot with control groups of version 1 (systemd.unified_cgroup_hierarchy=0)")
    place = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))
    place.chmod(0o755)
    host = os.uname().nodename.split(".")[0]
    count = getattr(request, "param", 1)
    network = Network(count) if count > 1 else None
    names = [host] if network is None else [f"node-{node}" for node in range(count)]
    for name in ("state", *(f"spool-{name}" for name in names)):
        (place / name).mkdir()
    key = place / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o600)
    conf = _configured(place, host, names)
    environ = clean_environment(SLURM_CONF=str(conf))
    environ["PATH"] = f"{environ['PATH']}:/usr/sbin:/sbin"
    daemons: list[subprocess.Popen[bytes]] = []

    def start(*words: str) -> subprocess.Popen[bytes]:
        with (place / f"{words[0]}.out").open("ab") as out:
            daemons.append(subprocess.Popen(words, env=environ, stdout=out, stderr=out))  # noqa: S603  Slurm's own
        return daemons[-1]

    cluster = SlurmCluster(place, environ, network)
    try:
        munge = [f"--key-file={key}", f"--socket={place}/munge.sock", f"--pid-file={place}/munged.pid"]
        start("munged", "--foreground", "--force", *munge, f"--log-file={place}/munged.log", f"--seed-file={place}/munge.seed")
        wait_for((place / "munge.sock").exists, "munged", 30)
        start("slurmctld", "-D")
        wait_for(lambda: _is_up(cluster), "slurmctld", 30)
        for name in names:
            cluster.nodes[name] = start("slurmd", "-D", "-N", name)
        wait_for(lambda: cluster.run("sinfo", "-h", "-N", "-p", "low", "-o", "%T").split() == ["idle"] * count, "slurmd", 60)
        yield cluster
    finally:
        with contextlib.suppress(Exception):
            for number in cluster.jobs:
                subprocess.run(["scancel", "--signal=KILL", "--full", number], env=environ, timeout=20, check=False)  # noqa: S603, S607
                subprocess.run(["scancel", number], env=environ, timeout=20, check=False)  # noqa: S603, S607
            wait_for(lambda: not cluster.run("squeue", "-h").strip(), "the jobs to be gone", 30)
        for daemon in reversed(daemons):
            daemon.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(20)
        _end_steps(str(place))
        _remove_groups(cluster.jobs)
        if network is not None:
            network.close()
        shutil.rmtree(place, ignore_errors=True)


def _configured(place: Path, host: str, names: Sequence[str]) -> Path:
    """Write the configuration of a cluster; return its file."""
    where = f"NodeHostname={host} NodeAddr=127.0.0.1 CPUs={max(1, (os.cpu_count() or 1) // len(names))} State=UNKNOWN"
    rows = [f"NodeName={name} {where} Port={free_port()}" for name in names]
    conf = place / "slurm.conf"
    # the control groups of a job have its number: no two clusters give the same
    first = 1000 + os.getpid() % 4_000_000 * 10
    conf.write_text(_CONF.format(host=host, place=place, controller=free_port(), nodes="\n".join(rows), first=first))
    (place / "cgroup.conf").write_text(_CGROUP_CONF)
    return conf


def _is_up(cluster: SlurmCluster) -> bool:
    done = subprocess.run(["scontrol", "ping"], env=cluster.environ, capture_output=True, text=True, timeout=20, check=False)  # noqa: S607
    return "UP" in done.stdout


def _end_steps(place: str) -> None:
    """End what of this cluster still runs: its environment or its command line names the directory."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.name() == "slurmstepd" and place in process.environ().get("SLURM_CONF", ""):
                process.kill()


def _remove_groups(jobs: list[str]) -> None:
    """Remove the control groups of these jobs, and those above them, which are empty then."""
    for pattern in (*(f"slurm_*/uid_0/job_{number}{step}" for number in jobs for step in ("/step_*", "")), "slurm_*/uid_0", "slurm_*"):
        for group in _FREEZER.glob(pattern):
            with contextlib.suppress(OSError):
                group.rmdir()
