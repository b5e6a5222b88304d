"""Transactional workers: producers that write some records, and copiers that write what they have read.

A copier reads committed records from the committed offsets of its group, writes one record for each to other
partitions, and commits the offsets in the same transaction. In the end each record was copied once. A fenced
worker tries to continue with its old identity, or gives up; the next one uses the same transactional id.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from ottla.model.api_key import ApiKey
from ottla.model.errors import ErrorCode
from testkit.checkers.transactions import Place
from testkit.sim.actors import RETRIABLE
from testkit.sim.isolation import delivered
from testkit.sim.script import together
from testkit.sim.transaction_client import Fenced, Ghost, Spoilt, TransactionClient

#: The source of a copied value: «<», the number of the partition, «:», its offset.
SOURCE: Final = "<{}:{}"


class Worker(TransactionClient):
    """`targets()`: the partitions that it may write to, by topic name; `gone` is called when it has given up."""

    targets: Callable[[], list[tuple[str, Place]]]
    gone: Callable[[], None]
    #: Lets a request arrive that it has given up.
    haunt: Callable[[Ghost], None]
    pause_ms = 1000
    #: Whether none of its requests is in flight.
    is_done = False
    #: Whether another worker was started to do its work.
    is_retired = False
    #: Whether it continues until a fault happens.
    wants_one_more = False

    async def work(self) -> None:
        await self.refreshed()
        await self.init()
        while self.wants_more():
            self.is_done = False
            try:
                await self._transact()
            except Fenced:
                self.log("is fenced")
                if not await self._comes_back():
                    break
            self.is_done = True
            await self.sleep(1 + self.world.below(self.pause_ms if self.common.is_open else 300))
        self.is_done = True
        self.gone()

    def wants_more(self) -> bool:
        return self.common.is_open or self.wants_one_more

    async def _comes_back(self) -> bool:
        """With its old identity: it may succeed if only its transaction timed out."""
        self.transaction = None
        self.is_unsure()
        if self.world.chance(0.5):
            return False
        try:
            await self.init(names_itself=True)
        except Fenced:
            return False
        return True

    async def _transact(self) -> None:
        """Raises Fenced."""
        self.start()
        commit = self.world.chance(0.75)
        try:
            if not await self.fill():
                return
        except Spoilt:
            self.log("its transaction is spoilt")
            commit = False
        if self.common.is_open and self.world.chance(0.1):
            # Sometimes longer than its timeout.
            await self.sleep(self.world.below(6000))
        if not commit and self.world.chance(0.5):
            ghost = self.last_words()
            if ghost is not None:
                self.world.later(self.world.below(4000), lambda: self.haunt(ghost))
        await self.end(commit=commit)
        self.ended(commit=commit)

    async def fill(self) -> bool:
        """The work of one transaction; False if there is nothing to do."""
        targets = self.targets()
        self.world.random.shuffle(targets)
        some = targets[: 1 + self.world.below(3)]
        if self.world.chance(0.5):
            if some:
                await together(*(self._write(*target) for target in some))
        else:
            between_ms = 1500 if self.world.chance(0.8) else 1
            for target in some:
                await self.sleep(self.world.below(between_ms))
                await self._write(*target)
        return bool(self._added)

    async def _write(self, name: str, place: Place) -> None:
        await self.send(name, place, [""] * (1 + self.world.below(2)))
        if self.world.chance(0.3):
            await self.send(name, place, [""])

    def ended(self, *, commit: bool) -> None:
        """The transaction was committed, or not."""

    def is_unsure(self) -> None:
        """The outcome is unknown."""


class Copier(Worker):
    """`sources()`: the partitions that it reads."""

    sources: Callable[[], list[tuple[str, Place]]]
    group_id = "copies"
    #: Its position in each partition, as far as it knows.
    positions: dict[Place, int]
    _next: tuple[Place, int] | None = None

    def wants_more(self) -> bool:
        return self.common.is_open or not self.is_retired

    async def fill(self) -> bool:
        sources = self.sources()
        if not sources:
            return False
        name, place = sources[self.world.below(len(sources))]
        if place not in self.positions:
            position = await self._committed(place)
            if position is None:
                return False
            self.positions[place] = position
        values, self._next = await self._read(place)
        if not values:
            if self._next is not None:
                self.positions[place] = self._next[1]
            return False
        targets = self.targets()
        by_target: dict[tuple[str, Place], list[str]] = {}
        for offset in values:
            target = targets[self.world.below(len(targets))]
            by_target.setdefault(target, []).append(SOURCE.format(place[1], offset))
        assert self._next is not None
        writes = [self.send(*target, texts) for target, texts in by_target.items()]
        await together(*writes, self.commit_offset(self.group_id, name, place[1], self._next[1]))
        return True

    def ended(self, *, commit: bool) -> None:
        if commit and self._next is not None:
            self.positions[self._next[0]] = self._next[1]

    def is_unsure(self) -> None:
        self.positions.clear()

    async def _committed(self, place: Place) -> int | None:
        """The committed offsets of the group, unless an open transaction may change them."""
        topics = [{"topic_id": place[0], "partition_indexes": [place[1]]}]
        group = {"group_id": self.group_id, "member_id": None, "member_epoch": -1, "topics": topics}
        who = (0, self.group_id)
        body = {"groups": [group], "require_stable": True}
        answer = await self.call(await self.coordinator(*who), ApiKey.OFFSET_FETCH, body, purpose="0")
        if answer is None or answer.groups[0].error_code:
            self._coordinators.pop(who, None)
            return None
        row = answer.groups[0].topics[0].partitions[0]
        self.log(f"{place[1]} is committed up to {row.committed_offset}: {ErrorCode(row.error_code)!r}")
        return None if row.error_code else max(row.committed_offset, 0)

    async def _read(self, place: Place) -> tuple[dict[int, bytes], tuple[Place, int] | None]:
        """A few committed values from its position on, and the position after them."""
        leader, start = self.leaders.get(place), self.positions[place]
        row: dict[str, Any] = {
            "partition": place[1], "current_leader_epoch": leader.epoch if leader is not None else -1,
            "fetch_offset": start, "partition_max_bytes": 100 + self.world.below(900),
        }  # fmt: skip
        body = {
            "max_wait": 300, "min_bytes": 1, "max_bytes": 2000, "session_id": 0, "session_epoch": -1, "rack_id": "",
            "forgotten_topics_data": [], "isolation_level": 1,
            "topics": [{"topic_id": place[0], "partitions": [row]}],
        }  # fmt: skip
        if leader is None or leader.node_id < 0:
            await self.refreshed()
            return {}, None
        answer = await self.call(leader.node_id, ApiKey.FETCH, body, purpose="read")
        got = answer.responses[0].partitions[0] if answer is not None and answer.responses else None
        if got is None or got.error_code in RETRIABLE:
            await self.refreshed()
            return {}, None
        values, end = delivered(got, start, committed=True)
        self.logs[place].read(start, end, values, committed=True)
        return values, (place, end)
