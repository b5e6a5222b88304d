"""A consumer group (KIP-848): its members, their current and target assignments, and its records.

There are three kinds of epochs:

- the group `epoch` grows when a member joins, leaves or changes its subscription, and when topics change;
- `assignment_epoch` is the group epoch that the target assignment was computed for;
- the member epoch reaches the assignment epoch when the member has revoked its old partitions
  (`reconciliation.py`).

Only `replay` changes recorded state. `owners` follows from it: a partition belongs to the member that has it
assigned or still has to revoke it. Sessions are not recorded. Called by `shard.py` (the log) and
`consumer.py` (requests).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from ottla.groups.classic_group import CONSUMER, Protocols
from ottla.groups.consumer_member import (
    STATIC_LEAVE_EPOCH,
    AssignmentRows,
    ConsumerMember,
    Preferences,
    Prepared,
    Subscription,
)
from ottla.groups.formats import (
    CONSUMER_GROUP_MEMBER,
    CONSUMER_GROUP_METADATA,
    CURRENT_ASSIGNMENT,
    REGULAR_EXPRESSION,
    TARGET_ASSIGNMENT,
    TARGET_ASSIGNMENT_MEMBER,
    Record,
    encode_in_steps,
)
from ottla.groups.reconciliation import STABLE, CurrentAssignment, reconcile
from ottla.model.assignors import NOTHING, Place, Places, numbers_by_topic
from ottla.model.steps import Steps, run

if TYPE_CHECKING:
    from ottla.groups.formats import Key

CONSUMER_TYPE: Final = "consumer"
#: The memory for one partition of a member: in its target, in its assignment, in `owners`.
PLACE_BYTES: Final = 400
#: With more partitions, one reconciliation step takes more than some milliseconds.
LARGE_MIN: Final = 2000
_ROWS_AT_ONCE: Final = 250


class Phase(Enum):
    """The group state in ConsumerGroupDescribe and ListGroups; it follows from the epochs."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


class ConsumerGroup:
    __slots__ = (
        "assignment_epoch", "assignment_epochs", "changes", "classic_count", "computing", "epoch", "group_id",
        "members", "metadata_hash", "owners", "patterns", "preference_counts", "sent_bytes", "static", "supporters",
        "target_due_ms", "targets", "topics_version",
    )  # fmt: skip

    type: Final = CONSUMER_TYPE
    protocol_type: Final = CONSUMER
    #: As in classic groups: member ids that have not joined. Always empty.
    pending: Final[Mapping[str, ConsumerMember]] = {}

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = 0
        #: A hash of the subscribed topics, when the epoch last grew.
        self.metadata_hash = 0
        self.assignment_epoch = 0
        self.members: dict[str, ConsumerMember] = {}
        #: The number of members for each: most members have equal preferences, and every join needs all of
        #: them.
        self.preference_counts: Counter[Preferences] = Counter()
        #: The number of classic members that support each protocol.
        self.supporters: Counter[str] = Counter()
        self.classic_count = 0
        #: The bytes that members have sent.
        self.sent_bytes = 0
        #: The member ids of static members by instance id.
        self.static: dict[str, str] = {}
        self.targets: dict[str, Places] = {}
        self.owners: dict[Place, str] = {}
        #: The member epoch in which the owner got a partition (KIP-1251).
        self.assignment_epochs: dict[Place, int] = {}
        #: The topics that each pattern matches.
        self.patterns: dict[str, frozenset[str]] = {}
        #: The `topics_version` of the host at the last update of hash and patterns.
        self.topics_version = -1
        #: The earliest time of the next target for joins and leaves. Not recorded.
        self.target_due_ms = -1
        #: Counts changes of owners. Not recorded.
        self.changes = 0
        #: The callbacks that wait for a target computed in slices; None if none is being computed. Not
        #: recorded.
        self.computing: list[Callable[[Exception | None], None]] | None = None

    # --- state ----------------------------------------------------------------------------------------------

    @property
    def member_count(self) -> int:
        return len(self.members)

    @property
    def size(self) -> int:
        """The bytes of client data in the group."""
        return len(self.group_id) + self.sent_bytes + PLACE_BYTES * len(self.owners)

    @property
    def state(self) -> Phase:
        if not self.members:
            return Phase.EMPTY
        if self.epoch > self.assignment_epoch:
            return Phase.ASSIGNING
        for member in self.members.values():
            current = member.current
            if current.epoch != STATIC_LEAVE_EPOCH and (
                current.state != STABLE or current.epoch != self.assignment_epoch
            ):
                return Phase.RECONCILING
        return Phase.STABLE

    def names_of(self, preferences: Preferences) -> frozenset[str]:
        """The topic names of these preferences, whether the topics exist or not."""
        names, regex, _assignor = preferences
        if regex is None:
            return names
        found = self.patterns.get(regex, frozenset())
        return names | found if names else found

    def names(self) -> frozenset[str]:
        if len(self.preference_counts) == 1:
            # Not a copy: the topic cache is keyed by this very set, which may have ten thousand names.
            return self.names_of(next(iter(self.preference_counts)))
        return frozenset().union(*map(self.names_of, self.preference_counts))

    def is_subscribed(self, topic: str) -> bool:
        return any(topic in self.names_of(preferences) for preferences in self.preference_counts)

    def regexes(self) -> set[str]:
        return {regex for _names, regex, _assignor in self.preference_counts if regex is not None}

    def assignor(self, default: str) -> str:
        """The assignor that most members prefer."""
        votes: Counter[str] = Counter()
        for (_names, _regex, assignor), count in self.preference_counts.items():
            if assignor is not None:
                votes[assignor] += count
        return min(votes, key=lambda name: (-votes[name], name)) if votes else default

    def supports(self, member_id: str, protocol_type: str, protocols: Protocols) -> bool:
        """Whether a classic member with these protocols can join: all other classic members share one of
        them."""
        if protocol_type != CONSUMER:
            return False
        member = self.members.get(member_id)
        own = member.subscription.classic if member is not None else None
        names = own.names if own is not None else frozenset()
        others = self.classic_count - (own is not None)
        return any(self.supporters[name] - (name in names) == others for name, _metadata in protocols)

    def free_for(self, member_id: str) -> Callable[[Places], Places]:
        """A function that returns the partitions without another owner."""
        owners = self.owners

        def free(places: Places) -> Places:
            taken = [place for place in places & owners.keys() if owners[place] != member_id]
            return places.difference(taken) if taken else places

        return free

    # --- the records ----------------------------------------------------------------------------------------

    def replay(self, key: Key, value: Mapping[str, Any] | None) -> None:
        """Apply one record. The shard handles the tombstone of the group."""
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
            self._replay_current_assignment(key[2], value)
        elif value is None:
            self.patterns.pop(key[2], None)
        else:
            self.patterns[key[2]] = frozenset(value["topics"])

    def _replay_member(self, member_id: str, value: Mapping[str, Any] | None) -> None:
        member = self.members.get(member_id)
        if value is None:
            if member is not None:
                self.set_current(member, CurrentAssignment())
                member.end_session()
                self._count(member, -1)
                del self.members[member_id]
                self._forget_instance(member)
            return
        if member is None:
            member = self.members[member_id] = ConsumerMember(member_id)
        else:
            self._count(member, -1)
            self._forget_instance(member)
        member.subscription = Subscription.replayed(value)
        self._count(member, 1)
        if member.subscription.instance_id is not None:
            self.static[member.subscription.instance_id] = member_id

    def _count(self, member: ConsumerMember, more: int) -> None:
        """Add (1) or subtract (-1) a member in the counters."""
        subscription = member.subscription
        self.sent_bytes += more * (len(member.member_id) + subscription.size)
        _add(self.preference_counts, subscription.preferences, more)
        if subscription.classic is not None:
            self.classic_count += more
            for name in subscription.classic.names:
                _add(self.supporters, name, more)

    def _forget_instance(self, member: ConsumerMember) -> None:
        instance_id = member.subscription.instance_id
        if instance_id is not None and self.static.get(instance_id) == member.member_id:
            del self.static[instance_id]

    def _replay_current_assignment(self, member_id: str, value: Mapping[str, Any] | None) -> None:
        member = self.members.get(member_id)
        if value is None:
            if member is not None:
                self.set_current(member, CurrentAssignment())
            return
        if member is None:
            # Its member record is written first, but compaction may have moved it behind this one.
            member = self.members[member_id] = ConsumerMember(member_id)
            self._count(member, 1)
        current = CurrentAssignment(
            value["member_epoch"], value["previous_member_epoch"], value["state"],
            _places(value["assigned_partitions"]), _places(value["partitions_pending_revocation"]),
        )  # fmt: skip
        self.set_current(member, current)
        for row in (*value["assigned_partitions"], *value["partitions_pending_revocation"]):
            # Brokers before Kafka 4.3 do not write the epochs.
            for number, epoch in zip(row["partitions"], row.get("assignment_epochs") or (), strict=False):
                self.assignment_epochs[row["topic_id"], number] = epoch

    def set_current(self, member: ConsumerMember, current: CurrentAssignment) -> None:
        self.changes += 1
        owners, member_id = self.owners, member.member_id
        held = current.owned_partitions
        for place in member.current.owned_partitions - held:
            if owners.get(place) == member_id:
                del owners[place], self.assignment_epochs[place]
        # Set operations: a loop over a hundred thousand partitions would take too long.
        added = held.difference(owners)
        for places in (added, [place for place in held - added if owners[place] != member_id]):
            owners.update(dict.fromkeys(places, member_id))
            self.assignment_epochs.update(dict.fromkeys(places, current.epoch))
        member.current = current

    def record(self, epoch: int, metadata_hash: int) -> Record:
        return Record(
            (CONSUMER_GROUP_METADATA, self.group_id), {"epoch": epoch, "metadata_hash": metadata_hash}
        )

    def member_record(self, member_id: str, subscription: Subscription) -> Record:
        return Record((CONSUMER_GROUP_MEMBER, self.group_id, member_id), subscription.value)

    def target_record(self, member_id: str, target: Places) -> Record:
        return Record(
            (TARGET_ASSIGNMENT_MEMBER, self.group_id, member_id), {"topic_partitions": rows(target)}
        )

    def assignment_record(self, wall_ms: int, epoch: int | None = None) -> Record:
        """The record of the target assignment, for `epoch` or the current group epoch."""
        return Record(
            (TARGET_ASSIGNMENT, self.group_id),
            {"assignment_epoch": self.epoch if epoch is None else epoch, "assignment_timestamp": wall_ms},
        )

    def current_assignment_record(self, member_id: str, current: CurrentAssignment) -> Record:
        return Record(
            (CURRENT_ASSIGNMENT, self.group_id, member_id),
            self._current_assignment_value(
                current,
                self._rows_with_epochs(member_id, current.epoch, current.assigned),
                self._rows_with_epochs(member_id, current.epoch, current.pending_revocation),
            ),
        )

    @staticmethod
    def _current_assignment_value(
        current: CurrentAssignment, assigned: list[dict[str, Any]], pending_revocation: list[dict[str, Any]]
    ) -> dict[str, Any]:
        return {
            "member_epoch": current.epoch, "previous_member_epoch": current.previous_epoch, "state": current.state,
            "assigned_partitions": assigned, "partitions_pending_revocation": pending_revocation,
        }  # fmt: skip

    def _rows_with_epochs(self, member_id: str, epoch: int, places: Places) -> list[dict[str, Any]]:
        return [self._row_with_epochs(member_id, epoch, row) for row in rows(places)]

    def _row_with_epochs(self, member_id: str, epoch: int, row: Mapping[str, Any]) -> dict[str, Any]:
        """Partitions with the epochs in which the member got them; new ones get `epoch`."""
        topic_id, numbers = row["topic_id"], row["partitions"]
        owners, known_epochs = self.owners, self.assignment_epochs
        epochs = [
            known_epochs[topic_id, number] if owners.get((topic_id, number)) == member_id else epoch
            for number in numbers
        ]
        return {"topic_id": topic_id, "partitions": numbers, "assignment_epochs": epochs}

    # --- very large assignments -----------------------------------------------------------------------------

    def is_large(self, member_id: str) -> bool:
        """Whether the assignment or target of a member is so large that its step is prepared in slices."""
        member = self.members.get(member_id)
        held = 0 if member is None else len(member.current.assigned) + len(member.current.pending_revocation)
        return held + len(self.targets.get(member_id, NOTHING)) > LARGE_MIN

    def prepare(self, member: ConsumerMember, owned: Places | None) -> Steps[None]:
        """Compute the next reconciliation step of a member and encode its record, for use if nothing changes
        meanwhile."""
        member_id, before = member.member_id, member.current
        target, epoch, changes = self.targets.get(member_id, NOTHING), self.assignment_epoch, self.changes
        yield 1
        after = reconcile(before, epoch, target, owned, self.free_for(member_id))
        yield (len(target) + len(before.owned_partitions)) // 10
        # A response may contain the whole assignment, even if unchanged.
        topic_rows = member.assignment_rows.get(after.assigned)
        if topic_rows is None:
            topic_rows = yield from rows_in_steps(after.assigned)
            member.assignment_rows = AssignmentRows(after.assigned, topic_rows)
        if after is before:
            return
        assigned: list[dict[str, Any]] = []
        for at in range(0, len(topic_rows), _ROWS_AT_ONCE):
            assigned += [
                self._row_with_epochs(member_id, after.epoch, row)
                for row in topic_rows[at : at + _ROWS_AT_ONCE]
            ]
            yield _ROWS_AT_ONCE
        pending_revocation: list[dict[str, Any]] = []
        for row in (yield from rows_in_steps(after.pending_revocation)) if after.pending_revocation else ():
            pending_revocation.append(self._row_with_epochs(member_id, after.epoch, row))
            yield 1
        value = self._current_assignment_value(after, assigned, pending_revocation)
        record = yield from encode_in_steps(Record((CURRENT_ASSIGNMENT, self.group_id, member_id), value))
        if self.changes == changes:
            member.prepared = Prepared(before, epoch, target, owned, changes, after, record)

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
        """The tombstones of the group and its members."""
        return [
            *(record for member_id in self.members for record in self.member_tombstones(member_id)),
            *(self.pattern_record(pattern, None, 0, 0) for pattern in self.patterns),
            Record((TARGET_ASSIGNMENT, self.group_id), None),
            Record((CONSUMER_GROUP_METADATA, self.group_id), None),
        ]

    def snapshot_record(self, key: Key) -> Record:
        """The record with the current state for a key, to roll back to."""
        kind = key[0]
        if kind == CONSUMER_GROUP_METADATA:
            return self.record(self.epoch, self.metadata_hash)
        if kind == TARGET_ASSIGNMENT:
            return Record(key, {"assignment_epoch": self.assignment_epoch, "assignment_timestamp": 0})
        name = key[2]
        member = self.members.get(name)
        if kind == CONSUMER_GROUP_MEMBER and member is not None:
            return self.member_record(name, member.subscription)
        if kind == CURRENT_ASSIGNMENT and member is not None:
            return self.current_assignment_record(name, member.current)
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
    """Partitions by topic, as in records and responses."""
    return run(rows_in_steps(places))


def rows_in_steps(places: Iterable[Place]) -> Steps[list[dict[str, Any]]]:
    by_topic = yield from numbers_by_topic(places)
    if len(by_topic) > _ROWS_AT_ONCE:
        yield len(by_topic) // 10
    found = []
    for at, topic_id in enumerate(sorted(by_topic)):
        found.append({"topic_id": topic_id, "partitions": sorted(by_topic[topic_id])})
        if at % 500 == 499:
            yield 250
    return found


def _places(rows: Iterable[Mapping[str, Any]]) -> Places:
    found = frozenset((row["topic_id"], number) for row in rows for number in row["partitions"])
    return found or NOTHING
