"""What a group shard gets from its host, `broker/coordinators/group_coordinator.py`.

How a shard decides and responds is in `ports/coordination.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple, Protocol, TypeAlias

from ottla.groups.budget import Budget
from ottla.groups.formats import Encoded, Record
from ottla.model.steps import Steps
from ottla.ports.coordination import ShardHost

AnyRecord: TypeAlias = Record | Encoded


class TopicView(NamedTuple):
    """A topic as groups see it."""

    name: str
    topic_id: bytes
    #: By partition number: the known racks of its replicas.
    racks: tuple[frozenset[str], ...]


class GroupHost(ShardHost[AnyRecord], Protocol):
    """Also random ids, long computations, the memory budget and the topics of the cluster."""

    def unique(self) -> str:
        """A random UUID as text."""

    def compute(self, steps: Steps[Any], done: Callable[[Any, Exception | None], None]) -> None:
        """Run a long computation in slices, from the end of this turn on."""

    @property
    def record_bytes_max(self) -> int:
        """The largest size of a record's key and value together."""

    @property
    def budget(self) -> Budget:
        """The memory budget of all groups on this broker."""

    def topic_exists(self, topic: str) -> bool: ...

    @property
    def topics_version(self) -> int:
        """Grows whenever topics, their partitions or the racks of brokers may have changed."""

    def topic_names(self) -> Collection[str]: ...

    def topic(self, name: str) -> TopicView | None: ...

    def topic_name(self, topic_id: bytes) -> str | None: ...

    def group_settings(self, group_id: str) -> Mapping[str, str]:
        """The dynamic configs of one group, by Kafka's names."""
