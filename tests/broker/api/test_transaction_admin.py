"""ListTransactions, DescribeTransactions and DescribeProducers: every version and filter, and what they say of who is not here."""

from typing import Any

import pytest

from ottla.model.errors import ErrorCode
from tests.broker.api.clustered import join_cluster, part
from tests.broker.api.transactors import Transactor

LIST, DESCRIBE, PRODUCERS = 66, 65, 61


@pytest.fixture
def driver(drive: Any) -> Any:
    return drive(transaction_state_log_num_partitions="2")


@pytest.fixture
def begin(driver: Any, client: Any, batch: Any) -> Any:
    client.create("t", 2)

    def begin(name: str, version: int = 1) -> Transactor:
        made = Transactor(driver, batch, name, version=version)
        assert made.init() == 0
        return made

    return begin


@pytest.fixture
def three(begin: Any, driver: Any) -> dict[str, Transactor]:
    """One that has begun, one that has ended, one that has done nothing; all of it a second ago."""
    made = {name: begin(name) for name in ("begun-1", "ended-1", "idle-1")}
    for name in ("begun-1", "ended-1"):
        assert made[name].send("t", b"x", number=1) == 0
    assert made["ended-1"].end(commit=True) == 0
    driver.advance(1_000)
    return made


def listed(client: Any, version: int = 2, **filters: Any) -> list[str]:
    answer = client.ask(LIST, version, **filters)
    assert answer.error_code == 0
    return sorted(row.transactional_id for row in answer.transaction_states)


# --- ListTransactions ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 1, 2])
def test_states_and_producer_ids_are_asked_for_in_every_version(
    version: int, client: Any, three: dict[str, Transactor]
) -> None:
    assert listed(client, version) == ["begun-1", "ended-1", "idle-1"]
    [row] = client.ask(LIST, version, state_filters=["Ongoing"]).transaction_states
    assert (row.transactional_id, row.producer_id) == ("begun-1", three["begun-1"].producer_id)
    assert row.transaction_state == "Ongoing"
    assert listed(client, version, state_filters=["Empty", "CompleteCommit"]) == ["ended-1", "idle-1"]
    wanted = [three["begun-1"].producer_id, three["idle-1"].producer_id, 12345]
    assert listed(client, version, producer_id_filters=wanted) == ["begun-1", "idle-1"]
    assert listed(client, version, producer_id_filters=wanted, state_filters=["Empty"]) == ["idle-1"]
    assert listed(client, version, producer_id_filters=[12345]) == []


@pytest.mark.parametrize("version", [0, 1, 2])
def test_states_that_there_are_none_of_are_named(
    version: int, client: Any, three: dict[str, Transactor]
) -> None:
    answer = client.ask(LIST, version, state_filters=["Sleeping", "Ongoing", "ongoing"])
    assert (int(answer.error_code), answer.unknown_state_filters) == (0, ("Sleeping", "ongoing"))
    assert [row.transactional_id for row in answer.transaction_states] == ["begun-1"]
    # Who asks for nothing that is known gets nothing, and not everything.
    assert client.ask(LIST, version, state_filters=["Sleeping"]).transaction_states == ()


@pytest.mark.parametrize("version", [1, 2])
def test_what_takes_longer_is_asked_for(version: int, client: Any, three: dict[str, Transactor]) -> None:
    assert listed(client, version, duration_filter=-1) == ["begun-1", "ended-1", "idle-1"]
    for duration_ms in (0, 999):
        assert listed(client, version, duration_filter=duration_ms, state_filters=["Ongoing"]) == ["begun-1"]
        assert "idle-1" not in listed(client, version, duration_filter=duration_ms)
    assert listed(client, version, duration_filter=1_000_000) == []


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        (None, {"begun-1", "ended-1", "idle-1"}), ("", {"begun-1", "ended-1", "idle-1"}), ("begun-1", {"begun-1"}),
        ("begun", set()), ("egun-1", set()), (r"(begun|idle)-\d", {"begun-1", "idle-1"}), ("(?i)BEGUN.*", {"begun-1"}),
        (r"\pL+-1", {"begun-1", "ended-1", "idle-1"}), (".*e.*", {"begun-1", "ended-1", "idle-1"}),
    ],
)  # fmt: skip
def test_a_pattern_matches_whole_ids(
    client: Any, three: dict[str, Transactor], pattern: str | None, expected: set[str]
) -> None:
    assert set(listed(client, transactional_id_pattern=pattern)) == expected


@pytest.mark.parametrize("pattern", ["(", "[z-a]", r"(a)\1", "(?=a)", "a{2000}", "x" * 3000])
def test_what_is_no_pattern_of_re2_is_refused(
    client: Any, three: dict[str, Transactor], pattern: str
) -> None:
    answer = client.ask(LIST, 2, transactional_id_pattern=pattern)
    assert answer.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION and answer.transaction_states == ()


def test_before_anybody_came_the_list_is_empty(client: Any) -> None:
    assert listed(client) == []


def test_a_list_with_gaps_is_none(
    client: Any, driver: Any, three: dict[str, Transactor], monkeypatch: pytest.MonkeyPatch
) -> None:
    transactions = driver.broker.transactions
    with monkeypatch.context() as slow_disk:
        slow_disk.setattr(transactions._loader, "_load_slice", lambda _tenure: 1 << 30)
        for tenure in list(transactions.partitions.values()):
            transactions.reload(tenure, "the test wants it")
        answer = client.ask(LIST, 2)
        assert answer.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert answer.transaction_states == ()
        [row] = client.ask(DESCRIBE, 0, transactional_ids=["begun-1"]).transaction_states
        assert row.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    driver.advance(5_000)
    assert listed(client) == ["begun-1", "ended-1", "idle-1"]


# --- DescribeTransactions -----------------------------------------------------------------------------------------


def test_several_are_described_at_once_each_with_its_error(
    client: Any, driver: Any, three: dict[str, Transactor]
) -> None:
    asked = ["idle-1", "nobody", "", "begun-1", "ended-1"]
    rows = client.ask(DESCRIBE, 0, transactional_ids=asked).transaction_states
    assert [row.transactional_id for row in rows] == asked
    assert [int(row.error_code) for row in rows] == [
        0, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, ErrorCode.INVALID_REQUEST, 0, 0,
    ]  # fmt: skip
    idle, _nobody, _empty, begun, ended = rows
    assert [row.transaction_state for row in (idle, begun, ended)] == ["Empty", "Ongoing", "CompleteCommit"]
    assert [(topic.topic, topic.partitions) for topic in begun.topics] == [("t", (1,))]
    assert begun.transaction_timeout.total_seconds() == 60
    age_s = driver.now_ms / 1000 - begun.transaction_start_time.timestamp()
    assert 0.9 < age_s < 2
    assert idle.transaction_start_time.timestamp() < 0 and idle.topics == ended.topics == ()
    assert (begun.producer_id, begun.producer_epoch) == (three["begun-1"].producer_id, 0)


# --- DescribeProducers --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 2])
def test_a_partition_tells_what_is_open_in_it(version: int, client: Any, begin: Any) -> None:
    one, two = begin("one", version), begin("two", version)

    def told() -> dict[int, tuple[int, int, int]]:
        [topic] = client.ask(PRODUCERS, 0, topics=[{"name": "t", "partition_indexes": [0]}]).topics
        [row] = topic.partitions
        assert row.error_code == 0
        return {
            each.producer_id: (each.producer_epoch, each.coordinator_epoch, each.current_txn_start_offset)
            for each in row.active_producers
        }

    assert one.send("t", b"a", b"b") == 0
    assert two.send("t", b"c") == 0
    assert one.produce("t", b"d") == 0
    assert told() == {one.producer_id: (0, -1, 0), two.producer_id: (0, -1, 2)}
    producer_id = one.producer_id
    assert one.end(commit=False) == 0
    # KIP-890: the end has the next epoch.
    assert told() == {producer_id: (version - 1, 0, -1), two.producer_id: (0, -1, 2)}
    assert one.send("t", b"e") == 0
    assert told()[producer_id] == (version - 1, 0, 5)


def test_a_broker_without_a_replica_says_so(driver: Any, client: Any) -> None:
    join_cluster(driver, part(0, 1), part(1, 2, 1), part(2, 3))
    [topic] = client.ask(PRODUCERS, 0, topics=[{"name": "t", "partition_indexes": [0, 1, 2, 3]}]).topics
    assert [int(row.error_code) for row in topic.partitions] == [
        0, 0, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]  # fmt: skip


def test_a_follower_describes_the_producers_of_its_own_log(driver: Any, client: Any, batch: Any) -> None:
    """Kafka answers from any log that it hosts, and `kafka-transactions find-hanging --broker-id` counts on it."""
    join_cluster(driver, part(0, 1, 2))
    log = driver.replica("t").log
    record = batch(b"x", producer_id=77, producer_epoch=3, base_sequence=0, transactional=True)
    log.append(record, 0, driver.now_ms)
    driver.broker.committed([part(0, 1, 2, leader=2, leader_epoch=1)], driver.now_ms)
    driver.turn()
    assert driver.replica("t").leading is None
    [topic] = client.ask(PRODUCERS, 0, topics=[{"name": "t", "partition_indexes": [0]}]).topics
    [row] = topic.partitions
    assert row.error_code == 0
    [producer] = row.active_producers
    assert (producer.producer_id, producer.producer_epoch) == (77, 3)
    assert producer.current_txn_start_offset == 0
