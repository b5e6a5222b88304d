"""What readers of committed records see in a topic."""

from typing import NamedTuple

import ottla

PATIENCE_S = 30


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
        while any(consumer.position(place) < ends[place] for place in places):
            for records in consumer.poll(PATIENCE_S * 1000).values():
                found += [Read(each.partition, each.key, each.value, tuple(each.headers)) for each in records]
    return sorted(found, key=lambda row: row.partition)
