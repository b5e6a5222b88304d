"""Offsets in Redis, through redis-py: one key per partition, changed only from its last known value.

    <prefix><group>:<topic>:<partition>  →  the offset of the next record

Transactions are Redis transactions: queued commands are executed together (MULTI/EXEC) if no other client has
moved an offset in it (WATCH). For durability, configure Redis with `appendfsync always`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ottla.client.consumer.stores.drivers import driver
from ottla.client.consumer.stores.store import OffsetStore, moved
from ottla.client.metadata import TopicPartition

PREFIX = "ottla:offsets:"

Key = tuple[str, TopicPartition]


class RedisOffsets(OffsetStore):
    """Offsets in Redis: `RedisOffsets("redis://127.0.0.1:6379/0")`, or with a redis-py client.

    `store.transaction()` returns a pipeline for your commands. They are executed with the commit or not at
    all.
    """

    def __init__(self, client: Any, prefix: str = PREFIX) -> None:
        self._redis = driver("redis", "redis")
        self._is_owned = isinstance(client, str)
        self.client = self._redis.Redis.from_url(client) if isinstance(client, str) else client
        self._prefix = prefix
        self._lock = threading.RLock()
        self._known: dict[Key, int | None] = {}
        self._wanted: dict[Key, int] | None = None

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open: then the consumer's commits belong to it."""
        return self._wanted is not None

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        """Execute the pipeline's commands and the committed offsets together, or not at all."""
        with self._lock, self.client.pipeline(transaction=True) as queue:
            self._wanted = {}
            try:
                yield queue
                self._carry_out(self._wanted, list(queue.command_stack))
            finally:
                self._wanted = None

    def load(self, group: str, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, int]:
        wanted = list(partitions)
        if not wanted:
            return {}
        with self._lock:
            values = self.client.mget([self._key(group, tp) for tp in wanted])
            found = {tp: int(value) for tp, value in zip(wanted, values, strict=True) if value is not None}
            self._known.update({(group, tp): found.get(tp) for tp in wanted})
        return found

    def save(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        with self._lock:
            wanted = {(group, tp): offset for tp, offset in offsets.items()}
            if self._wanted is not None:
                self._wanted.update(wanted)
            else:
                self._carry_out(wanted, [])

    def _carry_out(
        self, wanted: dict[Key, int], commands: list[tuple[tuple[Any, ...], dict[str, Any]]]
    ) -> None:
        """Execute the commands and move the offsets from their known values; all or nothing."""
        if not wanted and not commands:
            return
        with self.client.pipeline(transaction=True) as pipe:
            keys = list(wanted)
            if keys:
                names = [self._key(*key) for key in keys]
                pipe.watch(*names)
                for key, value in zip(keys, pipe.mget(names), strict=True):
                    found = None if value is None else int(value)
                    if key in self._known and self._known[key] != found:
                        raise moved(*key, self._known[key], found)
            pipe.multi()
            for arguments, options in commands:
                pipe.execute_command(*arguments, **options)
            for key, offset in wanted.items():
                pipe.set(self._key(*key), offset)
            try:
                pipe.execute()
            except self._redis.WatchError as error:
                key = keys[0]
                raise moved(*key, self._known.get(key), None) from error
        self._known.update(wanted)

    def _key(self, group: str, tp: TopicPartition) -> str:
        return f"{self._prefix}{group}:{tp.topic}:{tp.partition}"

    def close(self) -> None:
        """Close the client if the store created it."""
        if self._is_owned:
            self._is_owned = False
            self.client.close()
