"""The blocking face of the client: `ottla.Producer`, `ottla.Consumer`, `ottla.Admin`.

Each object owns one background thread with an event loop on which its asyncio core does all I/O. What is hot stays in
the caller's thread: `send` appends to the accumulator and `poll` takes from the fetch buffer without visiting the loop.
All methods may be called from several threads, except that one consumer serves one caller at a time.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from ottla.client.accumulator import RecordMetadata, SendFuture, buffer_full
from ottla.client.admin import (
    AsyncAdmin,
    ClusterInfo,
    ConfigEntry,
    Election,
    GroupInfo,
    GroupListing,
    HangingTransaction,
    NewTopic,
    Producers,
    Reassignment,
    Resource,
    TransactionInfo,
    TransactionListing,
)
from ottla.client.consumer import AsyncConsumer
from ottla.client.errors import ClientClosed
from ottla.client.fetched import ConsumerRecord
from ottla.client.metadata import TopicInfo, TopicPartition
from ottla.client.offsets import OffsetAndTime
from ottla.client.producer import AsyncProducer, Headers
from ottla.client.settings import (
    Client,
    ClientSettings,
    ConsumerSettings,
    Consuming,
    ProducerSettings,
    Producing,
    settings_of,
)

__all__ = ["Admin", "Consumer", "Producer", "RecordMetadata"]

Result = TypeVar("Result")


class LoopThread:
    """An event loop in a daemon thread. `run` executes a coroutine there and waits for it here."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        # What a cancelled client left behind must end before the loop does.
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        if tasks:
            self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()

    def run(self, work: Coroutine[Any, Any, Result], timeout_s: float | None = None) -> Result:
        if self.loop.is_closed() or not self._thread.is_alive():
            work.close()
            raise ClientClosed("this client is closed", advice="Make a new one")
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result(timeout_s)
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(5)


class _Blocking:
    """What the three have in common: the thread, and being closed once."""

    _core: AsyncProducer | AsyncConsumer | AsyncAdmin

    def _open(self, name: str, make: Any) -> Any:
        self._closed = False
        self._thread = LoopThread(name)

        async def build() -> Any:
            core = make()
            try:
                await core.start()
            except BaseException:
                await core.cluster.close()
                raise
            return core

        try:
            return self._thread.run(build())
        except BaseException:
            self._thread.stop()
            raise

    def _shut(self, work: Coroutine[Any, Any, None]) -> None:
        if self._closed:
            work.close()
            return
        self._closed = True
        try:
            self._thread.run(work)
        finally:
            self._thread.stop()

    def close(self) -> None:
        self._shut(self._core.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Producer(_Blocking):
    """Sends records. Settings are Kafka's, with underscores: `Producer("127.0.0.1:9092", linger_ms=5)`.

    The first broker must be reachable; brokers that go away later are retried until `delivery_timeout_ms`.
    """

    _core: AsyncProducer

    def __init__(self, bootstrap_servers: str | Sequence[str], **settings: Unpack[ProducerSettings]) -> None:
        chosen = settings_of(Producing, settings)
        self._core = self._open("ottla-producer", lambda: AsyncProducer(bootstrap_servers, chosen))

    def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        partition: int | None = None,
        headers: Headers = (),
        timestamp_ms: int | None = None,
    ) -> SendFuture:
        """Queue a record and return at once; `.result()` of what comes back tells its offset.

        Waits up to `max_block_ms` for a topic that is not known yet and for room in the buffer.
        """
        for name, content in (("value", value), ("key", key)):
            if content is not None and not isinstance(content, bytes):
                raise TypeError(
                    f"the {name} must be bytes or None, not {type(content).__name__}: encode it first"
                )
        core = self._core
        if topic not in core.cluster.metadata.topics:
            self._thread.run(core.cluster.topic(topic, core.settings.max_block_ms))
        future = core.try_send(topic, value, key, partition, headers, timestamp_ms)
        if future is None:
            future = self._send_when_there_is_room(topic, value, key, partition, headers, timestamp_ms)
        return future

    def _send_when_there_is_room(self, *record: Any) -> SendFuture:
        block_s = self._core.settings.max_block_ms / 1000
        deadline = time.monotonic() + block_s
        while True:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise buffer_full(block_s)
            self._core.wait_for_room(left_s)
            future = self._core.try_send(*record)
            if future is not None:
                return future

    def flush(self, timeout: float | None = None) -> None:
        """Wait (seconds) until everything sent before is acknowledged or has failed."""
        self._thread.run(self._core.flush(), timeout)

    def partitions_for(self, topic: str) -> list[int]:
        known = self._thread.run(self._core.cluster.topic(topic, self._core.settings.max_block_ms))
        return list(known.partitions)

    def close(self, timeout: float | None = None) -> None:
        """Send what is queued, for at most `timeout` seconds; records left over fail with `ClientClosed`."""
        self._shut(self._core.close(None if timeout is None else timeout * 1000))


class Consumer(_Blocking):
    """Reads records of assigned partitions. Settings are Kafka's, with underscores."""

    _core: AsyncConsumer

    def __init__(self, bootstrap_servers: str | Sequence[str], **settings: Unpack[ConsumerSettings]) -> None:
        chosen = settings_of(Consuming, settings)
        self._core = self._open("ottla-consumer", lambda: AsyncConsumer(bootstrap_servers, chosen))

    def assign(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> None:
        """Read these partitions, starting by `auto_offset_reset` unless a seek follows."""
        self._thread.run(self._core.assign(TopicPartition(*tp) for tp in partitions))

    def assignment(self) -> list[TopicPartition]:
        return list(self._core.buffer.partitions)

    def partitions_for(self, topic: str) -> list[TopicPartition]:
        return self._thread.run(self._core.partitions(topic))

    def seek(self, partition: TopicPartition | tuple[str, int], offset: int) -> None:
        self._core.seek(TopicPartition(*partition), offset)

    def seek_to_beginning(self, partitions: Iterable[TopicPartition] = ()) -> None:
        self._thread.run(self._core.seek_to_beginning(partitions))

    def seek_to_end(self, partitions: Iterable[TopicPartition] = ()) -> None:
        self._thread.run(self._core.seek_to_end(partitions))

    def seek_to_time(self, timestamp_ms: int, partitions: Iterable[TopicPartition] = ()) -> None:
        """Go on at the first record of each partition at or after that time; at the end where there is none."""
        self._thread.run(self._core.seek_to_time(timestamp_ms, partitions))

    def pause(self, *partitions: TopicPartition) -> None:
        self._core.pause(*partitions)

    def resume(self, *partitions: TopicPartition) -> None:
        self._core.resume(*partitions)

    def position(self, partition: TopicPartition | tuple[str, int]) -> int:
        return self._thread.run(self._core.position(TopicPartition(*partition)))

    def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return self._thread.run(self._core.beginning_offsets(partitions))

    def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return self._thread.run(self._core.end_offsets(partitions))

    def offsets_for_times(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        return self._thread.run(self._core.offsets_for_times(times))

    def poll(
        self, timeout_ms: float = 0, max_records: int | None = None
    ) -> dict[TopicPartition, list[ConsumerRecord]]:
        """Records that are there, or that come within the time; an empty dictionary when none do."""
        core = self._core
        buffer = core.buffer
        deadline = time.monotonic() + timeout_ms / 1000
        while True:
            if self._closed:
                raise ClientClosed("this consumer is closed", advice="Make a new one")
            records = core.take(max_records)
            if records:
                return records
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return {}
            with buffer.lock:
                buffer.condition.wait_for(lambda: buffer.ready or self._closed, left_s)

    def __iter__(self) -> Iterator[ConsumerRecord]:
        """Every record as it comes, for ever."""
        while True:
            for records in self.poll(1000).values():
                yield from records


class Admin(_Blocking):
    """Administers a cluster. Every call raises `KafkaError` for what the cluster refuses."""

    _core: AsyncAdmin

    def __init__(self, bootstrap_servers: str | Sequence[str], **settings: Unpack[ClientSettings]) -> None:
        chosen = settings_of(Client, settings)
        self._core = self._open("ottla-admin", lambda: AsyncAdmin(bootstrap_servers, chosen))

    def create_topic(
        self,
        name: str,
        partitions: int = -1,
        replication_factor: int = -1,
        configs: Mapping[str, str] | None = None,
        *,
        validate_only: bool = False,
    ) -> None:
        """Create a topic; -1 leaves a number to the broker's defaults."""
        self._thread.run(
            self._core.create_topic(
                name, partitions, replication_factor, configs, validate_only=validate_only
            )
        )

    def create_topics(self, topics: Iterable[NewTopic], *, validate_only: bool = False) -> None:
        self._thread.run(self._core.create_topics(topics, validate_only=validate_only))

    def delete_topics(self, names: Iterable[str]) -> None:
        self._thread.run(self._core.delete_topics(names))

    def create_partitions(self, topic: str, count: int, *, validate_only: bool = False) -> None:
        """Grow a topic to `count` partitions."""
        self._thread.run(self._core.create_partitions(topic, count, validate_only=validate_only))

    def list_topics(self, *, internal: bool = False) -> dict[str, TopicInfo]:
        return self._thread.run(self._core.list_topics(internal=internal))

    def describe_topics(self, names: Iterable[str]) -> dict[str, TopicInfo]:
        return self._thread.run(self._core.describe_topics(names))

    def list_offsets(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetAndTime]:
        return self._thread.run(self._core.list_offsets(times))

    def delete_records(self, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Delete the records below an offset of each partition (-1: all); gives the new log starts."""
        return self._thread.run(self._core.delete_records(before))

    def describe_configs(
        self,
        resource: Resource,
        names: Iterable[str] | None = None,
        *,
        documentation: bool = False,
        synonyms: bool = False,
    ) -> dict[str, ConfigEntry]:
        return self._thread.run(
            self._core.describe_configs(resource, names, documentation=documentation, synonyms=synonyms)
        )

    def alter_configs(
        self, resource: Resource, changes: Mapping[str, str | None], *, validate_only: bool = False
    ) -> None:
        """Set configs, or unset those whose value is None, and leave the others."""
        self._thread.run(self._core.alter_configs(resource, changes, validate_only=validate_only))

    def describe_cluster(self, *, include_fenced: bool = False) -> ClusterInfo:
        return self._thread.run(self._core.describe_cluster(include_fenced=include_fenced))

    def unregister_broker(self, broker_id: int) -> None:
        """Forget a broker that has stopped for good."""
        self._thread.run(self._core.unregister_broker(broker_id))

    def elect_leaders(
        self, partitions: Iterable[TopicPartition] | None = None, *, unclean: bool = False
    ) -> dict[TopicPartition, Election]:
        """Let the preferred replica lead, or (unclean) any that lives if nobody does; of all partitions if none is named."""
        return self._thread.run(self._core.elect_leaders(partitions, unclean=unclean))

    def alter_partition_reassignments(
        self, assignments: Mapping[TopicPartition, Sequence[int] | None]
    ) -> None:
        """Begin to move partitions to these brokers, the preferred leader first; None ends a move that is under way."""
        self._thread.run(self._core.alter_partition_reassignments(assignments))

    def list_partition_reassignments(
        self, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, Reassignment]:
        """The moves that are under way."""
        return self._thread.run(self._core.list_partition_reassignments(partitions))

    def list_groups(self) -> list[GroupListing]:
        """The consumer groups of all brokers."""
        return self._thread.run(self._core.list_groups())

    def describe_group(self, group: str) -> GroupInfo:
        """A group's state and members."""
        return self._thread.run(self._core.describe_group(group))

    def group_offsets(self, group: str) -> dict[TopicPartition, int]:
        """All offsets that a group has committed."""
        return self._thread.run(self._core.group_offsets(group))

    def set_group_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit in a group's name; one with active members refuses."""
        self._thread.run(self._core.set_group_offsets(group, offsets))

    def delete_groups(self, groups: Iterable[str]) -> None:
        """Delete groups without members, and their offsets."""
        self._thread.run(self._core.delete_groups(groups))

    def list_transactions(
        self,
        *,
        states: Collection[str] = (),
        producer_ids: Collection[int] = (),
        longer_than_ms: int | None = None,
        pattern: str | None = None,
    ) -> list[TransactionListing]:
        """The transactional ids of all brokers, or those that pass all filters given; `pattern` must match the whole id."""
        return self._thread.run(
            self._core.list_transactions(
                states=states, producer_ids=producer_ids, longer_than_ms=longer_than_ms, pattern=pattern
            )
        )

    def describe_transactions(self, transactional_ids: Iterable[str]) -> dict[str, TransactionInfo]:
        """What transactional ids are at, and the partitions of their transactions."""
        return self._thread.run(self._core.describe_transactions(transactional_ids))

    def abort_transaction(self, transactional_id: str) -> TransactionInfo:
        """Abort what a transactional id has going on; its producer is fenced. Gives what it was before."""
        return self._thread.run(self._core.abort_transaction(transactional_id))

    def describe_producers(self, partitions: Iterable[TopicPartition]) -> Producers:
        """The idempotent and transactional producers that partitions remember."""
        return self._thread.run(self._core.describe_producers(partitions))

    def find_hanging_transactions(
        self, partitions: Iterable[TopicPartition], older_than_ms: int | None = None
    ) -> list[HangingTransaction]:
        """What is open in these partitions, and known to no coordinator; only if nothing was written to it for so long."""
        return self._thread.run(self._core.find_hanging_transactions(partitions, older_than_ms))

    def abort_hanging_transaction(self, hanging: HangingTransaction) -> None:
        """End in its partition what was found to hang."""
        self._thread.run(self._core.abort_hanging_transaction(hanging))
