"""Consumer interceptors: objects that see records before the caller does, and committed offsets.

Each may implement any of `on_consume(records) -> records`, which gets and returns the result of a poll,
`on_commit(offsets)` and `close()`. They form a chain. An interceptor that raises is logged and skipped, as in
Kafka. `poll_columns` does not call them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from ottla.client.consumer.poison import ConsumerRecord
from ottla.client.interception import Interceptor, call
from ottla.client.metadata import OffsetAndMetadata, TopicPartition

Records: TypeAlias = dict[TopicPartition, list[ConsumerRecord]]


class Interceptors:
    def __init__(self, chain: Sequence[Interceptor]) -> None:
        self._chain = tuple(chain)

    def __bool__(self) -> bool:
        return bool(self._chain)

    def on_consume(self, records: Records) -> Records:
        for each in self._chain:
            made = call(each, "on_consume", records)
            if isinstance(made, dict):
                records = made
        return records

    def on_commit(self, offsets: dict[TopicPartition, OffsetAndMetadata]) -> None:
        for each in self._chain:
            call(each, "on_commit", offsets)

    def close(self) -> None:
        for each in self._chain:
            call(each, "close")
