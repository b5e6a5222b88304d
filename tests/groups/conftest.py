"""A shard in a world of its own: records go into a list, time moves when a test says so."""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

import pytest

from ottla.broker.timers import Timers
from ottla.config.broker import BrokerConfig
from ottla.groups.decision import Decision
from ottla.groups.formats import Record, decode, encode
from ottla.groups.shard import Shard
from ottla.model.errors import ErrorCode

WALL_MS = 1_700_000_000_000


class Heard:
    """A reply that notes what it is told."""

    def __init__(self) -> None:
        self.response: Mapping[str, Any] | None = None
        self.code: ErrorCode | None = None

    def answer(self, response: Mapping[str, Any]) -> None:
        assert not self.is_answered, "answered twice"
        self.response = response

    def refuse(self, code: ErrorCode) -> None:
        assert not self.is_answered, "answered twice"
        self.code = code

    @property
    def is_answered(self) -> bool:
        return self.response is not None or self.code is not None

    @property
    def error(self) -> int:
        assert self.is_answered
        return int(self.code if self.response is None else self.response["error_code"])  # type: ignore[arg-type]


class World:
    """The host of a shard: what it decides is written at once. `records` is the log."""

    def __init__(self, **settings: str) -> None:
        names = {name.replace("_", "."): value for name, value in settings.items()}
        self._config = BrokerConfig.from_properties({"log.dirs": "/nowhere", **names})
        self.records: list[tuple[bytes, bytes | None]] = []
        self.now_ms = 1000
        self._ids = 0
        self.begin()

    def begin(self) -> None:
        """A coordinator that has just come: it has the log and nothing else."""
        self._timers = Timers()
        self.shard = Shard(0, self)
        for key, value in self.records:
            record = decode(key, value)
            assert record is not None
            self.shard.replay(record)
        self.shard.loaded(self.now_ms)

    @property
    def timers(self) -> Timers:
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

    def fits(self, record: Record) -> bool:
        return True

    def topic_exists(self, topic: str) -> bool:
        return True

    def decided(self, decision: Decision) -> None:
        for record in decision.records:
            encoded = encode(record)
            assert decode(*encoded) == record
            if not decision.is_replayed:
                self.shard.replay(record)
            self.records.append(encoded)
        for reply, response in decision.answers:
            reply.answer(response)

    def advance(self, ms: int) -> None:
        end = self.now_ms + ms
        while (deadline := self._timers.next_ms) is not None and deadline <= end:
            self.now_ms = max(self.now_ms, deadline)
            self._timers.expire(self.now_ms)
        self.now_ms = end


@pytest.fixture
def world() -> World:
    return World(group_initial_rebalance_delay_ms="0")
