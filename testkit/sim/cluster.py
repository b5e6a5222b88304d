"""One run of a cluster: three to five brokers, each on its own machine, with twenty faults in sixty seconds.

Everything follows from the seed. Clients work all the time; `invariants.py` checks the cluster after every
turn. Then all faults are repaired. The cluster must come to rest with every replica in sync, and new readers
must find everything that was acknowledged. `run_cluster` returns the outcome, or raises Failure with the
command that replays it.
"""

from __future__ import annotations

import traceback
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from ottla.config.broker import BrokerConfig
from testkit.checkers.partition import Anomaly
from testkit.sim import groups, transactions
from testkit.sim.actors import Common
from testkit.sim.cluster_admin import ClusterAdmin, ClusterKind
from testkit.sim.cluster_producer import ClusterProducer
from testkit.sim.cluster_reader import ClusterReader, FreshReader
from testkit.sim.disk import PowerCut, SimDisk
from testkit.sim.ensemble import Ensemble
from testkit.sim.faults import Faults
from testkit.sim.groups import Groups
from testkit.sim.invariants import Invariants
from testkit.sim.member import Member
from testkit.sim.network import Network
from testkit.sim.node import DATA_DIR, Delays
from testkit.sim.scenario import Failure
from testkit.sim.transactions import Transactions
from testkit.sim.world import START_MS, World

_SESSION_TIMEOUT_MS: Final = 4000
#: When the first broker has joined and clients work: faults may begin.
_FAULTS_FROM_MS: Final = 2000
#: How long the cluster may take to come to rest after the repair.
_QUIET_MS: Final = 60_000
_QUIET_EVENTS: Final = 30_000
_LOOK_MS: Final = 250
#: A run with this many events is repaired early, so that none takes more than 10,000.
_EVENTS_MAX: Final = 9000


@dataclass(frozen=True)
class ClusterOptions:
    seconds: int = 60
    faults: int = 20
    #: None: chosen by the seed.
    brokers: int | None = None
    #: Names of the faults that may happen; empty: all.
    kinds: tuple[str, ...] = ()
    #: Whether there are consumer groups; None: in every third seed.
    groups: bool | None = None
    #: Whether there are transactions; None: in every fourth seed.
    transactions: bool | None = None

    def arguments(self) -> str:
        """The same as command line options."""
        given = [
            f" --{name} {getattr(self, name)}"
            for name in ("seconds", "faults", "brokers")
            if getattr(self, name) != getattr(ClusterOptions, name)
        ]
        given += [
            f" --{name}" if getattr(self, name) else f" --no-{name}"
            for name in ("groups", "transactions")
            if getattr(self, name) is not None
        ]
        return "".join(given) + (f" --kinds {','.join(self.kinds)}" if self.kinds else "")


@dataclass
class ClusterOutcome:
    seed: int
    events: int = 0
    #: How long faults happened.
    seconds: int = 0
    acknowledged: int = 0
    #: Offsets that groups committed, and how often coordinators were compared with their logs.
    commits: int = 0
    looks: int = 0
    #: Committed transactions.
    transactions: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    trace: list[str] = field(default_factory=list)


class Machine:
    """A machine with a disk, and the broker that runs on it, if any."""

    def __init__(self, cluster: Cluster, node_id: int) -> None:
        self._cluster = cluster
        world = cluster.world
        self.node_id = node_id
        self.name = f"b{node_id}"
        log = (lambda text: world.log(f"{self.name} {text}")) if world.disk_traced else None
        self.disk = SimDisk(world.random, strict=world.chance(0.5), log=log)
        self.disk.make_dir(DATA_DIR.rpartition("/")[0])
        self.disk.sync_dir("/")
        self.member: Member | None = None
        self._ghost: Member | None = None
        self._is_cut = False
        self.config = BrokerConfig.from_properties(
            {
                "node.id": str(node_id), "listeners": f"PLAINTEXT://b{node_id}:9092", "log.dirs": DATA_DIR,
                "auto.create.topics.enable": "false", "log.retention.check.interval.ms": "20000",
                "log.recovery.point.interval.bytes": str(500 + world.below(20_000)),
                "log.cleaner.backoff.ms": "30000", "replica.lag.time.max.ms": "2000",
                # Five brokers have ten times as many idle pairs as two.
                "replica.fetch.wait.max.ms": "500" if cluster.count <= 3 else "1000",
                **cluster.settings,
            }
        )  # fmt: skip
        self.delays = Delays(sync_ms=2 + world.below(20), job_ms=1 + world.below(60))

    @property
    def is_running(self) -> bool:
        return self.member is not None and self.member.is_running

    def start(self) -> None:
        if self.member is not None:
            return
        cluster = self._cluster
        if self._ghost is not None:
            self._ghost.power_returns()
            self._ghost = None
        self.disk.heal()
        cluster.world.log(f"{self.name}: --- starts")
        self.member = Member(
            cluster.world,
            self.disk,
            self.config,
            self.delays,
            cluster.network,
            cluster.ensemble,
            cluster.looked,
        )
        self.member.begin()
        if self._is_cut:
            self.member.client.cut()

    def kill(self) -> None:
        member, self.member = self.member, None
        if member is not None:
            self._cluster.invariants.gone(member, lost_power=False)
            member.kill()

    def lose_power(self) -> None:
        member, self.member = self.member, None
        if member is not None:
            self._cluster.world.log(f"{self.name}: --- the power is cut")
            self._cluster.invariants.gone(member, lost_power=True)
            self.disk.cut_after = None
            member.lose_power()
            self._ghost = member

    def stopped(self, member: Member) -> None:
        if self.member is member:
            self._cluster.invariants.gone(member, lost_power=False)
            self.member = None

    def pause(self) -> None:
        if self.member is not None:
            self.member.pause()

    def resume(self) -> None:
        if self.member is not None:
            self.member.resume()

    def cut_store(self) -> None:
        self._is_cut = True
        if self.member is not None:
            self.member.client.cut()

    def heal_store(self) -> None:
        self._is_cut = False
        if self.member is not None:
            self.member.client.heal()


class Cluster:
    def __init__(self, seed: int, options: ClusterOptions, *, traced: bool = False) -> None:
        self.seed = seed
        self.options = options
        self.world = world = World(seed, traced=traced)
        self.network = Network(world)
        self.ensemble = Ensemble(world, session_timeout_ms=_SESSION_TIMEOUT_MS)
        self.count = count = options.brokers or (3, 3, 3, 4, 5)[world.below(5)]
        has_groups = seed % 3 == 0 if options.groups is None else options.groups
        has_transactions = seed % 4 == 2 if options.transactions is None else options.transactions
        self.settings = groups.settings(world, count) if has_groups else {}
        if has_transactions:
            self.settings = transactions.settings(world, count) | self.settings
        self.machines = {node_id: Machine(self, node_id) for node_id in range(1, count + 1)}
        self.invariants = Invariants(self.ensemble, self.members)
        self.common = Common(world, self.network, list(self.machines), self.ensemble)
        self.outcome = ClusterOutcome(seed)
        self.is_healed = False
        pause_ms = (500 + world.below(1200)) * (3 if has_transactions else 1)
        self.producers = [
            ClusterProducer(self.common, "i1", is_idempotent=True, acks=-1, pause_ms=pause_ms),
            ClusterProducer(self.common, "i2", is_idempotent=True, acks=-1, pause_ms=2 * pause_ms),
            ClusterProducer(self.common, "p1", is_idempotent=False, acks=-1, pause_ms=2 * pause_ms),
            ClusterProducer(self.common, "q1", is_idempotent=False, acks=1, pause_ms=3 * pause_ms),
        ]
        self.admin = ClusterAdmin(self.common, self._kinds(count), pause_ms=6000, grows=has_groups)
        self.consumer = ClusterReader(self.common, "consumer", pause_ms=400)
        self.client_names = [client.name for client in (*self.producers, self.admin, self.consumer)]
        self.groups = Groups(self) if has_groups else None
        if self.groups is not None:
            self.client_names += self.groups.client_names
            self.invariants.groups = self.groups.invariants
        self.transactions = Transactions(self) if has_transactions else None
        if self.transactions is not None:
            self.client_names += self.transactions.client_names
        self.faults = Faults(self)
        if options.kinds:
            self.faults.kinds = [kind for kind in self.faults.kinds if kind.__name__ in options.kinds]

    def _kinds(self, count: int) -> list[ClusterKind]:
        world, kinds = self.world, []
        for at in range(4):
            durable = world.chance(0.5)
            configs = {
                "segment.bytes": str(400 + world.below(3000)),
                "min.insync.replicas": "1" if world.chance(0.5 if durable else 0.25) else "2",
                "flush.policy": "durable" if durable else "page-cache",
                "file.delete.delay.ms": str(world.below(4000)),
            }
            replicas = min(count, 3 if world.chance(0.85) else 2)
            kinds.append(ClusterKind(f"t{at}", 1 + world.below(2), replicas, durable, configs))
        return kinds

    def members(self) -> dict[int, Member]:
        return {m.node_id: m.member for m in self.machines.values() if m.member is not None}

    def looked(self, member: Member) -> None:
        if member.started:
            self.invariants.looked(member)

    # --- the run ------------------------------------------------------------------------------------------------

    def run(self) -> ClusterOutcome:
        try:
            self._live()
            self._heal()
            self._rest()
            self._read_all()
        except Anomaly as anomaly:
            raise self._failure(anomaly.kind, str(anomaly)) from anomaly
        except Exception as error:
            # An exception that leaves the core is a bug of the core.
            where = traceback.extract_tb(error.__traceback__)[-1]
            self.world.log("".join(traceback.format_exception(error)))
            raise self._failure("crash", f"{error!r} at {where.filename}:{where.lineno}") from error
        self.outcome.events = self.world.events
        self.outcome.trace = self.world.trace
        if self.groups is not None:
            self.outcome.commits, self.outcome.looks = self.groups.commits, self.groups.invariants.looks
        if self.transactions is not None:
            self.outcome.transactions = self.transactions.committed
        self.outcome.acknowledged = sum(producer.acknowledged for producer in self.producers)
        return self.outcome

    def _failure(self, kind: str, text: str) -> Failure:
        return Failure(
            kind,
            f"cluster seed {self.seed} after {self.world.now_ms - START_MS} ms: {text}\n"
            f"  replay: python -m testkit.sim --cluster {self.seed} --trace{self.options.arguments()}",
            self.world.trace,
        )

    def _step(self) -> bool:
        try:
            return self.world.step()
        except PowerCut:
            for machine in self.machines.values():
                if machine.disk.cut_after is not None and machine.disk.steps >= machine.disk.cut_after:
                    machine.lose_power()
                    return True
            raise

    def _live(self) -> None:
        world = self.world
        for machine in self.machines.values():
            world.later(world.below(300), machine.start)
        for actor in (*self.producers, self.admin, self.consumer):
            world.later(500, actor.begin)
        if self.groups is not None:
            self.groups.begin()
        if self.transactions is not None:
            self.transactions.begin()
        last_ms = self.options.seconds * 1000
        for _ in range(self.options.faults):
            at_ms = _FAULTS_FROM_MS + world.below(last_ms - _FAULTS_FROM_MS)
            world.later(at_ms, self._fault)
        while world.now_ms < START_MS + last_ms and world.events < _EVENTS_MAX and self._step():
            pass
        self.outcome.seconds = (world.now_ms - START_MS) // 1000

    def _fault(self) -> None:
        if not self.is_healed:
            self.outcome.faults[self.faults.happen()] += 1

    def _heal(self) -> None:
        self.world.log("--- everything is mended")
        self.is_healed = True
        self.common.is_open = False
        self.ensemble.is_down = False
        self.ensemble.slow_ms = 0
        self.network.mend_all()
        for machine in self.machines.values():
            machine.disk.heal()
            machine.heal_store()
            if machine.member is not None and machine.member.place.state == "paused":
                machine.resume()
            if machine.member is not None:
                machine.member.client.lag_ms = 3
        if self.groups is not None:
            self.groups.heal()
        if self.transactions is not None:
            self.transactions.heal()

    def _rest(self) -> None:
        """Until every replica is in sync and every client has its responses."""
        deadline_ms, events_max = self.world.now_ms + _QUIET_MS, self.world.events + _QUIET_EVENTS
        look_ms = 0
        why: str | None = "nothing was looked at"
        while why is not None:
            if self.world.now_ms > deadline_ms or self.world.events > events_max or not self._step():
                raise Anomaly("unhealed", f"all is well again, and yet: {why}")
            if self.world.now_ms >= look_ms:
                look_ms = self.world.now_ms + _LOOK_MS
                for machine in self.machines.values():
                    if machine.member is None:
                        machine.start()
                why = (
                    self.invariants.unrest() if len(self.members()) == len(self.machines) else "brokers start"
                )
                if why is None and not all(producer.is_done for producer in self.producers):
                    why = f"unanswered: {[(p.name, p.unanswered) for p in self.producers if not p.is_done]}"
                if why is None and self.groups is not None:
                    why = self.groups.unrest()
                if why is None and self.transactions is not None:
                    why = self.transactions.unrest()
        self.invariants.check_at_rest()

    def _read_all(self) -> None:
        image = self.ensemble.image
        self.admin.check_deleted(dict.fromkeys(image.topics_by_id))
        for topic in self.common.live():
            if topic.topic_id not in image.topics_by_id:
                raise Anomaly("topic-lost", f"{topic.name} {topic.topic_id.hex()} is not in the metadata")
        ends = {
            (topic.topic_id, number): self.end_of((topic.topic_id, number))
            for topic in image.topics.values()
            for number in range(len(topic.partitions))
        }
        reader = FreshReader(self.common, "fresh", ends)
        reader.begin()
        audited: list[bool] = []
        if self.groups is not None:
            self.groups.audit(lambda: audited.append(True))
        is_read = self.transactions.audit() if self.transactions is not None else lambda: True
        deadline_ms = self.world.now_ms + _QUIET_MS
        while not reader.done or (self.groups is not None and not audited) or not is_read():
            if self.world.now_ms > deadline_ms or not self._step():
                raise Anomaly("unseen", "what is committed cannot be read")

    def end_of(self, place: tuple[bytes, int]) -> int:
        """The high watermark of a partition, by its leader."""
        topic_id, number = place
        leader = self.ensemble.image.topics_by_id[topic_id].partitions[number].leader
        hosted = self.members()[leader].broker.partitions.by_id[int.from_bytes(topic_id, "big")]
        return hosted.replicas[number].high_watermark


def run_cluster(seed: int, options: ClusterOptions | None = None, *, traced: bool = False) -> ClusterOutcome:
    """Run one seed. Raises Failure."""
    return Cluster(seed, options or ClusterOptions(), traced=traced).run()
