"""Serves a directory as a file system that is slow or has no locks, as network file systems do: over FUSE. Needs root and /dev/fuse.

    python -I -S file_server.py PLACE BEHIND [--each-s S] [--fsync-s S] [--no-locks]

It mounts itself at PLACE, prints a line when it answers, and serves what is in BEHIND until it is killed; then PLACE gives errors. While it
is stopped (SIGSTOP), PLACE hangs. The protocol: linux/fuse.h, 7.31; the standard library only.
"""

from __future__ import annotations

import argparse
import ctypes
import errno
import os
import stat
import struct
import sys
import threading
import time
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

#: Threads: so many requests are answered at once, which a slow one does not hold up.
THREADS = 8
LONGEST = 128 << 10
FLOCK_LOCKS, BIG_WRITES = 1 << 10, 1 << 5
#: Which fields a SETATTR has.
MODE, UID, GID, SIZE, ATIME, MTIME, ATIME_NOW, MTIME_NOW = 1, 2, 4, 8, 16, 32, 128, 256
ROOT = 1
#: FLUSH (25) is refused: at each close, the last of a process too, the kernel waits for its answer, which no signal ends.
#: Not answered at all.
FORGET, BATCH_FORGET, INTERRUPT = 2, 42, 36
HEAD = struct.Struct("<IIQQIIIHH")
NOTHING = b""


class Node:
    """A file or directory: a descriptor that follows it through renames, and how often the kernel knows it."""

    def __init__(self, number: int, fd: int) -> None:
        self.number, self.fd, self.known = number, fd, 0

    @property
    def path(self) -> str:
        """A name by which it can be opened, wherever it is now."""
        return f"/proc/self/fd/{self.fd}"


def _name(data: bytes) -> bytes:
    return data[: data.index(b"\0")]


class FileServer:
    """Serves `behind`. Each operation takes `each_s`, one that makes data durable `fsync_s` too; without `locks` flock is refused."""

    def __init__(self, behind: str, *, each_s: float, fsync_s: float, locks: bool) -> None:
        self._each_s, self._fsync_s, self._locks = each_s, fsync_s, locks
        self._nodes = {ROOT: Node(ROOT, os.open(behind, os.O_PATH | os.O_DIRECTORY))}
        self._by_inode = {self._key(Path(behind).stat()): ROOT}
        self._listings: dict[int, list[tuple[bytes, os.stat_result]]] = {}
        self._guard = threading.Lock()
        self._next = ROOT
        self._do: dict[int, Callable[[Node, bytes], bytes]] = {
            1: self._lookup, 3: self._getattr, 4: self._setattr, 5: self._readlink, 6: self._symlink, 9: self._mkdir, 10: self._unlink,
            11: self._rmdir, 12: self._rename, 13: self._link, 14: self._open, 15: self._read, 16: self._write, 17: self._statfs,
            18: self._release, 20: self._fsync, 26: self._init, 27: self._opendir, 28: self._readdir,
            29: self._releasedir, 30: self._fsyncdir, 31: self._refuse_lock, 32: self._refuse_lock, 33: self._refuse_lock,
            35: self._create, 45: self._rename2,
        }  # fmt: skip

    def serve(self, device: int) -> None:
        """Answer requests until the mount is gone."""
        while True:
            try:
                request = os.read(device, LONGEST + 4096)
            except InterruptedError:
                continue
            except OSError:
                return  # unmounted
            _, opcode, unique, number, *_ = HEAD.unpack_from(request)
            data = request[HEAD.size :]
            if opcode in {FORGET, BATCH_FORGET, INTERRUPT}:
                self._forget(opcode, number, data)
                continue
            code, answer = 0, NOTHING
            try:
                time.sleep(self._each_s)
                do = self._do.get(opcode)
                if do is None:
                    code = errno.ENOSYS
                else:
                    answer = do(self._nodes[number] if number else self._nodes[ROOT], data)
            except OSError as error:
                code = error.errno or errno.EIO
            try:
                os.write(device, struct.pack("<IiQ", 16 + len(answer), -code, unique) + answer)
            except OSError:
                continue  # who asked is gone

    # what the kernel knows

    @staticmethod
    def _key(status: os.stat_result) -> tuple[int, int]:
        return status.st_dev, status.st_ino

    def _entry(self, parent: Node, name: bytes) -> bytes:
        fd = os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=parent.fd)
        status = os.fstat(fd)
        with self._guard:
            number = self._by_inode.get(self._key(status))
            if number is None:
                self._next += 1
                number = self._by_inode[self._key(status)] = self._next
                self._nodes[number] = Node(number, fd)
            else:
                os.close(fd)
            self._nodes[number].known += 1
        return struct.pack("<QQQQII", number, 0, 0, 0, 0, 0) + self._attributes(number, status)  # nothing may be cached

    def _forget(self, opcode: int, number: int, data: bytes) -> None:
        pairs = [(number, struct.unpack_from("<Q", data)[0])] if opcode == FORGET else []
        if opcode == BATCH_FORGET:
            count = struct.unpack_from("<II", data)[0]
            pairs = [struct.unpack_from("<QQ", data, 8 + 16 * at) for at in range(count)]
        with self._guard:
            for node_number, times in pairs:
                node = self._nodes.get(node_number)
                if node is None or node_number == ROOT:
                    continue
                node.known -= times
                if node.known <= 0:
                    del self._nodes[node_number]
                    self._by_inode = {key: known for key, known in self._by_inode.items() if known != node_number}
                    os.close(node.fd)

    @staticmethod
    def _attributes(number: int, status: os.stat_result) -> bytes:
        times = (status.st_atime_ns, status.st_mtime_ns, status.st_ctime_ns)
        whole, rest = [time // 10**9 for time in times], [time % 10**9 for time in times]
        return struct.pack(
            "<6Q10I", number, status.st_size, status.st_blocks, *whole, *rest,
            status.st_mode, status.st_nlink, status.st_uid, status.st_gid, status.st_rdev, 4096, 0,
        )  # fmt: skip

    # operations; each returns the answer's content, or raises OSError

    def _init(self, _node: Node, data: bytes) -> bytes:
        major, _minor, ahead, offered = struct.unpack_from("<IIII", data)
        flags = (BIG_WRITES | (0 if self._locks else FLOCK_LOCKS)) & offered  # asked for flock, it refuses; not asked, the kernel does it
        return struct.pack("<IIIIHHII", major, 31, ahead, flags, 16, 12, LONGEST, 1) + bytes(36)

    def _lookup(self, node: Node, data: bytes) -> bytes:
        return self._entry(node, _name(data))

    def _getattr(self, node: Node, _data: bytes) -> bytes:
        return struct.pack("<QII", 0, 0, 0) + self._attributes(node.number, os.fstat(node.fd))

    def _setattr(self, node: Node, data: bytes) -> bytes:
        valid, _, _, size, _, atime, mtime, _, atime_ns, mtime_ns, _, mode, _, uid, gid, _ = struct.unpack_from("<IIQQQQQQIIIIIIII", data)
        if valid & MODE:
            Path(node.path).chmod(stat.S_IMODE(mode))
        if valid & (UID | GID):
            os.chown(node.path, uid if valid & UID else -1, gid if valid & GID else -1)
        if valid & SIZE:
            os.truncate(node.path, size)
        if valid & (ATIME | MTIME):
            now, before = time.time_ns(), os.fstat(node.fd)
            accessed = now if valid & ATIME_NOW else atime * 10**9 + atime_ns if valid & ATIME else before.st_atime_ns
            modified = now if valid & MTIME_NOW else mtime * 10**9 + mtime_ns if valid & MTIME else before.st_mtime_ns
            os.utime(node.path, ns=(accessed, modified))
        return self._getattr(node, data)

    def _readlink(self, node: Node, _data: bytes) -> bytes:
        return os.readlink(b"", dir_fd=node.fd)

    def _symlink(self, node: Node, data: bytes) -> bytes:
        name, target, _ = data.split(b"\0", 2)
        os.symlink(target, name, dir_fd=node.fd)
        return self._entry(node, name)

    def _mkdir(self, node: Node, data: bytes) -> bytes:
        mode, _ = struct.unpack_from("<II", data)
        name = _name(data[8:])
        os.mkdir(name, stat.S_IMODE(mode), dir_fd=node.fd)
        return self._entry(node, name)

    def _unlink(self, node: Node, data: bytes) -> bytes:
        os.unlink(_name(data), dir_fd=node.fd)
        return NOTHING

    def _rmdir(self, node: Node, data: bytes) -> bytes:
        os.rmdir(_name(data), dir_fd=node.fd)
        return NOTHING

    def _rename(self, node: Node, data: bytes, skip: int = 8) -> bytes:
        old, new, _ = data[skip:].split(b"\0", 2)
        target = self._nodes[struct.unpack_from("<Q", data)[0]]
        os.rename(old, new, src_dir_fd=node.fd, dst_dir_fd=target.fd)
        return NOTHING

    def _rename2(self, node: Node, data: bytes) -> bytes:
        if struct.unpack_from("<QI", data)[1]:
            raise OSError(errno.EINVAL, "no flags")  # as most network file systems answer
        return self._rename(node, data, skip=16)

    def _link(self, node: Node, data: bytes) -> bytes:
        name = _name(data[8:])
        os.link(self._nodes[struct.unpack_from("<Q", data)[0]].path, name, dst_dir_fd=node.fd)
        return self._entry(node, name)

    def _open(self, node: Node, data: bytes) -> bytes:
        flags = struct.unpack_from("<I", data)[0] & ~(os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_APPEND)
        return struct.pack("<QII", os.open(node.path, flags), 0, 0)

    def _create(self, node: Node, data: bytes) -> bytes:
        flags, mode, *_ = struct.unpack_from("<IIII", data)
        name = _name(data[16:])
        fd = os.open(name, flags & ~os.O_APPEND, stat.S_IMODE(mode), dir_fd=node.fd)
        return self._entry(node, name) + struct.pack("<QII", fd, 0, 0)

    def _read(self, _node: Node, data: bytes) -> bytes:
        fd, at, size = struct.unpack_from("<QQI", data)
        return os.pread(fd, size, at)

    def _write(self, _node: Node, data: bytes) -> bytes:
        fd, at, size = struct.unpack_from("<QQI", data)
        return struct.pack("<II", os.pwrite(fd, data[40 : 40 + size], at), 0)

    def _release(self, _node: Node, data: bytes) -> bytes:
        os.close(struct.unpack_from("<Q", data)[0])
        return NOTHING

    def _fsync(self, _node: Node, data: bytes) -> bytes:
        time.sleep(self._fsync_s)
        os.fsync(struct.unpack_from("<Q", data)[0])
        return NOTHING

    def _fsyncdir(self, _node: Node, _data: bytes) -> bytes:
        time.sleep(self._fsync_s)
        return NOTHING

    def _opendir(self, node: Node, _data: bytes) -> bytes:
        fd = os.open(node.path, os.O_RDONLY | os.O_DIRECTORY)
        with self._guard:
            rows = [(b".", os.fstat(fd)), (b"..", os.fstat(fd))]
            with os.scandir(fd) as entries:
                rows += [(os.fsencode(entry.name), entry.stat(follow_symlinks=False)) for entry in entries]
            self._listings[fd] = rows
        return struct.pack("<QII", fd, 0, 0)

    def _readdir(self, _node: Node, data: bytes) -> bytes:
        fd, at, size = struct.unpack_from("<QQI", data)
        listing = NOTHING
        for number, (name, status) in enumerate(self._listings[fd][at:], at + 1):
            row = struct.pack("<QQII", status.st_ino, number, len(name), stat.S_IFMT(status.st_mode) >> 12) + name
            row += bytes(-len(row) % 8)
            if len(listing) + len(row) > size:
                break
            listing += row
        return listing

    def _releasedir(self, _node: Node, data: bytes) -> bytes:
        fd = struct.unpack_from("<Q", data)[0]
        del self._listings[fd]
        os.close(fd)
        return NOTHING

    def _statfs(self, node: Node, _data: bytes) -> bytes:
        room = os.statvfs(node.path)
        blocks = (room.f_blocks, room.f_bfree, room.f_bavail, room.f_files, room.f_ffree)
        return struct.pack("<5Q4I", *blocks, room.f_bsize, room.f_namemax, room.f_frsize, 0) + bytes(24)

    def _refuse_lock(self, _node: Node, _data: bytes) -> bytes:
        raise OSError(errno.ENOLCK, "No locks available")


def main() -> None:
    """Mount and serve."""
    parser = argparse.ArgumentParser()
    parser.add_argument("place")
    parser.add_argument("behind")
    parser.add_argument("--each-s", type=float, default=0.0)
    parser.add_argument("--fsync-s", type=float, default=0.0)
    parser.add_argument("--no-locks", action="store_true")
    args = parser.parse_args()
    server = FileServer(args.behind, each_s=args.each_s, fsync_s=args.fsync_s, locks=not args.no_locks)
    try:
        device = os.open("/dev/fuse", os.O_RDWR)
    except OSError as error:
        sys.exit(f"/dev/fuse: {error.strerror}")
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"fd={device},rootmode=40000,user_id={os.geteuid()},group_id={os.getegid()},allow_other,default_permissions"
    if libc.mount(b"files", os.fsencode(args.place), b"fuse", 6, options.encode()):  # no set-uid programs, no devices
        sys.exit(f"mount {args.place}: {os.strerror(ctypes.get_errno())}")
    threads = [threading.Thread(target=server.serve, args=(device,)) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    os.umask(0)
    list(Path(args.place).iterdir())  # it answers
    print("ready", flush=True)  # noqa: T201  for who started it
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
