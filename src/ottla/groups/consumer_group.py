"""A consumer group of KIP-848: its members, what they have, what they shall have; and the records that all of that is.

Three numbers grow: the group's `epoch`, whenever a member comes, goes or subscribes to something else, or topics change;
`assignment_epoch`, the group epoch that the target assignment was computed for; and each member's own, which comes to the
assignment's when the member has given up what is not its own any more (`reconciling.py`).

`replay` is the only thing that changes what is written down; `owners` follows from it: a partition belongs to the member that
has it or still has to give it up. Sessions are soft. Called by `shard.py` (the log) and `consumer.py` (the requests).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ottla.groups.assignors import NOTHING, Place, Places
from ottla.groups.decision import Alarm, Timers
from ottla.groups.formats import (
    CONSUMER_GROUP_MEMBER,
    CONSUMER_GROUP_METADATA,
    CURRENT_ASSIGNMENT,
    REGULAR_EXPRESSION,
    TARGET_ASSIGNMENT,
    TARGET_ASSIGNMENT_MEMBER,
    Record,
)
from ottla.groups.group import CONSUMER
from ottla.groups.reconciling import STABLE, Holding

if TYPE_CHECKING:
    from ottla.groups.formats import Key

CONSUMER_TYPE: Final = "consumer"
#: A static member that has gone and said that it will be back.
AWAY: Final = -2


class Phase(Enum):
    """What ConsumerGroupDescribe and ListGroups call the state of such a group; it follows from the epochs."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


class Subscription(NamedTuple):
    """What a member says of itself."""

    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    names: frozenset[str] = frozenset()
    #: A pattern of topic names; None if it has none.
    regex: str | None = None
    rebalance_timeout_ms: int = -1
    server_assignor: str | None = None


class Member:
    """One member; also its own session timer, which a heartbeat moves by writing down another deadline."""

    __slots__ = ("alarm", "bucket", "deadline_ms", "holding", "lost", "member_id", "said", "timers")

    def __init__(self, member_id: str) -> None:
        self.member_id = member_id
        self.said = Subscription()
        self.holding = Holding()
        self.deadline_ms = 0
        self.bucket = -1
        self.timers: Timers | None = None
        self.lost: Callable[[int], None] | None = None
        #: The end of the time that it has to give up what it was told to.
        self.alarm: Alarm | None = None

    def begin_session(self, timers: Timers, lost: Callable[[int], None], deadline_ms: int) -> None:
        """From now on it is lost unless it says something in time."""
        self.deadline_ms = deadline_ms
        if self.bucket < 0:
            self.timers, self.lost = timers, lost
            timers.add(self, deadline_ms)

    def begin_revocation(
        self, timers: Timers, over: Callable[[int], None], deadline_ms: int
    ) -> None:  # fmt: skip
        if self.alarm is None:
            self.alarm = Alarm(timers, over)
        self.alarm.set(deadline_ms)

    def end_revocation(self) -> None:
        if self.alarm is not None:
            self.alarm.clear()
            self.alarm = None

    def end_session(self) -> None:
        self.end_revocation()
        if self.timers is not None and self.bucket >= 0:
            self.timers.cancel(self)

    def expire(self, now_ms: int) -> None:
        assert self.timers is not None and self.lost is not None
        if now_ms < self.deadline_ms:
            self.timers.add(self, self.deadline_ms)
        else:
            self.lost(now_ms)


class ConsumerGroup:
    __slots__ = (
        "assignment_epoch", "epoch", "group_id", "members", "metadata_hash", "owners", "patterns", "since", "static",
        "targets", "topics_version",
    )  # fmt: skip

    type: Final = CONSUMER_TYPE
    protocol_type: Final = CONSUMER
    #: As classic groups have them: ids that were given out and have not joined.
    pending: Final = ()

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = 0
        #: Of the topics that its members read, when the epoch last grew.
        self.metadata_hash = 0
        self.assignment_epoch = 0
        self.members: dict[str, Member] = {}
        #: The ids of static members by their instances.
        self.static: dict[str, str] = {}
        self.targets: dict[str, Places] = {}
        self.owners: dict[Place, str] = {}
        #: The epoch of its owner in which that was given a partition (KIP-1251).
        self.since: dict[Place, int] = {}
        #: What each pattern in use matches.
        self.patterns: dict[str, frozenset[str]] = {}
        #: The host's version of the topics that the hash and the patterns were last looked at with.
        self.topics_version = -1

    # --- looking ------------------------------------------------------------------------------------------------

    @property
    def state(self) -> Phase:
        if not self.members:
            return Phase.EMPTY
        if self.epoch > self.assignment_epoch:
            return Phase.ASSIGNING
        for member in self.members.values():
            holding = member.holding
            if holding.epoch != AWAY and (holding.state != STABLE or holding.epoch != self.assignment_epoch):
                return Phase.RECONCILING
        return Phase.STABLE

    def names_of(self, said: Subscription) -> frozenset[str]:
        """The topics that somebody reads, whether they exist or not."""
        if said.regex is None:
            return said.names
        return said.names | self.patterns.get(said.regex, frozenset())

    def names(self) -> frozenset[str]:
        each = {self.names_of(member.said) for member in self.members.values()}
        return frozenset().union(*each)

    def is_subscribed(self, topic: str) -> bool:
        return any(topic in self.names_of(member.said) for member in self.members.values())

    def regexes(self) -> set[str]:
        return {member.said.regex for member in self.members.values() if member.said.regex is not None}

    def assignor(self, default: str) -> str:
        """The one that most members want, of those who want one."""
        votes = Counter(
            member.said.server_assignor
            for member in self.members.values()
            if member.said.server_assignor is not None
        )
        return min(votes, key=lambda name: (-votes[name], name)) if votes else default

    def is_free_for(self, member_id: str) -> Callable[[Place], bool]:
        owners = self.owners
        return lambda place: owners.get(place, member_id) == member_id

    # --- the records --------------------------------------------------------------------------------------------

    def replay(self, key: Key, value: Mapping[str, Any] | None) -> None:
        """Make the group what a record about it says; its own tombstone is the shard's."""
        kind = key[0]
        if kind == CONSUMER_GROUP_METADATA:
            if value is not None:
                self.epoch, self.metadata_hash = value["epoch"], value["metadata_hash"]
        elif kind == CONSUMER_GROUP_MEMBER:
            self._replay_member(key[2], value)
        elif kind == TARGET_ASSIGNMENT:
            self.assignment_epoch = 0 if value is None else value["assignment_epoch"]
        elif kind == TARGET_ASSIGNMENT_MEMBER:
            if value is None:
                self.targets.pop(key[2], None)
            else:
                self.targets[key[2]] = _places(value["topic_partitions"])
        elif kind == CURRENT_ASSIGNMENT:
            self._replay_holding(key[2], value)
        elif value is None:
            self.patterns.pop(key[2], None)
        else:
            self.patterns[key[2]] = frozenset(value["topics"])

    def _replay_member(self, member_id: str, value: Mapping[str, Any] | None) -> None:
        member = self.members.get(member_id)
        if value is None:
            if member is not None:
                self._hold(member, Holding())
                member.end_session()
                del self.members[member_id]
                instance_id = member.said.instance_id
                if instance_id is not None and self.static.get(instance_id) == member_id:
                    del self.static[instance_id]
            return
        if member is None:
            member = self.members[member_id] = Member(member_id)
        member.said = Subscription(
            value["instance_id"], value["rack_id"], value["client_id"], value["client_host"],
            frozenset(value["subscribed_topic_names"]), value["subscribed_topic_regex"] or None,
            value["rebalance_timeout_ms"], value["server_assignor"] or None,
        )  # fmt: skip
        if member.said.instance_id is not None:
            self.static[member.said.instance_id] = member_id

    def _replay_holding(self, member_id: str, value: Mapping[str, Any] | None) -> None:
        member = self.members.get(member_id)
        if value is None:
            if member is not None:
                self._hold(member, Holding())
            return
        if member is None:
            # Its own record is written before, but compaction may have left a later one of it alone.
            member = self.members[member_id] = Member(member_id)
        holding = Holding(
            value["member_epoch"], value["previous_member_epoch"], value["state"],
            _places(value["assigned_partitions"]), _places(value["partitions_pending_revocation"]),
        )  # fmt: skip
        self._hold(member, holding)
        for row in (*value["assigned_partitions"], *value["partitions_pending_revocation"]):
            # Brokers before Kafka 4.3 do not write them.
            for number, epoch in zip(row["partitions"], row.get("assignment_epochs") or (), strict=False):
                self.since[row["topic_id"], number] = epoch

    def _hold(self, member: Member, holding: Holding) -> None:
        owners, member_id = self.owners, member.member_id
        held = holding.held
        for place in member.holding.held - held:
            if owners.get(place) == member_id:
                del owners[place], self.since[place]
        for place in held:
            if owners.get(place) != member_id:
                owners[place] = member_id
                self.since[place] = holding.epoch
        member.holding = holding

    def record(self, epoch: int, metadata_hash: int) -> Record:
        return Record(
            (CONSUMER_GROUP_METADATA, self.group_id), {"epoch": epoch, "metadata_hash": metadata_hash}
        )

    def member_record(self, member_id: str, said: Subscription) -> Record:
        return Record(
            (CONSUMER_GROUP_MEMBER, self.group_id, member_id),
            {
                "instance_id": said.instance_id, "rack_id": said.rack_id, "client_id": said.client_id,
                "client_host": said.client_host, "subscribed_topic_names": sorted(said.names),
                "subscribed_topic_regex": said.regex, "rebalance_timeout_ms": said.rebalance_timeout_ms,
                "server_assignor": said.server_assignor,
            },
        )  # fmt: skip

    def target_record(self, member_id: str, target: Places) -> Record:
        return Record(
            (TARGET_ASSIGNMENT_MEMBER, self.group_id, member_id), {"topic_partitions": rows(target)}
        )

    def assignment_record(self, wall_ms: int) -> Record:
        """The target assignment is that of the present epoch."""
        return Record(
            (TARGET_ASSIGNMENT, self.group_id),
            {"assignment_epoch": self.epoch, "assignment_timestamp": wall_ms},
        )

    def holding_record(self, member_id: str, holding: Holding) -> Record:
        return Record(
            (CURRENT_ASSIGNMENT, self.group_id, member_id),
            {
                "member_epoch": holding.epoch, "previous_member_epoch": holding.previous_epoch, "state": holding.state,
                "assigned_partitions": self._dated(member_id, holding.epoch, holding.assigned),
                "partitions_pending_revocation": self._dated(member_id, holding.epoch, holding.revoking),
            },
        )  # fmt: skip

    def _dated(self, member_id: str, epoch: int, places: Places) -> list[dict[str, Any]]:
        """Partitions with the epochs in which the member was given them; what it does not have yet it is given now."""

        def since(place: Place) -> int:
            return self.since[place] if self.owners.get(place) == member_id else epoch

        return [
            {**row, "assignment_epochs": [since((row["topic_id"], number)) for number in row["partitions"]]}
            for row in rows(places)
        ]

    def pattern_record(
        self, pattern: str, topics: Iterable[str] | None, version: int, wall_ms: int
    ) -> Record:
        value = (
            None if topics is None else {"topics": sorted(topics), "version": version, "timestamp": wall_ms}
        )
        return Record((REGULAR_EXPRESSION, self.group_id, pattern), value)

    def member_tombstones(self, member_id: str) -> list[Record]:
        return [
            Record((kind, self.group_id, member_id), None)
            for kind in (CURRENT_ASSIGNMENT, TARGET_ASSIGNMENT_MEMBER, CONSUMER_GROUP_MEMBER)
        ]

    def tombstones(self) -> list[Record]:
        """The records that forget a group which has no members."""
        return [
            *(self.pattern_record(pattern, None, 0, 0) for pattern in self.patterns),
            Record((TARGET_ASSIGNMENT, self.group_id), None),
            Record((CONSUMER_GROUP_METADATA, self.group_id), None),
        ]


def rows(places: Iterable[Place]) -> list[dict[str, Any]]:
    """Partitions by topic, as records and answers tell them."""
    by_topic: dict[bytes, list[int]] = {}
    for topic_id, number in sorted(places):
        by_topic.setdefault(topic_id, []).append(number)
    return [{"topic_id": topic_id, "partitions": numbers} for topic_id, numbers in by_topic.items()]


def _places(rows: Iterable[Mapping[str, Any]]) -> Places:
    found = frozenset((row["topic_id"], number) for row in rows for number in row["partitions"])
    return found or NOTHING
