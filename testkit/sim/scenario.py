"""One run: clients on a node that is stopped, killed and cut from its power again and again.

Everything follows from the seed: the behaviour of the disk, delays, topics, when each incarnation of the node
ends and how. After each start an auditor reads everything. At the end the clients finish their work, and one
last auditor reads everything. `run` returns the outcome, or raises Failure with the command that replays it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Literal

from ottla.config.broker import BrokerConfig
from testkit.checkers.partition import Anomaly
from testkit.sim.admin import Admin, Kind
from testkit.sim.clients import Shared
from testkit.sim.consumer import Auditor, Consumer
from testkit.sim.disk import PowerCut, SimDisk
from testkit.sim.node import DATA_DIR, OTHER_DIR, Delays, SimNode
from testkit.sim.producer import Producer
from testkit.sim.world import World

Ending = Literal["cut", "kill", "stop"]
Fault = Literal["sync", "full"]

#: Time and events that the clients get at the end.
_QUIET_MS: Final = 120_000
_QUIET_EVENTS: Final = 60_000


class Failure(Exception):
    """A run found an anomaly. The text has the anomaly, the seed and the command that replays it."""

    def __init__(self, kind: str, text: str, trace: list[str]) -> None:
        super().__init__(text)
        self.kind = kind
        self.trace = trace


@dataclass(frozen=True)
class Options:
    """The options of a run. The defaults are those of `make sim`."""

    lives: int = 4
    #: None: chosen by the seed.
    is_strict: bool | None = None
    endings: tuple[Ending, ...] = ("cut", "cut", "cut", "kill", "stop")
    #: Topics with the durable policy, the page-cache policy, or some of each.
    policy: Literal["durable", "page-cache", "mixed"] = "mixed"
    faults: tuple[Fault, ...] = ()
    events_max: int = 500
    #: Log directories of the node; with two, partitions move between them.
    directories: int = 1
    #: Whether some topics are compacted.
    compacts: bool = False
    #: A sync site to skip, to see whether that is noticed; cuts then follow soon.
    ignored_site: str | None = None

    def arguments(self) -> str:
        """The same as command line options."""
        given = []
        for name in ("lives", "policy", "events_max", "directories", "ignored_site"):
            value = getattr(self, name)
            if value != getattr(Options, name):
                given.append(f"--{name.replace('_', '-')} '{value}'")
        if self.compacts:
            given.append("--compacts")
        if self.is_strict is not None:
            given.append("--disk " + ("strict" if self.is_strict else "nasty"))
        for name in ("endings", "faults"):
            value = getattr(self, name)
            if value != getattr(Options, name):
                given.append(f"--{name} {','.join(value)}")
        return "".join(" " + each for each in given)


@dataclass
class Outcome:
    seed: int
    endings: Counter[str] = field(default_factory=Counter)
    acknowledged: int = 0
    events: int = 0
    sites: dict[str, int] = field(default_factory=dict)
    #: How often the skipped sync was requested.
    ignored: int = 0
    trace: list[str] = field(default_factory=list)


class Scenario:
    def __init__(self, seed: int, options: Options, *, traced: bool = False) -> None:
        self.seed = seed
        self.options = options
        self.world = world = World(seed, traced=traced)
        strict = world.chance(0.4) if options.is_strict is None else options.is_strict
        self.disk = SimDisk(world.random, strict=strict, log=world.log if traced else None)
        # The parent directory is durable.
        self.disk.make_dir(DATA_DIR.rpartition("/")[0])
        self.disk.sync_dir("/")
        self.disk.sites.clear()
        self.disk.ignored_site = options.ignored_site
        self.shared = Shared(world)
        self.outcome = Outcome(seed)
        # Some machines sync so slowly that a background flush overtakes the sync of a produce.
        slow_ms = 7000 if world.chance(0.15) else 12
        self.delays = Delays(sync_ms=slow_ms, job_ms=1 + world.below(80))
        log_dirs = (DATA_DIR, OTHER_DIR)[: options.directories]
        self.config = BrokerConfig.from_properties(
            {
                "node.id": "1", "listeners": "PLAINTEXT://sim:9092", "log.dirs": ",".join(log_dirs),
                "auto.create.topics.enable": "false", "log.retention.check.interval.ms": "2500",
                "log.recovery.point.interval.bytes": str(500 + world.below(20_000)),
                "log.cleaner.backoff.ms": str(100 + world.below(2000) if options.compacts else 15_000),
            }
        )  # fmt: skip
        self.kinds = self._kinds()
        pause_ms = 20 + world.below(2500 if world.chance(0.3) else 250)
        policies = {"durable": (True,), "page-cache": (False,), "mixed": (True, False)}[options.policy]
        self.producers = [
            Producer(self.shared, f"p{at}", is_idempotent=at < 2, is_durable=is_durable, pause_ms=pause_ms)
            for is_durable in policies
            for at in (range(3) if is_durable else range(3, 5))
        ]
        if options.policy == "page-cache":
            self.producers[0]._is_idempotent = True
        self.admin = Admin(
            self.shared, self.kinds, log_dirs=log_dirs, pause_ms=3000 if options.directories == 1 else 500
        )
        #: Directories whose last shutdown was clean, without a completed start since.
        self._clean: set[str] = set()
        #: By topic id and partition: the minimum log end.
        self._floors: dict[tuple[bytes, int], int] = {}

    def _kinds(self) -> list[Kind]:
        world, kinds = self.world, []
        for at in range(4):
            configs = {
                "segment.bytes": str(300 + world.below(1500)),
                "index.interval.bytes": str(world.below(300)),
                "file.delete.delay.ms": str(world.below(4000)),
            }
            policy = self.options.policy
            durable = policy == "durable" or (policy == "mixed" and at % 2 == 0)
            configs["flush.policy"] = "durable" if durable else "page-cache"
            if at == 3 or (at == 2 and policy != "durable"):
                configs["retention.bytes"] = str(1000 + world.below(3000))
            if self.options.compacts and at in (0, 1):
                # With `delete` too, because records of a topic that is only compacted cannot be deleted.
                configs |= {
                    "cleanup.policy": "compact,delete", "retention.ms": "-1",
                    "min.cleanable.dirty.ratio": str(world.below(5) / 10), "delete.retention.ms": "0",
                }  # fmt: skip
            kinds.append(Kind(f"t{at}", 1 + world.below(2), durable, configs))
        return kinds

    # --- the run ------------------------------------------------------------------------------------------------

    def run(self) -> Outcome:
        try:
            for client in (*self.producers, self.admin, Consumer(self.shared, "consumer")):
                client.begin()
            for _ in range(self.options.lives):
                self._live()
            self._finish()
        except Anomaly as anomaly:
            raise self._failure(anomaly.kind, str(anomaly)) from anomaly
        except PowerCut:
            raise
        except Exception as error:
            # An exception that leaves the core is a bug of the core.
            raise self._failure("crash", repr(error)) from error
        self.outcome.events = self.world.events
        self.outcome.sites = self.disk.sites
        self.outcome.ignored = self.disk.ignored
        self.outcome.trace = self.world.trace
        self.outcome.acknowledged = sum(
            len(history.acknowledged) for topic in self.shared.topics.values() for history in topic.partitions
        )
        return self.outcome

    def _failure(self, kind: str, text: str) -> Failure:
        return Failure(
            kind,
            f"seed {self.seed}: {text}\n"
            f"  replay: python -m testkit.sim {self.seed} --trace{self.options.arguments()}",
            self.world.trace,
        )

    def _live(self) -> None:
        """One incarnation of the node, from its start to an end of the chosen kind."""
        world, disk = self.world, self.disk
        ending = self.options.endings[world.below(len(self.options.endings))]
        stop_at = world.events + 1 + world.below((15, 100, self.options.events_max)[world.below(3)])
        if ending != "stop" and world.chance(0.4):
            # During some operation, perhaps of the start itself.
            within = 30 if world.chance(0.4) else self.options.events_max
            if world.chance(0.5):
                disk.cut_after = disk.steps + 1 + world.below(within)
            else:
                disk.cut_before_sync = (
                    (1 + world.below(5), "journal")
                    if world.chance(0.4)
                    else (1 + world.below(within // 2), "")
                )
            stop_at += self.options.events_max
        faults = [fault for fault in self.options.faults if world.chance(0.7)]
        fault_at = world.events + world.below(self.options.events_max)
        # A skipped sync is noticed only soon afterwards.
        hurry = (0.3, 0.1, 0.02, 0.0)[world.below(4)]
        disk.on_ignored = self._hunt if hurry and ending != "stop" else None
        hunted = disk.ignored
        try:
            self._start()
            while world.events < stop_at:
                if faults and world.events >= fault_at:
                    self._fault(faults.pop())
                    fault_at = world.events + 1 + world.below(200)
                world.step()
                if self.shared.is_delicate:
                    self.shared.is_delicate = False
                    if ending != "stop" and world.chance(0.3):
                        stop_at = world.events + world.below(5)
                assert self.shared.node is not None
                if (
                    ending != "stop"
                    and self.shared.node.broker.log_cleaner.is_under_way
                    and world.chance(0.015)
                ):
                    # Segments are swapped for a short time only.
                    stop_at = min(stop_at, world.events + world.below(6))
                if disk.ignored > hunted and ending != "stop" and world.chance(hurry):
                    break
            if ending == "stop":
                disk.heal()
                self._stop()
        except PowerCut:
            pass
        disk.heal()
        self.outcome.endings[ending] += 1
        self._end(ending)

    def _hunt(self) -> None:
        if self.disk.cut_after is None and self.world.chance(0.2):
            self.disk.cut_after = self.disk.steps + 1 + self.world.below(12)

    def _fault(self, fault: Fault) -> None:
        self.world.log(f"fault: {fault}")
        if fault == "sync":
            # One of two directories fails, and the other must not be affected.
            self.disk.failing_sync = ".log" if self.options.directories == 1 else f"{OTHER_DIR}/"
        else:
            self.disk.full = True

            def room() -> None:
                self.world.log("fault: there is disk space again")
                self.disk.full = False

            self.world.later(500 + self.world.below(3000), room)

    def _start(self) -> None:
        world = self.world
        world.log("--- the node starts")
        node = SimNode(world, self.disk, self.config, self.delays)
        self.shared.node = node
        try:
            node.start(rewrites_journal=world.chance(0.2))
        except Exception as error:
            raise Anomaly("cannot-start", repr(error)) from error
        for directory in node.broker.directories.all:
            if directory.clean and directory.path not in self._clean:
                raise Anomaly("false-clean", f"a clean stop that never was is believed in {directory.path}")
        self._clean = set()
        for replica in node.broker.partitions.replicas():
            topic_id = node.broker.partitions.by_name[replica.topic].topic_id
            floor = self._floors.get((topic_id, replica.number), 0)
            # If there are many logs, they are opened later, in the background.
            if floor and (end := replica.log.next_offset) < floor:
                raise Anomaly("flushed-lost", f"{replica.topic}-{replica.number} ends at {end}, not {floor}")
        Auditor(self.shared, f"auditor{self.outcome.endings.total()}").begin()

    def _stop(self) -> None:
        self.world.log("--- the node is stopped")
        node = self.shared.node
        assert node is not None
        node.stop()
        self._clean = {
            directory.path for directory in node.broker.directories.online if directory.sync_error is None
        }

    def _end(self, ending: Ending) -> None:
        """The node is gone; decide what remains, and note what was guaranteed."""
        world, node = self.world, self.shared.node
        assert node is not None
        node.kill()
        self.shared.node = None
        for replica in node.broker.partitions.replicas():
            topic = self.shared.topics.get(node.broker.partitions.by_name[replica.topic].topic_id)
            if topic is None or not replica.opened:
                continue
            history = topic.partitions[replica.number]
            # A clean shutdown flushes everything. Below the log start nothing is guaranteed.
            is_whole = ending == "stop" and replica.log.parent in self._clean
            flushed = replica.log.next_offset if is_whole else replica.log.flushed_offset
            if flushed <= replica.log.log_start_offset:
                flushed = 0
            history.flushed_offset = max(history.flushed_offset, flushed)
            if any(path.startswith(replica.log.parent) for path, _error in node.sync_failures):
                continue
            self._floors[topic.topic_id, replica.number] = (
                replica.log.next_offset if ending != "cut" else history.flushed_offset
            )
        # After a failed sync the page cache has data that no later sync makes durable: only a cut shows what
        # remains.
        is_cut = ending == "cut" or (ending == "stop" and world.chance(0.5)) or bool(node.sync_failures)
        if is_cut or node.broker.directories.offline:
            world.log(f"--- the power is cut ({'strict' if self.disk.strict else 'nasty'})")
            self._floors = {
                key: min(floor, self.shared.topics[key[0]].partitions[key[1]].flushed_offset)
                for key, floor in self._floors.items()
            }
            self.disk.crash()
            for topic in self.shared.topics.values():
                for history in topic.partitions:
                    history.power_was_cut(0)
        else:
            world.log(f"--- the process is gone ({ending})")
        for _ in range(world.below(20)):
            world.step()

    def _finish(self) -> None:
        """No more faults: the clients finish, and everything is read once more."""
        self.disk.on_ignored = None
        self._start()
        self.shared.is_open = False
        self._run_until(
            lambda: not any(p.unanswered for p in self.producers) and not self.admin.unknown,
            "the clients did not finish",
        )
        auditor = Auditor(self.shared, "last auditor")
        auditor.begin()
        self._run_until(lambda: auditor.done, "the log's end cannot be read")

    def _run_until(self, reached: Callable[[], bool], otherwise: str) -> None:
        deadline_ms, events_max = self.world.now_ms + _QUIET_MS, self.world.events + _QUIET_EVENTS
        while not reached():
            if self.world.now_ms > deadline_ms or self.world.events > events_max or not self.world.step():
                raise Anomaly("unseen", otherwise)


def run(seed: int, options: Options | None = None, *, traced: bool = False) -> Outcome:
    """Run one seed. Raises Failure."""
    return Scenario(seed, options or Options(), traced=traced).run()
