"""The transactions of one run of a cluster: producers and copiers, their faults, and the final checks.

Producers write to one topic, and copiers copy from it to another, in transactions with the offsets of their
group. After the repair no transaction may be open, each must be there completely or not at all, and each
record must have been copied once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from ottla.broker.coordinators.group_coordinator import OFFSETS_TOPIC
from ottla.broker.coordinators.transaction_coordinator import TRANSACTIONS_TOPIC
from ottla.ports.coordination import partition_of
from testkit.checkers.partition import Anomaly
from testkit.checkers.transactions import Log, Place, Producers, check_whole
from testkit.sim.clients import Topic
from testkit.sim.desk import Desk
from testkit.sim.group_invariants import GroupInvariants
from testkit.sim.script import play
from testkit.sim.transaction_admin import TransactionAdmin
from testkit.sim.transaction_invariants import TransactionInvariants
from testkit.sim.transaction_reader import TransactionReader
from testkit.sim.transaction_worker import Copier, Worker
from testkit.sim.world import World

if TYPE_CHECKING:
    from testkit.sim.cluster import Cluster

#: The topic that is written, the one that is copied to, and the one that may be deleted at any time.
INPUT, OUTPUT, BRIEF = "x", "y", "z"
#: How often coordinators are compared with their logs.
_LOOK_MS: Final = 700


def settings(world: World, count: int) -> dict[str, str]:
    """Broker settings for transactions; in some runs, logs are compacted again and again."""
    compacting = {"log.cleaner.backoff.ms": "2500"} if world.chance(0.5) else {}
    return compacting | {
        "offsets.topic.num.partitions": str(1 + world.below(2)),
        "offsets.topic.replication.factor": str(min(count, 3)),
        "transaction.state.log.num.partitions": str(1 + world.below(3)),
        "transaction.state.log.replication.factor": str(min(count, 3)),
        "transaction.state.log.min.isr": str(min(count, 1 + world.below(2))),
        "min.insync.replicas": str(min(count, 1 + world.below(2))),
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    }


class Transactions:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._world = world = cluster.world
        self.invariants = TransactionInvariants()
        self.logs = self.invariants.logs
        self._topics: dict[bytes, Topic] = {}
        self._places: dict[str, list[tuple[str, Place]]] = {INPUT: [], OUTPUT: []}
        self._compacts = "log.cleaner.backoff.ms" in cluster.settings
        self._groups: GroupInvariants | None = None
        if cluster.invariants.groups is None:
            self._groups = cluster.invariants.groups = GroupInvariants()
        cluster.invariants.transactions = self.invariants
        self._producers: dict[str, Producers] = {}
        self._desks: list[Desk] = [self._producer_desk(at) for at in range(2 + world.below(2))]
        self._copiers: list[Desk] = [self._copier_desk(at) for at in range(2)]
        self._clerk = TransactionAdmin(cluster.common, self._kinds(), BRIEF)
        pause_ms = 600 + world.below(600)
        self._readers = [self._reader("committed", pause_ms), self._reader("uncommitted", 3 * pause_ms)]
        self.client_names = [
            *self._producers, self._clerk.name, *(reader.name for reader in self._readers)
        ]  # fmt: skip
        self.committed = 0

    def _kinds(self) -> dict[str, tuple[int, dict[str, str]]]:
        world, count = self._world, self._cluster.count

        def usual(partitions: int) -> tuple[int, dict[str, str]]:
            return partitions, {
                "segment.bytes": str(400 + world.below(3000)),
                "min.insync.replicas": str(min(count, 1 + (not world.chance(0.3)))),
                "flush.policy": "durable" if world.chance(0.5) else "page-cache",
                "file.delete.delay.ms": str(world.below(4000)),
            }

        kinds = {INPUT: usual(2 + world.below(2)), OUTPUT: usual(2), BRIEF: usual(1)}
        if self._compacts:
            # Segments so small that they are compacted all the time.
            settings = self._cluster.settings
            for name, setting in (
                (OFFSETS_TOPIC, "offsets.topic"),
                (TRANSACTIONS_TOPIC, "transaction.state.log"),
            ):
                self._cluster.invariants.compacted[name] = None
                kinds[name] = int(settings[f"{setting}.num.partitions"]), {
                    "cleanup.policy": "compact", "segment.bytes": str(600 + world.below(2000)),
                    "min.cleanable.dirty.ratio": "0.1", "min.insync.replicas": settings["min.insync.replicas"],
                }  # fmt: skip
        return kinds

    # --- who is there -------------------------------------------------------------------------------------------

    def _desk(
        self, name: str, kind: type[Worker], ready: Callable[[Worker], None], *, must_work: bool
    ) -> Desk:
        world = self._world
        producers = self._producers[name] = Producers(name)
        usual = 1 + world.below(2)
        timeout_ms = 2500 + world.below(6000)

        def make(life: int) -> Worker:
            # Clients are upgraded, and sometimes downgraded.
            version = usual if world.chance(0.85) else 3 - usual
            worker = kind(self._cluster.common, producers, life, version, timeout_ms, self.logs)
            ready(worker)
            return worker

        return Desk(world, make, lambda ghost: play(self._clerk.haunt(ghost)), must_work=must_work)

    def _producer_desk(self, at: int) -> Desk:
        def ready(worker: Worker) -> None:
            worker.targets = lambda: self._targets(worker)
            worker.pause_ms = 5500

        return self._desk(f"tx{at}", Worker, ready, must_work=False)

    def _targets(self, worker: Worker) -> list[tuple[str, Place]]:
        brief = worker.ids.get(BRIEF)
        found = list(self._places[INPUT])
        if brief is not None and found and self._world.chance(0.2):
            found.append((BRIEF, (brief, 0)))
        return found

    def _copier_desk(self, at: int) -> Desk:
        def ready(worker: Worker) -> None:
            assert isinstance(worker, Copier)
            worker.positions = {}
            worker.targets = lambda: self._places[OUTPUT]
            worker.sources = lambda: [each for each in self._places[INPUT] if each[1][1] % 2 == at]
            worker.pause_ms = 5500

        return self._desk(f"copy{at}", Copier, ready, must_work=True)

    def _reader(self, name: str, pause_ms: int) -> TransactionReader:
        return TransactionReader(
            self._cluster.common, name, self._topics, self.logs, committed=name == "committed", pause_ms=pause_ms
        )  # fmt: skip

    # --- the run ------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        play(self._clerk.work(self._created, self.invariants.late))
        self._look()

    def _created(self) -> None:
        for name, places in self._places.items():
            topic_id = self._clerk.ids[name]
            count = 1 + max(number for place, number in self._clerk.leaders if place == topic_id)
            self._topics[topic_id] = Topic(name, topic_id, count, is_durable=True, is_compacted=False)
            for number in range(count):
                self.logs[topic_id, number] = Log(f"{name}-{number}")
                places.append((name, (topic_id, number)))
        for desk in (*self._desks, *self._copiers):
            self._world.later(self._world.below(2500), desk.begin)
        for reader in self._readers:
            reader.begin()

    def _look(self) -> None:
        for member in self._cluster.members().values():
            if member.started and member.alive:
                self.invariants.looked(member)
                if self._groups is not None:
                    self._groups.looked(member)
        self._world.later(_LOOK_MS, self._look)

    # --- the end ------------------------------------------------------------------------------------------------

    def heal(self) -> None:
        for desk in (*self._desks, *self._copiers):
            desk.heal()

    def unrest(self) -> str | None:
        """Why transactions have not come to rest; None if they have."""
        for desk in (*self._desks, *self._copiers):
            why = desk.unrest()
            if why is not None:
                return why
        return self.invariants.unended() or self._unstable() or self._uncopied()

    def _unstable(self) -> str | None:
        members = self._cluster.members()
        for topic in self._cluster.ensemble.image.topics.values():
            for partition in topic.partitions:
                hosted = members[partition.leader].broker.partitions.by_name[topic.name]
                replica = hosted.replicas[partition.partition]
                if replica.opened and replica.last_stable_offset != replica.high_watermark:
                    return (
                        f"{topic.name}-{partition.partition} is stable up to {replica.last_stable_offset} "
                        f"of {replica.high_watermark}"
                    )
        return None

    def _uncopied(self) -> str | None:
        for desk in self._copiers:
            worker = desk.worker
            assert isinstance(worker, Copier)
            for name, place in worker.sources():
                if worker.positions.get(place) != self.logs[place].end:
                    return f"{worker.label} has not read {name}-{place[1]} up to {self.logs[place].end}"
        return None

    def audit(self) -> Callable[[], bool]:
        """At rest: the content is checked, and read once more; call the result until it is done."""
        for log in self.logs.values():
            log.check_ended()
        transactions = [each for known in self._producers.values() for each in known.transactions]
        self.committed = check_whole(transactions, self.logs)
        self._check_copies()
        readers = [self._reader("committed", 5), self._reader("uncommitted", 5)]
        for reader in readers:
            reader.ends = {place: log.end for place, log in self.logs.items()}
            reader.begin()
        return lambda: all(reader.is_finished() for reader in readers)

    def _check_copies(self) -> None:
        copied: dict[tuple[int, int], str] = {}
        for _place, log in self._logs_of(OUTPUT):
            latest: dict[int, int] = {}
            for at, value in log.committed:
                number, offset = (int(each) for each in value.rpartition(b"<")[2].split(b":"))
                if (number, offset) in copied:
                    raise Anomaly(
                        "duplicate",
                        f"{INPUT}-{number} offset {offset} is copied to {copied[number, offset]} and {log.name} offset {at}",
                    )
                copied[number, offset] = f"{log.name} offset {at}"
                if offset < latest.get(number, -1):
                    raise Anomaly(
                        "nonmonotonic-send", f"{log.name} offset {at}: {offset} of {INPUT}-{number}"
                    )
                latest[number] = offset
        for place, log in self._logs_of(INPUT):
            given = {(place[1], offset) for offset, _value in log.committed}
            found = {each for each in copied if each[0] == place[1]}
            if given != found:
                raise Anomaly(
                    "lost-write" if given - found else "aborted-read",
                    f"of {log.name} {sorted(given - found)} are not copied, {sorted(found - given)} were not to be",
                )
            self._check_offset(place[1], max(given, default=(0, -1))[1] + 1)

    def _check_offset(self, number: int, offset_min: int) -> None:
        groups = self._cluster.invariants.groups
        topic = self._cluster.ensemble.image.topics.get(OFFSETS_TOPIC)
        if groups is None or topic is None:
            return
        committed = groups.offset(
            partition_of(Copier.group_id, len(topic.partitions)), Copier.group_id, (INPUT, number)
        )
        if committed < offset_min:
            raise Anomaly(
                "offset-regression",
                f"{INPUT}-{number} was copied up to {offset_min}, the group has committed {committed}",
            )

    def _logs_of(self, name: str) -> Iterator[tuple[Place, Log]]:
        for _name, place in self._places[name]:
            yield place, self.logs[place]
