"""A classic group: its members, its state, and the table of state transitions.

Members join with their protocols, the leader computes the assignment, and the broker sends each member its
part. The record of a group has the result: a generation with its members and assignments. Joins and syncs in
progress are lost with the coordinator; members then join again.

Called by `classic.py` and `rebalance.py`. This module sends no responses and writes no records.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ottla.groups.formats import GROUP_METADATA, Record
from ottla.model import limits
from ottla.model.errors import ErrorCode
from ottla.ports.coordination import Alarm, Timers
from ottla.records.consumer_protocol import read_topics
from ottla.records.layout import Malformed

if TYPE_CHECKING:
    from collections.abc import Callable

    from ottla.ports.coordination import Reply

CONSUMER: Final = "consumer"
CLASSIC_TYPE: Final = "classic"
UNKNOWN_MEMBER: Final = ""
NO_GENERATION: Final = -1


class State(Enum):
    """By the names in DescribeGroups."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class Event(Enum):
    """What happens to a group. The values are the labels of the diagram."""

    CHANGED = "a member joins, changes, leaves or expires"
    JOINED = "all members have joined, or the rebalance timeout is over"
    EMPTIED = "no member is left"
    ASSIGNED = "the leader's assignment is written"
    REMOVED = "the group is deleted, or its last offset expires"


#: All transitions of a group.
TRANSITIONS: Final[Mapping[tuple[State, Event], State]] = {
    (State.EMPTY, Event.CHANGED): State.PREPARING_REBALANCE,
    (State.EMPTY, Event.REMOVED): State.DEAD,
    (State.PREPARING_REBALANCE, Event.JOINED): State.COMPLETING_REBALANCE,
    (State.PREPARING_REBALANCE, Event.EMPTIED): State.EMPTY,
    (State.COMPLETING_REBALANCE, Event.ASSIGNED): State.STABLE,
    (State.COMPLETING_REBALANCE, Event.CHANGED): State.PREPARING_REBALANCE,
    (State.STABLE, Event.CHANGED): State.PREPARING_REBALANCE,
}

Protocols = tuple[tuple[str, bytes], ...]

#: The bytes of a member's row besides its strings and byte fields, and of the record besides its rows.
_ROW_BYTES: Final = 24
_RECORD_BYTES: Final = 8 * 1024


class Weight(NamedTuple):
    """The bytes that one member adds to its group."""

    #: Sent by its client, with all protocols.
    sent: int
    #: Of its row in the group's record, without an assignment, for the largest protocol.
    stored: int


class ClassicMember:
    """One member, and its session timer. A heartbeat only sets `deadline_ms`."""

    __slots__ = (
        "assignment", "bucket", "client_host", "client_id", "deadline_ms", "instance_id", "is_new", "join",
        "member_id", "on_expired", "protocols", "rebalance_timeout_ms", "session_timeout_ms", "sync", "timers",
    )  # fmt: skip

    def __init__(
        self,
        member_id: str,
        instance_id: str | None,
        *,
        client_id: str,
        client_host: str,
        session_timeout_ms: int,
        rebalance_timeout_ms: int,
        protocols: Protocols,
    ) -> None:
        self.member_id = member_id
        self.instance_id = instance_id
        self.client_id = client_id
        self.client_host = client_host
        self.session_timeout_ms = session_timeout_ms
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.protocols = protocols
        self.assignment = b""
        #: Requests of this member that wait for the others.
        self.join: Reply | None = None
        self.sync: Reply | None = None
        #: It waits in its first join, does not know its member id, and cannot heartbeat.
        self.is_new = False
        self.deadline_ms = 0
        self.bucket = -1
        self.timers: Timers | None = None
        self.on_expired: Callable[[ClassicMember, int], None] | None = None

    @property
    def weight(self) -> Weight:
        strings = (self.member_id, self.instance_id or "", self.client_id, self.client_host)
        size = sum(len(text.encode()) for text in strings)
        sizes = [len(metadata) for _name, metadata in self.protocols]
        names = sum(len(name) for name, _metadata in self.protocols)
        return Weight(size + sum(sizes) + names, _ROW_BYTES + size + max(sizes, default=0))

    def metadata(self, protocol: str | None) -> bytes:
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")

    @property
    def names(self) -> set[str]:
        """Its protocols. A client may send very many, and one twice."""
        return {name for name, _metadata in self.protocols}

    # --- the session ----------------------------------------------------------------------------------------

    def start_session(
        self, timers: Timers, on_expired: Callable[[ClassicMember, int], None], timeout_ms: int, now_ms: int
    ) -> None:
        """Start the session: `on_expired` is called unless the deadline is extended."""
        self.end_session()
        self.timers, self.on_expired = timers, on_expired
        self.deadline_ms = now_ms + timeout_ms
        timers.add(self, self.deadline_ms)

    def extend_session(self, now_ms: int) -> None:
        """Extend the deadline. The timer fires at the old one and finds the new one: a heartbeat moves no
        timer."""
        self.deadline_ms = now_ms + self.session_timeout_ms

    def end_session(self) -> None:
        if self.timers is not None and self.bucket >= 0:
            self.timers.cancel(self)

    def expire(self, now_ms: int) -> None:
        assert self.timers is not None and self.on_expired is not None
        if now_ms < self.deadline_ms:
            self.timers.add(self, self.deadline_ms)
        elif not self.is_new and (self.join is not None or self.sync is not None):
            # It waits for other members and cannot heartbeat meanwhile.
            self.extend_session(now_ms)
            self.timers.add(self, self.deadline_ms)
        else:
            self.on_expired(self, now_ms)


class ClassicGroup:
    """`previous` is the state before the current one: the first rebalance, from EMPTY, waits for more
    members."""

    __slots__ = (
        "alarm", "assigned_bytes", "generation", "group_id", "has_new_member", "joined", "leader_id", "members",
        "pending", "previous", "protocol", "protocol_type", "remaining_ms", "sent_bytes", "since_ms", "state",
        "static", "stored_bytes", "subscribed", "supporters", "unsynced",
    )  # fmt: skip

    type: Final = CLASSIC_TYPE

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.state = State.EMPTY
        self.previous = State.EMPTY
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.leader_id: str | None = None
        #: By id, in the order in which they joined.
        self.members: dict[str, ClassicMember] = {}
        #: The number of members that wait in a join, and that support each protocol. Kept up to date, since
        #: every join of a thousand members needs them.
        self.joined = 0
        self.supporters: Counter[str] = Counter()
        #: The sums of the weights of members, and the bytes of the last assignment.
        self.sent_bytes = 0
        self.stored_bytes = 0
        self.assigned_bytes = 0
        #: The member ids of static members by group.instance.id (KIP-345).
        self.static: dict[str, str] = {}
        #: Member ids that have not joined yet (KIP-394), with their sessions.
        self.pending: dict[str, ClassicMember] = {}
        #: Members that have not sent SyncGroup in this generation.
        self.unsynced: set[str] = set()
        #: When it entered this state, by the wall clock.
        self.since_ms = -1
        #: The topics that its members subscribe to; None if unknown.
        self.subscribed: frozenset[str] | None = None
        #: In the first rebalance: whether a member joined since the last check, and the delay that is left.
        self.has_new_member = False
        self.remaining_ms = 0
        #: The end of the current phase of a rebalance.
        self.alarm: Alarm | None = None

    def transition(self, event: Event, wall_ms: int) -> None:
        self.previous, self.state = self.state, TRANSITIONS[self.state, event]
        self.since_ms = wall_ms

    # --- members --------------------------------------------------------------------------------------------

    def add(self, member: ClassicMember, protocol_type: str) -> None:
        if not self.members:
            self.protocol_type = protocol_type
        self.members[member.member_id] = member
        self._count(member, 1)
        if member.instance_id is not None:
            self.static[member.instance_id] = member.member_id
        if self.leader_id is None:
            self.leader_id = member.member_id
        self.pending.pop(member.member_id, None)

    def remove(self, member: ClassicMember) -> None:
        del self.members[member.member_id]
        self._count(member, -1)
        self.unsynced.discard(member.member_id)
        if member.instance_id is not None and self.static.get(member.instance_id) == member.member_id:
            del self.static[member.instance_id]
        if self.leader_id == member.member_id:
            self.leader_id = next(iter(self.members), None)

    def replace(self, old: ClassicMember, member: ClassicMember) -> None:
        """Give a static member another member id; the order of members stays."""
        self._count(old, -1)
        self._count(member, 1)
        self.members = {
            (member.member_id if each is old else name): (member if each is old else each)
            for name, each in self.members.items()
        }
        assert member.instance_id is not None
        self.static[member.instance_id] = member.member_id
        if old.member_id in self.unsynced:
            self.unsynced.discard(old.member_id)
            self.unsynced.add(member.member_id)
        if self.leader_id == old.member_id:
            self.leader_id = member.member_id

    def update_protocols(self, member: ClassicMember, protocols: Protocols) -> None:
        """A member sends other protocols."""
        self._count(member, -1)
        member.protocols = protocols
        self._count(member, 1)

    def _count(self, member: ClassicMember, more: int) -> None:
        """Add (1) or subtract (-1) a member in the counters."""
        weight = member.weight
        self.sent_bytes += more * weight.sent
        self.stored_bytes += more * weight.stored
        for name in member.names:
            self.supporters[name] += more
            if not self.supporters[name]:
                del self.supporters[name]

    @property
    def size(self) -> int:
        """The bytes of client data in the group."""
        return len(self.group_id) + self.sent_bytes + self.assigned_bytes

    @property
    def member_count(self) -> int:
        return len(self.members) + len(self.pending)

    def with_member(self, weight: Weight, old: ClassicMember | None) -> Weight:
        """The bytes of the group and of its record with one more member, or with one instead of `old`."""
        before = old.weight if old is not None else Weight(0, 0)
        head = _RECORD_BYTES + len(self.group_id.encode())
        return Weight(
            self.sent_bytes + weight.sent - before.sent,
            head + self.stored_bytes + weight.stored - before.stored,
        )

    def set_join_reply(self, member: ClassicMember, reply: Reply) -> None:
        """A member has joined and waits until all have."""
        self.joined += member.join is None
        member.join = reply

    def take_join_reply(self, member: ClassicMember) -> Reply | None:
        """Stop waiting; returns the waiting reply, if any."""
        reply, member.join = member.join, None
        self.joined -= reply is not None
        return reply

    def check(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """NONE if this is a member, with the current member id of its instance."""
        if instance_id is not None:
            known = self.static.get(instance_id)
            if known is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if known != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    @property
    def has_all_joined(self) -> bool:
        return not self.pending and self.joined == len(self.members)

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    # --- protocols ------------------------------------------------------------------------------------------

    def supports(self, protocol_type: str, protocols: Protocols) -> bool:
        """Whether a member with these protocols can join: all members share one of them."""
        if not protocol_type or not protocols:
            return False
        if self.state is State.EMPTY:
            return True
        if protocol_type != self.protocol_type:
            return False
        return any(self.supporters[name] == len(self.members) for name, _metadata in protocols)

    def choose_protocol(self) -> str:
        """The common protocol that most members prefer; the first member decides a tie."""
        members = list(self.members.values())
        common = {name for name in members[0].names if self.supporters[name] == len(members)}
        if len(common) == 1:
            return common.pop()
        votes = Counter(
            next(name for name, _metadata in member.protocols if name in common) for member in members
        )
        in_order = (name for name, _metadata in members[0].protocols if name in common)
        return max(in_order, key=lambda name: votes[name])

    def begin_generation(self, wall_ms: int) -> None:
        """Begin the next generation with the current members."""
        self.generation = 1 if self.generation >= 2**31 - 1 else self.generation + 1
        if self.members:
            self.protocol = self.choose_protocol()
            self.transition(Event.JOINED, wall_ms)
        else:
            self.protocol = None
            self.transition(Event.EMPTIED, wall_ms)
        self.compute_subscribed_topics()
        self.unsynced = set(self.members)

    def compute_subscribed_topics(self) -> None:
        """Read the subscribed topics from the members' metadata, if the protocol type is `consumer`."""
        self.subscribed = frozenset()
        if not self.members and self.protocol_type != CONSUMER:
            self.subscribed = None if self.protocol_type is None else frozenset()
            return
        if self.protocol_type != CONSUMER or (self.members and self.protocol is None):
            self.subscribed = None
            return
        found: set[str] = set()
        left = limits.GROUP_TOPICS_MAX
        # Most members have the same metadata.
        for metadata in {member.metadata(self.protocol) for member in self.members.values()}:
            try:
                topics = read_topics(metadata, left)
            except Malformed:
                self.subscribed = None
                return
            left -= len(topics)
            found |= topics
        self.subscribed = frozenset(found)

    def is_subscribed(self, topic: str) -> bool:
        """Whether a member subscribes to this topic; True if subscriptions are unknown."""
        return self.subscribed is None or topic in self.subscribed

    # --- the record -----------------------------------------------------------------------------------------

    def record(self, assignments: Mapping[str, bytes] | None = None) -> Record:
        """The record of the group, with `assignments` or those of its members."""
        return Record(
            (GROUP_METADATA, self.group_id),
            {
                "protocol_type": self.protocol_type or "",
                "generation": self.generation,
                "protocol": self.protocol,
                "leader": self.leader_id,
                "current_state_timestamp": self.since_ms,
                "members": [
                    self._member_row(member, member.assignment if assignments is None else assignments.get(name, b""))
                    for name, member in self.members.items()
                ],
            },
        )  # fmt: skip

    def _member_row(self, member: ClassicMember, assignment: bytes) -> dict[str, Any]:
        return {
            "member_id": member.member_id, "group_instance_id": member.instance_id, "client_id": member.client_id,
            "client_host": member.client_host, "rebalance_timeout": member.rebalance_timeout_ms,
            "session_timeout": member.session_timeout_ms, "subscription": member.metadata(self.protocol),
            "assignment": assignment,
        }  # fmt: skip

    @classmethod
    def replayed(cls, group_id: str, value: Mapping[str, Any]) -> ClassicGroup:
        """The group in a record."""
        group = cls(group_id)
        group.generation = value["generation"]
        group.protocol_type = value["protocol_type"] or None
        group.protocol = value["protocol"]
        group.since_ms = value["current_state_timestamp"]
        for row in value["members"]:
            timeout_ms = row["rebalance_timeout"]
            member = ClassicMember(
                row["member_id"], row["group_instance_id"], client_id=row["client_id"], client_host=row["client_host"],
                session_timeout_ms=row["session_timeout"],
                rebalance_timeout_ms=row["session_timeout"] if timeout_ms < 0 else timeout_ms,
                protocols=((group.protocol or "", row["subscription"]),),
            )  # fmt: skip
            member.assignment = row["assignment"]
            group.members[member.member_id] = member
            group._count(member, 1)
            group.assigned_bytes += len(member.assignment)
            if member.instance_id is not None:
                group.static[member.instance_id] = member.member_id
        group.leader_id = value["leader"] if value["leader"] in group.members else None
        group.state = State.STABLE if group.members else State.EMPTY
        group.previous = group.state
        group.compute_subscribed_topics()
        return group
