"""A register in etcd, through its second API, which torch's rendezvous in etcd uses as well (--rdzv-backend=etcd-v2).

The value is one key, and its version is etcd's `modifiedIndex`. Imported only for a job on etcd: http.client and ssl cost memory.

Source: https://etcd.io/docs/v2.3/api/ (atomic compare-and-swap; quorum reads; error codes 100, 101, 105).
"""

from __future__ import annotations

import contextlib
import http.client
import json
import queue
import ssl
import threading
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from health.probes.network.names import split
from supervisor.cluster.register import RegisterChanged, Registered, RegisterUnreachable

if TYPE_CHECKING:
    from collections.abc import Mapping

PORT = 2379
ANSWER_S = 1.0
#: All of a call together: the look-up of a name has no time limit of its own, and takes many seconds where no name server answers.
CALL_S = 1.5
#: A record that nobody writes any more is gone after so long.
KEPT_S = 7 * 86_400
_IS_MISSING, _IS_ANOTHER, _IS_THERE = 100, 101, 105
_HEADERS = {"Content-Type": "application/x-www-form-urlencoded"}


class EtcdRegister:
    """The register of one job. conf: torch's options of etcd, as in --rdzv-conf."""

    def __init__(self, endpoint: str, job_id: str, conf: Mapping[str, str]) -> None:
        host, port = split(endpoint)
        self._host, self._port = host, port or PORT
        self._path = f"/v2/keys/supervise/{quote(job_id, safe='')}/control-store"
        self._conf = conf
        self._thread: threading.Thread | None = None  # of the newest call

    def read(self) -> Registered:
        """See Register."""
        return self._answered("GET", "?quorum=true", None)

    def write(self, value: str, version: int) -> int:
        """See Register."""
        condition = {"prevIndex": str(version)} if version else {"prevExist": "false"}
        return self._answered("PUT", "", urlencode({"value": value, "ttl": str(KEPT_S), **condition})).version

    def _answered(self, method: str, query: str, body: str | None) -> Registered:
        """Ask in a thread of its own, for the store's thread must go on; nothing is asked while an earlier call is still under way."""
        where, found = f"etcd at {self._host}:{self._port}", queue.SimpleQueue[Registered | Exception]()

        def ask() -> None:
            try:
                found.put(self._answer(where, method, query, body))
            except Exception as problem:  # noqa: BLE001  raised below, in the caller's thread
                found.put(problem)

        if self._thread is not None and self._thread.is_alive():
            raise RegisterUnreachable(f"{where}: an earlier call is still under way")
        self._thread = threading.Thread(target=ask, name="ask-etcd", daemon=True)
        try:
            self._thread.start()
            answer = found.get(timeout=CALL_S)
        except queue.Empty:
            raise RegisterUnreachable(f"{where}: no answer within {CALL_S:g} s") from None
        except RuntimeError as problem:  # no thread to be had
            raise RegisterUnreachable(f"{where}: {problem}") from problem
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _answer(self, where: str, method: str, query: str, body: str | None) -> Registered:
        try:
            row = self._asked(method, query, body)
            error = int(row.get("errorCode", 0))
            if error == _IS_MISSING and method == "GET":
                return Registered(0, "")
            if error in {_IS_MISSING, _IS_ANOTHER, _IS_THERE}:
                raise RegisterChanged
            return Registered(int(row["node"]["modifiedIndex"]), str(row["node"]["value"]))
        except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError, AttributeError) as problem:
            raise RegisterUnreachable(f"{where}: {problem}") from problem

    def _asked(self, method: str, query: str, body: str | None) -> Mapping[str, Any]:
        if self._conf.get("protocol", "http").strip().lower() == "https":
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                self._host, self._port, timeout=ANSWER_S, context=_tls(self._conf)
            )
        else:
            connection = http.client.HTTPConnection(self._host, self._port, timeout=ANSWER_S)
        with contextlib.closing(connection):
            connection.request(method, self._path + query, body, _HEADERS)
            row: Mapping[str, Any] = json.loads(connection.getresponse().read())
        return row


def _tls(conf: Mapping[str, str]) -> ssl.SSLContext:
    """Return what secures the connection, by torch's names: `ca_cert`, `ssl_cert`, `ssl_cert_key`; for etcd, `cacert`, `cert`, `key`."""
    context = ssl.create_default_context(cafile=conf.get("ca_cert") or conf.get("cacert") or None)
    certificate = conf.get("ssl_cert") or conf.get("cert")
    if certificate:
        context.load_cert_chain(certificate, conf.get("ssl_cert_key") or conf.get("key") or None)
    return context
