"""One member of a consumer group (KIP-848): its subscription, its current assignment, and its deadlines.

A member may use the classic protocol (`Subscription.classic`). Then it has its own session timeout, and its
rebalance timeout limits a pending join or sync. Called by `consumer_group.py`, which holds the members, and
by `member_lifecycle.py`, which sets the deadlines.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from ottla.groups.classic_group import Protocols
from ottla.groups.formats import Encoded
from ottla.groups.reconciliation import CurrentAssignment
from ottla.model.assignors import NOTHING, Places
from ottla.ports.coordination import Alarm, Timers
from ottla.records.consumer_protocol import version_of

#: The epoch of a static member that left and will return.
STATIC_LEAVE_EPOCH: Final = -2

#: The input of a member to the assignment: topic names, pattern, assignor.
Preferences: TypeAlias = tuple[frozenset[str], str | None, str | None]


class ClassicSide(NamedTuple):
    """The fields of JoinGroup of a classic member, besides its subscription."""

    session_timeout_ms: int
    protocols: Protocols

    @property
    def protocol(self) -> str:
        """The protocol name in its responses: its own first one. The broker assigns in any case."""
        return self.protocols[0][0]

    @property
    def names(self) -> frozenset[str]:
        """The names of all its protocols."""
        return frozenset(name for name, _metadata in self.protocols)

    @property
    def version(self) -> int:
        """The version of its assignments."""
        return version_of(self.protocols[0][1])


class Subscription(NamedTuple):
    """The fields that a member sends about itself."""

    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    names: frozenset[str] = frozenset()
    #: A pattern of topic names, or None.
    regex: str | None = None
    rebalance_timeout_ms: int = -1
    server_assignor: str | None = None
    #: None with the consumer protocol.
    classic: ClassicSide | None = None

    @property
    def preferences(self) -> Preferences:
        return self.names, self.regex, self.server_assignor

    @property
    def size(self) -> int:
        """The approximate bytes that the member has sent."""
        strings = (
            self.instance_id,
            self.rack_id,
            self.client_id,
            self.regex,
            self.server_assignor,
            *self.names,
        )
        protocols = self.classic.protocols if self.classic is not None else ()
        return sum(len(text) for text in strings if text) + sum(
            len(name) + len(metadata) for name, metadata in protocols
        )

    @property
    def value(self) -> dict[str, Any]:
        """The value of its record."""
        row: dict[str, Any] = {
            "instance_id": self.instance_id, "rack_id": self.rack_id, "client_id": self.client_id,
            "client_host": self.client_host, "subscribed_topic_names": sorted(self.names),
            "subscribed_topic_regex": self.regex, "rebalance_timeout_ms": self.rebalance_timeout_ms,
            "server_assignor": self.server_assignor,
        }  # fmt: skip
        if self.classic is not None:
            row["classic_member_metadata"] = {
                "session_timeout_ms": self.classic.session_timeout_ms,
                "supported_protocols": [
                    {"name": name, "metadata": metadata} for name, metadata in self.classic.protocols
                ],
            }
        return row

    @classmethod
    def replayed(cls, value: Mapping[str, Any]) -> Subscription:
        row = value.get("classic_member_metadata")
        classic = row and ClassicSide(
            row["session_timeout_ms"],
            tuple((each["name"], each["metadata"]) for each in row["supported_protocols"]),
        )
        return cls(
            value["instance_id"], value["rack_id"], value["client_id"], value["client_host"],
            frozenset(value["subscribed_topic_names"]), value["subscribed_topic_regex"] or None,
            value["rebalance_timeout_ms"], value["server_assignor"] or None, classic,
        )  # fmt: skip


class Prepared(NamedTuple):
    """A reconciliation step computed in slices, and its inputs."""

    before: CurrentAssignment
    epoch: int
    target: Places
    owned: Places | None
    changes: int
    after: CurrentAssignment
    record: Encoded

    def is_for(
        self, before: CurrentAssignment, epoch: int, target: Places, owned: Places | None, changes: int
    ) -> bool:
        return (
            self.before is before
            and self.epoch == epoch
            and self.target is target
            and self.owned is owned
            and self.changes == changes
        )


class AssignmentRows(NamedTuple):
    """A very large assignment as rows of a response."""

    places: Places = NOTHING
    rows: Sequence[Mapping[str, Any]] = ()

    def get(self, places: Places) -> Sequence[Mapping[str, Any]] | None:
        return self.rows if self.places is places and places else None


class ConsumerMember:
    """One member, and its session timer. A heartbeat only sets `deadline_ms`."""

    __slots__ = (
        "assignment_rows", "bucket", "current", "deadline_ms", "member_id", "on_expired", "prepared",
        "rebalance_alarm", "subscription", "timers",
    )  # fmt: skip

    def __init__(self, member_id: str) -> None:
        self.member_id = member_id
        self.subscription = Subscription()
        self.current = CurrentAssignment()
        self.deadline_ms = 0
        self.bucket = -1
        self.timers: Timers | None = None
        self.on_expired: Callable[[int], None] | None = None
        #: The rebalance timeout: to revoke partitions, to join or to sync.
        self.rebalance_alarm: Alarm | None = None
        #: With a very large assignment only (`ConsumerGroup.prepare`).
        self.prepared: Prepared | None = None
        self.assignment_rows = AssignmentRows()

    def start_session(self, timers: Timers, on_expired: Callable[[int], None], deadline_ms: int) -> None:
        """Start or extend the session: `on_expired` is called after the deadline."""
        self.deadline_ms = deadline_ms
        if self.bucket < 0:
            self.timers, self.on_expired = timers, on_expired
            timers.add(self, deadline_ms)

    @property
    def has_rebalance_timer(self) -> bool:
        return self.rebalance_alarm is not None

    def start_rebalance_timer(
        self, timers: Timers, on_timeout: Callable[[int], None], deadline_ms: int
    ) -> None:
        if self.rebalance_alarm is None:
            self.rebalance_alarm = Alarm(timers, on_timeout)
        self.rebalance_alarm.set(deadline_ms)

    def cancel_rebalance_timer(self) -> None:
        if self.rebalance_alarm is not None:
            self.rebalance_alarm.clear()
            self.rebalance_alarm = None

    def end_session(self) -> None:
        self.cancel_rebalance_timer()
        if self.timers is not None and self.bucket >= 0:
            self.timers.cancel(self)

    def expire(self, now_ms: int) -> None:
        assert self.timers is not None and self.on_expired is not None
        if now_ms < self.deadline_ms:
            self.timers.add(self, self.deadline_ms)
        else:
            self.on_expired(now_ms)
