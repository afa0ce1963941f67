"""The checks of the host on prepared readings, and the probes on real processes, limits and trees like /proc."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from health import registry
from health.model import HOST, NOT_SUPPORTED, Ask, CheckResult, Json, Reading, Readings, Repair, Result
from health.probes.host import cgroup, clock, cpu, memory_limits, processes
from health.thresholds import Thresholds
from tests.health.harmless_commands import are_apart

OK, DEGRADED, FAILED, UNKNOWN, SKIPPED = Result.OK, Result.DEGRADED, Result.FAILED, Result.UNKNOWN, Result.SKIPPED
GIB = 1 << 30
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Row:
    """Readings and the expected result. before: the readings at the job's start, None for no baseline. subject: of the result."""

    check: str
    read: Mapping[str, Json]
    result: Result
    words: str
    repair: Repair = Repair.NONE
    before: Mapping[str, Json] | None = None
    problems: Mapping[str, str] = field(default_factory=dict)
    port: bool = False

    def readings(self) -> Readings:
        """Return what was read."""
        rows = [Reading("probe", HOST, name, value) for name, value in self.read.items()]
        rows += [Reading("probe", HOST, name, None, problem) for name, problem in self.problems.items()]
        rows += [Reading("infiniband", "port:mlx5_0/1", "port.state", {})] if self.port else []
        return Readings(rows)


def memory(available: int, *, swapped: int = 0) -> dict[str, Json]:
    return {"host.memory": {"total": 100 * GIB, "available": available, "swap_total": 8 * GIB, "swap_free": 8 * GIB - swapped}}


def limits(memlock: int | None = None, nofile: int = 65536, core: int | None = 0) -> dict[str, Json]:
    return {"host.limits": {"memlock": [memlock, None], "nofile": [nofile, nofile], "core": [core, None]}}


def kernel(*, synchronized: bool = True, most: float = 0.01) -> dict[str, Json]:
    return {"clock.kernel": {"synchronized": synchronized, "max_error_s": most, "estimated_error_s": 0.0, "offset_s": 0.0}}


def chrony(offset: float, leap: str = "Normal") -> dict[str, Json]:
    return {"clock.chrony": {"offset_s": offset, "stratum": 3, "leap": leap}}


def crowd(zombies: Json = None, stuck: Json = None, **more: Json) -> dict[str, Json]:
    dead, deaf = zombies if isinstance(zombies, list) else [], stuck if isinstance(stuck, list) else []
    counts: dict[str, Json] = {"all": 90, "zombies": len(dead), "stuck": len(deaf)}
    rows: dict[str, Json] = {"processes.counts": counts, "processes.zombies": dead, "processes.stuck": deaf}
    return {**rows, **{name.replace("_", "."): value for name, value in more.items()}}


def zombie(age: float, since: float = 0.0) -> Json:
    return [{"pid": 71, "parent": 70, "command": "loader", "age_s": age, "since_s": since, "wchan": ""}]


def deaf(since: float) -> Json:
    return [{"pid": 81, "parent": 1, "command": "python", "age_s": 900.0, "since_s": since, "wchan": "rpc_wait_bit_killable"}]


def group(limit: int | None = None, used: int = GIB, quota: float | None = None, throttled: int = 0, pids: int = 10) -> dict[str, Json]:
    return {
        "cgroup.memory": {"limit": limit, "used": used, "path": "/g"},
        "cgroup.cpu": {"quota": quota, "periods": 1000, "throttled": throttled, "path": "/g"},
        "cgroup.pids": {"limit": 100, "used": pids, "path": "/g"},
        "cgroup.oom_kills": 2,
    }


def dump(free: Json = 500 * GIB, *, core: int | None = None, **more: Json) -> dict[str, Json]:
    row: dict[str, Json] = {"pattern": "/var/dumps/core.%p", "pipe": False, "directory": "/var/dumps", "free": free}
    return {"host.core": {**row, **more}, **limits(core=core), **memory(60 * GIB)}


CPUS: dict[str, Json] = {"cpu.count": {"present": 8, "online": 8, "usable": 8}}

TABLE = [
    Row("host_memory", memory(60 * GIB), OK, "GiB of memory are available"),
    Row("host_memory", memory(50 * MIB), FAILED, "only 50 MiB", Repair.DRAIN),
    Row("host_memory", memory(4 * GIB), DEGRADED, "only 4.0 GiB"),
    Row("host_memory", memory(60 * GIB, swapped=2 * GIB), DEGRADED, "2.0 GiB are swapped out", Repair.CONFIGURE),
    Row("host_memory", {**memory(60 * GIB), "host.oom_kills": 7}, DEGRADED, "killed 2 times", before={"host.oom_kills": 5}),
    Row("host_memory", {**memory(60 * GIB), "host.oom_kills": 7}, OK, "available", before={"host.oom_kills": 7}),
    Row("host_memory", {"host.memory": {"total": 5}}, UNKNOWN, "does not report"),
    Row("host_memory", {}, SKIPPED, "not visible here", problems={"host.memory": NOT_SUPPORTED}),
    Row("host_shm", {"host.shm": {"total": 64 * GIB, "free": 60 * GIB}}, OK, "60.0 GiB free"),
    Row("host_shm", {"host.shm": {"total": 64 * MIB, "free": 64 * MIB}}, DEGRADED, "has only 64 MiB", Repair.CONFIGURE),
    Row("host_shm", {"host.shm": {"total": 64 * MIB, "free": 60 * MIB}}, DEGRADED, "has only 64 MiB", Repair.CONFIGURE),  # our own files
    Row("host_shm", {"host.shm": {"total": 64 * MIB, "free": 30 * MIB}}, FAILED, "only 30 MiB free", Repair.CONFIGURE),
    Row("host_shm", {"host.shm": {"total": 64 * GIB, "free": 2 * MIB}}, FAILED, "only 2 MiB free", Repair.CONFIGURE),
    Row("host_shm", {}, UNKNOWN, "Input/output error", problems={"host.shm": "Input/output error"}),
    Row("host_limits", limits(8 * MIB), OK, "wide enough"),
    Row("host_limits", limits(8 * MIB), DEGRADED, "only 8 MiB of memory may be locked", Repair.CONFIGURE, port=True),
    Row("host_limits", limits(None), OK, "wide enough", port=True),
    Row("host_limits", limits(nofile=1024), DEGRADED, "only 1024 files", Repair.CONFIGURE),
    Row("host_limits", {"host.limits": {"nofile": [1024, None]}}, DEGRADED, "only 1024 files", Repair.CONFIGURE),
    Row("host_limits", {}, UNKNOWN, "not read"),
    Row("host_clock", kernel(), OK, "synchronized"),
    Row("host_clock", kernel(most=1.1), OK, "synchronized"),  # what timesyncd leaves behind between two looks at its source
    Row("host_clock", kernel(most=3.5), DEGRADED, "off by 3.5 s", Repair.CONFIGURE),
    Row("host_clock", kernel(synchronized=False, most=16.0), UNKNOWN, "its error is unknown", Repair.CONFIGURE),
    Row("host_clock", {**kernel(synchronized=False), **chrony(0.0002)}, OK, "off by +0.000200 s"),
    Row("host_clock", {**kernel(), **chrony(-2.5)}, DEGRADED, "off by -2.500 s", Repair.CONFIGURE),
    Row("host_clock", {**kernel(), **chrony(1200.0)}, FAILED, "object stores refuse", Repair.CONFIGURE),
    Row("host_clock", {**kernel(), **chrony(1200.0, leap="Not synchronised")}, OK, "synchronized"),
    Row("host_clock", {}, UNKNOWN, "not permitted", problems={"clock.kernel": "permission"}),
    Row("host_processes", crowd(), OK, "90 processes, none stuck"),
    Row("host_processes", crowd(zombie(10.0)), OK, "none stuck"),
    Row("host_processes", crowd(zombie(400.0)), DEGRADED, "their parents (70) do not reap"),
    Row("host_processes", crowd(zombie(9000.0)), OK, "none stuck", before=crowd()),  # it may just have died
    Row("host_processes", crowd(zombie(9000.0, since=301.0)), DEGRADED, "their parents (70) do not reap", before=crowd()),
    Row("host_processes", {**crowd(), "processes.counts": {"zombies": 1500}}, DEGRADED, "1500 processes are zombies"),
    Row("host_processes", crowd(stuck=deaf(0.0)), DEGRADED, "process 81 (python) waits in the kernel at rpc_wait_bit_killable"),
    Row("host_processes", crowd(stuck=deaf(5.0)), OK, "90 processes", before=crowd()),
    Row("host_processes", crowd(stuck=deaf(30.0)), DEGRADED, "did not run for 30 s", before=crowd()),
    Row("host_processes", crowd(stuck=deaf(130.0)), FAILED, "and cannot be ended", Repair.REBOOT),
    Row("host_processes", crowd(host_pids={"used": 85, "most": 100}), DEGRADED, "85% of the system's pids", Repair.CONFIGURE),
    Row("host_processes", crowd(host_files={"used": 96, "most": 100}), FAILED, "96% of the system's open files", Repair.CONFIGURE),
    Row("host_processes", {}, UNKNOWN, "not permitted", problems={"processes.counts": "permission"}),
    Row("host_cpu", CPUS, OK, "8 processors"),
    Row("host_cpu", {**CPUS, "cpu.governors": {"performance": 8}}, OK, "8 processors"),
    Row("host_cpu", {**CPUS, "cpu.governors": {"powersave": 8}}, DEGRADED, "governed by powersave", Repair.CONFIGURE),
    Row("host_cpu", {**CPUS, "cpu.throttles": 9}, DEGRADED, "held processors back 4 times", Repair.DRAIN, before={"cpu.throttles": 5}),
    Row("host_cpu", {**CPUS, "cpu.clocksource": {"current": "hpet", "available": []}}, DEGRADED, "clock source is hpet", Repair.REBOOT),
    Row("host_cpu", {"cpu.count": {"present": 8, "online": 6, "usable": 6}}, DEGRADED, "2 of 8 processors", Repair.CONFIGURE),
    Row("host_cpu", {}, SKIPPED, "not visible here", problems={"cpu.count": NOT_SUPPORTED}),
    Row("host_cgroup", group(), OK, "no limit"),
    Row("host_cgroup", group(8 * GIB, quota=4.0), OK, "memory limited to 8.0 GiB; 4 processors"),
    Row("host_cgroup", group(8 * GIB, used=8 * GIB - MIB), DEGRADED, "100% of the control group's memory", Repair.CONFIGURE),
    Row("host_cgroup", group(), DEGRADED, "killed 2 times", Repair.CONFIGURE, before={"cgroup.oom_kills": 0}),
    Row("host_cgroup", group(quota=2.0, throttled=300), DEGRADED, "held it back in 30%", Repair.CONFIGURE),
    Row("host_cgroup", group(quota=2.0, throttled=300), OK, "2 processors",
        before={"cgroup.cpu": {"quota": 2.0, "periods": 800, "throttled": 299, "path": "/g"}}),
    Row("host_cgroup", group(pids=85), DEGRADED, "85% of the control group's pids", Repair.CONFIGURE),
    Row("host_cgroup", group(pids=99), FAILED, "99% of the control group's pids", Repair.CONFIGURE),
    Row("host_cgroup", {}, SKIPPED, "not visible here"),
    Row("host_core", dump(), OK, "core dumps go to /var/dumps"),
    Row("host_core", dump(GIB), DEGRADED, "has 1.0 GiB free: one would fill it", Repair.CONFIGURE),
    Row("host_core", dump(GIB, core=0), OK, "leaves no core dump"),
    Row("host_core", dump(None, problem="No such file or directory"), DEGRADED, "No such file", Repair.CONFIGURE),
    Row("host_core", dump(pipe=True, program_is_there=False, pattern="|/x %P"), DEGRADED, "a program that is not here", Repair.CONFIGURE),
    Row("host_core", dump(pipe=True, program_is_there=True, pattern="|/x %P"), OK, "go to a program"),
    Row("host_core", limits(), SKIPPED, "not visible here", problems={"host.core": NOT_SUPPORTED}),
]  # fmt: skip


def judged(row: Row) -> list[CheckResult]:
    before = None if row.before is None else Readings(Reading("probe", HOST, name, value) for name, value in row.before.items())
    return list(registry.checks()[row.check](row.readings(), before, Thresholds()))


@pytest.mark.parametrize("row", TABLE, ids=[f"{at}-{row.check}" for at, row in enumerate(TABLE)])
def test_the_table(row: Row) -> None:
    results = judged(row)
    assert len(results) == 1
    assert (results[0].result, results[0].repair, results[0].subject) == (row.result, row.repair, HOST), results[0]
    assert row.words in results[0].reason
    assert not results[0].blocks
    assert results[0].result is not DEGRADED or results[0].command or results[0].look or results[0].evidence
    assert are_apart(results[0]), results[0]


def test_every_check_of_the_host_has_each_of_its_answers_held_here() -> None:
    mine = {name for name in registry.checks() if name.startswith("host_")}
    assert {row.check for row in TABLE} == mine
    for name in mine:
        assert {OK, DEGRADED} <= {row.result for row in TABLE if row.check == name}


def test_a_check_that_takes_two_minutes_is_sampled_while_a_job_runs() -> None:
    assert set(registry.checks()["host_processes"].needs) <= set(registry.sampled())


def tree(root: Path, files: Mapping[str, str]) -> Ask:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n", "utf-8")
    return Ask(root=str(root))


def test_the_files_of_the_host_are_read(tmp_path: Path) -> None:
    (tmp_path / "dev/shm").mkdir(parents=True)
    ask = tree(tmp_path, {
        "proc/meminfo": "MemTotal:  1000 kB\nMemFree: 100 kB\nMemAvailable:  400 kB\nSwapTotal: 0 kB\nSwapFree: 0 kB",
        "proc/vmstat": "nr_free_pages 5\noom_kill 3",
        "proc/loadavg": "0.1 0.2 0.3 2/513 999",
        "proc/sys/kernel/pid_max": "4194304",
        "proc/sys/kernel/threads-max": "1000",
        "proc/sys/fs/file-nr": "5000\t0\t9000",
        "proc/sys/kernel/core_pattern": "|/usr/lib/nobody %P",
    })  # fmt: skip
    now = Readings(memory_limits.read(ask))
    assert now.value("host.memory") == {"total": 1024000, "available": 409600, "swap_total": 0, "swap_free": 0}
    assert now.value("host.oom_kills") == 3
    assert set(now.table("host.limits")) == {"memlock", "nofile", "nproc", "core"}
    assert now.value("host.pids") == {"used": 513, "most": 1000}
    assert now.value("host.files") == {"used": 5000, "most": 9000}
    assert now.table("host.core")["program_is_there"] is False
    assert set(now.table("host.shm")) == {"total", "free"}


def test_a_host_that_shows_nothing_is_no_healthy_one(tmp_path: Path) -> None:
    ask = Ask(root=str(tmp_path))
    for probe in (memory_limits, cpu, cgroup, processes):
        assert all(reading.problem and reading.value is None for reading in probe.read(ask) if reading.name != "host.limits")


def test_the_processors_of_a_tree(tmp_path: Path) -> None:
    files = {"sys/devices/system/cpu/online": "0-2", "sys/devices/system/cpu/cpuidle/x": ""}
    for number in range(4):
        at = f"sys/devices/system/cpu/cpu{number}"
        files |= {f"{at}/cpufreq/scaling_governor": "performance" if number else "powersave",
                  f"{at}/thermal_throttle/core_throttle_count": "1", f"{at}/thermal_throttle/package_throttle_count": "10",
                  f"{at}/topology/physical_package_id": str(number // 2)}  # fmt: skip
    now = Readings(cpu.read(tree(tmp_path, files)))
    assert now.value("cpu.governors") == {"powersave": 1, "performance": 3}
    assert now.value("cpu.throttles") == 24, "each core's, and each package's once"
    assert {**now.table("cpu.count"), "usable": 0} == {"present": 4, "online": 3, "usable": 0}


@pytest.mark.parametrize("version", [1, 2])
def test_control_groups_of_a_tree(version: int, tmp_path: Path) -> None:
    if version == 2:
        files = {
            "proc/self/cgroup": "0::/a/b",
            "proc/self/mountinfo": "30 22 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate",
            "sys/fs/cgroup/a/memory.max": "1000000", "sys/fs/cgroup/a/memory.current": "900000",
            "sys/fs/cgroup/a/memory.stat": "anon 100000\ninactive_file 500000\nactive_file 200000\nshmem 100000",
            "sys/fs/cgroup/a/b/memory.max": "max", "sys/fs/cgroup/a/b/memory.current": "5",
            "sys/fs/cgroup/a/b/memory.events": "low 0\noom 4\noom_kill 3\noom_group_kill 1",
            "sys/fs/cgroup/a/cpu.max": "200000 100000", "sys/fs/cgroup/a/cpu.stat": "usage_usec 1\nnr_periods 50\nnr_throttled 20",
            "sys/fs/cgroup/a/b/pids.max": "30", "sys/fs/cgroup/a/b/pids.current": "7",
        }  # fmt: skip
    else:
        files = {
            "proc/self/cgroup": "4:memory:/a\n3:cpu,cpuacct:/a\n2:pids:/a\n0::/",
            "proc/self/mountinfo": "\n".join(
                f"30 22 0:26 / /sys/fs/cgroup/{name} rw,nosuid - cgroup cgroup rw,{name}" for name in ("memory", "cpu,cpuacct", "pids")
            ),
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712", "sys/fs/cgroup/memory/memory.usage_in_bytes": "7",
            "sys/fs/cgroup/memory/a/memory.limit_in_bytes": "1000000", "sys/fs/cgroup/memory/a/memory.usage_in_bytes": "900000",
            "sys/fs/cgroup/memory/a/memory.stat": "rss 1\ninactive_file 7\ntotal_inactive_file 500000\ntotal_active_file 200000",
            "sys/fs/cgroup/memory/a/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 3",
            "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us": "200000", "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us": "100000",
            "sys/fs/cgroup/cpu,cpuacct/a/cpu.stat": "nr_periods 50\nnr_throttled 20\nthrottled_time 1",
            "sys/fs/cgroup/pids/a/pids.max": "30", "sys/fs/cgroup/pids/a/pids.current": "7",
        }  # fmt: skip
    now = Readings(cgroup.read(tree(tmp_path, files)))
    assert (now.table("cgroup.memory")["limit"], now.table("cgroup.memory")["used"]) == (1000000, 200000), "file caches left out"
    assert now.value("cgroup.oom_kills") == 3
    assert [now.table("cgroup.cpu")[key] for key in ("quota", "periods", "throttled")] == [2.0, 50, 20]
    assert (now.table("cgroup.pids")["limit"], now.table("cgroup.pids")["used"]) == (30, 7)


def test_a_real_zombie_is_found_with_its_parent() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        now = Readings(processes.read(Ask()))
        [mine] = [row for row in now.rows("processes.zombies") if row["pid"] == child.pid]
        assert mine["parent"] == os.getpid()
    assert child.pid not in [row["pid"] for row in Readings(processes.read(Ask())).rows("processes.zombies")]


def stat(pid: int, state: str, parent: int, begun: int = 100) -> str:
    return f"{pid} (a (b) c) {state} {parent} " + "0 " * 17 + f"{begun} " + "0 " * 30


def test_a_process_stuck_in_the_kernel_is_reported_with_how_long_it_has_been(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 1_700_001_000.0)
    ask = tree(tmp_path, {
        "proc/stat": "btime 1700000000",
        "proc/70/stat": stat(70, "D", 1), "proc/70/status": "voluntary_ctxt_switches:\t5\nnonvoluntary_ctxt_switches:\t1",
        "proc/70/wchan": "nfs_wait_bit_killable", "proc/70/comm": "a (b) c",
        "proc/80/stat": stat(80, "D", 2), "proc/80/status": "voluntary_ctxt_switches:\t5\nnonvoluntary_ctxt_switches:\t1",
        "proc/90/stat": stat(90, "S", 1), "proc/net/x": "",
    })  # fmt: skip
    begun = time.monotonic()
    assert len(Readings(processes.read(ask)).rows("processes.stuck")) == 1
    assert time.monotonic() - begun >= processes.ALONE_S
    ask = replace(ask, lasting=True)
    session = processes.session()
    [row] = Readings(session.read(ask)).rows("processes.stuck")
    assert (row["pid"], row["command"], row["since_s"], row["wchan"]) == (70, "a (b) c", 0.0, "nfs_wait_bit_killable")
    assert row["age_s"] == round(1000 - 100 / os.sysconf("SC_CLK_TCK"), 1)
    [later] = Readings(session.read(ask)).rows("processes.stuck")
    assert isinstance(later["since_s"], float)
    assert later["since_s"] >= processes.LOOK_S / 2
    (tmp_path / "proc/70/status").write_text("voluntary_ctxt_switches:\t6\nnonvoluntary_ctxt_switches:\t1\n", "ascii")
    [moved] = Readings(session.read(ask)).rows("processes.stuck")
    assert moved["since_s"] == 0.0, "it ran since, and waits anew"


@pytest.mark.parametrize(
    ("pairs", "command"),
    [
        ({"nofile": [1024, 1048576]}, "ulimit -n 65536"),
        ({"nofile": [1024, 8192]}, "ulimit -n 8192"),
        ({"nofile": [1024, 2048]}, "sudo prlimit --pid $$ --nofile=65536"),
        ({"memlock": [8 * MIB, None]}, "ulimit -l unlimited"),
        ({"memlock": [8 * MIB, 8 * MIB]}, "sudo prlimit --pid $$ --memlock=unlimited"),
    ],
    ids=["far", "near", "too-near", "unlimited", "hard"],
)
def test_the_command_raises_a_limit_as_far_as_the_user_may(pairs: dict[str, Json], command: str) -> None:
    [result] = judged(Row("host_limits", {"host.limits": pairs}, DEGRADED, "", port=True))
    assert result.command == command


@pytest.mark.process
def test_limits_are_those_that_a_child_gets() -> None:
    script = """import json; from health.model import Ask; from health.probes.host import memory_limits
print(json.dumps([reading.value for reading in memory_limits.read(Ask()) if reading.name == "host.limits"][0]))"""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    done = subprocess.run(  # noqa: S603 -- ours
        [sys.executable, "-c", script], capture_output=True, check=True, timeout=120, text=True, cwd=Path(__file__).parents[2],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard)),
    )  # fmt: skip
    read = json.loads(done.stdout)
    assert read["nofile"][0] == 512
    [result] = judged(Row("host_limits", {"host.limits": read}, DEGRADED, ""))
    assert "only 512 files" in result.reason


def test_the_clock_of_this_machine_is_judged_one_way_or_the_other() -> None:
    now = Readings(clock.read(Ask()))
    state = now.table("clock.kernel")
    assert now.problem("clock.kernel") or set(state) == {"synchronized", "max_error_s", "estimated_error_s", "offset_s"}
    readings = Readings(clock.read(Ask(options={"clock": {"chrony": {"offset_s": 4.0, "stratum": 2, "leap": "Normal"}}})))
    [result] = registry.checks()["host_clock"](readings, None, Thresholds())
    assert result.result is DEGRADED


def test_chrony_is_asked_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "chronyc"
    program.write_text("#!/bin/sh\necho 'C0A80001,ntp,3,1700000000.1,-0.000012345,0.1,0.1,1.0,0.1,0.1,0.01,0.02,64.0,Normal'\n", "ascii")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    now = Readings(clock.read(Ask()))
    assert now.value("clock.chrony") == {"offset_s": -0.000012345, "stratum": 3, "leap": "Normal"}
    program.write_text("#!/bin/sh\necho '506 Cannot talk to daemon'; exit 1\n", "ascii")
    assert "506 Cannot talk" in Readings(clock.read(Ask())).problem("clock.chrony")


@pytest.mark.bench("only")
def test_a_sample_of_the_host_is_cheap() -> None:
    begun = time.thread_time()
    for _ in range(10):
        for probe in (memory_limits, cpu, cgroup):
            list(probe.read(Ask()))
    assert (time.thread_time() - begun) / 10 < 0.05
