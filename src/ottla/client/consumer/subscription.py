"""The subscription of a group member: topics by name or by pattern, and the rebalance callbacks."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from ottla.client.errors import SettingError
from ottla.client.metadata import Metadata, TopicPartition

#: Called with partitions, in the thread (or task) that polls. For asyncio consumers it may be a coroutine
#: function.
Callback: TypeAlias = Callable[[list[TopicPartition]], Awaitable[Any] | Any]


@dataclass(frozen=True, slots=True)
class Subscription:
    topics: frozenset[str]
    pattern: str | None = None
    on_assigned: Callback | None = None
    on_revoked: Callback | None = None
    on_lost: Callback | None = None

    def callback(self, kind: Literal["assign", "revoke", "lost"]) -> Callback | None:
        """The callback of a step. `on_revoked` stands in for a missing `on_lost`."""
        if kind == "assign":
            return self.on_assigned
        return self.on_revoked if kind == "revoke" else self.on_lost or self.on_revoked

    def matching(self, metadata: Metadata) -> frozenset[str]:
        """The topics by name; with a pattern, the existing topics whose whole name it matches, without
        internal ones.
        """
        if self.pattern is None:
            return self.topics
        matches = re.compile(self.pattern).fullmatch
        return frozenset(
            name for name, info in metadata.topics.items() if not info.internal and matches(name)
        )


def subscription_of(
    topics: str | Iterable[str],
    pattern: str | None,
    on_assigned: Callback | None,
    on_revoked: Callback | None,
    on_lost: Callback | None,
) -> Subscription:
    """A checked subscription."""
    names = frozenset([topics] if isinstance(topics, str) else topics)
    if bool(names) == (pattern is not None):
        raise SettingError("subscribe() needs topics or a pattern, and not both")
    if any(not name for name in names) or pattern == "":
        raise SettingError("subscribe(): a topic name or a pattern is empty")
    if pattern is not None:
        try:
            re.compile(pattern)
        except re.error as error:
            raise SettingError(f"subscribe(): {pattern!r} is not a regular expression: {error}") from error
    return Subscription(names, pattern, on_assigned, on_revoked, on_lost)
