"""What the shards of groups are handed. How they decide and are answered is in `ports/coordination.py`; `broker/coordinators/coordinator.py`
is the host."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ottla.groups.budget import Budget
from ottla.groups.formats import Encoded, Record
from ottla.model.steps import Steps

if TYPE_CHECKING:
    from ottla.config.broker import BrokerConfig
    from ottla.ports.coordination import Decision, Timers


class TopicView(NamedTuple):
    """A topic as groups see it."""

    name: str
    topic_id: bytes
    #: By partition number: the racks in which its replicas are, as far as racks are known.
    racks: tuple[frozenset[str], ...]


class GroupHost(Protocol):
    """What a shard is handed: time, chance, settings, and somebody who carries out its decisions."""

    @property
    def timers(self) -> Timers: ...

    @property
    def config(self) -> BrokerConfig: ...

    @property
    def wall_ms(self) -> int:
        """The date of what happens now. Deadlines go by `now_ms`, which everybody is called with."""

    @property
    def is_writable(self) -> bool:
        """Whether a decision can be written now. Requests that must write are not let in otherwise."""

    def unique(self) -> str:
        """The text of a random UUID."""

    def decided(self, decision: Decision[Record | Encoded]) -> None: ...

    def fits(self, record: Record | Encoded) -> bool:
        """Whether a record can be written at all: text and bytes may be too long for it."""

    def compute(self, steps: Steps[Any], done: Callable[[Any, Exception | None], None]) -> None:
        """Do a long computation in slices, from the end of this turn on."""

    @property
    def record_bytes_max(self) -> int:
        """How many bytes the key and the value of a record may have together."""

    @property
    def budget(self) -> Budget:
        """What all groups on this broker may hold."""

    def topic_exists(self, topic: str) -> bool: ...

    @property
    def topics_version(self) -> int:
        """Grows whenever topics, their partitions or racks may have changed."""

    def topic_names(self) -> Collection[str]: ...

    def topic(self, name: str) -> TopicView | None: ...

    def topic_name(self, topic_id: bytes) -> str | None: ...

    def group_settings(self, group_id: str) -> Mapping[str, str]:
        """What was set for one group, by Kafka's names."""
