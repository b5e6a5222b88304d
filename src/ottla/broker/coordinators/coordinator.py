"""What the coordinators of groups and of transactions share: tenures by partition of their topic, whose shards answer for names.

A name (a group, a transactional id) belongs to a partition of the coordinator's topic, and to the broker that leads it. Of names
whose partition is being loaded here it says COORDINATOR_LOAD_IN_PROGRESS, of those of other brokers NOT_COORDINATOR. The topic
is created when it is first asked for.

Subclasses: `group_coordinating.py`, `transaction_coordinating.py`.
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
#: After a log that could not be read, or a batch that could not be written.
_RELOAD_MS: Final = 1_000
#: After an internal error a partition is loaded at once, for the sake of its other groups; after the next one within this time, later.
_RELOAD_SOON_EVERY_MS: Final = 10_000

T = TypeVar("T", bound=CoordinatorPartition)


class Coordinator(ABC, Generic[T]):
    def __init__(self, broker: CoordinatorHost, topic: str) -> None:
        self._broker = broker
        self.topic = topic
        #: By partition number.
        self.tenures: dict[int, T] = {}
        self._loading = CoordinatorLoader(broker, self.reload)
        self._creating: list[Callable[[ErrorCode], None]] = []
        #: When a partition was loaded again at once, by number.
        self._reloaded_ms: dict[int, int] = {}
        broker.replica_roles.owners[topic] = self

    @abstractmethod
    def tenure_of(self, replica: Replica) -> T:
        """A tenure that begins."""

    @abstractmethod
    def new_topic(self) -> dict[str, Any]:
        """How the topic is created: a row of CreateTopics without its name."""

    # --- requests -----------------------------------------------------------------------------------------------

    def partition(self, name: str) -> int | None:
        """The partition that a name belongs to; None while there is no topic."""
        topic = self._broker.image.topics.get(self.topic)
        return None if topic is None or not topic.partitions else partition_of(name, len(topic.partitions))

    def tenure(self, name: str) -> T:
        """Where a name is coordinated. Raises Refusal with what the client should hear."""
        number = self.partition(name)
        if number is None:
            raise Refusal(ErrorCode.NOT_COORDINATOR)
        return self.tenure_at(number)

    def tenure_at(self, number: int) -> T:
        """The same by the partition's number."""
        tenure = self.tenures.get(number)
        if tenure is None:
            raise Refusal(ErrorCode.NOT_COORDINATOR)
        if not tenure.is_loaded:
            self._loading.prefer(tenure)
            if not tenure.is_loaded:
                raise Refusal(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return tenure

    def writable_tenure(self, name: str) -> T:
        """The same for a request that must write: nothing is decided that could not be written."""
        tenure = self.tenure(name)
        if not tenure.is_writable:
            raise Refusal(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return tenure

    def wait_for_load(self, name: str, again: Callable[[], None]) -> bool:
        """Have `again` called when a name's partition has been loaded, or is not loaded here any more, or that takes long.

        A load takes a moment after most restarts, and some clients that are told of it ask only twice more before they fail.
        """
        number = self.partition(name)
        tenure = None if number is None else self.tenures.get(number)
        return tenure is not None and self._loading.wait(tenure, again)

    @property
    def is_loading(self) -> bool:
        return any(not tenure.is_loaded for tenure in self.tenures.values())

    def load_now(self) -> None:
        """Somebody asks for all there is: short logs are read before their turn comes."""
        self._loading.load_now()

    @property
    def writable(self) -> list[T]:
        return [tenure for tenure in self.tenures.values() if tenure.is_writable]

    # --- roles --------------------------------------------------------------------------------------------------

    def lead(self, replica: Replica, now_ms: int) -> None:
        tenure = self.tenures[replica.number] = self.tenure_of(replica)
        self._loading.begin(tenure)

    def rest(self, replica: Replica, now_ms: int) -> None:
        tenure = self.tenures.pop(replica.number, None)
        if tenure is not None:
            self._end(tenure)
            self._loading.call_visitors(tenure)

    def _end(self, tenure: CoordinatorPartition) -> None:
        self._loading.end(tenure)
        self._broker.decided.pop(tenure, None)
        if tenure.retry is not None:
            self._broker.timers.cancel(tenure.retry)
        tenure.close()

    def reload(self, tenure: CoordinatorPartition, reason: str, *, soon: bool = False) -> None:
        """The state of a shard is not that of its log: begin again from the log, after a while, or `soon`."""
        if self.tenures.get(tenure.replica.number) is not tenure:
            return
        self._broker.say(f"{tenure.name} is loaded again: {reason}")
        self._end(tenure)
        number, now_ms = tenure.replica.number, self._broker.now_ms
        fresh = self.tenures[number] = self.tenure_of(tenure.replica)

        def again() -> None:
            fresh.retry = None
            self._loading.begin(fresh)

        if soon and now_ms - self._reloaded_ms.get(number, -_RELOAD_SOON_EVERY_MS) >= _RELOAD_SOON_EVERY_MS:
            self._reloaded_ms[number] = now_ms
            self._loading.begin(fresh)
        else:
            fresh.retry = Later(again)
            self._broker.timers.add(fresh.retry, now_ms + _RELOAD_MS)
        self._loading.call_visitors(tenure)

    # --- the topic ----------------------------------------------------------------------------------------------

    def create_topic(self, done: Callable[[ErrorCode], None]) -> None:
        """Create the topic if it is not there: `done(NONE)` when this broker knows of it, or why it is not made."""
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
                broker.controller_channel.when(lambda: self.topic in broker.image.topics, lambda: tell(code))
            else:
                tell(code)

        def tell(code: ErrorCode) -> None:
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
            tell(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return None
