"""OpenStack Swift with its s3api on loopback, run by the interpreter of a virtual environment that has it: no root, no /etc.

It takes a directory of its own and four ports in a row, and prints `ready`. SIGTERM, or the end of stdin, ends all four services. The
wrong checksum of a body is refused, as is a wrong signature; If-None-Match is answered with 412.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

KINDS = ("proxy", "object", "container", "account")
FILTERS = (
    "catch_errors gatekeeper healthcheck cache listing_formats s3api tempauth copy bulk slo dlo versioned_writes symlink".split()  # noqa: SIM905
)
OPTIONS = {
    "tempauth": "user_test_tester = testing .admin",
    "s3api": "s3_acl = false\nlocation = us-east-1\nallow_multipart_uploads = true\nmin_segment_size = 5242880",
    "slo": "max_manifest_segments = 10000",
    "versioned_writes": "allow_versioned_writes = true\nallow_object_versioning = true",
    "cache": "memcache_servers = 127.0.0.1:1",
}
EGGS = {"cache": "memcache"}
BOOT = """import sys
import swift.common.utils
swift.common.utils.SWIFT_CONF_FILE = {conf!r}
from swift.{module}.server import main
sys.argv = ["swift-{kind}-server", {own!r}]
sys.exit(main())"""


def configure(base: Path, port: int) -> None:
    """Write the configuration of the four services, and the rings by which they find each other."""
    from swift.common.ring import RingBuilder  # noqa: PLC0415 -- only there in the environment that runs the servers

    etc, data = base / "etc", base / "data"
    for directory in (etc, data / "d1", base / "cache"):
        directory.mkdir(parents=True, exist_ok=True)
    (etc / "swift.conf").write_text(
        "[swift-hash]\nswift_hash_path_prefix = a\nswift_hash_path_suffix = b\n[storage-policy:0]\nname = one\ndefault = yes\n"
        "[swift-constraints]\nmax_file_size = 5368709122\n"
    )
    for at, kind in enumerate(KINDS):
        text = (
            f"[DEFAULT]\nbind_ip = 127.0.0.1\nbind_port = {port + at}\nuser = {pwd.getpwuid(os.getuid()).pw_name}\nswift_dir = {etc}\n"
            f"devices = {data}\nmount_check = false\nworkers = 0\nlog_level = WARNING\nlog_address = /nonexistent\nmax_clients = 1024\n"
            f"fallocate_reserve = 0\nclient_timeout = 60\nrecon_cache_path = {base / 'cache'}\n"
        )
        if kind == "proxy":
            text += f"[pipeline:main]\npipeline = {' '.join(FILTERS)} proxy-server\n[app:proxy-server]\nuse = egg:swift#proxy\n"
            text += "account_autocreate = true\nobject_chunk_size = 1048576\nclient_chunk_size = 1048576\n"
            text += "".join(f"[filter:{name}]\nuse = egg:swift#{EGGS.get(name, name)}\n{OPTIONS.get(name, '')}\n" for name in FILTERS)
        else:
            text += f"[pipeline:main]\npipeline = {kind}-server\n[app:{kind}-server]\nuse = egg:swift#{kind}\n"
            if kind == "object":
                text += "disk_chunk_size = 1048576\nnetwork_chunk_size = 1048576\n"
            ring = RingBuilder(4, 1, 1)
            address = {"ip": "127.0.0.1", "port": port + at, "replication_ip": "127.0.0.1", "replication_port": port + at}
            ring.add_dev({"id": 0, "region": 1, "zone": 1, "device": "d1", "weight": 1.0, "meta": "", **address})
            ring.rebalance(seed=1)
            ring.get_ring().save(str(etc / f"{kind}.ring.gz"))
        (etc / f"{kind}.conf").write_text(text)


def main(base: Path, port: int) -> int:
    """Run until SIGTERM or the end of stdin."""
    configure(base, port)
    services = []
    for kind in KINDS:
        own, module = str(base / "etc" / f"{kind}.conf"), {"object": "obj"}.get(kind, kind)
        boot = BOOT.format(conf=str(base / "etc" / "swift.conf"), module=module, kind=kind, own=own)
        with (base / f"{kind}.log").open("wb") as log:
            services.append(
                subprocess.Popen(  # noqa: S603 -- the server itself
                    [sys.executable, "-c", boot], stdout=log, stderr=log, start_new_session=True
                )
            )
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        for at in range(len(KINDS)):
            deadline = time.monotonic() + 60
            while True:
                if time.monotonic() > deadline or any(service.poll() is not None for service in services):
                    return 1
                try:
                    socket.create_connection(("127.0.0.1", port + at), 0.2).close()
                    break
                except OSError:
                    time.sleep(0.02)
        print("ready", flush=True)  # noqa: T201 -- the one word that is waited for
        sys.stdin.read()
        return 0
    finally:
        for service in services:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(service.pid, signal.SIGKILL)
            service.wait()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
