"""Creates the caller's records from decoded rows: deserializers, and the policy for records that one refuses.

`on_poison` is `raise` (poll raises `PoisonRecord` until the caller seeks past the record), `skip` (the record
is logged and counted), or a callable that gets the `PoisonRecord` and returns a replacement, or None to skip
it. Earlier records are returned first; nothing is lost silently. It runs in the thread that polls, without a
lock, because it calls user code.
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
    """A record from the consumer. `timestamp` is in milliseconds since 1970 UTC.

    Key and value are bytes or None, or the results of `key_deserializer` and `value_deserializer`.
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
    """A deserializer refuses the key or the value of a record. `__cause__` is its error.

    `side` is "key" or "value"; `record` is the whole record with key and value as bytes.
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
        """The refused bytes."""
        refused: bytes = self.record.key if self.side == "key" else self.record.value
        return refused


OnPoison: TypeAlias = Literal["raise", "skip"] | Callable[[PoisonRecord], ConsumerRecord | None]
ON_POISON: Final = ("raise", "skip")


class RecordMaker:
    """Creates records from rows. `poisoned` counts skipped and replaced records."""

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
        """Return records, the offset of the last finished row (-1: none), and the error of the next row."""
        new = tuple.__new__
        if self._key is None and self._value is None:
            # The hot loop of a consumer: one object per record, and no Python code per record.
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
