"""What readers of committed records see in a topic."""

import time
from typing import NamedTuple

import ottla

PATIENCE_S = 60


class Read(NamedTuple):
    partition: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def read_topic(address: str, topic: str) -> list[Read]:
    """Everything that is committed now, partition by partition in their order."""
    with ottla.Consumer(
        address, isolation_level="read_committed", auto_offset_reset="earliest", enable_auto_commit=False
    ) as consumer:
        places = consumer.partitions_for(topic)
        consumer.assign(places)
        ends = consumer.end_offsets(places)
        found: list[Read] = []
        deadline_s = time.monotonic() + PATIENCE_S
        while any(consumer.position(place) < ends[place] for place in places):
            assert time.monotonic() < deadline_s, f"{len(found)} rows came"
            # What is left may be the ends of transactions, which are no records.
            for records in consumer.poll(100).values():
                found += [Read(each.partition, each.key, each.value, tuple(each.headers)) for each in records]
    return sorted(found, key=lambda row: row.partition)
