"""The cluster's metadata at one moment, immutable. Every request reads it.

`Image.apply(records)` returns the next image. Changed maps are copied once per call, everything else is
shared. Topics are found by name, by the 16 bytes of their id, and by the form in which names collide in
metrics.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ottla.metadata import records as r
from ottla.model.names import INTERNAL_TOPICS, collides

TOPIC_RESOURCE = 2
BROKER_RESOURCE = 4
GROUP_RESOURCE = 32

NO_CONFIG: Mapping[str, str] = {}

#: Deleted topics that are kept, for brokers that were down at the time.
_REMOVED_MAX = 5000


class TopicImage(NamedTuple):
    name: str
    topic_id: bytes
    #: By partition number.
    partitions: tuple[r.Partition, ...]

    @property
    def internal(self) -> bool:
        return self.name in INTERNAL_TOPICS


class Image(NamedTuple):
    #: The number of applied records, including those before a snapshot.
    end: int = 0
    cluster_id: str = ""
    topics: Mapping[str, TopicImage] = {}
    topics_by_id: Mapping[bytes, TopicImage] = {}
    #: (resource type, resource name) → its settings.
    configs: Mapping[tuple[int, str], Mapping[str, str]] = {}
    brokers: Mapping[int, r.BrokerRegistration] = {}
    next_producer_id: int = 0
    #: Names with a '.' or '_', by their collision key: only such names can collide.
    flat_names: Mapping[str, str] = {}
    #: The ids of deleted topics, oldest first.
    removed: Mapping[bytes, None] = {}

    def is_live(self, node_id: int) -> bool:
        """Whether a broker may lead and be in sync."""
        broker = self.brokers.get(node_id)
        return broker is not None and not broker.fenced and not broker.stopping

    def partition(self, topic_id: bytes, number: int) -> r.Partition | None:
        topic = self.topics_by_id.get(topic_id)
        if topic is None or not 0 <= number < len(topic.partitions):
            return None
        return topic.partitions[number]

    def collision(self, name: str) -> str | None:
        """The topic whose name differs from this one only in '.' and '_'."""
        return self.flat_names.get(collides(name))

    def topic_config(self, name: str) -> Mapping[str, str]:
        return self.configs.get((TOPIC_RESOURCE, name), NO_CONFIG)

    def records(self) -> list[r.Record]:
        """The fewest records that produce this image: a snapshot."""
        made: list[r.Record] = [r.Cluster(self.cluster_id)] if self.cluster_id else []
        made += [r.TopicRemoved(topic_id) for topic_id in self.removed]
        made += self.brokers.values()
        for topic in self.topics.values():
            made.append(r.Topic(topic.name, topic.topic_id))
            made += topic.partitions
        for (resource_type, name), settings in self.configs.items():
            made += [r.Config(resource_type, name, key, value) for key, value in settings.items()]
        if self.next_producer_id:
            made.append(r.ProducerIds(self.next_producer_id))
        made.append(r.Position(self.end))
        return made

    def apply(self, records: Iterable[r.Record | None]) -> Image:
        """The image after these records. An unknown record (None) moves `end` and changes nothing else."""
        end, cluster_id, next_producer_id = self.end, self.cluster_id, self.next_producer_id
        topics, by_id, flat_names = dict(self.topics), dict(self.topics_by_id), dict(self.flat_names)
        configs, brokers, forgotten = dict(self.configs), dict(self.brokers), dict(self.removed)
        changed: dict[bytes, dict[int, r.Partition]] = {}

        def settle() -> None:
            # Partition records are collected by topic, so that a topic of many partitions is built once.
            for topic_id, partitions in changed.items():
                topic = by_id.get(topic_id)
                if topic is None:
                    continue
                merged = {p.partition: p for p in topic.partitions} | partitions
                by_id[topic_id] = topics[topic.name] = topic._replace(
                    partitions=tuple(merged[number] for number in sorted(merged))
                )
            changed.clear()

        for record in records:
            end += 1
            match record:
                case r.Partition():
                    changed.setdefault(record.topic_id, {})[record.partition] = record
                case r.NewPartitions():
                    for each in record.partitions():
                        changed.setdefault(record.topic_id, {})[each.partition] = each
                case r.Topic():
                    settle()
                    topic = TopicImage(record.name, record.topic_id, ())
                    topics[record.name] = by_id[record.topic_id] = topic
                    if "." in record.name or "_" in record.name:
                        flat_names[collides(record.name)] = record.name
                case r.TopicRemoved():
                    settle()
                    forgotten[record.topic_id] = None
                    if len(forgotten) > _REMOVED_MAX:
                        del forgotten[next(iter(forgotten))]
                    removed = by_id.pop(record.topic_id, None)
                    if removed is not None:
                        del topics[removed.name]
                        flat_names.pop(collides(removed.name), None)
                        configs.pop((TOPIC_RESOURCE, removed.name), None)
                case r.Config():
                    resource = (record.resource_type, record.resource_name)
                    settings = dict(configs.get(resource, NO_CONFIG))
                    if record.value is None:
                        settings.pop(record.name, None)
                    else:
                        settings[record.name] = record.value
                    if settings:
                        configs[resource] = settings
                    else:
                        configs.pop(resource, None)
                case r.BrokerRegistration():
                    brokers[record.node_id] = record
                case r.BrokerRemoved():
                    brokers.pop(record.node_id, None)
                case r.ProducerIds():
                    next_producer_id = record.next_id
                case r.Position():
                    end = record.end
                case r.Cluster():
                    cluster_id = record.cluster_id
                case None:
                    pass
        settle()
        return Image(
            end, cluster_id, topics, by_id, configs, brokers, next_producer_id, flat_names, forgotten
        )
