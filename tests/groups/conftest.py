"""A shard in a world of its own: records go into a list, time moves when a test says so."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any
from uuid import UUID

import pytest

from ottla.config.broker import BrokerConfig
from ottla.groups.budget import Budget
from ottla.groups.classic_group import ClassicGroup
from ottla.groups.formats import Encoded, Record, decode, encode
from ottla.groups.host import TopicView
from ottla.groups.shard import Shard
from ottla.model.steps import Steps, run
from ottla.model.timer_wheel import TimerWheel
from ottla.ports.coordination import Decision
from tests.heard import Heard

__all__ = ["Heard"]

WALL_MS = 1_700_000_000_000


class World:
    """The host of a shard: what it decides is written at once. `records` is the log."""

    def __init__(self, **settings: str) -> None:
        names = {name.replace("_", "."): value for name, value in settings.items()}
        self._config = BrokerConfig.from_properties({"log.dirs": "/nowhere", **names})
        self.records: list[tuple[bytes, bytes | None]] = []
        self.now_ms = 1000
        self._ids = 0
        self.topics: dict[str, TopicView] = {}
        self.topics_version = 0
        self.own_settings: dict[str, dict[str, str]] = {}
        self.is_writable = True
        self.budget = Budget(lambda: self.shard.usage)
        self.are_computations_held = False
        #: Work that is done once the present decision is, unless it is held.
        self._computations: list[tuple[Steps[Any], Callable[[Any, Exception | None], None]]] = []
        self.begin()

    def begin(self) -> None:
        """A coordinator that has just come: it has the log and nothing else."""
        self._timers = TimerWheel()
        self.shard = Shard(0, self)
        for key, value in self.records:
            record = decode(key, value)
            assert record is not None
            self.shard.replay(record)
        self.shard.on_loaded(self.now_ms)

    @property
    def timers(self) -> TimerWheel:
        return self._timers

    @property
    def config(self) -> BrokerConfig:
        return self._config

    @property
    def wall_ms(self) -> int:
        return WALL_MS + self.now_ms

    def unique(self) -> str:
        self._ids += 1
        return str(UUID(int=self._ids))

    record_bytes_max = 1_000_000

    def compute(self, steps: Steps[Any], done: Callable[[Any, Exception | None], None]) -> None:
        self._computations.append((steps, done))

    def fits(self, record: Record | Encoded) -> bool:
        return True

    def topic_exists(self, topic: str) -> bool:
        return True

    def topic_names(self) -> Collection[str]:
        return self.topics.keys()

    def topic(self, name: str) -> TopicView | None:
        return self.topics.get(name)

    def topic_name(self, topic_id: bytes) -> str | None:
        return next((view.name for view in self.topics.values() if view.topic_id == topic_id), None)

    def group_settings(self, group_id: str) -> Mapping[str, str]:
        return self.own_settings.get(group_id, {})

    def make_topic(self, name: str, count: int = 0, racks: Sequence[str] = ()) -> bytes:
        """A topic, or one that grows; with racks: those of each partition's replicas, a letter each."""
        by_number = tuple(map(frozenset, racks)) or (frozenset[str](),) * count
        view = self.topics[name] = TopicView(name, name.encode().ljust(16, b"-")[:16], by_number)
        self.topics_version += 1
        return view.topic_id

    def remove_topic(self, name: str) -> None:
        del self.topics[name]
        self.topics_version += 1

    def schedule(self, decision: Decision[Record | Encoded]) -> None:
        for record in decision.records:
            encoded = encode(record)
            again = decode(*encoded)
            assert again is not None and (isinstance(record, Encoded) or again.key == record.key)
            assert encode(again) == encoded
            if not decision.is_replayed:
                assert isinstance(record, Record)
                self.shard.replay(record)
            self.records.append(tuple(encoded))
        for reply, response in decision.answers:
            reply.answer(response)
        if not self.are_computations_held:
            self.compute_now()

    def compute_now(self) -> None:
        """Do the long work that was begun."""
        while self._computations:
            steps, done = self._computations.pop()
            done(run(steps), None)

    def advance(self, ms: int) -> None:
        end = self.now_ms + ms
        while (deadline := self._timers.next_ms) is not None and deadline <= end:
            self.now_ms = max(self.now_ms, deadline)
            self._timers.expire(self.now_ms)
        self.now_ms = end
        self.check_sizes()

    def check_sizes(self) -> None:
        """What groups hold is kept up to date as members and offsets come and go: it is what a count says."""
        for group in self.shard.groups.values():
            members = group.members.values()
            if isinstance(group, ClassicGroup):
                assert group.sent_bytes == sum(member.weight.sent for member in members)
                assert group.stored_bytes == sum(member.weight.stored for member in members)
            else:
                assert group.sent_bytes == sum(
                    len(each.member_id) + each.subscription.size for each in members
                )
        offsets = self.shard.offsets
        committed = [value for known in offsets.by_group.values() for value in known.values()]
        pending = [value for known in offsets._by_producer.values() for _order, value in known.values()]
        assert offsets.text_size == sum(len(value.metadata) for value in (*committed, *pending))


@pytest.fixture
def world() -> World:
    return World(group_initial_rebalance_delay_ms="0")
