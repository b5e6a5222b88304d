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
from typing import TYPE_CHECKING, Any, Final

from ottla.groups.consumer_member import AWAY, Member, Subscription, Wish
from ottla.groups.formats import (
    CONSUMER_GROUP_MEMBER,
    CONSUMER_GROUP_METADATA,
    CURRENT_ASSIGNMENT,
    REGULAR_EXPRESSION,
    TARGET_ASSIGNMENT,
    TARGET_ASSIGNMENT_MEMBER,
    Record,
)
from ottla.groups.group import CONSUMER, Protocols
from ottla.groups.reconciling import STABLE, Holding
from ottla.model.assignors import NOTHING, Place, Places

if TYPE_CHECKING:
    from ottla.groups.formats import Key

CONSUMER_TYPE: Final = "consumer"
#: The memory of a partition that a member has: in its target, in its assignment, in the table of owners.
PLACE_BYTES: Final = 400


class Phase(Enum):
    """What ConsumerGroupDescribe and ListGroups call the state of such a group; it follows from the epochs."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


class ConsumerGroup:
    __slots__ = (
        "assignment_epoch", "classic_count", "epoch", "group_id", "members", "metadata_hash", "owners", "patterns",
        "sent_bytes", "since", "static", "supporters", "target_due_ms", "targets", "topics_version", "wishes",
    )  # fmt: skip

    type: Final = CONSUMER_TYPE
    protocol_type: Final = CONSUMER
    #: As classic groups have them: ids that were given out and have not joined.
    pending: Final[Mapping[str, Member]] = {}

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = 0
        #: Of the topics that its members read, when the epoch last grew.
        self.metadata_hash = 0
        self.assignment_epoch = 0
        self.members: dict[str, Member] = {}
        #: By how many of them each is wished: most want the same, and every one that comes is looked at with all.
        self.wishes: Counter[Wish] = Counter()
        #: How many of those who speak the classic protocol support each of its protocols.
        self.supporters: Counter[str] = Counter()
        self.classic_count = 0
        #: The sum of what members have sent.
        self.sent_bytes = 0
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
        #: Before this no target is computed because somebody came or went; soft.
        self.target_due_ms = -1

    # --- looking ------------------------------------------------------------------------------------------------

    @property
    def member_count(self) -> int:
        return len(self.members)

    @property
    def size(self) -> int:
        """The bytes that the group holds because of what its members have sent."""
        return len(self.group_id) + self.sent_bytes + PLACE_BYTES * len(self.owners)

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

    def names_of(self, wish: Wish) -> frozenset[str]:
        """The topics that somebody reads, whether they exist or not."""
        names, regex, _assignor = wish
        return names if regex is None else names | self.patterns.get(regex, frozenset())

    def names(self) -> frozenset[str]:
        return frozenset().union(*map(self.names_of, self.wishes))

    def is_subscribed(self, topic: str) -> bool:
        return any(topic in self.names_of(wish) for wish in self.wishes)

    def regexes(self) -> set[str]:
        return {regex for _names, regex, _assignor in self.wishes if regex is not None}

    def assignor(self, default: str) -> str:
        """The one that most members want, of those who want one."""
        votes: Counter[str] = Counter()
        for (_names, _regex, assignor), count in self.wishes.items():
            if assignor is not None:
                votes[assignor] += count
        return min(votes, key=lambda name: (-votes[name], name)) if votes else default

    def supports(self, member_id: str, protocol_type: str, protocols: Protocols) -> bool:
        """Whether a classic member with these protocols can be here: one of them all other classic members have."""
        if protocol_type != CONSUMER:
            return False
        member = self.members.get(member_id)
        own = member.said.classic if member is not None else None
        names = own.names if own is not None else frozenset()
        others = self.classic_count - (own is not None)
        return any(self.supporters[name] - (name in names) == others for name, _metadata in protocols)

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
                self._count(member, -1)
                del self.members[member_id]
                self._forget_instance(member)
            return
        if member is None:
            member = self.members[member_id] = Member(member_id)
        else:
            self._count(member, -1)
            self._forget_instance(member)
        member.said = Subscription.replayed(value)
        self._count(member, 1)
        if member.said.instance_id is not None:
            self.static[member.said.instance_id] = member_id

    def _count(self, member: Member, more: int) -> None:
        """A member wants and supports something, or does no more."""
        said = member.said
        self.sent_bytes += more * (len(member.member_id) + said.size)
        _add(self.wishes, said.wish, more)
        if said.classic is not None:
            self.classic_count += more
            for name in said.classic.names:
                _add(self.supporters, name, more)

    def _forget_instance(self, member: Member) -> None:
        instance_id = member.said.instance_id
        if instance_id is not None and self.static.get(instance_id) == member.member_id:
            del self.static[instance_id]

    def _replay_holding(self, member_id: str, value: Mapping[str, Any] | None) -> None:
        member = self.members.get(member_id)
        if value is None:
            if member is not None:
                self._hold(member, Holding())
            return
        if member is None:
            # Its own record is written before, but compaction may have left a later one of it alone.
            member = self.members[member_id] = Member(member_id)
            self._count(member, 1)
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
        return Record((CONSUMER_GROUP_MEMBER, self.group_id, member_id), said.value)

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
        """The records that forget the group, with its members if it has any."""
        return [
            *(record for member_id in self.members for record in self.member_tombstones(member_id)),
            *(self.pattern_record(pattern, None, 0, 0) for pattern in self.patterns),
            Record((TARGET_ASSIGNMENT, self.group_id), None),
            Record((CONSUMER_GROUP_METADATA, self.group_id), None),
        ]

    def as_it_is(self, key: Key) -> Record:
        """The record that makes the group, as far as this key goes, what it is now."""
        kind = key[0]
        if kind == CONSUMER_GROUP_METADATA:
            return self.record(self.epoch, self.metadata_hash)
        if kind == TARGET_ASSIGNMENT:
            return Record(key, {"assignment_epoch": self.assignment_epoch, "assignment_timestamp": 0})
        name = key[2]
        member = self.members.get(name)
        if kind == CONSUMER_GROUP_MEMBER and member is not None:
            return self.member_record(name, member.said)
        if kind == CURRENT_ASSIGNMENT and member is not None:
            return self.holding_record(name, member.holding)
        if kind == TARGET_ASSIGNMENT_MEMBER and name in self.targets:
            return self.target_record(name, self.targets[name])
        if kind == REGULAR_EXPRESSION and name in self.patterns:
            return self.pattern_record(name, self.patterns[name], 0, 0)
        return Record(key, None)


def _add(counter: Counter[Any], key: Any, more: int) -> None:
    counter[key] += more
    if not counter[key]:
        del counter[key]


def rows(places: Iterable[Place]) -> list[dict[str, Any]]:
    """Partitions by topic, as records and answers tell them."""
    by_topic: dict[bytes, list[int]] = {}
    for topic_id, number in sorted(places):
        by_topic.setdefault(topic_id, []).append(number)
    return [{"topic_id": topic_id, "partitions": numbers} for topic_id, numbers in by_topic.items()]


def _places(rows: Iterable[Mapping[str, Any]]) -> Places:
    found = frozenset((row["topic_id"], number) for row in rows for number in row["partitions"])
    return found or NOTHING
