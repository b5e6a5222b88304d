"""The groups of one run of a cluster: their members, faults of members, and the final checks.

A seat is a place in a group for one process at a time. The process crashes, leaves, or is paused, often for
longer than its session. Later the next process takes the seat, with the same instance id if it is a static
one. After the repair all seats are taken, and every group must settle: each partition has one member, and is
read to its end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from ottla.broker.coordinators.group_coordinator import OFFSETS_TOPIC
from ottla.ports.coordination import partition_of
from testkit.sim.classic_reader import ClassicReader
from testkit.sim.consumer_reader import ConsumerReader
from testkit.sim.group_admin import GroupAdmin
from testkit.sim.group_client import GroupStory, Place
from testkit.sim.group_invariants import GroupInvariants
from testkit.sim.group_reader import GroupReader
from testkit.sim.world import World

if TYPE_CHECKING:
    from testkit.sim.cluster import Cluster

_SESSION_MS: Final = 4000
_REBALANCE_MS: Final = 4000
#: How often coordinators are compared with their logs.
_LOOK_MS: Final = 700
_PATTERN: Final = "t[0-9]"


def settings(world: World, count: int) -> dict[str, str]:
    """Broker settings for groups; in some runs, logs are compacted again and again."""
    compacting = {"log.cleaner.backoff.ms": "2500"} if world.chance(0.4) else {}
    return compacting | {
        "offsets.topic.num.partitions": str(1 + world.below(3)),
        "group.initial.rebalance.delay.ms": ("0", "0", "400")[world.below(3)],
        "group.min.session.timeout.ms": "1000",
        "group.consumer.min.session.timeout.ms": "1000",
        "group.consumer.session.timeout.ms": str(_SESSION_MS),
        "group.consumer.min.heartbeat.interval.ms": "100",
        "group.consumer.heartbeat.interval.ms": "900",
        "group.consumer.assignors": ("uniform,range", "range,uniform")[world.below(2)],
        "min.insync.replicas": str(1 + world.below(2)),
        "offsets.topic.replication.factor": str(min(count, 3)),
    }


class Seat:
    def __init__(self, world: World, name: str, make: Callable[[int], GroupReader]) -> None:
        self._world = world
        self._make = make
        self.name = name
        self._life = 0
        self.reader: GroupReader | None = None
        self._is_healed = False

    def begin(self) -> None:
        if self.reader is not None:
            return
        self._life += 1
        reader = self.reader = self._make(self._life)
        reader.log("--- starts")
        reader.begin()
        if not self._is_healed:
            self._world.later(3000 + self._world.below(17_000), lambda: self._end(reader))

    def _end(self, reader: GroupReader) -> None:
        if self.reader is not reader or self._is_healed:
            return
        world = self._world
        choice = world.below(10)
        pause_ms = 200 + world.below(7000)
        if choice < 4:
            reader.log("--- is paused")
            reader.place.state = "paused"
            world.later(pause_ms, lambda: self._resume(reader))
            return
        self.reader = None
        if choice < 8:
            reader.log("--- is killed")
            reader.killed()
        else:
            reader.log("--- leaves")
            reader.leave()
        world.later(pause_ms, self.begin)

    def _resume(self, reader: GroupReader) -> None:
        if reader.place.state != "paused":
            return
        reader.log("--- goes on")
        reader.place.state = "running"
        inbox, reader.place.inbox = reader.place.inbox, []
        for action in inbox:
            action()
        if self.reader is reader and not self._is_healed:
            self._world.later(2000 + self._world.below(15_000), lambda: self._end(reader))

    def heal(self) -> None:
        self._is_healed = True
        if self.reader is None:
            self.begin()
        else:
            self._resume(self.reader)

    def look(self) -> None:
        """A process that was fenced by the next one of its instance frees its seat."""
        if self._is_healed and self.reader is not None and self.reader.is_fenced:
            self.reader.die()
            self.reader = None
            self.begin()


class Groups:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._world = world = cluster.world
        self.invariants = GroupInvariants()
        self._stories: list[GroupStory] = []
        self._seats: list[tuple[GroupStory, list[Seat]]] = []
        names = ("t0", "t1", "t2", "t3") if world.chance(0.7) else ("t0", "t1")
        which = world.below(4)
        if which != 1:
            story = self._story("c", names)
            is_cooperative = world.chance(0.5)

            def make_classic(name: str, instance_id: str | None, life: int) -> GroupReader:
                return ClassicReader(story, name, life, instance_id, is_cooperative=is_cooperative)

            self._fill(story, 3 if which == 0 else 2, make_classic)
        if which != 0:
            modern = self._story("k", names)
            regex = _PATTERN if len(names) == 4 and world.chance(0.4) else None

            def make_modern(name: str, instance_id: str | None, life: int) -> GroupReader:
                return ConsumerReader(modern, name, life, instance_id, regex=regex)

            self._fill(modern, 3 if which == 1 else 2, make_modern)
        self._by_hand = self._story("h", ())
        self.admin = GroupAdmin(cluster.common, self._by_hand, self._stories)
        self._compacts = "log.cleaner.backoff.ms" in cluster.settings
        if self._compacts:
            cluster.invariants.compacted[OFFSETS_TOPIC] = None
        self.client_names = [seat.name for seat in self._all()] + [self.admin.name]

    def _story(self, group_id: str, names: tuple[str, ...]) -> GroupStory:
        return GroupStory(
            self._cluster.common, group_id, names, session_ms=_SESSION_MS, rebalance_ms=_REBALANCE_MS, tenure=self.tenure,
        )  # fmt: skip

    def _fill(
        self, story: GroupStory, count: int, make: Callable[[str, str | None, int], GroupReader]
    ) -> None:
        def seat(at: int) -> Seat:
            name = f"{story.group_id}{at}"
            instance_id = f"i-{name}" if self._world.chance(0.3) else None
            return Seat(self._world, name, lambda life: make(name, instance_id, life))

        self._stories.append(story)
        self._seats.append((story, [seat(at) for at in range(count)]))

    def _all(self) -> Iterator[Seat]:
        for _story, seats in self._seats:
            yield from seats

    def begin(self) -> None:
        for seat in self._all():
            self._world.later(800 + self._world.below(4000), seat.begin)
        if self._compacts:
            count = int(self._cluster.settings["offsets.topic.num.partitions"])
            self._world.later(600, lambda: self.admin.create(OFFSETS_TOPIC, count))
        self._world.later(1500, self.admin.begin)
        self._look()

    def _look(self) -> None:
        for member in self._cluster.members().values():
            if member.started and member.alive:
                self.invariants.looked(member)
        self._world.later(_LOOK_MS, self._look)

    def tenure(self, group_id: str) -> tuple[int, int]:
        """The coordinator of a group and its epoch, by the metadata log."""
        topic = self._cluster.ensemble.image.topics.get(OFFSETS_TOPIC)
        if topic is None:
            return -1, -1
        partition = topic.partitions[partition_of(group_id, len(topic.partitions))]
        return partition.leader, partition.leader_epoch

    @property
    def commits(self) -> int:
        return sum(story.commits for story in (*self._stories, self._by_hand))

    # --- the end ------------------------------------------------------------------------------------------------

    def heal(self) -> None:
        for seat in self._all():
            seat.heal()

    def unrest(self) -> str | None:
        """Why a group has not settled; None if all have."""
        for seat in self._all():
            seat.look()
        for story, seats in self._seats:
            why = self._unrest(story, seats)
            if why is not None:
                return f"group {story.group_id}: {why}"
        return None

    def _unrest(self, story: GroupStory, seats: list[Seat]) -> str | None:
        image = self._cluster.ensemble.image
        owners: dict[Place, GroupReader] = {}
        for seat in seats:
            reader = seat.reader
            if reader is None or not reader.is_settled:
                return f"{seat.name} is not settled"
            for place in reader.owned:
                if place in owners:
                    return (
                        f"{place[0].hex()[:4]}-{place[1]} belongs to {owners[place].label} and {reader.label}"
                    )
                owners[place] = reader
        for name in story.names:
            topic = image.topics.get(name)
            for number in range(len(topic.partitions) if topic is not None else 0):
                assert topic is not None
                if (topic.topic_id, number) not in owners:
                    return f"nobody has {name}-{number}"
        for place, reader in owners.items():
            if place[0] not in image.topics_by_id:
                return f"{reader.label} has {place[0].hex()[:4]}-{place[1]}, which is not there"
            if story.is_live(place):
                end = self._cluster.end_of(place)
                if place not in reader.reading or reader.positions[place] != end or reader.uncommitted:
                    return f"{reader.label} has not read {place[0].hex()[:4]}-{place[1]} up to {end}"
        return self._is_unstable(story.group_id)

    def _is_unstable(self, group_id: str) -> str | None:
        node_id, _epoch = self.tenure(group_id)
        member = self._cluster.members().get(node_id)
        if member is None:
            return "no coordinator"
        coordinating = member.broker.groups
        topic = self._cluster.ensemble.image.topics[OFFSETS_TOPIC]
        tenure = coordinating.partitions.get(partition_of(group_id, len(topic.partitions)))
        group = tenure.shard.groups.get(group_id) if tenure is not None and tenure.is_loaded else None
        state = group.state.value if group is not None else "not there"
        return None if state == "Stable" else f"it is {state}"

    def audit(self, done: Callable[[], None]) -> None:
        """At rest: the committed offsets are checked once more."""
        stories = [*self._stories, self._by_hand]

        def go_on() -> None:
            if stories:
                self.admin.look(stories.pop(), go_on)
            else:
                done()

        go_on()
