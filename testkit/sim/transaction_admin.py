"""An admin client for transactions: creates topics, reassigns their partitions and those of coordinators, and
deletes one topic again and again.

It also lets requests of former producers arrive late.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from ottla.model.api_key import ApiKey
from testkit.checkers.partition import Anomaly
from testkit.sim.actors import RETRIABLE, Common
from testkit.sim.script import Scripted
from testkit.sim.transaction_client import PRODUCE_VERSIONS, Ghost
from testkit.sim.transaction_invariants import LateMarker

_PAUSE_MS: Final = 6500


class TransactionAdmin(Scripted):
    """`topics`: number of partitions and configs by name; `brief` is the one that is deleted."""

    def __init__(self, common: Common, topics: Mapping[str, tuple[int, dict[str, str]]], brief: str) -> None:
        super().__init__(common, "clerk")
        self._topics = topics
        self._brief = brief
        self._replicas = min(3, len(common.brokers))

    async def work(self, created: Callable[[], None], late: Sequence[LateMarker]) -> None:
        """`late` has markers that may be repeated at any time."""
        await self.sleep(300)
        while not all(name in self.ids for name in self._topics):
            for name in self._topics:
                if name not in self.ids:
                    await self._create(name)
            await self.refreshed()
        created()
        while True:
            await self.sleep(500 + self.world.below(_PAUSE_MS))
            if not self.common.is_open:
                return
            await self.refreshed()
            if self._brief not in self.ids:
                await self._create(self._brief)
            elif late and self.world.chance(0.4):
                # The latest are the most dangerous.
                await self._repeat(late[-1 - self.world.below(min(len(late), 6))])
            elif self.world.chance(0.2):
                await self._delete(self._brief)
            else:
                await self._move()

    async def _repeat(self, marker: LateMarker) -> None:
        """A marker arrives once more, from a former coordinator or as a duplicate; it must be refused."""
        topic_id, number = marker.place
        name = next(name for name, known in self.ids.items() if known == topic_id)
        leader = self.leaders[marker.place]
        if leader.node_id < 0:
            return
        row = {
            "producer_id": marker.producer_id, "producer_epoch": marker.producer_epoch,
            "transaction_result": marker.commit, "coordinator_epoch": marker.coordinator_epoch,
            "transaction_version": marker.transaction_version,
            "topics": [{"name": name, "partition_indexes": [number]}],
        }  # fmt: skip
        # Any broker but the leader.
        sender = leader.node_id + 1
        answer = await self.call(
            leader.node_id, ApiKey.WRITE_TXN_MARKERS, {"markers": [row]}, 2, as_broker=sender
        )
        code = answer.markers[0].topics[0].partitions[0].error_code if answer is not None else None
        self.world.log(f"clerk: {marker} comes late: {code!r}")
        if code == 0:
            raise Anomaly("late-marker", f"{name}-{number} takes {marker}, after later ones")

    async def haunt(self, ghost: Ghost) -> None:
        """Let a request of a former producer arrive now."""
        who, place = ghost.who, ghost.place
        for _ in range(3):
            await self.refreshed()
            leader = self.leaders.get(place)
            if leader is None or leader.node_id < 0:
                continue
            was_fenced = who.is_fenced
            version = PRODUCE_VERSIONS[who.version]
            answer = await self.call(leader.node_id, ApiKey.PRODUCE, ghost.body, version, "ghosts")
            code = answer.responses[0].partition_responses[0].error_code if answer is not None else None
            self.world.log(
                f"{who.label}: its ghost sends {ghost.value!r} to {ghost.name}-{place[1]}: {code!r}"
            )
            if code == 0 and ghost.value in who.logs[place].where:
                who.producers.succeeds(who.life, who.epoch, was_fenced, f"Produce of {ghost.value!r}")
            if code not in RETRIABLE:
                return

    async def _create(self, name: str) -> None:
        count, configs = self._topics[name]
        topic = {
            "name": name, "num_partitions": count, "replication_factor": self._replicas, "assignments": [],
            "configs": [{"name": key, "value": value} for key, value in configs.items()],
        }  # fmt: skip
        answer = await self.call(self.any_broker(), ApiKey.CREATE_TOPICS, {"topics": [topic]})
        code = answer.topics[0].error_code if answer is not None else None
        self.world.log(f"clerk: create {name}: {code!r} {configs}")

    async def _delete(self, name: str) -> None:
        topics = [{"name": name, "topic_id": None}]
        answer = await self.call(self.any_broker(), ApiKey.DELETE_TOPICS, {"topics": topics, "timeout": 1000})
        code = answer.responses[0].error_code if answer is not None else None
        self.world.log(f"clerk: delete {name}: {code!r}")

    async def _move(self) -> None:
        known = {
            topic_id: name for name, topic_id in self.ids.items() if name in self._topics or name[:2] == "__"
        }
        places = [place for place in self.leaders if place[0] in known]
        if not places:
            return
        topic_id, number = places[self.world.below(len(places))]
        brokers = list(self.common.brokers)
        self.world.random.shuffle(brokers)
        rows = [{"partition_index": number, "replicas": brokers[: self._replicas]}]
        body = {"timeout": 1000, "topics": [{"name": known[topic_id], "partitions": rows}]}
        self.world.log(f"clerk: move {known[topic_id]}-{number} to {brokers[: self._replicas]}")
        await self.call(self.any_broker(), ApiKey.ALTER_PARTITION_REASSIGNMENTS, body)
