"""What depends on the server and the settings: encryption, servers that know less, a cap on bandwidth, several mirrors, TLS."""

from __future__ import annotations

import subprocess
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from checkpointing.manifest import digest
from checkpointing.mirror import restore
from checkpointing.mirror.backends import Bytes, PermissionDenied, S3Options, Unavailable
from checkpointing.mirror.backends.opening import open_backend
from checkpointing.model import CheckpointingError
from tests.checkpointing.mirror import servers
from tests.checkpointing.mirror.faults import HOLD, Fault
from tests.checkpointing.mirror.process import FINISH, ROOT, Place, Process, save
from tests.support.few import few
from tests.support.http_serving import QuietHandler, served
from tests.support.waiting import PATIENCE_S, wait_for

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.process, pytest.mark.s3]
BODY = Bytes(b"content", digest.of_bytes(b"content"))


def test_encryption_that_the_server_does_not_confirm_is_refused(place: Place) -> None:
    backend = open_backend(place.url, S3Options(**place.s3, sse="AES256"))
    with pytest.raises(PermissionDenied, match="encrypt"):
        backend.begin("a")
    with pytest.raises(PermissionDenied, match="encrypt"):
        backend.put("a", BODY)
    assert place.proxy.count("^PUT") == 0, "nothing is sent"
    assert place.objects() == {}
    assert place.unfinished() == []


@pytest.mark.slow
def test_encryption_that_the_server_confirms_is_asked_for(moto: servers.Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", servers.KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", servers.SECRET)
    bucket = f"b{uuid.uuid4().hex[:16]}"
    moto.client().create_bucket(Bucket=bucket)
    options = S3Options(endpoint=moto.endpoint, path_style=True, sse="aws:kms:key-1")
    open_backend(f"s3://{bucket}/p", options).put("a", BODY)
    assert not moto.client().list_multipart_uploads(Bucket=bucket).get("Uploads"), "what was opened to ask is gone"
    head = moto.client().head_object(Bucket=bucket, Key="p/a")
    assert (head["ServerSideEncryption"], head["SSEKMSKeyId"]) == ("aws:kms", "key-1")


@pytest.mark.slow
def test_two_nodes_that_send_the_same_content_at_once_leave_one_whole_checkpoint(place: Place) -> None:
    path = place.home / "ckpt" / "step_1.pt"
    described = save(path)
    held = Fault(HOLD, "^PUT.*manifest.json", times=2)
    place.proxy.faults.append(held)
    with Process(place) as first, Process(replace(place, home=place.home / "other")) as second:
        first.mirror(path, described)
        assert held.hit.wait(PATIENCE_S)
        second.mirror(path, described)
        wait_for(lambda: place.proxy.count("^PUT.*manifest.json") == 2, "the other one to come as far")
        held.release.set()
        for process in (first, second):
            process.wait_for("uploaded")
            assert process.alerts() == []
    assert place.no_manifest_lies() == 1


@pytest.mark.parametrize("answer", [pytest.param("501 NotImplemented", marks=pytest.mark.slow), "400 InvalidArgument"])
@pytest.mark.parametrize("request_line", few(["^POST.*uploads", "^PUT.*partNumber", "^POST.*uploadId"]), ids=["create", "part", "complete"])
def test_a_server_that_refuses_checksums_gets_none_and_is_compared_by_its_etag(place: Place, request_line: str, answer: str) -> None:
    path = place.home / "ckpt" / "step_1.pt"
    place.proxy.faults.append(Fault(answer, request_line))
    with Process(place, workers=1) as process:
        process.mirror(path, save(path))
        process.wait_for("uploaded")
        assert process.alerts() == []
    assert place.no_manifest_lies() == 1


@pytest.mark.slow
def test_a_server_that_refuses_every_checksum_refuses_one_request(place: Place) -> None:
    path, small = place.home / "ckpt" / "step_1.pt", place.home / "ckpt" / "step_2.pt"
    refusal = Fault("400 InvalidArgument", "^(PUT|POST)", times=1000, header="x-amz-checksum")
    place.proxy.faults.append(refusal)
    with Process(place, workers=1) as process:
        for step, checkpoint, n_bytes in ((1, path, 12 << 20), (2, small, 1000)):
            process.mirror(checkpoint, save(checkpoint, n_bytes, step))
            process.wait_for("uploaded")
        assert process.alerts() == []
    assert refusal.times == 999
    assert place.no_manifest_lies() == 2


@pytest.mark.slow
def test_a_request_that_is_refused_for_another_reason_is_an_alert(place: Place) -> None:
    path = place.home / "ckpt" / "step_1.pt"
    refusal = Fault("400 InvalidArgument", "^(PUT|POST)", times=1000)
    place.proxy.faults.append(refusal)
    with Process(place, workers=1) as process:
        process.mirror(path, save(path))
        assert "InvalidArgument" in process.wait_for("alert", what="denied")["message"]
        refusal.times = 0
        process.send(FINISH)
        process.wait_for("uploaded")
    assert place.proxy.count("^PUT.*partNumber") == 3 + 1, "three parts, and one try whether the server compares checksums"
    assert place.no_manifest_lies() == 1


@pytest.mark.slow
def test_the_cap_on_bandwidth_holds(place: Place) -> None:
    path = place.home / "ckpt" / "step_1.pt"
    with Process(place, bandwidth_mib_s=4) as process:
        process.mirror(path, save(path))
        assert process.wait_for("uploaded")["seconds"] > 12 / 4 - 1


@pytest.mark.slow
def test_one_mirror_that_is_away_does_not_hold_up_the_other(place: Place) -> None:
    path, other = place.home / "ckpt" / "step_1.pt", place.home / "nfs"
    other.mkdir()
    place.proxy.refuses = True
    with Process(place, mirrors=[place.url, str(other)]) as process:
        process.mirror(path, save(path))
        uploaded = process.wait_for("uploaded")
        assert (uploaded["mirror"], uploaded["left"]) == (str(other), 1)
        wait_for(lambda: process.alerts() == ["away"], "the alert, which may have come before")
    done = restore.newest([open_backend(str(other))], "job", into=str(place.home / "fresh"))
    assert done is not None
    with Process(place, mirrors=[place.url, str(other)], orders=process.undone()) as process:
        process.wait_for("alert", what="away")
        place.proxy.refuses = False
        process.send(FINISH)
        uploaded = process.wait_for("uploaded")
        assert (uploaded["mirror"], uploaded["left"]) == (place.url, 0)


def test_finish_waits_until_all_has_arrived(place: Place) -> None:
    path = place.home / "ckpt" / "step_1.pt"
    held = Fault("503 SlowDown", "^PUT", times=2)
    place.proxy.faults.append(held)
    with Process(place) as process:
        process.mirror(path, save(path))
        process.send(FINISH)
        assert process.wait_for("uploaded")["left"] == 0
        assert process.popen.wait(PATIENCE_S) == 0


def test_a_certificate_is_checked_against_the_given_authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Empty(QuietHandler):
        def do_GET(self) -> None:
            self.send_response(404)
            self.end_headers()

        do_HEAD = do_GET

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", servers.KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", servers.SECRET)
    key, cert, both = tmp_path / "key.pem", tmp_path / "cert.pem", tmp_path / "both.pem"
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost"
    subprocess.run([*command.split(), "-keyout", str(key), "-out", str(cert)], check=True, capture_output=True)  # noqa: S603 -- the test's own
    both.write_text(key.read_text() + cert.read_text())
    with served(Empty, both) as port:
        endpoint = f"https://localhost:{port}"
        unknown = open_backend("s3://bucket/p", S3Options(endpoint=endpoint, path_style=True))
        with pytest.raises((PermissionDenied, Unavailable), match=r"(?i)certificate|ssl"):
            unknown.stat("a")
        known = open_backend("s3://bucket/p", S3Options(endpoint=endpoint, path_style=True, ca_bundle=str(cert)))
        with pytest.raises(Exception, match="404"):
            known.stat("a")


@pytest.mark.parametrize("hours", few([-1, 26]))
def test_a_wrong_clock_is_named_and_how_far_it_is(place: Place, hours: int) -> None:
    path, shifted = place.home / "ckpt" / "step_1.pt", place.home / "shifted"
    shifted.mkdir()
    (shifted / "sitecustomize.py").write_text(
        "import datetime, time\n"
        f"real, ahead_s = time.time, {hours * 3600}\n"
        "time.time = lambda: real() + ahead_s\n"
        "import botocore.compat\n"
        "botocore.compat.get_current_datetime = lambda **_: datetime.datetime.utcfromtimestamp(time.time())\n"
    )
    with Process(place, env={"PYTHONPATH": f"{shifted}:{ROOT}"}) as process:
        process.mirror(path, save(path, 1000))
        alert = process.wait_for("alert")
        far = "60 minutes behind" if hours < 0 else "26 hours ahead of"
        assert (alert["what"], f"this machine's clock is {far} the server's" in alert["message"]) == ("clock", True)
        assert "timedatectl" in alert["hint"]
        for number in (2, 3, 4):
            other = place.home / "ckpt" / f"step_{number}.pt"
            process.mirror(other, save(other, 1000, number))
        dropped = process.wait_for("alert", what="dropped")
    assert f"clock is {far}" in dropped["message"], "the later words do not hide it"


def test_a_wrong_clock_is_named_where_a_start_cannot_restore(place: Place) -> None:
    place.proxy.faults.append(Fault("403 RequestTimeTooSkewed", "^GET"))
    with pytest.raises(restore.Unreachable, match=r"RequestTimeTooSkewed.*clock and the server's are too far apart") as raised:
        restore.available([place.backend()], "job")
    assert "timedatectl" in raised.value.hint


@pytest.mark.parametrize("url", ["s3://AKIAKEY:geheim@bucket/prefix", "s3://AKIAKEY:ge/heim@bucket", "https://AKIAKEY:geheim@host/bucket"])
def test_keys_in_the_address_are_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(CheckpointingError) as raised:
        open_backend(url)
    for text in (raised.value.message, raised.value.hint):
        assert not any(part in text for part in ("heim", "AKIAKEY"))
