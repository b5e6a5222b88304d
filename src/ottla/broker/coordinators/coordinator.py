"""The common base of the group and the transaction coordinator: one coordinator partition for each partition
of their topic that this broker leads.

A group id or transactional id belongs to one partition of the topic. The leader of that partition is its
coordinator. While the partition loads, requests get COORDINATOR_LOAD_IN_PROGRESS. On other brokers they get
NOT_COORDINATOR. The topic is created on first use.

Subclasses: `group_coordinator.py`, `transaction_coordinator.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from ottla.broker.coordinators.coordinator_loader import CoordinatorLoader
from ottla.broker.coordinators.coordinator_partition import CoordinatorPartition
from ottla.model.api_key import ApiKey
from ottla.model.errors import ErrorCode, Refusal
from ottla.model.timer_wheel import Later
from ottla.ports.coordination import partition_of

if TYPE_CHECKING:
    from ottla.broker.coordinators.host import CoordinatorHost
    from ottla.replication.replica import Replica

_CREATE_TOPICS_VERSION: Final = 7
_CREATE_MS: Final = 5_000
#: The pause before a reload after a failed read or write.
_RELOAD_MS: Final = 1_000
#: After an internal error a partition reloads at once, for its other groups. Another error within this time
#: waits `_RELOAD_MS`.
_RELOAD_SOON_EVERY_MS: Final = 10_000

T = TypeVar("T", bound=CoordinatorPartition)


class Coordinator(ABC, Generic[T]):
    def __init__(self, broker: CoordinatorHost, topic: str) -> None:
        self._broker = broker
        self.topic = topic
        #: By partition number.
        self.partitions: dict[int, T] = {}
        self._loader = CoordinatorLoader(broker, self.reload)
        self._creating: list[Callable[[ErrorCode], None]] = []
        #: By partition number: the time of the last immediate reload.
        self._reloaded_ms: dict[int, int] = {}
        broker.replica_roles.owners[topic] = self

    @abstractmethod
    def new_partition(self, replica: Replica) -> T:
        """A coordinator partition for a replica that this broker begins to lead."""

    @abstractmethod
    def new_topic(self) -> dict[str, Any]:
        """The row of the CreateTopics request for the topic, without its name."""

    # --- requests -------------------------------------------------------------------------------------------

    def partition_number(self, name: str) -> int | None:
        """The partition number of a group id or transactional id; None while the topic does not exist."""
        topic = self._broker.image.topics.get(self.topic)
        return None if topic is None or not topic.partitions else partition_of(name, len(topic.partitions))

    def partition_for(self, name: str) -> T:
        """The partition of a group id or transactional id. Raises Refusal with the error for the client."""
        number = self.partition_number(name)
        if number is None:
            raise Refusal(ErrorCode.NOT_COORDINATOR)
        return self.partition_at(number)

    def partition_at(self, number: int) -> T:
        """Like `partition_for`, by partition number."""
        partition = self.partitions.get(number)
        if partition is None:
            raise Refusal(ErrorCode.NOT_COORDINATOR)
        if not partition.is_loaded:
            self._loader.load_first(partition)
            if not partition.is_loaded:
                raise Refusal(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return partition

    def writable_partition(self, name: str) -> T:
        """Like `partition_for`, for a request that writes. Raises Refusal if writes are not possible now."""
        partition = self.partition_for(name)
        if not partition.is_writable:
            raise Refusal(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return partition

    def wait_for_load(self, name: str, again: Callable[[], None]) -> bool:
        """Call `again` when the partition is loaded, is no longer led here, or the wait times out; False if
        it does not wait.

        Most loads are short, and some clients retry COORDINATOR_LOAD_IN_PROGRESS only twice.
        """
        number = self.partition_number(name)
        partition = None if number is None else self.partitions.get(number)
        return partition is not None and self._loader.wait(partition, again)

    @property
    def is_loading(self) -> bool:
        return any(not partition.is_loaded for partition in self.partitions.values())

    def load_now(self) -> None:
        """Load short logs out of turn, for a request about all groups or transactions."""
        self._loader.load_now()

    @property
    def writable_partitions(self) -> list[T]:
        return [partition for partition in self.partitions.values() if partition.is_writable]

    # --- roles ----------------------------------------------------------------------------------------------

    def on_election(self, replica: Replica, now_ms: int) -> None:
        partition = self.partitions[replica.number] = self.new_partition(replica)
        self._loader.load(partition)

    def on_resignation(self, replica: Replica, now_ms: int) -> None:
        partition = self.partitions.pop(replica.number, None)
        if partition is not None:
            self._unload(partition)
            self._loader.retry_waiting_requests(partition)

    def _unload(self, partition: CoordinatorPartition) -> None:
        self._loader.cancel(partition)
        self._broker.decided.pop(partition, None)
        if partition.reload_timer is not None:
            self._broker.timers.cancel(partition.reload_timer)
        partition.unload()

    def reload(self, partition: CoordinatorPartition, reason: str, *, soon: bool = False) -> None:
        """Drop a shard that differs from its log, and load it again: after a pause, or at once if `soon`."""
        if self.partitions.get(partition.replica.number) is not partition:
            return
        self._broker.say(f"reloading {partition.name}: {reason}")
        self._unload(partition)
        number, now_ms = partition.replica.number, self._broker.now_ms
        fresh = self.partitions[number] = self.new_partition(partition.replica)

        def again() -> None:
            fresh.reload_timer = None
            self._loader.load(fresh)

        if soon and now_ms - self._reloaded_ms.get(number, -_RELOAD_SOON_EVERY_MS) >= _RELOAD_SOON_EVERY_MS:
            self._reloaded_ms[number] = now_ms
            self._loader.load(fresh)
        else:
            fresh.reload_timer = Later(again)
            self._broker.timers.add(fresh.reload_timer, now_ms + _RELOAD_MS)
        self._loader.retry_waiting_requests(partition)

    # --- the topic ------------------------------------------------------------------------------------------

    def create_topic(self, done: Callable[[ErrorCode], None]) -> None:
        """Create the topic if it does not exist: `done(NONE)` when the metadata image has it, else
        `done(error)`."""
        if self.topic in self._broker.image.topics:
            return done(ErrorCode.NONE)
        self._creating.append(done)
        if len(self._creating) > 1:
            return None
        broker = self._broker
        topic = {"name": self.topic, **self.new_topic()}

        def is_moved(answer: Any) -> bool:
            return any(int(row.error_code) == ErrorCode.NOT_CONTROLLER for row in answer.topics)

        def answered(answer: Any, error: str | None) -> None:
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE
            if answer is not None:
                row = answer.topics[0]
                if int(row.error_code) in (0, ErrorCode.TOPIC_ALREADY_EXISTS):
                    code = ErrorCode.NONE
                else:
                    broker.say_once(f"{self.topic} cannot be created: {row.error_message or row.error_code}")
            if code is ErrorCode.NONE:
                broker.controller_channel.when(
                    lambda: self.topic in broker.image.topics, lambda: notify(code)
                )
            else:
                notify(code)

        def notify(code: ErrorCode) -> None:
            waiting, self._creating = self._creating, []
            for each in waiting:
                broker.isolation.run(f"the creation of {self.topic}", each, code)

        request = {"topics": [topic], "timeout": _CREATE_MS}
        try:
            broker.controller_channel.insist(
                ApiKey.CREATE_TOPICS, _CREATE_TOPICS_VERSION, request, is_moved, answered, _CREATE_MS
            )
        except Exception as error:
            broker.isolation.contain(f"the creation of {self.topic}", error)
            notify(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return None
