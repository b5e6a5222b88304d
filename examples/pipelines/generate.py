"""Live data for the examples: `python generate.py clicks|orders|lines [--brokers HOST:PORT] [--records N]
[--rate N]`.

Creates missing topics, then sends N records, or sends until it is stopped. Equal record numbers give equal
records.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import time
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import ottla

START_MS = 1_767_225_600_000  # 2026-01-01
WORDS = ("the", "log", "is", "the", "table", "and", "what", "was", "written", "stays", "in", "its", "order")
PAGES = ("/", "/search", "/item", "/cart", "/pay")
COUNTRIES = ("NL", "DE", "JP", "BR", "KE")


class Record(NamedTuple):
    topic: str
    key: str | None
    value: bytes | None


def clicks(seed: int = 1) -> Iterator[Record]:
    """A few users click for a while, then pause for longer than a visit's gap. Some clicks arrive late."""
    chance = random.Random(seed)
    at_ms = START_MS
    for visit in itertools.count():
        user = f"user-{chance.randrange(50):02}"
        late_ms = chance.choice((0, 0, 0, 5_000))
        for _ in range(chance.randrange(1, 6)):
            at_ms += chance.randrange(500, 3_000)
            yield _json("clicks", user, user=user, page=chance.choice(PAGES), at=_time(at_ms - late_ms))
        if visit % 20 == 19:
            at_ms += 400_000


def orders(seed: int = 1) -> Iterator[Record]:
    """Customers first, some of them renamed later; then their orders."""
    chance = random.Random(seed)
    for number in range(40):
        yield _customer(number, chance)
    for order in itertools.count():
        if order % 50 == 49:
            yield _customer(chance.randrange(40), chance)
        customer = f"c{chance.randrange(44):02}"
        amount = chance.randrange(100, 100_000) / 100
        yield _json(
            "orders", str(order), id=order, customer=customer, amount=amount, at=_time(START_MS + order * 250)
        )


def _customer(number: int, chance: random.Random) -> Record:
    name = f"Customer {number} {chance.choice('ABC')}."
    return _json("customers", f"c{number:02}", name=name, country=chance.choice(COUNTRIES))


def lines(seed: int = 1) -> Iterator[Record]:
    chance = random.Random(seed)
    while True:
        words = " ".join(chance.choice(WORDS) for _ in range(chance.randrange(3, 9)))
        yield Record("lines", None, words.capitalize().encode() + b".")


def _json(topic: str, key: str, /, **fields: Any) -> Record:
    return Record(topic, key, json.dumps(fields).encode())


def _time(at_ms: int) -> str:
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at_ms // 1000))
    return f"{seconds}.{at_ms % 1000:03}Z"


KINDS = {"clicks": clicks, "orders": orders, "lines": lines}
#: The topics of each kind, including the output topics of its pipeline, and whether each is compacted.
TOPICS = {
    "clicks": {"clicks": False, "visits": False, "pages": False},
    "orders": {"orders": False, "customers": True},
    "lines": {"lines": False, "counts": True},
}


def make_topics(brokers: str, kind: str, partitions: int = 2) -> None:
    with ottla.Admin(brokers) as admin:
        known = admin.list_topics()
        for name, compacted in TOPICS[kind].items():
            if name not in known:
                admin.create_topic(
                    name, partitions, configs={"cleanup.policy": "compact"} if compacted else {}
                )


def send(brokers: str, records: Iterator[Record], rate: float | None = None) -> int:
    """Send records at this maximum rate. Returns their number. Raises if one was not delivered."""
    sent, started = 0, time.monotonic()
    waiting: deque[Any] = deque()
    with ottla.Producer(brokers) as producer:
        for sent, record in enumerate(records, 1):
            waiting.append(producer.send(record.topic, record.value, key=record.key and record.key.encode()))
            while waiting and waiting[0].done():
                waiting.popleft().result()
            if rate is not None and (ahead_s := sent / rate - (time.monotonic() - started)) > 0.01:
                time.sleep(ahead_s)
        producer.flush()
        for each in waiting:
            each.result()
    return sent


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--brokers", default="127.0.0.1:9092")
    parser.add_argument("--records", type=int)
    parser.add_argument("--rate", type=float, default=500)
    given = parser.parse_args()
    make_topics(given.brokers, given.kind)
    print(
        f"{send(given.brokers, itertools.islice(KINDS[given.kind](), given.records), given.rate)} records "
        "sent"
    )


if __name__ == "__main__":
    main()
