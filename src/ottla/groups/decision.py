"""What a shard and whoever runs it say to each other.

A shard decides: these records are to be written, these answers are to be given. Its host writes all the records of a turn as one
batch, and gives the answers once that batch counts (`broker/coordinating.py`). The records of a decision are replayed at
once, before any other decision, so that the next one builds on them; if they cannot be written after all, the host drops
the shard and loads it again from what was written. So a decision that a request led to never half happens.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from ottla.groups.formats import Record
from ottla.model.errors import ErrorCode

if TYPE_CHECKING:
    from ottla.config.broker import BrokerConfig

Response: TypeAlias = Mapping[str, Any]


class Reply(Protocol):
    """Where the answer to one request goes; it is given one answer or one refusal."""

    def answer(self, response: Response) -> None: ...

    def refuse(self, code: ErrorCode) -> None:
        """An error in the shape of the request's own API."""


class TopicView(NamedTuple):
    """A topic as groups see it."""

    name: str
    topic_id: bytes
    #: By partition number: the racks in which its replicas are, as far as racks are known.
    racks: tuple[frozenset[str], ...]


class Decision(NamedTuple):
    records: Sequence[Record] = ()
    answers: Sequence[tuple[Reply, Response]] = ()
    #: The answers tell what is in records that were decided on earlier, and must not leave before those count.
    is_read: bool = False
    #: The state has what the records say already: they are not replayed.
    is_replayed: bool = False


class Timed(Protocol):
    """Something with a deadline, as `broker/timers.py` has it: `bucket` is its own, -1 at first."""

    bucket: int

    def expire(self, now_ms: int) -> None: ...


class Timers(Protocol):
    def add(self, timed: Timed, deadline_ms: int) -> None: ...

    def cancel(self, timed: Timed) -> None: ...


class Host(Protocol):
    """What a shard is handed: time, chance, settings, and somebody who carries out its decisions."""

    @property
    def timers(self) -> Timers: ...

    @property
    def config(self) -> BrokerConfig: ...

    @property
    def wall_ms(self) -> int:
        """The date of what happens now. Deadlines go by `now_ms`, which everybody is called with."""

    @property
    def is_writable(self) -> bool:
        """Whether a decision can be written now. Requests that must write are not let in otherwise."""

    def unique(self) -> str:
        """The text of a random UUID."""

    def decided(self, decision: Decision) -> None: ...

    def fits(self, record: Record) -> bool:
        """Whether a record can be written at all: text and bytes may be too long for it."""

    def topic_exists(self, topic: str) -> bool: ...

    @property
    def topics_version(self) -> int:
        """Grows whenever topics, their partitions or racks may have changed."""

    def topic_names(self) -> Collection[str]: ...

    def topic(self, name: str) -> TopicView | None: ...

    def topic_name(self, topic_id: bytes) -> str | None: ...

    def group_settings(self, group_id: str) -> Mapping[str, str]:
        """What was set for one group, by Kafka's names."""


class Alarm:
    """One deadline of a group; setting it again moves it."""

    __slots__ = ("_action", "_timers", "bucket")

    def __init__(self, timers: Timers, action: Any) -> None:
        self._timers = timers
        self._action = action
        self.bucket = -1

    @property
    def is_set(self) -> bool:
        return self.bucket >= 0

    def set(self, deadline_ms: int) -> None:
        self.clear()
        self._timers.add(self, deadline_ms)

    def clear(self) -> None:
        if self.bucket >= 0:
            self._timers.cancel(self)

    def expire(self, now_ms: int) -> None:
        self._action(now_ms)
