"""A member of a consumer group (KIP-848): the content of its heartbeats, and its reaction to responses.

It sends its full state when it joins and when a response was lost; else only changes. The assignment in a
response is its target: it revokes the other partitions first, then takes the new ones, and reports them.
Pure; called by `consumer_reader.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

Place = tuple[bytes, int]
JOINING = 0


class ConsumerMember:
    def __init__(
        self,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        names: tuple[str, ...],
        regex: str | None,
    ) -> None:
        self.group_id = group_id
        self.member_id = member_id
        self.instance_id = instance_id
        self._names = names
        self._regex = regex
        self.epoch = JOINING
        #: Its partitions, and its target.
        self.owned: frozenset[Place] = frozenset()
        self.told: frozenset[Place] = frozenset()
        self._says_all = True
        #: The last reported partitions that were acknowledged.
        self._said: frozenset[Place] | None = None

    def request(self, rebalance_ms: int) -> dict[str, Any]:
        body: dict[str, Any] = {
            "group_id": self.group_id, "member_id": self.member_id, "member_epoch": self.epoch,
            "instance_id": self.instance_id, "topic_partitions": None,
        }  # fmt: skip
        if self._says_all or self.epoch == JOINING:
            body |= {
                "rebalance_timeout": rebalance_ms, "subscribed_topic_names": list(self._names),
                "subscribed_topic_regex": self._regex, "topic_partitions": rows(self.owned),
            }  # fmt: skip
        elif self._said != self.owned:
            body["topic_partitions"] = rows(self.owned)
        return body

    def farewell(self, *, is_back_soon: bool) -> dict[str, Any]:
        return {
            "group_id": self.group_id, "member_id": self.member_id, "member_epoch": -2 if is_back_soon else -1,
            "instance_id": self.instance_id, "topic_partitions": None,
        }  # fmt: skip

    def unheard(self) -> None:
        """No response came: the coordinator may or may not have received the heartbeat."""
        self._says_all = True

    def heard(self, answer: Any, said: frozenset[Place]) -> bool:
        """A response to a heartbeat that reported `said`; True if the member has something to change."""
        self._says_all = False
        self._said = said
        self.epoch = answer.member_epoch
        if answer.assignment is not None:
            self.told = frozenset(
                (row.topic_id.bytes, number)
                for row in answer.assignment.topic_partitions
                for number in row.partitions
            )
        return self.told != self.owned

    def begin_again(self) -> None:
        """It is not in the group any more: its partitions are lost."""
        self.epoch = JOINING
        self.owned = self.told = frozenset()
        self._says_all = True

    @property
    def revoking(self) -> list[Place]:
        return sorted(self.owned - self.told)

    @property
    def gaining(self) -> list[Place]:
        return sorted(self.told - self.owned)


def rows(places: Iterable[Place]) -> list[dict[str, Any]]:
    by_topic: dict[bytes, list[int]] = {}
    for topic_id, number in sorted(places):
        by_topic.setdefault(topic_id, []).append(number)
    return [{"topic_id": topic_id, "partitions": numbers} for topic_id, numbers in by_topic.items()]
