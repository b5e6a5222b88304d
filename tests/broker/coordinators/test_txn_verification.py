"""A leader that must ask another broker whether a batch belongs to a transaction: the answers come when a test says so."""

from typing import Any

import pytest

from ottla.broker.coordinators.txn_verification import HELD_BYTES_MAX
from ottla.metadata import records as r
from ottla.ports.effects import ASK
from ottla.wire.decode import decode_request
from ottla.wire.encode import response_encoder
from tests.broker.api.transactors import Transactor

ADD, ADD_VERSION, WRITE_MARKERS, BAD_STATE, NOT_ENOUGH, BAD_EPOCH, CONCURRENT = 24, 5, 27, 48, 19, 47, 51
OUT_OF_ORDER, BAD_MAPPING, UNKNOWN, NOT_ATTEMPTED = 45, 49, 3, 55
STATE_TOPIC = b"s" * 16


class Remote:
    """`__transaction_state` is led by broker 2, which is this object."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver
        #: What was asked and not answered, oldest first.
        self.asked: list[tuple[Any, Any]] = []
        broker = driver.broker
        broker.committed(
            [
                r.BrokerRegistration(2, 1, "127.0.0.1", 9093),
                r.Topic("__transaction_state", STATE_TOPIC),
                r.Partition(STATE_TOPIC, 0, (2,), isr=(2,), leader=2, leader_epoch=1),
            ],
            driver.now_ms,
        )
        broker.proposed = broker.image
        perform = driver._perform

        def with_asks(effect: Any) -> None:
            if effect[0] != ASK:
                perform(effect)
                return
            _kind, _peer, _lane, key, version, body, done = effect
            assert (key, version) == (ADD, ADD_VERSION)
            self.asked.append((decode_request(key, version, memoryview(body), 0), done))

        driver._perform = with_asks

    def answer(self, code: int = 0) -> None:
        """Answer what was asked first, the same of each partition."""
        request, done = self.asked.pop(0)
        rows = [
            {
                "transactional_id": each.transactional_id,
                "topic_results": [
                    {
                        "name": topic.name,
                        "results_by_partition": [
                            {"partition_index": number, "partition_error_code": code} for number in topic.partitions
                        ],
                    }
                    for topic in each.topics
                ],
            }
            for each in request.transactions
        ]  # fmt: skip
        body = response_encoder(ADD, ADD_VERSION)({"error_code": 0, "results_by_transaction": rows})
        done(memoryview(body), None)
        self.driver.turn()

    def fail(self) -> None:
        _request, done = self.asked.pop(0)
        done(None, "the connection broke")
        self.driver.turn()


@pytest.fixture
def remote(driver: Any, client: Any) -> Remote:
    client.create("t", 2)
    # Before the other broker is there: all groups are coordinated here.
    client.ask(10, 4, key_type=0, coordinator_keys=["g"])
    return Remote(driver)


def begun(driver: Any, batch: Any, version: int, producer_id: int = 7) -> Transactor:
    made = Transactor(driver, batch, version=version)
    made.producer_id, made.epoch = producer_id, 0
    return made


def send(tx: Transactor, *values: bytes, number: int = 0, acks: int = -1) -> None:
    fields = tx.fields("t", *values, number=number) | {"acks": acks}
    tx.client.send(0, tx.versions[0], is_answered=acks != 0, **fields)


def codes(tx: Transactor) -> list[int]:
    answers, tx.client.answers = tx.client.answers, []
    return [int(answer.responses[0].partition_responses[0].error_code) for answer in answers]


def mark(client: Any, epoch: int, number: int = 0, version: int = 0, coordinator_epoch: int = 1) -> None:
    topics = [{"name": "t", "partition_indexes": [number]}]
    marker = {
        "producer_id": 7, "producer_epoch": epoch, "transaction_result": False, "topics": topics,
        "coordinator_epoch": coordinator_epoch, "transaction_version": version,
    }  # fmt: skip
    [row] = (
        client.driver.connect(broker_id=2)
        .ask(WRITE_MARKERS, 2, markers=[marker])
        .markers[0]
        .topics[0]
        .partitions
    )
    assert row.error_code == 0


def send_to_both(tx: Transactor) -> None:
    """One request with a batch for either partition."""
    fields = tx.fields("t", b"zero")
    [more] = tx.fields("t", b"one", number=1)["topic_data"]
    fields["topic_data"][0]["partition_data"] += more["partition_data"]
    tx.client.send(0, tx.versions[0], **fields)


@pytest.mark.parametrize("version", [1, 2])
def test_the_first_batch_waits_for_the_answer_and_later_ones_need_none(
    version: int, driver: Any, batch: Any, remote: Remote, client: Any, values: Any
) -> None:
    tx = begun(driver, batch, version)
    send(tx, b"one")
    assert codes(tx) == [] and client.fetch("t", 0).high_watermark == 0
    [(request, _done)] = remote.asked
    [row] = request.transactions
    assert (row.transactional_id, row.producer_id, row.producer_epoch) == ("tx", 7, 0)
    assert row.verify_only == (version == 1)
    remote.answer()
    assert codes(tx) == [0]
    send(tx, b"two")
    assert codes(tx) == [0] and not remote.asked
    assert values(client.fetch("t", 0)) == [b"one", b"two"]


def test_what_a_producer_sends_meanwhile_keeps_its_order(
    driver: Any, batch: Any, remote: Remote, client: Any, values: Any
) -> None:
    tx = begun(driver, batch, 1)
    send(tx, b"one")
    send(tx, b"two")
    send(tx, b"other", number=1)
    send(tx, b"three")
    assert len(remote.asked) == 1
    remote.answer()
    # The partition that is new is asked for, and what came after it waits behind it.
    assert codes(tx) == [0, 0] and len(remote.asked) == 1
    remote.answer()
    assert codes(tx) == [0, 0]
    assert values(client.fetch("t", 0)) == [b"one", b"two", b"three"]


def test_an_answer_that_a_marker_has_overtaken_does_not_count(
    driver: Any, batch: Any, remote: Remote, client: Any
) -> None:
    """Version 1 keeps its epoch: nothing else would tell that the transaction has ended, and the batch would hang for ever."""
    tx = begun(driver, batch, 1)
    send(tx, b"late")
    mark(client, 0)
    remote.answer()
    assert codes(tx) == [BAD_STATE]
    assert client.fetch("t", 0).last_stable_offset == client.fetch("t", 0).high_watermark == 1


def test_a_coordinator_whose_successor_has_written_a_marker_is_not_asked(
    driver: Any, batch: Any, remote: Remote, client: Any
) -> None:
    """It may not know that it is none any more, and what has ended since: it would say that the batch belongs to a transaction."""
    tx = begun(driver, batch, 1)
    mark(client, 0, coordinator_epoch=2)
    send(tx, b"late")
    assert not remote.asked and codes(tx) == [NOT_ENOUGH]
    driver.broker.committed(
        [r.Partition(STATE_TOPIC, 0, (2,), isr=(2,), leader=2, leader_epoch=2, partition_epoch=1)],
        driver.now_ms,
    )
    tx.sequences.clear()
    send(tx, b"late")
    remote.answer(BAD_STATE)
    assert codes(tx) == [BAD_STATE]


def test_in_version_2_the_epoch_tells(driver: Any, batch: Any, remote: Remote, client: Any) -> None:
    tx = begun(driver, batch, 2)
    # That of the transaction before, which has the epoch that the producer goes on with.
    send(tx, b"first")
    mark(client, 0, version=2)
    remote.answer()
    assert codes(tx) == [0]
    other = begun(driver, batch, 2)
    send(other, b"late", number=1)
    mark(client, 1, 1, version=2)
    remote.answer()
    assert codes(other) == [BAD_EPOCH]


def test_a_coordinator_that_does_not_answer_is_told_as_something_that_passes(
    driver: Any, batch: Any, remote: Remote, client: Any
) -> None:
    tx = begun(driver, batch, 1)
    send(tx, b"one")
    remote.fail()
    assert codes(tx) == [NOT_ENOUGH]
    tx.sequences.clear()
    send(tx, b"one")
    remote.answer(90)
    assert codes(tx) == [BAD_EPOCH]
    assert client.fetch("t", 0).high_watermark == 0


@pytest.mark.parametrize("version", [1, 2])
def test_a_coordinator_that_says_nothing_is_not_waited_for_as_long_as_its_connection(
    version: int, driver: Any, batch: Any, remote: Remote, client: Any, values: Any
) -> None:
    tx = begun(driver, batch, version)
    send(tx, b"one")
    driver.advance(9_000)
    assert codes(tx) == []
    driver.advance(2_000)
    assert codes(tx) == [NOT_ENOUGH] and driver.broker.txn_verification.held_bytes == 0
    # What it says after all is not heard.
    remote.answer()
    assert client.fetch("t", 0).high_watermark == 0
    tx.sequences.clear()
    send(tx, b"one")
    remote.answer()
    assert codes(tx) == [0]
    driver.advance(20_000)
    assert values(client.fetch("t", 0)) == [b"one"] and not driver.broker.txn_verification._guards


@pytest.mark.parametrize("code", [UNKNOWN, NOT_ATTEMPTED])
def test_a_coordinator_that_has_not_heard_of_the_topic_yet(
    code: int, driver: Any, batch: Any, remote: Remote
) -> None:
    """It refuses what was asked for together with that topic, too, by a code that clients do not try again on."""
    tx = begun(driver, batch, 2)
    send(tx, b"one")
    remote.answer(code)
    assert codes(tx) == [NOT_ENOUGH]


def test_while_a_transaction_ends_the_next_ones_first_batch_is_asked_for_again(
    driver: Any, batch: Any, remote: Remote
) -> None:
    tx = begun(driver, batch, 2)
    send(tx, b"one")
    remote.answer(CONCURRENT)
    assert codes(tx) == [] and not remote.asked
    driver.advance(30)
    remote.answer()
    assert codes(tx) == [0]
    later = begun(driver, batch, 2, 8)
    send(later, b"two")
    asked = 0
    while not (told := codes(later)):
        if remote.asked:
            remote.answer(CONCURRENT)
            asked += 1
        else:
            driver.advance(10)
    assert told == [CONCURRENT] and 3 <= asked <= 8


def test_without_acks_nobody_stands_in_line(
    driver: Any, batch: Any, remote: Remote, client: Any, values: Any
) -> None:
    tx = begun(driver, batch, 1)
    send(tx, b"one", acks=0)
    assert tx.client.ask(3, topics=None).brokers
    remote.answer()
    assert values(client.fetch("t", 0)) == [b"one"]
    send(tx, b"elsewhere", acks=0, number=1)
    remote.answer(BAD_STATE)
    assert tx.client.closed_because is not None


def test_a_client_that_goes_meanwhile_does_no_harm(
    driver: Any, batch: Any, remote: Remote, client: Any
) -> None:
    tx = begun(driver, batch, 1)
    send(tx, b"one")
    tx.client.disconnect()
    remote.answer()
    assert client.fetch("t", 0).high_watermark == 1
    assert not driver.broker.txn_verification._lines and not driver.broker.txn_verification._guards


def test_two_that_claim_one_producer_id(driver: Any, batch: Any, remote: Remote, client: Any) -> None:
    one, two = begun(driver, batch, 1), begun(driver, batch, 1)
    two.name = "another"
    send(one, b"one")
    send(two, b"two")
    assert len(remote.asked) == 2
    remote.answer()
    remote.answer(BAD_MAPPING)
    assert codes(one) == [0] and codes(two) == [BAD_MAPPING]
    assert not driver.broker.txn_verification._guards


def test_a_topic_that_is_deleted_meanwhile(driver: Any, batch: Any, remote: Remote, client: Any) -> None:
    tx = begun(driver, batch, 1)
    send(tx, b"one")
    client.ask(20, 5, topic_names=["t"], timeout=1000)
    remote.answer()
    assert codes(tx) == [UNKNOWN]
    assert driver.broker.txn_verification.held_bytes == 0


def test_what_waits_is_bounded(driver: Any, batch: Any, remote: Remote, client: Any) -> None:
    tx, other = begun(driver, batch, 1), begun(driver, batch, 1, 8)
    verification = driver.broker.txn_verification
    half = bytes(900_000)
    for _ in range(80):
        send(tx, half)
    # One more than there is room for, and it is told so at once.
    assert verification.held_bytes < HELD_BYTES_MAX + 1_000_000
    assert set(codes(other)) == set()
    send(other, half)
    assert codes(other) == [NOT_ENOUGH] and len(remote.asked) == 1
    remote.answer()
    assert verification.held_bytes == 0
    other.sequences.clear()
    send(other, b"small")
    remote.answer()
    assert codes(other) == [0]


def test_a_partition_that_was_open_and_is_not_when_the_others_have_been_asked_for(
    driver: Any, batch: Any, remote: Remote, client: Any
) -> None:
    """It was not asked for, and its transaction has ended meanwhile: its batch would begin one that nobody ends."""
    tx = begun(driver, batch, 1)
    send(tx, b"first")
    remote.answer()
    assert codes(tx) == [0]
    send_to_both(tx)
    [(request, _done)] = remote.asked
    assert list(request.transactions[0].topics[0].partitions) == [1]
    mark(client, 0)
    remote.answer()
    [answer] = tx.client.answers
    rows = {row.index: int(row.error_code) for row in answer.responses[0].partition_responses}
    assert rows == {0: NOT_ENOUGH, 1: 0}
    assert client.fetch("t", 0).last_stable_offset == client.fetch("t", 0).high_watermark == 2


def test_a_partition_that_is_led_here_only_since_the_others_were_asked_for(
    driver: Any, batch: Any, remote: Remote, client: Any
) -> None:
    tx = begun(driver, batch, 1)
    broker = driver.broker
    topic = broker.image.topics["t"]

    def leads(number: int, leader: int, epoch: int) -> None:
        known = topic.partitions[number]
        broker.committed(
            [
                r.Partition(
                    topic.topic_id, number, known.replicas, isr=(leader,), leader=leader, leader_epoch=epoch,
                    partition_epoch=epoch,
                )
            ],
            driver.now_ms,
        )  # fmt: skip
        broker.proposed = broker.image
        driver.turn()

    me = broker.lifecycle.node_id
    leads(0, 2, 5)
    send_to_both(tx)
    [(request, _done)] = remote.asked
    assert list(request.transactions[0].topics[0].partitions) == [1]
    leads(0, me, 6)
    remote.answer()
    [answer] = tx.client.answers
    rows = {row.index: int(row.error_code) for row in answer.responses[0].partition_responses}
    assert rows == {0: NOT_ENOUGH, 1: 0}
    assert client.fetch("t", 0).high_watermark == 0


def test_who_comes_after_with_the_same_producer_id_hides_no_marker(
    driver: Any, batch: Any, remote: Remote, client: Any
) -> None:
    """The batch of a transaction that has ended is still asked for while the next epoch's first one is too."""
    late, fresh = begun(driver, batch, 1), begun(driver, batch, 1)
    send(late, b"late")
    mark(client, 0)
    fresh.epoch = 1
    send(fresh, b"fresh")
    assert len(remote.asked) == 2
    remote.answer()
    assert codes(late) == [BAD_STATE]
    remote.answer()
    assert codes(fresh) == [0]


@pytest.mark.parametrize("version", [1, 2])
def test_what_follows_a_batch_that_was_refused_in_passing_is_not_the_first(
    version: int, driver: Any, batch: Any, remote: Remote, client: Any, values: Any
) -> None:
    """A producer that the partition has never heard of may begin anywhere. But if its second batch were the first that is taken, the
    first one would come again as something old, and be lost."""
    tx = begun(driver, batch, version)
    send(tx, b"one")
    send(tx, b"two")
    send(tx, b"three")
    remote.fail()
    remote.answer()
    remote.answer()
    assert codes(tx) == [NOT_ENOUGH, OUT_OF_ORDER, OUT_OF_ORDER]
    tx.sequences.clear()
    for value in (b"one", b"two", b"three"):
        send(tx, value)
    remote.answer()
    assert codes(tx) == [0, 0, 0]
    assert values(client.fetch("t", 0)) == [b"one", b"two", b"three"]
    assert not driver.broker.txn_verification._lowest


def test_a_later_epoch_may_begin_rebuild(driver: Any, batch: Any, remote: Remote) -> None:
    # Of version 1: in version 2 every epoch begins with sequence 0.
    tx = begun(driver, batch, 1)
    send(tx, b"one")
    remote.fail()
    tx.epoch = 1
    send(tx, b"elsewhere")
    remote.answer()
    # It goes by what this epoch has sent.
    assert codes(tx) == [NOT_ENOUGH, 0]


def commit_offsets(tx: Transactor, *topics: str) -> None:
    rows = [
        {
            "name": topic,
            "partitions": [{"partition_index": 0, "committed_offset": 5, "committed_metadata": ""}],
        }
        for topic in topics
    ]
    fields = {"generation_id": -1, "member_id": "", "group_instance_id": None}
    tx.client.send(28, tx.versions[28], **tx.who, group_id="g", topics=rows, **fields)


@pytest.mark.parametrize("version", [1, 2])
def test_offsets_of_a_topic_that_is_deleted_meanwhile(
    version: int, driver: Any, batch: Any, remote: Remote, client: Any
) -> None:
    tx = begun(driver, batch, version)
    commit_offsets(tx, "t")
    assert len(remote.asked) == 1 and not tx.client.answers
    client.ask(20, 5, topic_names=["t"], timeout=1000)
    remote.answer()
    [answer] = tx.client.answers
    assert answer.topics[0].partitions[0].error_code == UNKNOWN
    assert not driver.broker.txn_verification._lines


def test_a_second_producer_that_shows_itself_late_is_refused_with_the_first(
    driver: Any, batch: Any, remote: Remote, client: Any
) -> None:
    """Its topic was not there when the request came. Then all of it is refused, and nothing is kept of it."""
    tx, other = begun(driver, batch, 1), begun(driver, batch, 1, 8)
    fields = tx.fields("t", b"one")
    fields["topic_data"] += other.fields("new", b"two")["topic_data"]
    tx.client.send(0, tx.versions[0], **fields)
    assert len(remote.asked) == 1
    client.create("new")
    remote.answer()
    [answer] = tx.client.answers
    rows = [int(row.error_code) for topic in answer.responses for row in topic.partition_responses]
    assert rows == [BAD_MAPPING, BAD_MAPPING]
    assert driver.broker.txn_verification.held_bytes == 0
    assert client.fetch("t", 0).high_watermark == 0
