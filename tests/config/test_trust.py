"""A configuration file is read only if no other user can have written it."""

from __future__ import annotations

import ctypes
import os
import re
import stat
import tempfile
from pathlib import Path

import pytest

from supervisor.config.trust import read_trusted
from supervisor.errors import ExitCode, SuperviseError

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user: run as root")
NOBODY = 65534


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a configuration file two directories below one that others cannot enter."""
    directory = tmp_path / "a" / "b"
    directory.mkdir(parents=True)
    for part in (directory, directory.parent):
        part.chmod(0o755)
    path = directory / "supervise.toml"
    path.write_text("x = 1\n", encoding="utf-8")
    path.chmod(0o644)
    return path


def refusal(path: Path) -> str:
    with pytest.raises(SuperviseError) as caught:
        read_trusted(path)
    assert caught.value.exit_code == ExitCode.CONFIG
    return caught.value.message


def test_a_file_of_ours_in_directories_of_ours_is_read(path: Path) -> None:
    assert read_trusted(path) == "x = 1\n"


def test_no_file_is_no_error(path: Path) -> None:
    assert read_trusted(path.with_name("missing.toml")) is None
    assert read_trusted(path / "below-a-file") is None


def test_a_directory_or_a_dangling_link_is_refused_by_name(path: Path) -> None:
    assert f"{path.parent}: it is a directory" in refusal(path.parent)
    link = path.with_name("link.toml")
    link.symlink_to("missing.toml")
    assert f"{link}: it is a link to missing.toml, which does not exist" in refusal(link)


@pytest.mark.parametrize("bit", [stat.S_IWGRP, stat.S_IWOTH])
@pytest.mark.parametrize("up", [0, 1, 2])
def test_a_file_or_directory_that_others_may_write_is_refused_by_name(path: Path, bit: int, up: int) -> None:
    part = [path, *path.parents][up]
    part.chmod(part.stat().st_mode | bit)
    assert re.search(rf"others may write {re.escape(str(part))} \(mode 0\d\d\d\)", refusal(path))


def test_a_sticky_directory_is_no_danger_to_its_files(path: Path) -> None:
    path.parent.chmod(0o1777)
    assert read_trusted(path) == "x = 1\n"


@as_root
@pytest.mark.parametrize("up", [0, 1, 2])
def test_a_file_of_another_user_is_refused_by_name(path: Path, up: int) -> None:
    part = [path, *path.parents][up]
    os.chown(part, NOBODY, -1)
    assert f"{part} belongs to uid {NOBODY}" in refusal(path)


def test_a_link_is_followed_and_both_its_ways_are_looked_at(path: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.toml"
    link.symlink_to(path)
    assert read_trusted(link) == "x = 1\n"
    path.parent.chmod(0o777)
    assert f"others may write {path.parent} " in refusal(link)


def test_a_fifo_is_refused_without_waiting_for_a_writer(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)
    assert "not a plain file" in refusal(path)


def test_a_file_too_large_or_not_text_is_refused(path: Path) -> None:
    path.write_bytes(b"\xff\xfe")
    assert "not UTF-8" in refusal(path)
    path.write_bytes(b"#" * ((1 << 20) + 1))
    assert "larger than 1 MiB" in refusal(path)


def in_own_user_namespace(uid: int, path: Path, answer: int) -> None:
    """Become `uid`, alone in a user namespace, read `path`, and write to `answer` what came of it."""
    try:
        os.setgid(uid)
        os.setuid(uid)
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE: setuid cleared it, and /proc/self would be root's
        if libc.unshare(0x10000000) != 0:  # CLONE_NEWUSER; os.unshare is younger than python 3.11
            os.write(answer, f"no user namespaces here: {os.strerror(ctypes.get_errno())}".encode())
            return
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1", encoding="ascii")
        os.write(answer, (read_trusted(path) or "").encode())
    except (SuperviseError, OSError) as error:
        os.write(answer, str(error).encode())


@as_root
@pytest.mark.process
def test_in_a_user_namespace_that_does_not_know_root_roots_files_are_read() -> None:
    # "/", "/tmp" and root's file all belong to the overflow uid in there, as in a rootless container
    reader, writer = os.pipe()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "supervise.toml")
        path.write_text("x = 1\n", encoding="utf-8")
        path.parent.chmod(0o755)
        pid = os.fork()
        if pid == 0:
            in_own_user_namespace(1000, path, writer)
            os._exit(0)
        os.waitpid(pid, 0)
    os.close(writer)
    with os.fdopen(reader) as file:
        answer = file.read()
    if answer.startswith("no user namespaces"):
        pytest.skip(answer)
    assert answer == "x = 1\n"
