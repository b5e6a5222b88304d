"""Reads the committed records of a topic."""

import time
from typing import NamedTuple

import ottla
from ottla.client.offsets import LATEST

PATIENCE_S = 60


class Read(NamedTuple):
    partition: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def read_topic(address: str, topic: str, *, settled: bool = True) -> list[Read]:
    """Everything that is committed, partition by partition in their order; `settled`: when no transaction is open any more.

    Who is told that a transaction is committed may be told before its partitions are.
    """
    with ottla.Consumer(
        address, isolation_level="read_committed", auto_offset_reset="earliest", enable_auto_commit=False
    ) as consumer:
        places = consumer.partitions_for(topic)
        consumer.assign(places)
        ends = consumer.end_offsets(places)
        if settled:
            with ottla.Admin(address) as admin:
                ends = {
                    place: found.offset
                    for place, found in admin.list_offsets(dict.fromkeys(places, LATEST)).items()
                }
        rows: list[Read] = []
        deadline_s = time.monotonic() + PATIENCE_S
        while any(consumer.position(place) < ends[place] for place in places):
            assert time.monotonic() < deadline_s, f"{len(rows)} rows came"
            # What is left may be the ends of transactions, which are no records.
            for records in consumer.poll(100).values():
                rows += [Read(each.partition, each.key, each.value, tuple(each.headers)) for each in records]
    return sorted(rows, key=lambda row: row.partition)
