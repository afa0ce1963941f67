"""A register in etcd, through its second API, which torch's rendezvous in etcd uses as well (--rdzv-backend=etcd-v2).

The value is one key, and its version is etcd's `modifiedIndex`. Imported only for a job on etcd: http.client and ssl cost memory.

Source: https://etcd.io/docs/v2.3/api/ (atomic compare-and-swap; quorum reads; error codes 100, 101, 105).
"""

from __future__ import annotations

import contextlib
import http.client
import json
import ssl
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from health.probes.network.names import split
from supervisor.cluster.register import RegisterChanged, Registered, RegisterUnreachable

if TYPE_CHECKING:
    from collections.abc import Mapping

PORT = 2379
ANSWER_S = 1.0
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

    def read(self) -> Registered:
        """See Register."""
        return self._answered("GET", "?quorum=true", None)

    def write(self, value: str, version: int) -> int:
        """See Register."""
        condition = {"prevIndex": str(version)} if version else {"prevExist": "false"}
        return self._answered("PUT", "", urlencode({"value": value, "ttl": str(KEPT_S), **condition})).version

    def _answered(self, method: str, query: str, body: str | None) -> Registered:
        try:
            row = self._asked(method, query, body)
            error = int(row.get("errorCode", 0))
            if error == _IS_MISSING and method == "GET":
                return Registered(0, "")
            if error in {_IS_MISSING, _IS_ANOTHER, _IS_THERE}:
                raise RegisterChanged
            return Registered(int(row["node"]["modifiedIndex"]), str(row["node"]["value"]))
        except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError, AttributeError) as problem:
            msg = f"etcd at {self._host}:{self._port}: {problem}"
            raise RegisterUnreachable(msg) from problem

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
