"""From decoded rows to the caller's records: deserializers, and what happens to a record that one of them refuses.

`on_poison` says what: `raise` (the caller's poll raises `PoisonRecord`, again and again until it seeks past the record), `skip` (it
is logged and counted), or a callable that is given the `PoisonRecord` and returns the record to hand out in its place, or None to
leave it out. Records before it are handed out first; nothing is lost silently. It runs in the thread that polls, and holds no lock,
since it calls the user's code.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from itertools import repeat
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from ottla.client.errors import KafkaError
from ottla.client.serialization import Deserializer
from ottla.records.pieces import Row
from ottla.records.record import Headers

_log = logging.getLogger("ottla.client")


class ConsumerRecord(NamedTuple):
    """A record as the consumer hands it out. `timestamp` is in milliseconds since 1970, UTC.

    Key and value are bytes or None, or what `key_deserializer` and `value_deserializer` made of the bytes.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: Any
    value: Any
    headers: Headers
    timestamp_type: str


class PoisonRecord(KafkaError):
    """A record whose key or value its deserializer refuses; the deserializer's own error is `__cause__`.

    `side` is "key" or "value", `record` the whole record with key and value as the bytes they are.
    """

    def __init__(self, record: ConsumerRecord, side: Literal["key", "value"], cause: Exception) -> None:
        tp = f"TopicPartition({record.topic!r}, {record.partition})"
        super().__init__(
            f"the {side} of the record at offset {record.offset} of {record.topic}-{record.partition} "
            f"cannot be deserialized ({type(cause).__name__}: {cause})",
            topic=record.topic,
            partition=record.partition,
            advice=f"Seek past it: consumer.seek({tp}, {record.offset + 1}), or set on_poison='skip'",
        )
        self.record = record
        self.offset = record.offset
        self.side = side
        self.__cause__ = cause

    @property
    def raw(self) -> bytes:
        """The bytes that were refused."""
        refused: bytes = self.record.key if self.side == "key" else self.record.value
        return refused


OnPoison: TypeAlias = Literal["raise", "skip"] | Callable[[PoisonRecord], ConsumerRecord | None]
ON_POISON: Final = ("raise", "skip")


class RecordMaker:
    """Makes records of rows. `poisoned` counts those that were skipped or replaced."""

    def __init__(
        self,
        key_deserializer: Deserializer | None = None,
        value_deserializer: Deserializer | None = None,
        on_poison: OnPoison = "raise",
    ) -> None:
        self._key = key_deserializer
        self._value = value_deserializer
        self._on_poison = on_poison
        self.poisoned = 0

    def make(self, rows: Iterable[Row]) -> tuple[list[ConsumerRecord], int, Exception | None]:
        """Records, the offset of the last row that is done with (-1: none), and what the row after it failed with."""
        new = tuple.__new__
        if self._key is None and self._value is None:
            # The hot loop of a consumer: one object a record, and no step of Python's own.
            made = list(map(new, repeat(ConsumerRecord), rows))
            return made, made[-1].offset if made else -1, None
        found: list[ConsumerRecord] = []
        done = -1
        for row in rows:
            record = new(ConsumerRecord, row)
            read: ConsumerRecord | None
            try:
                read = self._deserialized(record)
            except PoisonRecord as poison:
                try:
                    if self._on_poison == "raise":
                        return found, done, poison
                    self.poisoned += 1
                    read = self._instead(poison)
                except Exception as error:
                    return found, done, error
            if read is not None:
                found.append(read)
            done = record.offset
        return found, done, None

    def _deserialized(self, record: ConsumerRecord) -> ConsumerRecord:
        topic, partition, offset, timestamp, key, value, headers, kind = record
        if self._key is not None and key is not None:
            try:
                key = self._key(topic, key)
            except Exception as error:
                raise PoisonRecord(record, "key", error) from error
        if self._value is not None and value is not None:
            try:
                value = self._value(topic, value)
            except Exception as error:
                raise PoisonRecord(record, "value", error) from error
        return tuple.__new__(ConsumerRecord, (topic, partition, offset, timestamp, key, value, headers, kind))

    def _instead(self, poison: PoisonRecord) -> ConsumerRecord | None:
        if callable(self._on_poison):
            return self._on_poison(poison)
        _log.warning("skipped: %s", poison.message)
        return None
