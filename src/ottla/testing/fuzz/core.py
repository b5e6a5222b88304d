"""Mutated requests straight into the core, on the simulator's disk: as many as a second holds.

A round has a seed of its own and is a whole story: topics of every policy are made, a witness produces now and then to a
topic nobody else knows, garbage comes on a few connections, time passes, and at the end the broker stops or loses its power and is
started again. What must hold: nothing is raised, every answer is a message of the version that was asked, in order; what the
witness was told is there; every log opens again and holds whole batches in order.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Final

from ottla.broker.connection import Connection
from ottla.broker.core import Broker
from ottla.config.broker import BrokerConfig
from ottla.ports.disk import DiskError
from ottla.ports.effects import CLOSE, PAUSE, PROPOSE, RESUME, RUN, SEND, SYNC
from ottla.records.batch import HEADER, crc_of
from ottla.records.record import Record, decode_batches, encode_batch, whole_batches
from ottla.runtime.embedded_store import EmbeddedStore
from ottla.testing.fuzz.answers import Expected, is_refusal
from ottla.testing.fuzz.making import Known, Maker, frame_of
from ottla.testing.fuzz.mutating import mutate
from ottla.testing.fuzz.outcome import Failed, Tally
from ottla.testing.sim.disk import SimDisk
from ottla.testing.sim.world import START_MS, SeededEntropy
from ottla.wire.decode import decode_response
from ottla.wire.encode import request_encoder

DATA_DIR: Final = "/var/data"
PRODUCE, FETCH, CREATE_TOPICS, METADATA = 0, 1, 19, 3
#: One of each way to treat a batch, by the settings that make it.
TOPICS: Final[dict[str, dict[str, str]]] = {
    "plain": {},
    "compacted": {"cleanup.policy": "compact"},
    "recompressed": {"compression.type": "zstd"},
    "stamped": {"message.timestamp.type": "LogAppendTime"},
    "synced": {"flush.policy": "durable"},
    "small": {"segment.bytes": "1048576", "max.message.bytes": "4000", "segment.index.bytes": "64"},
}
#: A name that no mutation arrives at, with every setting that others could change for all topics.
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
_CONNECTIONS: Final = 6
_PARTITIONS: Final = 3


class Client:
    """A connection of the round; what is sent to it is checked as it comes."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.expected = Expected()
        self.paused = False
        self.closed = False


class Round:
    def __init__(self, seed: str, *, settings: dict[str, str] | None = None) -> None:
        self.random = Random(seed)
        self.tally = Tally()
        self.now_ms = START_MS
        self.disk = SimDisk(self.random, strict=True)
        # What is above the data directory has been there for long.
        self.disk.make_dir(DATA_DIR.rpartition("/")[0])
        self.disk.sync_dir("/")
        self.config = BrokerConfig.from_properties(
            {
                "listeners": "PLAINTEXT://127.0.0.1:9092",
                "log.dirs": DATA_DIR,
                "log.flush.policy": "page-cache",
                **(settings or {}),
            }
        )
        self.said: list[str] = []
        self._clients: dict[Connection, Client] = {}
        self.witnessed: list[bytes] = []
        #: What the last request was, for whoever fails after it.
        self.last = b""
        self.start()
        self.known = Known(topics={}, partitions=_PARTITIONS)
        self.maker = Maker(self.random, self.known)
        self._admin = self.connect()
        self.make_topics()
        self.create(WITNESS, 1, WITNESS_SETTINGS)

    # --- the broker -------------------------------------------------------------------------------------------

    def start(self) -> None:
        self.store = EmbeddedStore(self.disk, DATA_DIR)
        self.broker = Broker(self.config, self.disk, SeededEntropy(self.random), say=self.said.append)
        first = self.broker.start(self.store.load(), self.now_ms)
        if first:
            self.store.append(first)
            self.broker.committed(first, self.now_ms)
            self.broker.proposed = self.broker.image
        self.turn()

    def turn(self) -> None:
        broker = self.broker
        while True:
            more = broker.settle(self.now_ms)
            outbox, broker.outbox = broker.outbox, []
            if not outbox and not more:
                return
            synced = []
            for effect in outbox:
                kind = effect[0]
                if kind == SYNC:
                    synced.append(effect)
                else:
                    self._perform(kind, effect)
            if synced:
                self._sync(synced)

    def _perform(self, kind: int, effect: Any) -> None:
        if kind == SEND:
            self._sent(self._clients[effect[1]], effect[2])
        elif kind == CLOSE:
            client = self._clients.pop(effect[1])
            client.closed = True
            self.tally.add("closed")
            self.broker.disconnected(effect[1])
        elif kind in (PAUSE, RESUME):
            self._clients[effect[1]].paused = kind == PAUSE
        elif kind == PROPOSE:
            self.store.append(effect[1])
            self.broker.committed(effect[1], self.now_ms)
            effect[2](None)
        elif kind == RUN:
            self._run(effect[1], effect[2])
        else:
            raise Failed(f"an effect that is not performed here: {effect[0]}")

    def _run(self, job: Callable[[Any], Any], done: Callable[[Any, str | None], None]) -> None:
        result, error = None, None
        try:
            result = job(self.disk)
        except DiskError as failed:
            error = str(failed)
        done(result, error)

    def _sync(self, effects: list[Any]) -> None:
        for _kind, file, directory, _target in effects:
            if file is not None:
                self.disk.sync(file)
            if directory is not None:
                self.disk.sync_dir(directory)
        self.broker.synced([effect[3] for effect in effects], self.now_ms)

    def _sent(self, client: Client, parts: list[Any]) -> None:
        data = bytearray()
        for part in parts:
            if part.__class__ in (bytes, bytearray):
                data += part
            else:
                file, position, size = part
                piece = self.disk.read(file, position, size)
                if len(piece) != size:
                    raise Failed(f"{file.path} has {len(piece)} of {size} bytes at {position}")
                data += piece
        if int.from_bytes(data[:4], "big") != len(data) - 4:
            raise Failed(f"an answer whose length is wrong: {data.hex()}")
        key, _version, message = client.expected.answer(bytes(data[4:]))
        self.tally.add("answered")
        if is_refusal(message):
            self.tally.add("refused")
        if key == FETCH and message.session_id:
            self.known.sessions[-3:] = [*self.known.sessions[-2:], (message.session_id, 1)]
        client.last = message  # type: ignore[attr-defined]

    def pass_time(self, ms: int) -> None:
        end = self.now_ms + ms
        while (deadline := self.broker.next_deadline_ms) is not None and deadline <= end:
            self.now_ms = max(self.now_ms, deadline)
            self.broker.tick(self.now_ms)
            self.turn()
        self.now_ms = self.known.now_ms = end

    # --- clients ----------------------------------------------------------------------------------------------

    def connect(self) -> Client:
        client = Client(self.broker.connected("fuzz"))
        self._clients[client.connection] = client
        return client

    def disconnect(self, client: Client) -> None:
        if self._clients.pop(client.connection, None) is not None:
            self.broker.disconnected(client.connection)
            self.turn()

    def send(self, client: Client, frame: bytes) -> None:
        self.last = frame
        client.expected.ask(frame)
        memory = bytearray(frame)
        self.broker.receive(client.connection, memoryview(memory).toreadonly(), self.now_ms)
        memory[:] = b"\xee" * len(memory)
        self.turn()

    def ask(self, key: int, version: int, fields: dict[str, Any]) -> Any:
        """A request of the witness or the administrator, which must be answered."""
        answers: list[bytes] = []
        client = Client(self.broker.connected("witness"))
        self._clients[client.connection] = client
        frame = frame_of(key, version, 7, request_encoder(key, version)(fields))
        client.expected.ask(frame)
        sent = self._sent
        self._sent = lambda to, parts: answers.append(self._whole(parts)) if to is client else sent(to, parts)  # type: ignore[method-assign]
        try:
            self.broker.receive(client.connection, memoryview(frame), self.now_ms)
            self.turn()
            if not answers:
                self.pass_time(1000)
        finally:
            self._sent = sent  # type: ignore[method-assign]
        if client.closed or not answers:
            raise Failed(f"the witness's request of API {key} was not answered: {self.said[-1:]}")
        self.disconnect(client)
        return decode_response(key, version, answers[0], 9 if version >= _FLEXIBLE[key] else 8)

    def _whole(self, parts: list[Any]) -> bytes:
        return b"".join(
            part if part.__class__ in (bytes, bytearray) else self.disk.read(*part) for part in parts
        )

    def create(self, name: str, partitions: int, settings: dict[str, str]) -> bytes:
        configs = [{"name": key, "value": value} for key, value in settings.items()]
        new = {"name": name, "num_partitions": partitions, "replication_factor": 1, "configs": configs}
        [row] = self.ask(CREATE_TOPICS, 7, {"topics": [new], "timeout": 1000}).topics
        if row.error_code.value:
            raise Failed(f"the topic {name} could not be made: {row.error_message}")
        topic_id: bytes = row.topic_id.bytes
        return topic_id

    def make_topics(self) -> None:
        """Those that are not there, or not there any more."""
        for name, settings in TOPICS.items():
            if name not in self.broker.image.topics:
                self.known.topics[name] = self.create(name, _PARTITIONS, settings)

    # --- the round --------------------------------------------------------------------------------------------

    def run(self, count: int) -> Tally:
        random = self.random
        clients = [self.connect() for _ in range(_CONNECTIONS)]
        for number in range(count):
            at = random.randrange(_CONNECTIONS)
            client = clients[at]
            if client.closed or client.paused or random.random() < 0.01:
                self.disconnect(client)
                client = clients[at] = self.connect()
            name, frame = mutate(random, self.maker.frame(number + 100), self.maker)
            try:
                self.send(client, frame)
                if number % 8 == 0:
                    self.pass_time(random.choice((0, 1, 10, 200)))
                if number % 40 == 0:
                    self.witness()
                if number % 100 == 0:
                    self._keep_going()
            except Exception as error:
                raise Failed(
                    f"request {number} ({name}): {error!r}\n  the request: {self.last.hex()}"
                ) from error
            self.tally.add("requests")
        for client in clients:
            self.disconnect(client)
        self._check_nothing_left()
        self._end()
        return self.tally

    def _keep_going(self) -> None:
        """What garbage may rightly do is undone, so that the next goes as deep."""
        if wrong := [
            text for text in self.said if "internal" in text or "offline" in text or "Traceback" in text
        ]:
            raise Failed(wrong[0])
        self.make_topics()
        others = [name for name in self.broker.image.topics if name not in TOPICS and name != WITNESS]
        if len(others) > 20:
            rows = [{"name": name} for name in others]
            self.ask(20, 6, {"topics": rows, "timeout": 1000})

    def witness(self) -> None:
        """Produce one record and look at it."""
        value = b"%d" % len(self.witnessed)
        batch = encode_batch([Record(0, self.now_ms, b"w", value)])
        rows = [{"index": 0, "records": batch}]
        topics = [{"name": WITNESS, "partition_data": rows}]
        answer = self.ask(PRODUCE, 9, {"acks": -1, "timeout": 30_000, "topic_data": topics})
        row = answer.responses[0].partition_responses[0]
        if row.error_code.value or row.base_offset != len(self.witnessed):
            raise Failed(f"the witness wrote {len(self.witnessed)} and was told {row}")
        self.witnessed.append(value)
        self._read_witness(max(0, len(self.witnessed) - 3))

    def _read_witness(self, offset: int) -> None:
        row = {
            "partition": 0,
            "fetch_offset": offset,
            "partition_max_bytes": 1 << 30,
            "current_leader_epoch": -1,
        }
        topics = [{"topic": WITNESS, "partitions": [row]}]
        fields = {"replica_id": -1, "max_wait": 0, "min_bytes": 0, "max_bytes": 1 << 30, "topics": topics}
        answer = self.ask(FETCH, 11, {**fields, "session_epoch": -1})
        found = answer.responses[0].partitions[0]
        values = [record.value for record in decode_batches(found.records or b"") if record.offset >= offset]
        if found.error_code.value or values != self.witnessed[offset:]:
            raise Failed(f"the witness reads {values[:5]} instead of {self.witnessed[offset : offset + 5]}")

    def _check_nothing_left(self) -> None:
        """All clients have gone: nobody waits, watches or has a session."""
        self.pass_time(600_000)
        sessions = self.broker.fetch_sessions
        if sessions.by_id or sessions.woken:
            raise Failed(f"{len(sessions.by_id)} fetch sessions are left of connections that have gone")
        for leader in self.broker.hosting.leaders():
            if leader.watchers or leader.waiting:
                raise Failed(f"{leader.topic}-{leader.number} is still watched or waited for")

    def _end(self) -> None:
        """Stop, or lose the power; then everything must be there again."""
        if self.random.random() < 0.5:
            self.broker.stop()
            self.store.close()
        else:
            self.disk.crash()
        self._clients.clear()
        self.start()
        for leader in list(self.broker.hosting.leaders()):
            check_log(leader, self.disk)
        self._read_witness(0)
        if damaged := [text for text in self.said if "DAMAGED" in text]:
            raise Failed(damaged[0])


#: From which version on the answers to the witness have a flexible header.
_FLEXIBLE: Final = {PRODUCE: 9, FETCH: 12, CREATE_TOPICS: 5, 20: 4}


def check_log(leader: Any, disk: Any) -> None:
    """Whole batches with right CRCs, each beginning where the one before it ended."""
    log = leader.log
    expected = None
    for segment in log.segments:
        data = disk.read(segment.file, 0, segment.size)
        size = 0
        for batch in whole_batches(data):
            size += len(batch)
            head = HEADER.unpack_from(batch)
            if crc_of(batch) != head[4]:
                raise Failed(f"{segment.file.path}: a batch at offset {head[0]} with a wrong CRC")
            if expected is not None and head[0] != expected:
                raise Failed(f"{segment.file.path}: offset {head[0]} follows {expected}")
            expected = head[0] + head[6] + 1
        if size != len(data):
            raise Failed(f"{segment.file.path}: {len(data) - size} bytes after the last batch")
    if expected is not None and expected != log.next_offset:
        raise Failed(f"{log.directory} ends at {expected} and says {log.next_offset}")


def run_core(count: int, seed: int, round_size: int, tell: Callable[[str], None]) -> Tally:
    """So many requests in rounds; each is repeated by its own seed."""
    total = Tally()
    number = 0
    while total["requests"] < count:
        size = min(round_size, count - total["requests"])
        try:
            total.merge(run_round(seed, number, size))
        except Failed as error:
            raise Failed(
                f"{error}\n  again: python -m ottla.testing.fuzz core --seed {seed} --round {number} --requests {size}"
            ) from error
        number += 1
        tell(f"round {number}: {total}")
    return total


def run_round(seed: int, number: int, size: int) -> Tally:
    # Every third round trusts nothing to the page cache, so that produces wait in line for a sync.
    settings = {"log.flush.policy": "durable"} if number % 3 == 2 else {}
    return Round(f"{seed}:{number}", settings=settings).run(size)
