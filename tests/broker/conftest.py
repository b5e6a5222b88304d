"""A broker's core without a shell: requests go in as frames, and the effects that come out are performed by hand.

Time moves when a test says so, syncs and proposals can be held back or refused, and every frame is overwritten as soon as
`receive` returns, because that is all the time the core may look at it.
"""

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ottla.broker.core import Broker
from ottla.broker.requests.connection import Connection
from ottla.config.broker import BrokerConfig
from ottla.log.compaction import Outcome, Task
from ottla.ports.effects import CLOSE, PAUSE, PROPOSE, RESUME, RUN, SEND, SYNC, WORK
from ottla.records.record import Record, decode_batches, encode_batch
from ottla.runtime.disk import SystemDisk
from ottla.wire.decode import decode_response
from ottla.wire.encode import request_encoder
from ottla.wire.frames import ClientConnection
from ottla.wire.schema import version_range
from testkit.injected import is_injected

PRODUCE, FETCH, METADATA, CREATE_TOPICS = 0, 1, 3, 19


class SeededEntropy:
    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def id_bytes(self) -> bytes:
        return self._random.randbytes(16)

    def below(self, limit: int) -> int:
        return self._random.randrange(limit)

    def token(self, size: int) -> bytes:
        return self._random.randbytes(size)


class Driver:
    """Stands where the shell stands."""

    def __init__(self, directory: str, settings: dict[str, str]) -> None:
        properties = {
            "listeners": "PLAINTEXT://127.0.0.1:9092",
            "log.dirs": directory,
            "log.flush.policy": "page-cache",
            **settings,
        }
        self.now_ms = 1_700_000_000_000
        self.said: list[str] = []
        self.disk = SystemDisk()
        self.broker = Broker(
            BrokerConfig.from_properties(properties), self.disk, SeededEntropy(1), say=self.said.append
        )
        # What is contained is a mistake of the core, unless a test has injected it.
        self.broker.isolation.tolerates = is_injected
        first = self.broker.start([], self.now_ms)
        self.broker.committed(first, self.now_ms)
        self.broker.proposed = self.broker.image
        self.clients: dict[Connection, Client] = {}
        self.are_syncs_held = False
        self.held_syncs: list[Any] = []
        self.are_proposals_held = False
        self.held_proposals: list[Any] = []
        #: Tasks for the worker, which a test performs itself.
        self.held_work: list[tuple[Task, Callable[[Outcome | None, str | None], None]]] = []
        self.turn()

    def connect(self, broker_id: int | None = None) -> "Client":
        """A client; with `broker_id` that broker, as if it had proven itself."""
        client = Client(self, self.broker.connected("test:1"))
        client.connection.broker_id = broker_id
        self.clients[client.connection] = client
        return client

    def connect_broker(self) -> "Client":
        return self.connect(broker_id=2)

    def turn(self) -> None:
        """What the shell does after each call: wake who waits, perform what was asked for."""
        while True:
            more = self.broker.settle(self.now_ms)
            outbox, self.broker.outbox = self.broker.outbox, []
            if not outbox and not more:
                return
            for effect in outbox:
                self._perform(effect)

    def _perform(self, effect: Any) -> None:
        kind = effect[0]
        if kind == SEND:
            self.clients[effect[1]].sent(b"".join(map(self._bytes, effect[2])))
        elif kind == CLOSE:
            client = self.clients[effect[1]]
            client.closed_because = effect[2]
            self.broker.disconnected(effect[1])
        elif kind in (PAUSE, RESUME):
            self.clients[effect[1]].is_paused = kind == PAUSE
        elif kind == SYNC:
            self.held_syncs.append(effect)
            if not self.are_syncs_held:
                self.sync()
        elif kind == PROPOSE:
            self.held_proposals.append(effect)
            if not self.are_proposals_held:
                self.commit()
        elif kind == WORK:
            self.held_work.append((effect[1], effect[2]))
        elif kind == RUN:
            effect[2](effect[1](self.disk), None)

    def _bytes(self, part: Any) -> bytes:
        if isinstance(part, bytes | bytearray):
            return bytes(part)
        file, position, size = part
        data = self.disk.read(file, position, size)
        assert len(data) == size, "a slice reaches beyond its file"
        return data

    def sync(self) -> None:
        """Perform the syncs that were asked for."""
        held, self.held_syncs = self.held_syncs, []
        for _kind, file, directory, *_target in held:
            if file is not None:
                self.disk.sync(file)
            if directory is not None:
                self.disk.sync_dir(directory)
        self.broker.synced([effect[3] for effect in held], self.now_ms)

    def commit(self, error: str | None = None) -> None:
        """Write the proposals that were made, or fail to."""
        held, self.held_proposals = self.held_proposals, []
        for _kind, records, done in held:
            if error is None:
                self.broker.committed(records, self.now_ms)
            else:
                self.broker.rejected()
            done(error)

    def advance(self, ms: int) -> None:
        """Let time pass, waking what has a deadline on the way at its time."""
        end = self.now_ms + ms
        while (deadline := self.broker.next_deadline_ms) is not None and deadline <= end:
            self.now_ms = max(self.now_ms, deadline)
            self.broker.tick(self.now_ms)
            self.turn()
        self.now_ms = end

    def replica(self, topic: str, number: int = 0) -> Any:
        return self.broker.partitions.by_name[topic].replicas[number]

    def close(self) -> None:
        self.broker.stop()
        self.disk.release()


class Client:
    """One connection: requests by key, version and the union of all versions' fields."""

    def __init__(self, driver: Driver, connection: Connection) -> None:
        self.driver = driver
        self.connection = connection
        self.closed_because: str | None = None
        self.is_paused = False
        #: Answers that came, decoded, oldest first.
        self.answers: list[Any] = []
        self._wire = ClientConnection("test")
        self._asked: list[tuple[int, int]] = []

    def send(
        self, key: int, version: int | None = None, /, *, is_answered: bool = True, **fields: Any
    ) -> None:
        versions = version_range(key)
        assert versions is not None
        version = versions[1] if version is None else version
        body = request_encoder(key, version)(fields)
        _id, frame = self._wire.request(key, version, body, is_answered=is_answered)
        if is_answered:
            self._asked.append((key, version))
        self.send_frame(frame[4:])

    def send_frame(self, frame: bytes) -> None:
        """A request without its length."""
        memory = bytearray(frame)
        self.driver.broker.receive(self.connection, memoryview(memory).toreadonly(), self.driver.now_ms)
        memory[:] = bytes(len(memory))
        self.driver.turn()

    def ask(self, key: int, version: int | None = None, /, **fields: Any) -> Any:
        """Send a request whose answer comes at once."""
        before = len(self.answers)
        self.send(key, version, **fields)
        assert self.closed_because is None, self.closed_because
        assert len(self.answers) == before + 1, "no answer came"
        return self.answers.pop()

    def ask_in_vain(self, key: int, version: int | None = None, /, **fields: Any) -> Any:
        """Send a request that is held until its time-out."""
        before = len(self.answers)
        self.send(key, version, **fields)
        assert len(self.answers) == before, "it was answered at once"
        self.driver.advance(61_000)
        assert len(self.answers) == before + 1, "no answer came within a minute"
        return self.answers.pop()

    def sent(self, data: bytes) -> None:
        for _id, body in self._wire.feed(data):
            self.answers.append(decode_response(*self._asked.pop(0), body, 0))

    def disconnect(self) -> None:
        self.driver.broker.disconnected(self.connection)
        self.driver.turn()

    # --- what nearly every test asks for --------------------------------------------------------------------

    def create(self, name: str, partitions: int = 1, **configs: str) -> bytes:
        """A new topic; settings with underscores instead of dots. Returns its id."""
        [topic] = self.ask(
            CREATE_TOPICS,
            topics=[
                {
                    "name": name, "num_partitions": partitions, "replication_factor": 1,
                    "configs": [
                        {"name": key.replace("_", "."), "value": value} for key, value in configs.items()
                    ],
                }
            ],
        ).topics  # fmt: skip
        assert topic.error_code.value == 0, topic.error_message
        topic_id: bytes = topic.topic_id.bytes
        return topic_id

    def produce(self, topic: str, batch: bytes, partition: int = 0, acks: int = -1, version: int = 12) -> Any:
        """Produce one batch; the row of its partition."""
        answer = self.ask(PRODUCE, version, **produce_fields(topic, batch, partition, acks))
        return answer.responses[0].partition_responses[0]

    def fetch(self, topic: str, offset: int, partition: int = 0, version: int = 12, **more: Any) -> Any:
        """Fetch without waiting; the row of the partition."""
        answer = self.ask(FETCH, version, **fetch_fields({(topic, partition): offset}, max_wait=0, **more))
        return answer.responses[0].partitions[0]


def produce_fields(topic: str, batch: bytes, partition: int = 0, acks: int = -1) -> dict[str, Any]:
    rows = [{"index": partition, "records": batch}]
    return {"acks": acks, "timeout": 30_000, "topic_data": [{"name": topic, "partition_data": rows}]}


def fetch_fields(
    offsets: dict[tuple[str, int], int],
    *,
    partition_max_bytes: int = 1 << 20,
    forgotten: dict[str, list[int]] | None = None,
    leader_epoch: int = -1,
    **fields: Any,
) -> dict[str, Any]:
    topics: dict[str, list[dict[str, int]]] = {}
    for (topic, partition), offset in offsets.items():
        topics.setdefault(topic, []).append(
            {
                "partition": partition,
                "fetch_offset": offset,
                "partition_max_bytes": partition_max_bytes,
                "current_leader_epoch": leader_epoch,
            }
        )
    return {
        "replica_id": -1, "max_wait": 500, "min_bytes": 1, "max_bytes": 1 << 24,
        "topics": [{"topic": topic, "partitions": rows} for topic, rows in topics.items()],
        "forgotten_topics_data": [
            {"topic": topic, "partitions": partitions} for topic, partitions in (forgotten or {}).items()
        ],
        **fields,
    }  # fmt: skip


def make_batch(
    *values: bytes | None, key: bytes | None = b"k", timestamp_ms: int = 1_600_000_000_000, **fields: Any
) -> bytes:
    """One batch with a record for each value."""
    return encode_batch(
        [Record(number, timestamp_ms + number, key, value) for number, value in enumerate(values)], **fields
    )


def read_values(row: Any) -> list[bytes | None]:
    """The values in a fetched partition, whatever offset was asked for: whole batches as they came."""
    return [record.value for record in decode_batches(row.records or b"")]


@pytest.fixture
def drive(tmp_path: Any) -> Iterator[Callable[..., Driver]]:
    """Start a core with these settings (underscores for dots)."""
    drivers: list[Driver] = []

    def start(**settings: str) -> Driver:
        names = {name.replace("_", "."): value for name, value in settings.items()}
        drivers.append(Driver(str(tmp_path / f"data-{len(drivers)}"), names))
        return drivers[-1]

    yield start
    for driver in drivers:
        driver.close()


@pytest.fixture
def driver(drive: Callable[..., Driver]) -> Driver:
    return drive()


@pytest.fixture
def client(driver: Driver) -> Client:
    return driver.connect()


@pytest.fixture
def batch() -> Callable[..., bytes]:
    return make_batch


@pytest.fixture
def values() -> Callable[[Any], list[bytes | None]]:
    return read_values


@pytest.fixture
def fetching() -> Callable[..., dict[str, Any]]:
    return fetch_fields


@pytest.fixture
def producing() -> Callable[..., dict[str, Any]]:
    return produce_fields
