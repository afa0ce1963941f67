"""A network namespace with two links to another node, for what happens when one of them goes down.

The node is at 10.9.0.2. The link `va` leads to it directly, and `vc` by a route. It is seen nowhere else, and goes with its processes.
"""

from __future__ import annotations

import subprocess

import pytest

NODE = "10.9.0.2"
_SCRIPT = """
set -e
mount -t sysfs sysfs /sys && ip link set lo up
unshare -n sleep 60 & peer=$!
until [ "$(readlink /proc/$peer/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do :; done
ip link add name va type veth peer name vb && ip link add name vc type veth peer name vd
ip link set vb netns $peer && ip link set vd netns $peer
ip addr add 10.9.0.1/24 dev va && ip link set va up && ip addr add 10.8.0.1/24 dev vc && ip link set vc up
inside="nsenter -t $peer -n"
$inside ip link set lo up
$inside ip addr add 10.9.0.2/24 dev vb; $inside ip link set vb up; $inside ip addr add 10.8.0.2/24 dev vd; $inside ip link set vd up
ip route add 10.9.0.0/24 via 10.8.0.2 dev vc metric 500
trap 'kill $peer' EXIT
"$@"
"""


def inside() -> tuple[str, ...]:
    """Return the words in front of a command that run it in such a namespace; skip the test where none can be made."""
    words = ("unshare", "--net", "--mount", "sh", "-c", _SCRIPT, "sh")
    try:
        done = subprocess.run([*words, "true"], capture_output=True, text=True, check=False)  # noqa: S603  words of our own
    except FileNotFoundError:
        pytest.skip("unshare is not installed (Debian: apt-get install util-linux)")
    if done.returncode:
        pytest.skip(f"no network namespace can be made here, run as root: {done.stderr[-200:]}")
    return words
