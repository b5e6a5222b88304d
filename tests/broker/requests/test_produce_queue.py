"""Produce requests that take long: validated and appended in slices, while others have their turn (issue 8, bugs 5 and 11)."""

import struct
from collections.abc import Callable
from typing import Any

import pytest
from crc32c import crc32c

from ottla.broker.api import produce
from ottla.broker.requests import produce_queue
from ottla.model.limits import RECORD_ERRORS_MAX
from ottla.model.steps import SLICE_COST
from ottla.ports.effects import RUN
from ottla.records.batch import HEADER
from ottla.records.compression import CODECS, GZIP, LZ4, NONE, SNAPPY, ZSTD
from ottla.records.record import Record, decode_batch, encode_batch
from testkit.injected import Injected
from tests.broker.api.transactors import Transactor
from tests.broker.conftest import Client, Driver, make_batch, produce_fields, read_values

NOT_ENOUGH_REPLICAS, INVALID_TIMESTAMP, INVALID_REQUEST, INVALID_RECORD = 19, 32, 42, 87
#: More than one slice decodes.
MANY = 3 * SLICE_COST


def many(count: int = MANY, *, key: bytes | None = b"k", codec: int = NONE, **fields: Any) -> bytes:
    records = (Record(at, 1_600_000_000_000 + at, key, b"") for at in range(count))
    return encode_batch(records, codec=codec, **fields)


class Turns:
    """Performs effects as a shell does, one turn at a time, and holds jobs back."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.jobs: list[Any] = []

    def turn(self) -> bool:
        """One turn of the loop; whether there is more to do at once."""
        broker = self.driver.broker
        more = broker.settle(self.driver.now_ms)
        outbox, broker.outbox = broker.outbox, []
        for effect in outbox:
            if effect[0] == RUN:
                self.jobs.append(effect)
            else:
                self.driver._perform(effect)
        return more

    def run_jobs(self) -> None:
        jobs, self.jobs = self.jobs, []
        for _kind, job, done in jobs:
            done(job(self.driver.disk), None)

    def send(self, client: Client, topic: str, batch: bytes, partition: int = 0, **more: Any) -> None:
        """Send without performing anything."""
        turn, self.driver.turn = self.driver.turn, lambda: None  # type: ignore[method-assign]
        try:
            client.send(0, 12, **{**produce_fields(topic, batch, partition), **more})
        finally:
            self.driver.turn = turn  # type: ignore[method-assign]


@pytest.fixture
def turns(driver: Driver) -> Turns:
    return Turns(driver)


def rows(answer: Any) -> list[Any]:
    return [row for topic in answer.responses for row in topic.partition_responses]


def offsets(client: Client) -> list[tuple[int, int]]:
    return [(row.error_code.value, row.base_offset) for each in client.answers for row in rows(each)]


def test_a_large_batch_for_a_compacted_topic_is_decoded_in_slices(
    client: Client, driver: Driver, turns: Turns
) -> None:
    """Issue 8, bug 11: 900,000 records held the loop for 1.4 s."""
    client.create("c", cleanup_policy="compact")
    client.create("plain")
    other = driver.connect()
    turns.send(client, "c", many())
    assert not client.answers
    turned = 0
    while turns.turn():
        turned += 1
        # Others are answered meanwhile.
        turns.send(other, "plain", make_batch(b"x"))
        assert turned < 100
    assert turned >= MANY // SLICE_COST
    assert offsets(client) == [(0, 0)]
    assert len(other.answers) >= turned
    assert driver.broker.produce_queue.held_bytes == 0


@pytest.mark.parametrize("settings", [{"cleanup_policy": "compact"}, {"compression_type": "gzip"}])
def test_a_small_batch_that_unpacks_to_very_many_headers_is_decoded_in_slices(
    client: Client, turns: Turns, settings: dict[str, str]
) -> None:
    """622 bytes with a hundred records of 9,000 headers each held the loop for 1.1 s."""
    client.create("c", **settings)
    headers = (("", b""),) * 9000
    records = [Record(at, 1_600_000_000_000, b"k", b"v", headers) for at in range(30)]
    batch = encode_batch(records, codec=ZSTD)
    assert len(batch) < 2000
    turns.send(client, "c", batch)
    turned = 0
    while turns.turn() or turns.jobs:
        turns.run_jobs()
        turned += 1
        assert turned < 100
    assert turned >= 30
    assert offsets(client) == [(0, 0)]


def test_batches_that_belong_in_the_queue_are_not_all_unpacked_to_find_out(
    client: Client, turns: Turns, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.create("c", 200, cleanup_policy="compact")
    looked_at: list[int] = []
    monkeypatch.setattr(
        produce_queue, "validation_cost", lambda batch, config: looked_at.append(1) or 10**6
    )  # fmt: skip
    batch = make_batch(b"x")
    for count in (5, 200):
        data = [{"name": "c", "partition_data": [{"index": at, "records": batch} for at in range(count)]}]
        turns.send(client, "c", b"", topic_data=data)
    assert len(looked_at) == 1
    while turns.turn() or turns.jobs:
        turns.run_jobs()
    assert {code for code, _ in offsets(client)} == {0}


def test_a_batch_that_is_refused_for_its_timestamp_is_not_unpacked_to_name_its_records(
    client: Client,
) -> None:
    """60 KB can be 60 MB once they are unpacked, and that happens in the turn of the request."""
    client.create("t", message_timestamp_before_max_ms="1000")
    for size, named in ((100_000, 1), (10_000_000, 0)):
        batch = encode_batch([Record(0, 1_000, b"k", bytes(size))], codec=GZIP)
        [row] = rows(client.ask(0, 12, **produce_fields("t", batch)))
        assert row.error_code.value == INVALID_TIMESTAMP
        assert len(row.record_errors) == named


def test_batches_behind_one_that_is_decoded_keep_their_order(
    client: Client, driver: Driver, turns: Turns
) -> None:
    client.create("c", 2, cleanup_policy="compact")
    other = driver.connect()
    turns.send(client, "c", many())
    turns.send(client, "c", make_batch(b"second"))
    turns.send(other, "c", make_batch(b"third"))
    # Of several partitions: it waits for both of them.
    both = [{"index": index, "records": make_batch(b"both")} for index in (1, 0)]
    turns.send(client, "c", b"", topic_data=[{"name": "c", "partition_data": both}])
    turns.send(other, "c", make_batch(b"last"), 1)
    while turns.turn():
        pass
    assert offsets(client) == [(0, 0), (0, MANY), (0, 0), (0, MANY + 2)]
    assert offsets(other) == [(0, MANY + 1), (0, 1)]
    assert driver.replica("c").produces is None and driver.replica("c", 1).produces is None
    assert read_values(client.fetch("c", MANY))[-3:] == [b"second", b"third", b"both"]


def test_sequences_are_checked_when_the_batch_is_appended(
    client: Client, driver: Driver, turns: Turns
) -> None:
    client.create("c", cleanup_policy="compact")
    first = many(producer_id=7, producer_epoch=0, base_sequence=0)
    second = make_batch(b"x", producer_id=7, producer_epoch=0, base_sequence=MANY)
    turns.send(client, "c", first)
    turns.send(client, "c", second)
    # Sent again, because no answer has come yet.
    turns.send(client, "c", first)
    while turns.turn():
        pass
    assert offsets(client) == [(0, 0), (0, MANY), (0, 0)]
    assert driver.replica("c").log.next_offset == MANY + 1


def test_no_acks_no_answer(client: Client, driver: Driver, turns: Turns) -> None:
    client.create("c", cleanup_policy="compact")
    for batch in (many(), make_batch(b"behind")):
        client.send(0, 12, is_answered=False, **produce_fields("c", batch, acks=0))
    assert driver.replica("c").log.next_offset == MANY + 1 and client.closed_because is None
    client.send(0, 12, is_answered=False, **produce_fields("c", many(key=None), acks=0))
    assert client.closed_because is not None and "acks=0" in client.closed_because


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4])
def test_unpacking_and_recompressing_is_done_off_the_loop(
    client: Client, driver: Driver, turns: Turns, codec: int
) -> None:
    """Issue 8, bug 11: recompressing 60 MB held the loop for 0.33 s."""
    client.create("z", compression_type="zstd")
    turns.send(client, "z", many(codec=codec))
    turns.send(client, "z", make_batch(b"next"))
    jobs = 0
    while turns.turn() or turns.jobs:
        jobs += len(turns.jobs)
        turns.run_jobs()
    # Unpacked, and packed again; the same for what came behind it.
    assert jobs >= 2
    assert offsets(client) == [(0, 0), (0, MANY)]
    stored = client.fetch("z", 0, partition_max_bytes=1 << 24).records
    assert HEADER.unpack_from(stored)[5] & 7 == ZSTD


@pytest.mark.parametrize("codec", CODECS.values())
def test_what_is_recompressed_is_the_same_batch(client: Client, codec: int) -> None:
    client.create("z", compression_type="lz4")
    records = [
        Record(at, 1_600_000_000_000 + at % 3, b"k" if at % 2 else None, b"v", (("h", b"x"),))
        for at in range(10)
    ]
    sent = encode_batch(records, codec=codec, producer_id=9, producer_epoch=1, base_sequence=0)
    assert client.produce("z", sent).error_code.value == 0
    stored = client.fetch("z", 0).records
    assert decode_batch(stored) == records
    head, before = HEADER.unpack_from(stored), HEADER.unpack_from(sent)
    assert head[5] == LZ4 and head[6:] == before[6:]


def test_what_was_validated_for_other_settings_is_looked_at_again(
    client: Client, driver: Driver, turns: Turns
) -> None:
    client.create("z", compression_type="gzip")
    turns.send(client, "z", many(key=None))
    while turns.turn():
        pass
    # Decoded; now it is being recompressed.
    assert turns.jobs and not client.answers
    configs = [{"name": "cleanup.policy", "config_operation": 0, "value": "compact"}]
    resource = {"resource_type": 2, "resource_name": "z", "configs": configs}
    driver.connect().ask(44, 1, resources=[resource])
    turns.run_jobs()
    driver.turn()
    assert offsets(client) == [(INVALID_RECORD, -1)]


def test_the_queue_is_bounded(
    client: Client, driver: Driver, turns: Turns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(produce_queue, "PRODUCE_QUEUE_BYTES_MAX", 1000)
    client.create("c", cleanup_policy="compact")
    turns.send(client, "c", many())
    turns.send(client, "c", make_batch(b"x"))
    while turns.turn():
        pass
    assert offsets(client) == [(0, 0), (NOT_ENOUGH_REPLICAS, -1)]
    assert client.produce("c", make_batch(b"x")).base_offset == MANY


def test_a_client_that_goes_leaves_nothing_behind(client: Client, driver: Driver, turns: Turns) -> None:
    client.create("c", cleanup_policy="compact")
    turns.send(client, "c", many())
    turns.turn()
    client.disconnect()
    assert driver.broker.produce_queue.held_bytes == 0 and driver.replica("c").produces is None
    assert not driver.broker.slices.tasks


def test_a_topic_that_is_deleted_meanwhile(client: Client, driver: Driver, turns: Turns) -> None:
    client.create("c", cleanup_policy="compact")
    turns.send(client, "c", many())
    turns.send(client, "c", make_batch(b"x"))
    other = driver.connect()
    turns.turn()
    other.ask(20, 6, topics=[{"name": "c"}], timeout=1000)
    assert [code for code, _ in offsets(client)] == [3, 3]
    assert driver.broker.produce_queue.held_bytes == 0


def test_an_error_within_closes_that_connection_alone(
    client: Client, driver: Driver, turns: Turns, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.create("c", cleanup_policy="compact")

    def fail(*_arguments: Any) -> Any:
        raise Injected
        yield

    other = driver.connect()
    turns.send(client, "c", many())
    turns.send(other, "c", make_batch(b"behind"))
    with monkeypatch.context() as patched:
        patched.setattr(produce_queue, "validate", fail)
        turns.turn()
    driver.turn()
    assert client.closed_because is not None and "Injected" in client.closed_because
    assert other.closed_because is None or "Injected" in other.closed_because
    assert driver.connect().produce("c", make_batch(b"on")).error_code.value == 0
    assert driver.broker.produce_queue.held_bytes == 0


@pytest.mark.parametrize("version", [1, 2])
def test_batches_of_a_transaction_are_validated_before_the_coordinator_is_asked(
    driver: Driver, turns: Turns, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the coordinator's answer and the append a transaction could end, and the batch would begin one that never does."""
    driver.connect().create("c", cleanup_policy="compact")
    transactor = Transactor(driver, make_batch, version=version)
    assert transactor.init() == 0
    if version == 1:
        transactor.add(("c", 0))
    asked: list[int] = []
    verify = driver.broker.txn_verification.verify

    def noted(*arguments: Any, **more: Any) -> None:
        asked.append(len(driver.broker.slices.tasks))
        verify(*arguments, **more)

    monkeypatch.setattr(driver.broker.txn_verification, "verify", noted)
    client = transactor.client
    for values in ([b"v"] * MANY, [b"behind"], [b"last"]):
        turns.send(client, "c", b"", **transactor.fields("c", *values))
    for _ in range(MANY // SLICE_COST):
        turns.turn()
        assert not asked
    driver.turn()
    assert len(asked) == 1
    assert offsets(client) == [(0, 0), (0, MANY), (0, MANY + 1)]
    assert transactor.end(commit=True) == 0


def test_a_transaction_that_ended_while_its_batch_was_validated(driver: Driver, turns: Turns) -> None:
    driver.connect().create("c", cleanup_policy="compact")
    transactor = Transactor(driver, make_batch)
    transactor.init()
    transactor.add(("c", 0))
    turns.send(transactor.client, "c", b"", **transactor.fields("c", *[b"v"] * MANY))
    turns.turn()
    tasks = driver.broker.slices.tasks
    held = list(tasks)
    tasks.clear()
    # Fences the first, whose transaction is aborted.
    other = Transactor(driver, make_batch)
    assert other.init() in (0, 51)
    tasks.extend(held)
    driver.turn()
    [(code, _)] = offsets(transactor.client)
    assert code != 0
    replica = driver.replica("c")
    assert replica.log.producers.transactions is None or replica.last_stable_offset == replica.high_watermark


# --- rows -----------------------------------------------------------------------------------------------------------


def test_a_request_of_many_rows_is_appended_in_slices(client: Client, driver: Driver, turns: Turns) -> None:
    """Issue 8, bug 5: each row of a request is an append, and all of them were one turn."""
    client.create("t", 1000)
    driver.turn()
    data = [{"index": index, "records": make_batch(b"%d" % index)} for index in range(1000)]
    turns.send(client, "t", b"", topic_data=[{"name": "t", "partition_data": data}])
    turned = 0
    while turns.turn():
        turned += 1
        assert sum(driver.replica("t", index).log.next_offset for index in range(1000)) <= 100 * turned
    assert turned >= 10
    found = rows(client.answers[0])
    assert len(client.answers[0].responses) == 1
    assert [(row.index, row.error_code.value, row.base_offset) for row in found] == [
        (index, 0, 0) for index in range(1000)
    ]


def test_many_rows_that_wait_for_syncs_are_answered_once(drive: Callable[..., Driver]) -> None:
    driver = drive(log_flush_policy="durable")
    client, turns = driver.connect(), Turns(driver)
    client.create("t", 300)
    data = [{"index": index, "records": make_batch(b"x")} for index in range(300)]
    for names in (["t"], ["t", "nowhere"]):
        topics = [{"name": name, "partition_data": data} for name in names]
        turns.send(client, "t", b"", topic_data=topics)
        while turns.turn() or turns.jobs:
            turns.run_jobs()
        driver.turn()
        found = rows(client.answers.pop())
        assert len(found) == 300 * len(names) and not client.answers
        assert {row.error_code.value for row in found[:300]} == {0}
        assert all(row.error_code.value == 3 for row in found[300:])


def test_the_same_partition_many_times_is_refused(client: Client, driver: Driver) -> None:
    """Issue 8, bug 5: 50,000 tiny batches for one partition were 50,000 appends."""
    client.create("t")
    data = [{"index": 0, "records": make_batch(b"%d" % at)} for at in range(5000)]
    client.send(0, 12, acks=-1, timeout=1000, topic_data=[{"name": "t", "partition_data": data}])
    codes = [row.error_code.value for row in rows(client.answers[0])]
    assert codes == [0] + [INVALID_REQUEST] * 4999
    assert driver.replica("t").log.next_offset == 1


def test_rows_without_a_batch_are_refused_in_slices(client: Client, driver: Driver, turns: Turns) -> None:
    """Issue 8, bug 5: a Produce of null rows."""
    client.create("t")
    data = [{"index": 0, "records": None}] * 5000
    turns.send(client, "t", b"", topic_data=[{"name": "t", "partition_data": data}])
    turned = 0
    while turns.turn():
        turned += 1
    assert turned > 20
    codes = [row.error_code.value for row in rows(client.answers[0])]
    assert codes == [INVALID_RECORD] + [INVALID_REQUEST] * 4999


# --- counts -----------------------------------------------------------------------------------------------------------


def claiming(batch: bytes, count: int) -> bytes:
    """The batch with another number of records, and a CRC that fits."""
    changed = bytearray(batch)
    struct.pack_into(">i", changed, 23, count - 1)
    struct.pack_into(">i", changed, 57, count)
    struct.pack_into(">I", changed, 17, crc32c(bytes(changed[21:])))
    return bytes(changed)


@pytest.mark.parametrize("codec", CODECS.values())
def test_a_count_that_the_bytes_cannot_hold_is_refused(client: Client, driver: Driver, codec: int) -> None:
    """Issue 8, bug 5: a batch of 68 bytes claimed 2^31-1 records, and rolled a segment each time."""
    client.create("t")
    batch = make_batch(b"", key=None, codec=codec)
    for count in (2**31 - 1, 1_000_001):
        row = client.produce("t", claiming(batch, count))
        assert row.error_code.value == INVALID_RECORD and str(count) in row.error_message
    log = driver.replica("t").log
    assert log.next_offset == 0 and len(log.segments) == 1
    # Nor a segment each for many of them, in whatever codec.
    assert (2**31 - 1) // 1_000_000 > 2000


@pytest.mark.parametrize("codec", CODECS.values())
@pytest.mark.parametrize("count", [1, 2, 1000, 100_000])
def test_no_real_batch_is_refused_for_its_count(client: Client, codec: int, count: int) -> None:
    """The smallest records there are, which compress best."""
    client.create("t")
    records = (Record(at, 0, None, None) for at in range(count))
    row = client.produce("t", encode_batch(records, codec=codec))
    assert (row.error_code.value, row.base_offset) == (0, 0)


def test_many_segments_between_two_syncs_are_asked_for_once_a_turn(drive: Callable[..., Driver]) -> None:
    """Issue 8, bug 5: each append asked for the syncs of all segments before it; 3,000 rolls were 9 million syncs."""
    driver = drive(log_flush_policy="durable")
    client = driver.connect()
    client.create("t", segment_bytes="14")
    driver.are_syncs_held = True
    broker = driver.broker
    turn, driver.turn = driver.turn, lambda: None  # type: ignore[method-assign]
    for _ in range(100):
        client.send(0, 12, **produce_fields("t", make_batch(b"x")))
    broker.settle(driver.now_ms)
    assert len(broker.outbox) < 1000
    driver.turn = turn  # type: ignore[method-assign]
    driver.turn()
    driver.sync()
    driver.turn()
    assert len(client.answers) == 100


# --- record errors (KIP-467) -------------------------------------------------------------------------------------------


def keyed(*keys: bytes | None, **fields: Any) -> bytes:
    return encode_batch([Record(0, 1_600_000_000_000, key, b"v") for key in keys], **fields)


def test_records_without_a_key_are_named(client: Client) -> None:
    client.create("c", cleanup_policy="compact")
    row = client.produce("c", keyed(b"a", None, b"b", None))
    assert row.error_code.value == INVALID_RECORD
    assert (row.base_offset, row.log_start_offset) == (-1, 0)
    assert [each.batch_index for each in row.record_errors] == [1, 3]
    assert all("key" in each.batch_index_error_message for each in row.record_errors)
    assert "2 records" in row.error_message and "1, 3" in row.error_message


@pytest.mark.parametrize("version", [3, 7, 8, 9])
def test_versions_without_record_errors(client: Client, version: int) -> None:
    client.create("c", cleanup_policy="compact")
    row = client.produce("c", keyed(None), version=version)
    assert row.error_code.value == INVALID_RECORD


def test_the_number_of_named_records_is_bounded(client: Client) -> None:
    client.create("c", cleanup_policy="compact")
    row = client.produce("c", many(key=None))
    assert [each.batch_index for each in row.record_errors] == list(range(RECORD_ERRORS_MAX))
    assert f"{MANY} records" in row.error_message


def test_the_number_of_named_records_in_an_answer_is_bounded(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(produce, "RECORD_ERRORS_PER_ANSWER_MAX", 150)
    client.create("c", 200, cleanup_policy="compact")
    data = [{"index": index, "records": keyed(None)} for index in range(200)]
    client.send(0, 12, acks=-1, timeout=1000, topic_data=[{"name": "c", "partition_data": data}])
    found = rows(client.answers[0])
    assert {row.error_code.value for row in found} == {INVALID_RECORD}
    assert [len(row.record_errors) for row in found] == [1] * 150 + [0] * 50


@pytest.mark.parametrize("ahead", [True, False])
def test_records_with_a_bad_timestamp_are_named(client: Client, driver: Driver, ahead: bool) -> None:
    limit = "message_timestamp_after_max_ms" if ahead else "message_timestamp_before_max_ms"
    client.create("t", **{limit: "1000"})
    now = driver.now_ms
    bad = now + 5000 if ahead else now - 5000
    times = [bad, now, bad + 1, now]
    row = client.produce("t", encode_batch([Record(0, at, b"k", b"v") for at in times]))
    assert (row.error_code.value, row.log_start_offset) == (INVALID_TIMESTAMP, 0)
    assert [each.batch_index for each in row.record_errors] == [0, 2]
    assert str(bad) in row.record_errors[0].batch_index_error_message


def test_the_log_start_offset_of_refused_batches(client: Client, driver: Driver) -> None:
    """As in Kafka: told where the log was reached, -1 where the partition is not here or the bytes are no batch."""
    client.create("t")
    client.produce("t", make_batch(b"a", b"b"))
    client.ask(
        21, 2, topics=[{"name": "t", "partitions": [{"partition_index": 0, "offset": 1}]}], timeout=1000
    )
    corrupt = bytearray(make_batch(b"x"))
    corrupt[-1] ^= 1
    unordered = make_batch(b"x", producer_id=5, producer_epoch=0, base_sequence=0)
    assert client.produce("t", unordered).log_start_offset == 1
    gap = make_batch(b"x", producer_id=5, producer_epoch=0, base_sequence=9)
    assert client.produce("t", gap).log_start_offset == 1
    assert client.produce("t", bytes(corrupt)).log_start_offset == -1
    assert client.produce("t", make_batch(b"x"), 7).log_start_offset == -1


def test_queued_records_count_in_the_byte_budget(client: Client, driver: Driver, turns: Turns) -> None:
    """`queued.max.request.bytes` bounds all requests that wait, whatever they wait for."""
    client.create("c", cleanup_policy="compact")
    batch = many()
    turns.send(client, "c", batch)
    assert driver.broker.held_bytes >= len(batch)
    driver.turn()
    assert offsets(client) == [(0, 0)] and driver.broker.held_bytes == 0
