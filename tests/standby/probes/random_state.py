"""Draws random numbers: from seeded generators, which are equal in each process, and from unseeded ones, which never are."""

import multiprocessing.process
import os
import random
import secrets
import tempfile
import time
import uuid

from observed import show

unseeded = {
    "random": random.random(),
    "Random": random.Random().random(),
    "hash": hash("a text"),
    "urandom": os.urandom(8).hex(),
    "uuid4": str(uuid.uuid4()),
    "secrets": secrets.token_hex(),
    "tempfile": next(tempfile._get_candidate_names()),  # type: ignore[attr-defined]
    "authkey": bytes(multiprocessing.process.current_process().authkey).hex(),
    "address": id(object()) >> 24,
}
random.seed(17)
seeded = {
    "random": [random.random() for _ in range(5)],
    "shuffled": random.sample(range(100), 10),
    "Random": random.Random("a text").random(),
    "uuid5": str(uuid.uuid5(uuid.NAMESPACE_DNS, "a text")),
    "zone": [time.timezone, time.daylight],
}
show(unseeded=unseeded, seeded=seeded)
