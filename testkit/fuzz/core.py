"""Mutated requests sent directly into the core, on the simulator's disk: thousands per second.

A round has its own seed. It creates topics of every policy. A witness produces now and then to a topic that
nobody else knows; garbage arrives on a few connections; time passes. At the end the broker stops or loses its
power, and is started again. What must hold:

- nothing is raised,
- every response is a valid message of the requested version, in order,
- what the witness was acknowledged is there,
- every log opens again and has complete batches in order,
- no call of the core takes more than `HELD_S_MAX` of CPU time: a broker would serve nobody else meanwhile.

Most requests are mutated; a share (`SHAPES`) has one of the shapes of `shapes.py` instead.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Final, NamedTuple

from ottla.broker.api.shared.api_table import APIS
from ottla.broker.coordinators.group_coordinator import OFFSETS_TOPIC
from ottla.broker.coordinators.transaction_coordinator import TRANSACTIONS_TOPIC
from ottla.groups.classic_group import ClassicGroup
from ottla.model.api_key import ApiKey
from ottla.records.batch import HEADER, crc_of
from ottla.records.record import Record, encode_batch, whole_batches
from testkit.fuzz.answers import Expected, is_refusal
from testkit.fuzz.harness import Client, Harness, records_from
from testkit.fuzz.mutations import mutate
from testkit.fuzz.outcome import Failed, Tally, shortened
from testkit.fuzz.pool import in_processes
from testkit.fuzz.shapes import BYTES_MAX, Shaper
from testkit.fuzz.valid_requests import Known, Maker
from testkit.sim.disk import SimDisk

DATA_DIR: Final = "/var/data"
#: One topic for each way to treat a batch, by its settings.
TOPICS: Final[dict[str, dict[str, str]]] = {
    "plain": {},
    "compacted": {"cleanup.policy": "compact"},
    "recompressed": {"compression.type": "zstd"},
    "stamped": {"message.timestamp.type": "LogAppendTime"},
    "synced": {"flush.policy": "durable"},
    "small": {"segment.bytes": "1048576", "max.message.bytes": "4000", "segment.index.bytes": "64"},
}
PARTITIONS: Final = 3
#: A name that mutations do not reach, with every setting that others could change for all topics.
WITNESS: Final = "the-witness-of-this-round"
WITNESS_SETTINGS: Final = {
    "flush.policy": "durable",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "cleanup.policy": "delete",
    "max.message.bytes": "1048588",
    "compression.type": "producer",
    "message.timestamp.type": "CreateTime",
    "message.timestamp.after.max.ms": "9223372036854775807",
}
#: A topic that is expensive to describe. Not in every round, because its creation takes a while.
WIDE: Final = "wide"
WIDE_PARTITIONS: Final = 1000
_WIDE_ROUNDS: Final = 10
#: The share of requests with a shape.
SHAPES: Final = 0.05
#: CPU seconds of one call of the core. The goal for a broker is 50 ms on an idle machine; the simulated disk
#: costs extra, and a loaded machine is slower.
HELD_S_MAX: Final = 0.15
_CONNECTIONS: Final = 6
#: Members that are known at a time.
_MEMBERS: Final = 4


class Attacker:
    """One connection that sends garbage, and the requests on it that may still be answered."""

    __slots__ = ("client", "expected")

    def __init__(self, round_: Round) -> None:
        self.expected = Expected()
        self.client = round_.connect(lambda frame: round_.answered(self, frame))


class Round(Harness):
    def __init__(
        self,
        seed: str,
        settings: dict[str, str],
        *,
        shapes: float = SHAPES,
        bytes_max: int = BYTES_MAX,
        wide: bool = False,
    ) -> None:
        random = Random(seed)
        self._sim_disk = SimDisk(random, strict=True)
        super().__init__(self._sim_disk, DATA_DIR, random, settings)
        # The parents of the data directory are durable.
        self.disk.make_dir(DATA_DIR.rpartition("/")[0])
        self.disk.sync_dir("/")
        self.tally = Tally()
        self.witnessed: list[bytes] = []
        self.known = Known(topics={}, partitions=PARTITIONS)
        self.maker = Maker(random, self.known)
        self.shaper = Shaper(random, self.maker, bytes_max)
        self._shapes = shapes
        self._wide = wide
        #: Failures that did not end the round, by kind: only with `--keep-going`.
        self.findings: dict[str, str] | None = None
        self.start()
        self._make_topics()
        self.create(WITNESS, 1, WITNESS_SETTINGS)

    def answered(self, attacker: Attacker, frame: bytes) -> None:
        key, _version, message = attacker.expected.answer(memoryview(frame)[4:])
        self.tally.add("answered")
        if is_refusal(message):
            self.tally.add("refused")
        if key == ApiKey.FETCH and message.session_id:
            self.known.sessions = [*self.known.sessions[-2:], (message.session_id, 1)]

    def closed(self, client: Client, reason: str) -> None:
        self.tally.add("closed")

    def _make_topics(self) -> None:
        """Topics that do not exist, or not any more."""
        for name, settings in TOPICS.items():
            if name not in self.broker.image.topics:
                self.known.topics[name] = self.create(name, PARTITIONS, settings)
        if self._wide and WIDE not in self.broker.image.topics:
            self.known.topics[WIDE] = self.create(WIDE, WIDE_PARTITIONS, {})
        if OFFSETS_TOPIC not in self.broker.image.topics:
            # A request for the coordinator of a group creates the topic.
            self.ask(ApiKey.FIND_COORDINATOR, 4, key_type=0, coordinator_keys=["group"])
        if TRANSACTIONS_TOPIC not in self.broker.image.topics:
            self.ask(ApiKey.FIND_COORDINATOR, 4, key_type=1, coordinator_keys=["tx"])

    # --- the story --------------------------------------------------------------------------------------------

    def run(self, count: int) -> Tally:
        attackers = [Attacker(self) for _ in range(_CONNECTIONS)]
        for number in range(count):
            name, frame = "none", b""
            self.stopwatch.longest_s = 0.0
            said = len(self.said)
            attacker = self._choose(attackers)
            try:
                name, frame = self._request(number + 100)
                attacker.expected.ask(frame)
                self.receive(attacker.client, frame)
                self._look_for_errors(said)
                self._meanwhile(number)
            except Exception as error:
                self._found(f"request {number} ({name}): {error!r}", name, frame, error)
                # Its state is unknown.
                return self.tally
            if self.stopwatch.longest_s > HELD_S_MAX:
                self._found(
                    f"request {number} ({name}): the core held the loop for {self.stopwatch.longest_s * 1000:.0f} ms of "
                    f"CPU, at most {HELD_S_MAX * 1000:.0f} are allowed",
                    name,
                    frame,
                )
            self.tally.add("requests")
        for attacker in attackers:
            self.disconnect(attacker.client)
        self._check_nothing_left()
        self._end()
        return self.tally

    def _request(self, correlation_id: int) -> tuple[str, bytes]:
        if self.random.random() < self._shapes:
            self.tally.add("shaped")
            shaped = self.shaper.request(correlation_id)
            return shaped.label, shaped.frame
        return mutate(self.random, self.maker.frame(correlation_id), self.maker)

    def _look_for_errors(self, since: int) -> None:
        for text in self.said[since:]:
            if "internal" in text or "offline" in text:
                raise Failed(text)

    def _found(self, problem: str, name: str, frame: bytes, error: Exception | None = None) -> None:
        """Ends the round, unless all failures are wanted."""
        problem += f"\n  the request: {shortened(frame)}"
        if self.findings is None:
            raise Failed(problem) from error
        self.findings.setdefault(name.partition(" version ")[0], problem)

    def _choose(self, attackers: list[Attacker]) -> Attacker:
        at = self.random.randrange(len(attackers))
        client = attackers[at].client
        if client.closed or client.paused or self.random.random() < 0.01:
            self.disconnect(client)
            attackers[at] = Attacker(self)
        return attackers[at]

    def _meanwhile(self, number: int) -> None:
        if number % 8 == 0:
            self.pass_time(self.random.choice((0, 1, 10, 200)))
            self.known.now_ms = self.now_ms
            self.known.members = self._members()
            self.known.transactors = self._transactors()
        if number % 40 == 0:
            self._witness()
        if number % 100 == 0:
            self._keep_going()

    def _members(self) -> list[tuple[str, str, int]]:
        """Members of groups, or ids that were given out, with generation or epoch; the latest last."""
        found = [
            (group_id, member.member_id, group.generation if isinstance(group, ClassicGroup) else member.current.epoch)
            for shard in self.broker.groups.shards
            for group_id, group in shard.groups.items()
            for member in (*group.members.values(), *(group.pending.values() if isinstance(group, ClassicGroup) else ()))
        ]  # fmt: skip
        self.random.shuffle(found)
        return found[-_MEMBERS:]

    def _transactors(self) -> list[tuple[str, int, int]]:
        """The transactional ids; those with a transaction are chosen more often."""
        return [
            (name, transaction.entry.producer_id, transaction.entry.producer_epoch)
            for shard in self.broker.transactions.shards
            for name, transaction in shard.transactions.items()
            for _ in range(4 if name in shard.ongoing else 1)
        ]

    def _keep_going(self) -> None:
        """Undo what garbage may legitimately do, so that later requests get as far."""
        for text in self.said:
            if "internal" in text or "offline" in text:
                raise Failed(text)
        self._make_topics()
        others = [name for name in self.broker.image.topics if name not in (*TOPICS, WITNESS, WIDE)]
        if len(others) > 20:
            self.ask(ApiKey.DELETE_TOPICS, 6, topics=[{"name": name} for name in others], timeout=1000)

    def _witness(self) -> None:
        """Produce one record and read the newest few."""
        value = b"%d" % len(self.witnessed)
        row = self.produce(WITNESS, 0, encode_batch([Record(0, self.now_ms, b"w", value)]))
        if row.error_code.value or row.base_offset != len(self.witnessed):
            raise Failed(f"the witness wrote {len(self.witnessed)} and was told {row}")
        self.witnessed.append(value)
        self._read_witness(max(0, len(self.witnessed) - 3))

    def _read_witness(self, offset: int) -> None:
        row = self.fetch(WITNESS, 0, offset)
        values = [record.value for record in records_from(row, offset)]
        if row.error_code.value or values != self.witnessed[offset:]:
            raise Failed(f"the witness reads {values[:5]} instead of {self.witnessed[offset : offset + 5]}")

    def _check_nothing_left(self) -> None:
        """All clients have disconnected: no waiting requests, watchers or sessions, and transactions have
        timed out.
        """
        self.pass_time(600_000)
        sessions = self.broker.fetch_sessions
        if sessions.by_id or sessions.woken:
            raise Failed(f"{len(sessions.by_id)} fetch sessions are left of connections that have gone")
        for replica in self.broker.partitions.replicas():
            if replica.watchers or replica.waiting:
                raise Failed(f"{replica.topic}-{replica.number} is still watched or waited for")
        self._check_transactions()
        if self.broker.txn_verification.held_bytes:
            raise Failed(
                f"{self.broker.txn_verification.held_bytes} bytes are held of requests that have gone"
            )

    def _check_transactions(self) -> None:
        """Every transaction has ended, except for refused markers: garbage has written a later one to the
        partition.
        """
        late: set[tuple[str, int]] = set()
        for shard in self.broker.transactions.shards:
            if shard.ongoing or shard.awaiting_producer_id:
                raise Failed(f"going on after their time-outs: {shard.ongoing}, {shard.awaiting_producer_id}")
            for name, completion in shard.completions.pending.items():
                entry = completion.transaction.entry
                for topic, number in completion.unmarked:
                    log = self.broker.partitions.by_name[topic].replicas[number].log
                    producer = log.producers.by_id.get(entry.producer_id)
                    is_late = producer is not None and (
                        producer.epoch > entry.producer_epoch
                        or producer.coordinator_epoch > shard.host.coordinator_epoch
                    )
                    if not is_late:
                        raise Failed(f"{topic}-{number} has not got the marker of {name!r}")
                    late.add((topic, number))
        if TRANSACTIONS_TOPIC in self.deleted:
            # The coordinator lost its transactions with its topic: they hang until they are aborted by hand,
            # as in Kafka.
            return
        for replica in self.broker.partitions.replicas():
            transactions = replica.log.producers.transactions if replica.opened else None
            if transactions is not None and transactions.open and (replica.topic, replica.number) not in late:
                raise Failed(f"{replica.topic}-{replica.number} has a transaction that nobody ends")

    def _end(self) -> None:
        """Stop, or lose power; then everything must be there again."""
        if self.random.random() < 0.5:
            self.stop()
        else:
            self._sim_disk.crash()
        self.start()
        for replica in list(self.broker.partitions.replicas()):
            check_log(replica.log)
        self._read_witness(0)
        for text in self.said:
            if "DAMAGED" in text:
                raise Failed(text)


class Costs(NamedTuple):
    """Every array of an API, in its oldest and newest version, filled to the size. Other fields have random
    values.
    """

    key: int
    bytes_max: int
    seed: int

    def measured(self) -> list[tuple[float, str]]:
        """CPU seconds for which the core held the event loop, and the request."""
        api = APIS[self.key]
        world = Round(f"{self.seed}:costs:{api.key}", {}, bytes_max=self.bytes_max, wide=True)
        # Requests always name the topic that is expensive to describe.
        world.known.topics = {WIDE: world.known.topics[WIDE]}
        found = []
        for version in sorted({api.oldest, api.newest}):
            for shaped in world.shaper.fills(api.key, version):
                attacker = Attacker(world)
                attacker.expected.ask(shaped.frame)
                world.stopwatch.longest_s = 0.0
                try:
                    world.receive(attacker.client, shaped.frame)
                except Exception as error:
                    raise Failed(
                        f"{shaped.label}: {error!r}\n  the request: {shortened(shaped.frame)}"
                    ) from error
                world.disconnect(attacker.client)
                found.append((world.stopwatch.longest_s, shaped.label))
        return found


def run_costs(bytes_max: int, seed: int, jobs: int, tell: Callable[[str], None]) -> str:
    """The cost of the largest requests of every API; raises Failed if it is too high. The most expensive ones
    are printed.
    """
    parts = [Costs(key, bytes_max, seed) for key in sorted(APIS)]
    found = sorted(
        (each for part in in_processes(Costs.measured, parts, jobs) for each in part), reverse=True
    )
    for held_s, label in found:
        if held_s > HELD_S_MAX / 3:
            tell(f"costs: {held_s * 1000:.0f} ms of CPU, {label}")
    too_long = sum(held_s > HELD_S_MAX for held_s, _label in found)
    if too_long:
        again = f"python -m testkit.fuzz costs --seed {seed} --bytes-max {bytes_max}"
        raise Failed(
            f"{too_long} requests hold the loop for more than {HELD_S_MAX * 1000:.0f} ms\n  again: {again}"
        )
    return f"{len(found)} requests, the most expensive {found[0][0] * 1000:.0f} ms of CPU: {found[0][1]}"


def check_log(log: Any) -> None:
    """Complete batches with valid CRCs and increasing offsets. Gaps are allowed: garbage may have a topic
    compacted.
    """
    expected = None
    for segment in log.segments:
        data = log.disk.read(segment.file, 0, segment.size)
        size = 0
        for batch in whole_batches(data):
            size += len(batch)
            head = HEADER.unpack_from(batch)
            if crc_of(batch) != head[4]:
                raise Failed(f"{segment.file.path}: a batch at offset {head[0]} with a wrong CRC")
            if expected is not None and head[0] < expected:
                raise Failed(f"{segment.file.path}: offset {head[0]} follows {expected}")
            expected = head[0] + head[6] + 1
        if size != len(data):
            raise Failed(f"{segment.file.path}: {len(data) - size} bytes after the last batch")
    if expected is not None and expected > log.next_offset:
        raise Failed(f"{log.directory} ends at {expected} and says {log.next_offset}")


class RoundOf(NamedTuple):
    """The parameters that make a round, and repeat it."""

    seed: int
    number: int
    size: int
    shapes: float = SHAPES
    bytes_max: int = BYTES_MAX
    keep_going: bool = False

    @property
    def again(self) -> str:
        more = "" if self.shapes == SHAPES else f" --shapes {self.shapes}"
        more += "" if self.bytes_max == BYTES_MAX else f" --bytes-max {self.bytes_max}"
        return f"python -m testkit.fuzz core --seed {self.seed} --round {self.number} --requests {self.size}{more}"


def run_core(
    count: int,
    seed: int,
    *,
    round_size: int = 2_500,
    shapes: float = SHAPES,
    bytes_max: int = BYTES_MAX,
    keep_going: bool = False,
    jobs: int = 1,
    tell: Callable[[str], None] = lambda _text: None,
) -> Tally:
    """Send this many requests in rounds; each round is repeated by its own seed. `jobs` rounds run in
    parallel, each in its own process.
    """
    sizes = [min(round_size, count - start) for start in range(0, count, round_size)]
    rounds = [RoundOf(seed, number, size, shapes, bytes_max, keep_going) for number, size in enumerate(sizes)]
    total = Tally()
    findings: dict[str, str] = {}
    for tally, found in in_processes(_run, rounds, jobs):
        total.merge(tally)
        for kind, problem in found.items():
            if findings.setdefault(kind, problem) is problem:
                tell(f"FOUND {problem}")
        tell(f"core: {total}")
    if findings:
        raise Failed(f"{len(findings)} kinds of requests failed: {', '.join(sorted(findings))}")
    return total


def _run(each: RoundOf) -> tuple[Tally, dict[str, str]]:
    # Every third round uses the durable policy, so that produces wait for a sync.
    settings = {"log.flush.policy": "durable"} if each.number % 3 == 2 else {}
    wide = each.number % _WIDE_ROUNDS == 0
    try:
        made = Round(
            f"{each.seed}:{each.number}", settings, shapes=each.shapes, bytes_max=each.bytes_max, wide=wide
        )
        made.findings = {} if each.keep_going else None
        tally = made.run(each.size)
    except Failed as error:
        raise Failed(f"{error}\n  again: {each.again}") from error
    again = {kind: f"{problem}\n  again: {each.again}" for kind, problem in (made.findings or {}).items()}
    return tally, again


def run_round(seed: int, number: int, size: int, shapes: float = SHAPES, bytes_max: int = BYTES_MAX) -> Tally:
    return _run(RoundOf(seed, number, size, shapes, bytes_max))[0]
