"""kill -9 at every step of a transaction, of the two phases of its end above all, with producers of each library.

A program copies: it reads, writes what it read and commits its offsets with that, in one transaction. The broker dies at one step
(`kill_at_step.py` has them, and fails what never comes to its step), is started again, and the program goes on as its library
does; if that gives up, another producer takes its name. Then everything read so far is written once, nothing that was
aborted is seen, and the last stable offset is the end: for a reader that was there all the time.

All tests of a process share one broker and one pair of topics; each copies the next few records.
"""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import kafka
import pytest
from confluent_kafka import TopicPartition

from ottla.runtime.local_zookeeper import free_ports
from tests.clients.transactors import TRANSACTORS
from tests.crash.broker_process import LIST_OFFSETS, PATIENCE_S, Wire, batch_of
from tests.crash.kill_at_step import ANSWERS, WRITES
from tests.crash.kip890 import Kip890Transactor

LAUNCHER = Path(__file__).with_name("kill_at_step.py")
PRODUCERS = (*TRANSACTORS, Kip890Transactor)
#: Requests that producers of KIP-890 do without.
OLD_ANSWERS = ("AddPartitionsToTxn", "AddOffsetsToTxn")
SOURCE, TARGET, GROUP, NAME = "in", "out", "copiers", "copier"
OFFSETS_TOPIC = "__consumer_offsets"
OUT_PARTITIONS = 2
#: Within this a step comes after the transaction seems over, or never.
STEP_S = 10.0
#: Two are what it takes.
ATTEMPTS = 6
#: In one transaction.
SIZE = 4
READ_COMMITTED, LATEST = 1, -1
OFFSET_FETCH, DESCRIBE_TRANSACTIONS = 9, 65
SETTINGS = {
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
}


class MortalBroker:
    def __init__(self, directory: Path, port: int) -> None:
        self.address = f"127.0.0.1:{port}"
        self._armed, self._died, self._words = directory / "armed", directory / "died", directory / "words"
        self._armed.write_text("")
        self._died.write_text("")
        command = [sys.executable, str(LAUNCHER), str(self._armed), str(self._died), "up", "--no-console"]
        command += ["--listen", self.address, "--data-dir", str(directory / "data")]
        for name, value in SETTINGS.items():
            command += ["--set", f"{name}={value}"]
        with self._words.open("w") as words:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=words, stderr=words,
                env={**os.environ, "OTTLA_STOP_WITH_STDIN": "1"},
            )  # fmt: skip

    def arm(self, step: str) -> None:
        assert self._armed.read_text() == ""
        self._armed.write_text(step)

    def wait_for_death(self) -> None:
        """What comes after the answer to EndTxn may be still to come."""
        deadline_s = time.monotonic() + STEP_S
        while step := self._armed.read_text():
            if time.monotonic() > deadline_s:
                self._armed.write_text("")
                pytest.fail(f"{step} was never reached")
            time.sleep(0.005)

    @property
    def deaths(self) -> list[str]:
        return self._died.read_text().split()

    @property
    def words(self) -> str:
        return self._words.read_text()

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            assert self._process.wait(PATIENCE_S) == 0, self.words
        finally:
            self._process.kill()
        assert "Traceback" not in self.words, self.words


class Reader:
    """Reads committed records all the time, from the beginning on."""

    def __init__(self, address: str) -> None:
        # librdkafka would look for a broker that was away only after a second.
        self._consumer = kafka.KafkaConsumer(
            bootstrap_servers=address, isolation_level="read_committed", enable_auto_commit=False,
            auto_offset_reset="earliest", fetch_max_wait_ms=100, retry_backoff_ms=20, reconnect_backoff_ms=20,
            reconnect_backoff_max_ms=50,
        )  # fmt: skip
        self._consumer.assign([kafka.TopicPartition(TARGET, number) for number in range(OUT_PARTITIONS)])
        self._ended = threading.Event()
        self._came = threading.Condition()
        self.values: list[bytes] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.is_set():
            found = self._consumer.poll(100)
            values = [each.value for messages in found.values() for each in messages]
            if values:
                with self._came:
                    self.values += values
                    self._came.notify_all()

    def wait_for(self, count: int) -> None:
        with self._came:
            assert self._came.wait_for(lambda: len(self.values) >= count, PATIENCE_S), (
                f"{len(self.values)} of {count}"
            )

    def close(self) -> None:
        self._ended.set()
        self._thread.join(PATIENCE_S)
        self._consumer.close()


def consumer(address: str, group_id: str) -> Any:
    return Consumer(
        {
            "bootstrap.servers": address, "group.id": group_id, "isolation.level": "read_committed",
            "enable.auto.commit": False, "auto.offset.reset": "earliest", "fetch.wait.max.ms": 50,
            "reconnect.backoff.ms": 10, "reconnect.backoff.max.ms": 50, "log_level": 0,
        }
    )  # fmt: skip


class Consumer(confluent_kafka.Consumer):  # type: ignore[misc]
    def __init__(self, settings: dict[str, Any]) -> None:
        super().__init__(settings)
        self.group_id = settings["group.id"]


class Copying:
    """The broker, the topics and whoever reads them."""

    def __init__(self, directory: Path, port: int) -> None:
        self.broker = MortalBroker(directory, port)
        self.inputs = [b"%d" % number for number in range(3000)]
        self._until_answered(self._make_topics)
        self.reader = Reader(self.broker.address)
        self._consumer = consumer(self.broker.address, GROUP)
        self._consumer.assign([TopicPartition(SOURCE, 0, 0)])
        #: How many have been copied.
        self.at = 0

    def close(self) -> None:
        self.reader.close()
        self._consumer.close()
        self.broker.close()

    def _until_answered(self, what: Callable[[Wire], Any]) -> Any:
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                with Wire(self.broker.address) as wire:
                    return what(wire)
            except OSError:
                assert time.monotonic() < deadline_s, self.broker.words
                time.sleep(0.01)

    def _make_topics(self, wire: Wire) -> None:
        wire.create(SOURCE)
        wire.create(TARGET, OUT_PARTITIONS)
        wire.produce(SOURCE, batch_of(*self.inputs))

    # --- the program ------------------------------------------------------------------------------------------------

    def copy(self, make: Callable[..., Any], *, abort_first: bool) -> None:
        """Copy the next few, in as many attempts as it takes."""
        before = self.at
        producer = None
        for attempt in range(ATTEMPTS):
            try:
                producer = producer or make(self.broker.address, NAME, brisk=True)
                self._copy_once(producer, attempt, is_kept=not (abort_first and attempt == 0))
            except Exception as error:  # whatever a library raises: another producer takes over
                print(f"attempt {attempt}: {error!r}")
                if producer is not None:
                    producer.close()
                    producer = None
            # Only what is committed counts; whoever died may have got that far.
            self.at = self._committed()
            if self.at > before:
                break
            self._consumer.seek(TopicPartition(SOURCE, 0, before))
        if producer is not None:
            producer.close()
        assert self.at == before + SIZE

    def _copy_once(self, producer: Any, attempt: int, *, is_kept: bool) -> None:
        messages: list[bytes] = []
        while len(messages) < SIZE:
            messages += [
                each.value() for each in self._consumer.consume(SIZE - len(messages), 0.2) if not each.error()
            ]
        producer.begin()
        for value in messages:
            text = value if is_kept else value + b" is aborted"
            producer.send(TARGET, text, partition=int(value) % OUT_PARTITIONS)
        producer.flush()
        producer.send_offsets(self._consumer, {(SOURCE, 0): self.at + SIZE})
        if is_kept:
            producer.commit()
        else:
            producer.abort()

    def _committed(self) -> int:
        """What a successor begins with: it waits for a transaction whose end is not known to the group yet."""
        topics = [{"name": SOURCE, "partition_indexes": [0]}]

        def look(wire: Wire) -> int | None:
            answer = wire.ask(OFFSET_FETCH, 7, group_id=GROUP, topics=topics, require_stable=True)
            if answer.error_code.value:
                return None
            [row] = answer.topics[0].partitions
            return None if row.error_code.value else int(row.committed_offset)

        deadline_s = time.monotonic() + PATIENCE_S
        while (offset := self._until_answered(look)) is None:
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        return max(0, offset)

    # --- what must hold ---------------------------------------------------------------------------------------------

    def check(self) -> None:
        self.reader.wait_for(self.at)
        deadline_s = time.monotonic() + PATIENCE_S
        while (state := self._until_answered(self._rest)) is not None:
            assert time.monotonic() < deadline_s, state
            time.sleep(0.01)
        expected = self.inputs[: self.at]
        assert sorted(self.reader.values, key=int) == expected
        for number in range(OUT_PARTITIONS):
            own = [value for value in self.reader.values if int(value) % OUT_PARTITIONS == number]
            assert own == expected[number::OUT_PARTITIONS]

    def _rest(self, wire: Wire) -> str | None:
        """What is still under way: the last stable offset of a partition, or the transaction."""
        places = [(OFFSETS_TOPIC, 0), *((TARGET, number) for number in range(OUT_PARTITIONS))]
        for topic, number in places:
            ends = [end(wire, topic, number, level) for level in (0, READ_COMMITTED)]
            if ends[0] != ends[1]:
                return f"{topic}-{number} ends at {ends[0]}, is stable until {ends[1]}"
        [row] = wire.ask(DESCRIBE_TRANSACTIONS, 0, transactional_ids=[NAME]).transaction_states
        state = str(row.transaction_state)
        return None if state in ("Empty", "CompleteCommit", "CompleteAbort") else f"it is {state}"


def end(wire: Wire, topic: str, number: int, isolation_level: int) -> int:
    rows = [{"partition_index": number, "timestamp": LATEST, "current_leader_epoch": -1}]
    topics = [{"name": topic, "partitions": rows}]
    answer = wire.ask(LIST_OFFSETS, 4, replica_id=-1, isolation_level=isolation_level, topics=topics)
    return int(answer.topics[0].partitions[0].offset)


@pytest.fixture(scope="module")
def copying(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Copying]:
    stage = Copying(tmp_path_factory.mktemp("copying"), free_ports(1)[0])
    yield stage
    stage.close()


def steps(make: Any, outcome: str) -> Iterator[str]:
    """Every step of a transaction that ends so, by a producer like this."""
    other = {"Commit": "Abort", "Abort": "Commit"}[outcome]
    things = [thing for thing in WRITES if not thing.endswith(other)]
    not_asked = OLD_ANSWERS if make is Kip890Transactor else ()
    things += [f"answer-to-{api}" for api in ANSWERS.values() if api not in not_asked]
    for thing in things:
        yield f"before-{thing}"
        yield f"after-{thing}"


def cases(*, later: bool) -> list[Any]:
    """Every step; `later` are those of `make chaos`: the aborts of two libraries that ask for the same as librdkafka."""
    return [
        pytest.param(make, outcome, step, id=f"{make.name}-{outcome}-{step}")
        for make in PRODUCERS
        for outcome in ("Commit", "Abort")
        for step in steps(make, outcome)
        if later == (outcome == "Abort" and make.name in ("kafka-python", "aiokafka"))
    ]


@pytest.mark.parametrize(("make", "outcome", "step"), cases(later=False))
def test_killed_at(copying: Copying, make: Callable[..., Any], outcome: str, step: str) -> None:
    deaths = len(copying.broker.deaths)
    copying.broker.arm(step)
    copying.copy(make, abort_first=outcome == "Abort")
    copying.broker.wait_for_death()
    assert copying.broker.deaths[deaths:] == [step]
    copying.check()
