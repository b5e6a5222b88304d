"""A decision about a consumer group in the making: each record is replayed at once, since the next one builds
on it.

If a record cannot be written, as a too large target assignment, all earlier ones are rolled back, newest
first, and the request is refused without changes. Used by `member_lifecycle.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from ottla.groups.formats import Encoded, encode
from ottla.model.errors import ErrorCode, Refusal
from ottla.records.layout import Malformed

if TYPE_CHECKING:
    from ottla.groups.consumer_group import ConsumerGroup
    from ottla.groups.consumer_member import ConsumerMember
    from ottla.groups.formats import Record
    from ottla.groups.reconciliation import CurrentAssignment
    from ottla.groups.shard import Shard


class Draft:
    def __init__(self, shard: Shard, group: ConsumerGroup, on_rollback: Callable[[], None]) -> None:
        self._shard = shard
        self._group = group
        #: Called after a rollback: restored members need sessions.
        self._on_rollback = on_rollback
        self._known = shard.groups.get(group.group_id)
        self._topics_version = group.topics_version
        self._before: list[Record] = []
        self.records: list[Record | Encoded] = []

    def append(self, record: Record) -> None:
        """Add a record that does not change this group."""
        self.records.append(record)

    def register_group(self) -> None:
        """Make the group known to the shard."""
        self._shard.groups[self._group.group_id] = self._group

    def encoded(self, record: Record) -> Encoded | None:
        """The encoded record; None if it cannot be written."""
        try:
            encoded = Encoded(*encode(record))
        except Malformed:
            return None
        return encoded if record.value is None or self._shard.host.fits(encoded) else None

    def apply(self, record: Record, encoded: Encoded | None = None) -> None:
        """Replay a record. Rolls back all and raises Refusal if it cannot be written."""
        encoded = encoded or self.encoded(record)
        if encoded is None:
            self.roll_back()
            raise too_large()
        self._before.append(self._group.snapshot_record(record.key))
        self._group.replay(record.key, record.value)
        self.records.append(encoded)

    def apply_current(self, member: ConsumerMember, current: CurrentAssignment, record: Encoded) -> None:
        """Set the current assignment of a member from an encoded record, as the last step."""
        if not self._shard.host.fits(record):
            self.roll_back()
            raise too_large()
        self._group.set_current(member, current)
        self.records.append(record)

    def apply_all(self, records: Iterable[Record]) -> None:
        for record in records:
            self.apply(record)

    def roll_back(self) -> None:
        for key, value in reversed(self._before):
            self._group.replay(key, value)
        self._group.topics_version = self._topics_version
        if self._known is None:
            self._shard.groups.pop(self._group.group_id, None)
        else:
            self._shard.groups[self._group.group_id] = self._known
        if self._known is self._group:
            self._on_rollback()


def too_large() -> Refusal:
    return Refusal(
        ErrorCode.UNKNOWN_SERVER_ERROR,
        "The group, or the assignment of a member, is too large for a record.",
    )
