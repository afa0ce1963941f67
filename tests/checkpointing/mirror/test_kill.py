"""kill -9 of the mirror, placed by phase: no manifest ever lies, and the next process sends no part twice that has arrived."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from tests.checkpointing.mirror.faults import HOLD, HOLD_ANSWER, Fault
from tests.checkpointing.mirror.process import Place, Process, save
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.process, pytest.mark.s3]
N_BYTES = 17 << 20  # four parts

#: phase -> the request during which we are killed; what it needs of chance is drawn from `dice`
PHASES: dict[str, Callable[[random.Random], Fault]] = {
    "before create": lambda _dice: Fault(HOLD, "^POST.*uploads"),
    "between create and our note of it": lambda _dice: Fault(HOLD_ANSWER, "^POST.*uploads"),
    "within part k": lambda dice: Fault(HOLD, f"^PUT.*partNumber={dice.randint(1, 4)}", after=dice.randint(1, 2 << 20)),
    "between part k and our note of it": lambda dice: Fault(HOLD_ANSWER, f"^PUT.*partNumber={dice.randint(1, 4)}"),
    "between last part and complete": lambda _dice: Fault(HOLD, "^POST.*uploadId"),
    "between complete and our note of it": lambda _dice: Fault(HOLD_ANSWER, "^POST.*uploadId"),
    "between complete and manifest": lambda _dice: Fault(HOLD, "^PUT.*manifest.json"),
    "within manifest": lambda dice: Fault(HOLD, "^PUT.*manifest.json", after=dice.randint(1, 400)),
    "between manifest and our note of it": lambda _dice: Fault(HOLD_ANSWER, "^PUT.*manifest.json"),
}


@pytest.mark.slow
@pytest.mark.parametrize("phase", PHASES)
def test_twenty_kills_in_each_phase(place: Place, phase: str) -> None:
    for number in range(20):
        _killed(place, phase, random.Random(f"{phase} {number}"), number)  # noqa: S311 -- as above


@pytest.mark.slow
def test_kills_at_any_moment_again_and_again_come_to_an_end(place: Place) -> None:
    dice = random.Random(7)  # noqa: S311 -- as above
    path = place.home / "ckpt" / "step_1.pt"
    described = save(path, N_BYTES)
    for _ in range(30):
        seen = len(place.proxy.seen)
        wanted = dice.randint(1, 6)
        with Process(place) as process:
            process.mirror(path, described)
            wait_for(lambda: len(place.proxy.seen) >= seen + wanted or _is_uploaded(process), "some requests")  # noqa: B023
            process.kill()
        place.no_manifest_lies()
    with Process(place) as process:
        process.mirror(path, described)
        process.wait_for("uploaded")
    assert place.no_manifest_lies() == 1
    assert not place.unfinished()


def _killed(place: Place, phase: str, dice: random.Random, number: int = 0) -> None:
    path = place.home / "ckpt" / f"step_{number}.pt"
    described = save(path, N_BYTES, step=number)
    fault = PHASES[phase](dice)
    place.proxy.faults[:] = [fault]
    with Process(place) as process:
        process.mirror(path, described)
        wait_for(fault.hit.is_set, phase)
        process.kill()
    finished = _finished_bytes(place, path.name)
    fault.release.set()
    assert place.no_manifest_lies() in (0, 1)
    with Process(place, orders=process.undone()) as process:
        done = process.wait_for("uploaded")
        assert process.alerts() == []
    assert (done["bytes"], done["left"]) == (N_BYTES, 0)
    assert done["sent"] <= N_BYTES - finished, phase
    assert place.no_manifest_lies() == 1
    assert not place.unfinished()
    place.empty()


def _is_uploaded(process: Process) -> bool:
    return any(row["ev"] == "uploaded" for row in process.events)


def _finished_bytes(place: Place, name: str) -> int:
    """Sum what the server has acknowledged, or could have, of a file: past the proxy."""
    total = sum(n_bytes for key, n_bytes in place.objects().items() if key.endswith(f"/data/{name}"))
    if total:
        return total
    for row in place.client.list_multipart_uploads(Bucket=place.bucket).get("Uploads", ()):
        parts = place.client.list_parts(Bucket=place.bucket, Key=row["Key"], UploadId=row["UploadId"]).get("Parts", ())
        total += sum(part["Size"] for part in parts)
    return total
