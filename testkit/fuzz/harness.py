"""A core without the runtime: its effects are performed at once and in order, on a given disk.

Time passes when a caller says so. Used on the simulator's disk (mutated requests) and on a real directory
(mutated files). A response is passed to its client as one complete frame.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Final

from ottla.broker.core import Broker
from ottla.broker.requests.connection import Connection
from ottla.broker.storage.kafka_import import import_kafka_directory
from ottla.config.broker import BrokerConfig
from ottla.log.compaction import clean
from ottla.metadata.records import TopicRemoved
from ottla.model.api_key import ApiKey
from ottla.ports.disk import Disk, DiskError
from ottla.ports.effects import AUTHENTICATED, CLOSE, PAUSE, PROPOSE, RESUME, RUN, SEND, SYNC, WORK
from ottla.records.errors import CorruptRecords
from ottla.records.record import Record, decode_batches
from ottla.runtime.embedded_store import EmbeddedStore
from ottla.wire.decode import decode_response
from ottla.wire.encode import request_encoder
from ottla.wire.schema import response_header_is_flexible
from testkit.fuzz.outcome import Failed, Stopwatch
from testkit.fuzz.valid_requests import frame_of
from testkit.injected import is_injected
from testkit.sim.world import START_MS, SeededEntropy


class Client:
    """A connection. `received` gets each response, with its size."""

    __slots__ = ("closed", "connection", "paused", "received")

    def __init__(self, connection: Connection, received: Callable[[bytes], None]) -> None:
        self.connection = connection
        self.received = received
        self.paused = False
        self.closed = False


class Harness:
    def __init__(self, disk: Disk, directory: str, random: Random, settings: dict[str, str]) -> None:
        self.disk = disk
        self.directory = directory
        self.random = random
        self.now_ms = START_MS
        self.config = BrokerConfig.from_properties(
            {
                "listeners": "PLAINTEXT://127.0.0.1:9092",
                "log.dirs": directory,
                "log.flush.policy": "page-cache",
                **settings,
            }
        )
        self.said: list[str] = []
        #: How long the core held the event loop, per call.
        self.stopwatch = Stopwatch()
        self.clients: dict[Connection, Client] = {}
        #: The names of deleted topics.
        self.deleted: set[str] = set()

    def start(self) -> None:
        """As in `server/node.py`. Raises what that reports as a refused start."""
        self.clients.clear()
        self.store = EmbeddedStore(self.disk, self.directory)
        entropy = SeededEntropy(self.random)
        journal = self.store.load()
        found = import_kafka_directory(self.disk, self.config, journal, new_id=entropy.id_bytes)
        self.config = found.config
        if found.records:
            self.store.append(found.records)
            journal += found.records
        self.said += found.notes
        self.broker = Broker(self.config, self.disk, entropy, say=self.said.append)
        self.broker.isolation.tolerates = is_injected
        first = self.broker.start(journal, self.now_ms)
        if first:
            self.store.append(first)
            self.broker.committed(first, self.now_ms)
            self.broker.proposed = self.broker.image
        self.turn()

    def stop(self) -> None:
        self.broker.stop()
        self.store.close()

    # --- effects ----------------------------------------------------------------------------------------------

    def turn(self) -> None:
        broker = self.broker
        while True:
            more = self.stopwatch.time(broker.settle, self.now_ms)
            outbox, broker.outbox = broker.outbox, []
            if not outbox and not more:
                return
            syncs = [effect for effect in outbox if effect[0] == SYNC]
            for effect in outbox:
                if effect[0] != SYNC:
                    self._perform(effect)
            if syncs:
                self._sync(syncs)

    def _perform(self, effect: Any) -> None:
        kind = effect[0]
        if kind == SEND:
            self.clients[effect[1]].received(self._whole(effect[2]))
        elif kind == CLOSE:
            client = self.clients.pop(effect[1])
            client.closed = True
            self.closed(client, effect[2])
            self.broker.disconnected(effect[1])
        elif kind == AUTHENTICATED:
            pass
        elif kind in (PAUSE, RESUME):
            self.clients[effect[1]].paused = kind == PAUSE
        elif kind == PROPOSE:
            if effect[1]:
                self.store.append(effect[1])
            for record in effect[1]:
                if isinstance(record, TopicRemoved) and record.topic_id in self.broker.image.topics_by_id:
                    self.deleted.add(self.broker.image.topics_by_id[record.topic_id].name)
            self.stopwatch.time(self.broker.committed, effect[1], self.now_ms)
            self.stopwatch.time(effect[2], None)
        elif kind == RUN:
            self._work(lambda: effect[1](self.disk), effect[2])
        elif kind == WORK:
            self._work(lambda: clean(self.disk, effect[1]), effect[2])
        else:
            raise Failed(f"an effect that is not performed here: {kind}")

    def _work(self, job: Callable[[], Any], done: Callable[[Any, str | None], None]) -> None:
        result, error = None, None
        try:
            result = job()
        except (DiskError, CorruptRecords) as failed:
            error = str(failed)
        self.stopwatch.time(done, result, error)

    def closed(self, client: Client, reason: str) -> None:
        """The broker has closed a connection."""

    def _sync(self, effects: list[Any]) -> None:
        for _kind, file, directory, _target, _is_bulk in effects:
            if file is not None:
                self.disk.sync(file)
            if directory is not None:
                self.disk.sync_dir(directory)
        self.broker.synced([effect[3] for effect in effects], self.now_ms)

    def _whole(self, parts: list[Any]) -> bytes:
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
            raise Failed(f"a response with a wrong size: {data.hex()}")
        return bytes(data)

    def pass_time(self, ms: int) -> None:
        end = self.now_ms + ms
        while (deadline := self.broker.next_deadline_ms) is not None and deadline <= end:
            self.now_ms = max(self.now_ms, deadline)
            self.stopwatch.time(self.broker.tick, self.now_ms)
            self.turn()
        self.now_ms = end

    # --- clients ----------------------------------------------------------------------------------------------

    def connect(self, received: Callable[[bytes], None]) -> Client:
        client = Client(self.broker.connected("fuzz"), received)
        self.clients[client.connection] = client
        return client

    def disconnect(self, client: Client) -> None:
        if self.clients.pop(client.connection, None) is not None:
            self.broker.disconnected(client.connection)
            self.turn()

    def receive(self, client: Client, frame: bytes) -> None:
        """One request; its memory is overwritten as soon as the core has read it."""
        memory = bytearray(frame)
        self.stopwatch.time(
            self.broker.receive, client.connection, memoryview(memory).toreadonly(), self.now_ms
        )
        memory[:] = b"\xee" * len(memory)
        self.turn()

    def ask(self, key: int, version: int, /, **fields: Any) -> Any:
        """A valid request on its own connection; it must be answered."""
        answers: list[bytes] = []
        client = self.connect(answers.append)
        self.receive(client, frame_of(key, version, 7, request_encoder(key, version)(fields)))
        if not answers:
            self.pass_time(1000)
        if client.closed or not answers:
            raise Failed(f"a good request of API {key} was not answered: {self.said[-1:]}")
        self.disconnect(client)
        return decode_response(
            key, version, answers[0], 9 if response_header_is_flexible(key, version) else 8
        )

    # --- what is asked for most -------------------------------------------------------------------------------

    def create(self, name: str, partitions: int, settings: dict[str, str]) -> bytes:
        return created(self.ask(ApiKey.CREATE_TOPICS, 7, **new_topic(name, partitions, settings)))

    def produce(self, topic: str, partition: int, batch: bytes) -> Any:
        """The row of the partition."""
        rows = [{"index": partition, "records": batch}]
        topics = [{"name": topic, "partition_data": rows}]
        answer = self.ask(ApiKey.PRODUCE, 9, acks=-1, timeout=30_000, topic_data=topics)
        return answer.responses[0].partition_responses[0]

    def fetch(self, topic: str, partition: int, offset: int) -> Any:
        """The row of the partition, without a wait."""
        row = {
            "partition": partition, "fetch_offset": offset, "partition_max_bytes": _ALL, "current_leader_epoch": -1,
        }  # fmt: skip
        answer = self.ask(
            ApiKey.FETCH, 11, replica_id=-1, max_wait=0, min_bytes=0, max_bytes=_ALL, session_epoch=-1,
            topics=[{"topic": topic, "partitions": [row]}],
        )  # fmt: skip
        return answer.responses[0].partitions[0]


_ALL: Final = 1 << 30


def new_topic(name: str, partitions: int, settings: dict[str, str]) -> dict[str, Any]:
    """The fields of a CreateTopics request for one topic."""
    configs = [{"name": key, "value": value} for key, value in settings.items()]
    new = {"name": name, "num_partitions": partitions, "replication_factor": 1, "configs": configs}
    return {"topics": [new], "timeout": 30_000}


def created(answer: Any) -> bytes:
    """The id of the created topic."""
    [row] = answer.topics
    if row.error_code.value:
        raise Failed(f"the topic {row.name} could not be made: {row.error_message}")
    topic_id: bytes = row.topic_id.bytes
    return topic_id


def records_from(row: Any, offset: int) -> list[Record]:
    """The records of a fetch from an offset on."""
    return [record for record in decode_batches(row.records or b"") if record.offset >= offset]
