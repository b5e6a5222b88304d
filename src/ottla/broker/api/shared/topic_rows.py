"""The rows of a response by topic and partition, made in slices."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

from ottla.model.steps import Steps

if TYPE_CHECKING:
    from ottla.broker.core import Broker
    from ottla.replication.replica import Replica

Row: TypeAlias = dict[str, Any]


def topic_rows(
    broker: Broker,
    topics: Iterable[Any],
    row: Callable[[str, Replica | None, Any], Steps[Row]],
    *,
    name_field: str = "name",
    number_field: str = "partition_index",
) -> Steps[list[Row]]:
    """A row for each topic of a request, with a row for each of its partitions: `row(topic name, replica, partition)`.

    A `row` yields its own cost. Each topic costs one more, so that a request of many topics without partitions goes in slices.
    """
    rows: list[Row] = []
    for topic in topics:
        name = getattr(topic, name_field)
        local = broker.partitions.by_name.get(name)
        partitions = []
        for partition in topic.partitions:
            number = getattr(partition, number_field)
            replica = local.replicas.get(number) if local is not None else None
            partitions.append((yield from row(name, replica, partition)) | {number_field: number})
        rows.append({name_field: name, "partitions": partitions})
        yield 1
    return rows
