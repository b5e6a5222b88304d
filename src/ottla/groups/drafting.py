"""A decision about a consumer group while it is made: records that build on one another, so that each is replayed at once.

If one of them cannot be written, as the target of a member that shall have too many partitions, all that were made are taken
back, newest first, and the request is refused: nothing has changed. Made by `membership.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from ottla.model.errors import ErrorCode, Refusal

if TYPE_CHECKING:
    from ottla.groups.consumer_group import ConsumerGroup
    from ottla.groups.formats import Record
    from ottla.groups.shard import Shard


class Draft:
    def __init__(self, shard: Shard, group: ConsumerGroup, taken_back: Callable[[], None]) -> None:
        self._shard = shard
        self._group = group
        #: Called after the group is again what it was: members that were gone have no sessions.
        self._taken_back = taken_back
        self._known = shard.groups.get(group.group_id)
        self._topics_version = group.topics_version
        self._before: list[Record] = []
        self.records: list[Record] = []

    def note(self, record: Record) -> None:
        """A record of another kind of group, which the log needs and this group does not."""
        self.records.append(record)

    def begin(self) -> None:
        """The group is there from now on, if it was not."""
        self._shard.groups[self._group.group_id] = self._group

    def do(self, record: Record) -> None:
        """Make the group what the record says. Raises Refusal if it cannot be written; then nothing was done."""
        if record.value is not None and not self._shard.host.fits(record):
            self.take_back()
            raise Refusal(
                ErrorCode.UNKNOWN_SERVER_ERROR, "The group, or a member's assignment, is too large to be written down."
            )  # fmt: skip
        self._before.append(self._group.as_it_is(record.key))
        self._group.replay(record.key, record.value)
        self.records.append(record)

    def do_all(self, records: Iterable[Record]) -> None:
        for record in records:
            self.do(record)

    def take_back(self) -> None:
        for key, value in reversed(self._before):
            self._group.replay(key, value)
        self._group.topics_version = self._topics_version
        if self._known is None:
            self._shard.groups.pop(self._group.group_id, None)
        else:
            self._shard.groups[self._group.group_id] = self._known
        if self._known is self._group:
            self._taken_back()
