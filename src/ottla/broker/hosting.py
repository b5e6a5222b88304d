"""The partitions on this broker, found by topic name and by topic id.

Filled from the image: `Hosting.follow(image, records)` makes it equal to what the committed records say. The produce and
fetch paths look up here once a partition and touch nothing else of the metadata.
"""

from __future__ import annotations

from collections.abc import Iterator

from ottla.replication.leader import Leader


class HostedTopic:
    __slots__ = ("leaders", "name", "topic_id")

    def __init__(self, name: str, topic_id: bytes) -> None:
        self.name = name
        self.topic_id = topic_id
        #: By partition number; only those led here.
        self.leaders: dict[int, Leader] = {}


class Hosting:
    __slots__ = ("by_id", "by_name")

    def __init__(self) -> None:
        self.by_name: dict[str, HostedTopic] = {}
        #: By the id as a number, which is what a decoded UUID offers cheapest.
        self.by_id: dict[int, HostedTopic] = {}

    def add(self, name: str, topic_id: bytes) -> HostedTopic:
        hosted = HostedTopic(name, topic_id)
        self.by_name[name] = self.by_id[int.from_bytes(topic_id, "big")] = hosted
        return hosted

    def remove(self, topic_id: bytes) -> HostedTopic | None:
        hosted = self.by_id.pop(int.from_bytes(topic_id, "big"), None)
        if hosted is not None and self.by_name.get(hosted.name) is hosted:
            del self.by_name[hosted.name]
        return hosted

    def leaders(self) -> Iterator[Leader]:
        for hosted in self.by_name.values():
            yield from hosted.leaders.values()
