"""A directory of Apache Kafka with transactions in every state opens in ottla, which goes on with them; and Kafka's decoder reads what
ottla writes to `__transaction_state`.

What a crash leaves between a decision and its markers is made of Kafka's own bytes: it is killed right after the markers, and the logs
are cut where they would end if it had died before.
"""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import Producer

from bench.process import free_port
from ottla.log.markers import decode_marker
from ottla.ports.coordination import partition_of
from ottla.records.batch import CONTROL_BIT, HEADER
from ottla.records.record import decode_batch, whole_batches
from ottla.transactions.formats import State, decode
from tests.broker.api.mischief import batch
from tests.broker.api.transactors import Transactor
from tests.crash.broker_process import BrokerProcess, Wire, wait_until
from tests.interop.by_hand import There
from tests.interop.kafka_directory import PATIENCE_S, kill, read, running
from tests.interop.programs import Java
from tests.interop.test_kafka_dump_log import dump
from tests.interop.test_kafka_group_records import formatted, offsets

STATE_TOPIC = "__transaction_state"
#: Each the last in its partition of two, so that a cut there loses nothing else.
COMMITTED, ABORTED = "prepared-commit", "prepared-abort-1"
LOG = "00000000000000000000.log"


class Left(NamedTuple):
    data: Path
    #: By transactional id: producer id, epoch and where its sequences are.
    producers: dict[str, Transactor]


def find(address: str, kind: int, name: str) -> None:
    with Wire(address) as wire:

        def is_found() -> bool:
            [row] = wire.ask(10, 4, key_type=kind, coordinator_keys=[name]).coordinators
            return int(row.error_code) == 0

        wait_until(is_found, "there is a coordinator")


def begin(there: There, name: str, version: int = 2) -> Transactor:
    made = Transactor(there, batch, name, version=version)
    find(there.address, 1, name)
    wait_until(lambda: made.init(timeout_ms=800_000) == 0, "it may begin")
    return made


def write(tx: Transactor, *values: str) -> None:
    """Into both partitions."""
    for number in range(2):
        for value in values:
            wait_until(lambda number=number, value=value: send(tx, number, value) == 0, "it is taken")  # type: ignore[misc]


def send(tx: Transactor, number: int, value: str) -> int:
    at = tx.sequences.get(("orders", number), 0)
    code = tx.send("orders", f"{value}-{number}".encode(), number=number)
    if code:
        tx.sequences["orders", number] = at
    return code


def state_of(address: str, name: str) -> str:
    with Wire(address) as wire:
        [row] = wire.ask(65, 0, transactional_ids=[name]).transaction_states
        return str(row.transaction_state)


def cut(log: Path, is_last: object) -> None:
    """Cut a log behind the first batch of which this is true."""
    assert callable(is_last)
    data, size = log.read_bytes(), 0
    for each in whole_batches(data):
        size += len(each)
        if is_last(bytes(each)):
            break
    else:
        raise AssertionError(f"{log} has no such batch")
    assert size < len(data)
    log.write_bytes(data[:size])


def is_prepared(each: bytes) -> bool:
    for record in decode_batch(each):
        known = decode(record.key, record.value)
        if known is not None and known.transactional_id in (COMMITTED, ABORTED) and known.entry is not None:
            return known.entry.state in (State.PREPARE_COMMIT, State.PREPARE_ABORT)
    return False


def markers(log: Path) -> list[tuple[int, bool, int]]:
    """Producer id, whether it commits, and the coordinator's epoch of every marker."""
    found = []
    for each in whole_batches(log.read_bytes()):
        header = HEADER.unpack_from(each)
        if header[5] & CONTROL_BIT:
            marker = decode_marker(bytes(each))
            assert marker is not None
            found.append((header[9], marker.commit, marker.coordinator_epoch))
    return found


@pytest.fixture(scope="module")
def left(java: Java, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Left]:
    assert partition_of(COMMITTED, 2) != partition_of(ABORTED, 2)
    home = tmp_path_factory.mktemp("kafka")
    # Twice, so that its leaders, and with them its coordinators, are not in their first epoch.
    with running("4", home) as kafka, There(kafka.address) as there:
        there.connect().create("orders", 2)
        begin(there, "first")
    with running("4", home) as kafka, There(kafka.address) as there:
        made = {name: begin(there, name) for name in ("complete", "aborted", "going-on", "abandoned", "idle")}
        made["old"] = begin(there, "old", 1)
        for name, is_kept in (("complete", True), ("aborted", False)):
            write(made[name], name)
            assert made[name].end(commit=is_kept) == 0
        for name in ("old", COMMITTED, ABORTED, "going-on", "abandoned"):
            if name not in made:
                made[name] = begin(there, name)
            write(made[name], name)
        for group in ("readers", "others"):
            find(kafka.address, 0, group)
        wait_until(
            lambda: made[COMMITTED].commit_offsets("readers", {("orders", 0): 7}) == 0, "offsets are taken"
        )
        wait_until(
            lambda: made["going-on"].commit_offsets("others", {("orders", 0): 9}) == 0, "offsets are taken"
        )
        for name, is_kept in ((COMMITTED, True), (ABORTED, False)):
            before = made[name].epoch
            assert made[name].end(commit=is_kept) == 0 and made[name].epoch == before + 1
            wait_until(
                lambda name=name: state_of(kafka.address, name).startswith("Complete"),
                "it has ended",  # type: ignore[misc]
            )
        kill(kafka)
    data = home / "data"
    # As if it had died when one partition had its markers and the other had not.
    for number in range(2):
        cut(data / f"{STATE_TOPIC}-{number}" / LOG, is_prepared)
    ids = {made[name].producer_id for name in (COMMITTED, ABORTED)}
    assert {row[0] for row in markers(data / "orders-1" / LOG)} >= ids
    last = made["abandoned"]
    cut(
        data / "orders-1" / LOG,
        lambda each: HEADER.unpack_from(each)[9] == last.producer_id and not HEADER.unpack_from(each)[5] & CONTROL_BIT,
    )  # fmt: skip
    assert not {row[0] for row in markers(data / "orders-1" / LOG)} & ids
    yield Left(data, made)
    shutil.rmtree(home, ignore_errors=True)


def seen(address: str, topic: str, number: int) -> list[str]:
    """What a reader of committed records sees."""
    from tests.broker.api.transactors import committed

    class Client:
        def fetch(self, topic: str, offset: int, number: int, **more: object) -> object:
            with Wire(address) as wire:
                row = {"partition": number, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
                return (
                    wire.ask(
                        1, 11, replica_id=-1, max_wait=0, min_bytes=1, max_bytes=1 << 24, session_id=0, session_epoch=-1,
                        topics=[{"topic": topic, "partitions": [row]}], forgotten_topics_data=[], rack_id="", **more,
                    )
                    .responses[0]
                    .partitions[0]
                )  # fmt: skip

    return [(value or b"").decode() for value in committed(Client(), topic, number)]


@pytest.mark.timeout(400)
def test_ottla_goes_on_with_kafkas_transactions(left: Left, java: Java, tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(left.data, data)
    made = left.producers
    with BrokerProcess(data, free_port()) as broker, There(broker.address) as there:
        broker.wait_for("imported ")
        address = broker.address
        # What was decided is carried out, in both partitions and in the offsets of groups.
        for name, state in ((COMMITTED, "CompleteCommit"), (ABORTED, "CompleteAbort")):
            wait_until(lambda name=name, state=state: state_of(address, name) == state, f"{name} is done")  # type: ignore[misc]
        assert {state_of(address, name) for name in ("old", "going-on", "abandoned")} == {"Ongoing"}
        assert state_of(address, "idle") == "Empty"
        assert (state_of(address, "complete"), state_of(address, "aborted")) == (
            "CompleteCommit",
            "CompleteAbort",
        )
        assert offsets(address, "readers") == {("orders", 0): (7, None)}

        # Producers that were in the middle of one go on, of either version: the same id, epoch and sequence.
        for name in ("old", "going-on"):
            tx = made[name]
            tx.driver, tx.client = there, there.connect()
            write(tx, f"{name}-here")
            assert tx.end(commit=True) == 0
        # Whoever comes under a name that was known has its id and a higher epoch; what was left open is aborted.
        for name in ("abandoned", "complete", "idle"):
            before = made[name].producer_id, made[name].epoch
            heir = begin(there, name)
            assert heir.producer_id == before[0] and heir.epoch > before[1]
            write(heir, f"{name}-here")
            assert heir.end(commit=True) == 0
        client = Producer({"bootstrap.servers": address, "transactional.id": "aborted", "log_level": 0})
        client.init_transactions(PATIENCE_S)
        client.begin_transaction()
        client.produce("orders", b"client-0", partition=0)
        client.commit_transaction(PATIENCE_S)
        fresh = begin(there, "new")
        assert fresh.producer_id > max(each.producer_id for each in made.values())

        for number in range(2):
            expected = {
                "complete", "old", COMMITTED, "going-on", "old-here", "going-on-here", "abandoned-here", "complete-here",
                "idle-here", *(["client"] if number == 0 else []),
            }  # fmt: skip
            wait_until(
                lambda number=number, expected=expected: (  # type: ignore[misc]
                    sorted(seen(address, "orders", number)) == sorted(f"{name}-{number}" for name in expected)
                ),
                "everything committed is read, once",
            )
        everything = read(address, {("orders", 0), ("orders", 1)}, {})
        assert {b"abandoned-0", b"aborted-0"} <= {value for _key, value in everything["orders", 0].values()}
        rows = formatted(java, broker, "TransactionLogMessageFormatter", STATE_TOPIC)
        assert {row["key"]["data"]["transactionalId"] for row in rows} == {*made, "new", "first"}
        del client
        assert broker.stop() == 0

    # No coordinator is older than the one before it (R18): for each partition of the transactions its epochs grow.
    by_id = {each.producer_id: partition_of(name, 2) for name, each in made.items()}
    for number in range(2):
        ours = markers(data / f"orders-{number}" / LOG)
        theirs = markers(left.data / f"orders-{number}" / LOG)
        assert ours[: len(theirs)] == theirs and len(ours) > len(theirs)
        for of_partition in range(2):
            epochs = [epoch for producer, _commit, epoch in ours if by_id.get(producer) == of_partition]
            assert epochs == sorted(epochs)
            assert epochs[-1] > max(epoch for _producer, _commit, epoch in theirs)

    # And Kafka's own decoder reads what stands there now.
    told = dump(
        java, [data / f"{STATE_TOPIC}-{number}" / LOG for number in range(2)], "--transaction-log-decoder"
    )
    states = set(re.findall(r'"transactionalId":"([\w-]+)".*?"transactionStatus":(\d)', told))
    assert {name for name, _state in states} == {*made, "new", "first"}
    assert {
        ("new", "0"),
        ("abandoned", "3"),
        ("abandoned", "4"),
        (COMMITTED, "2"),
        (COMMITTED, "4"),
    } <= states
