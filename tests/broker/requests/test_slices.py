"""Long requests in slices: others are served in between, answers keep their order, and nothing is left of those who leave."""

from collections.abc import Generator
from typing import Any

import pytest

from ottla.broker.requests import slices
from ottla.broker.requests.connection import EnclosedConnection
from ottla.metadata import records as r
from ottla.wire.encode import request_encoder
from testkit.fuzz.valid_requests import frame_of
from testkit.injected import Injected

METADATA, API_VERSIONS, DESCRIBE_CONFIGS, CREATE_TOPICS = 3, 18, 32, 19
CONSUMER_GROUP_DESCRIBE, OFFSET_FOR_LEADER_EPOCH = 69, 23
#: A tenth of the real one, so that a long request needs few partitions.
SLICE_COST = 100
PARTITIONS = 3 * SLICE_COST


@pytest.fixture
def short_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "SLICE_COST", SLICE_COST)
    monkeypatch.setattr(slices, "_TRIAL_COST", SLICE_COST // 20)


@pytest.fixture
def wide(short_slices: None, client: Any) -> str:
    """The name of a topic whose Metadata takes several slices."""
    client.create("wide", PARTITIONS)
    client.driver.broker.slices.run_slice()
    return "wide"


def send_without_turns(client: Any, key: int, version: int, **fields: Any) -> None:
    """Hand a request to the core, which has no turn afterwards."""
    client._asked.append((key, version))
    frame = frame_of(
        key, version, client._wire.request(key, version, b"")[0], request_encoder(key, version)(fields)
    )
    client.driver.broker.receive(client.connection, memoryview(frame), client.driver.now_ms)


def perform(driver: Any) -> None:
    outbox, driver.broker.outbox = driver.broker.outbox, []
    for effect in outbox:
        driver._perform(effect)


def one_turn(driver: Any) -> bool:
    more: bool = driver.broker.settle(driver.now_ms)
    perform(driver)
    return more


def test_a_long_answer_is_whole(client: Any, wide: str) -> None:
    for version in (0, 8, 9, 12):
        [topic] = client.ask(METADATA, version, topics=[{"name": wide}]).topics
        assert [row.partition_index for row in topic.partitions] == list(range(PARTITIONS))
        assert {row.leader_id for row in topic.partitions} == {1}


def test_others_are_answered_in_between(driver: Any, wide: str) -> None:
    slow, other = driver.connect(), driver.connect()
    send_without_turns(slow, METADATA, 12, topics=[{"name": wide}])
    perform(driver)
    assert slow.answers == [] and slow.is_paused, "nothing more is read from it"
    turns = 0
    while one_turn(driver):
        turns += 1
        send_without_turns(other, API_VERSIONS, 0)
        perform(driver)
        assert len(other.answers) == turns
    assert turns >= 3
    assert len(slow.answers) == 1 and not slow.is_paused


def test_long_requests_take_turns(driver: Any, wide: str) -> None:
    """A short one does not wait for the long ones before it to end."""
    driver.connect().create("wider", 2 * PARTITIONS)
    first, second = driver.connect(), driver.connect()
    send_without_turns(first, METADATA, 12, topics=None)
    send_without_turns(second, METADATA, 12, topics=[{"name": wide}])
    while not second.answers:
        assert one_turn(driver)
        assert not first.answers
    while one_turn(driver):
        pass
    assert len(first.answers[0].topics) == 2


def test_answers_keep_the_order_of_their_requests(driver: Any, wide: str) -> None:
    client = driver.connect()
    send_without_turns(client, METADATA, 12, topics=[{"name": wide}])
    send_without_turns(client, API_VERSIONS, 0)
    send_without_turns(client, METADATA, 12, topics=[{"name": wide}])
    perform(driver)
    assert client.answers == []
    while one_turn(driver):
        pass
    assert [hasattr(answer, "topics") for answer in client.answers] == [True, False, True]


def test_a_client_that_leaves_is_forgotten(driver: Any, wide: str) -> None:
    client = driver.connect()
    send_without_turns(client, METADATA, 12, topics=[{"name": wide}])
    one_turn(driver)
    assert len(driver.broker.slices.tasks) == 1
    client.disconnect()
    assert not one_turn(driver)
    assert not driver.broker.slices.tasks
    assert not client.answers


def test_a_request_in_an_envelope_is_answered_too(driver: Any) -> None:
    """What a broker forwards runs on a connection of its own, which has no socket to pause."""
    answers: list[bytes | None] = []
    topics = [{"name": f"t{number}", "num_partitions": 1, "replication_factor": 1} for number in range(300)]
    body = request_encoder(CREATE_TOPICS, 7)({"topics": topics, "timeout": 1000, "validate_only": True})
    frame = frame_of(CREATE_TOPICS, 7, 5, body)
    inner = driver.broker.controller_channel.serve(
        "a broker", frame, lambda data, _error: answers.append(data)
    )
    assert isinstance(inner, EnclosedConnection) and not answers
    driver.turn()
    assert len(answers) == 1 and answers[0] is not None


def test_many_short_requests_of_one_turn_add_up(short_slices: None, driver: Any) -> None:
    """Each would be answered at once; a slice of rows later the next one waits for its turn."""
    driver.connect().create("t", SLICE_COST // 2)
    driver.broker.slices.run_slice()
    clients = [driver.connect() for _ in range(6)]
    for client in clients:
        send_without_turns(client, METADATA, 12, topics=[{"name": "t"}])
    perform(driver)
    assert 1 <= sum(len(client.answers) for client in clients) <= 3
    driver.turn()
    assert all(len(client.answers) == 1 for client in clients)


def test_a_short_request_does_not_wait_until_hundreds_of_long_ones_are_answered(
    driver: Any, wide: str
) -> None:
    """An OffsetFetch waited 5 s behind Metadata requests for all topics, on as many connections as there were clients."""
    driver.connect().create("t", 1)
    many = [driver.connect() for _ in range(200)]
    for client in many:
        send_without_turns(client, METADATA, 12, topics=[{"name": wide}])
    short = driver.connect()
    send_without_turns(short, METADATA, 12, topics=[{"name": "t"}])
    perform(driver)
    assert short.answers == [] and short.is_paused
    turns = 0
    while not short.answers:
        assert one_turn(driver)
        turns += 1
    # Answering all the others takes 600 turns or more.
    assert turns < 300
    assert not short.is_paused
    many[-1].disconnect()
    while one_turn(driver):
        pass
    assert {len(client.answers) for client in many[:-1]} == {1} and not many[-1].answers


def test_a_request_whose_client_leaves_before_it_is_begun_is_forgotten(
    short_slices: None, driver: Any
) -> None:
    client, other = driver.connect(), driver.connect()
    driver.broker.slices._spent = SLICE_COST
    send_without_turns(client, METADATA, 12, topics=None)
    send_without_turns(other, METADATA, 12, topics=None)
    client.disconnect()
    driver.turn()
    assert not client.answers and len(other.answers) == 1
    assert not driver.broker.slices.tasks


def test_an_answer_that_would_be_too_large_closes_its_connection(
    driver: Any, wide: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slices, "ANSWER_BYTES_MAX", 1_000)
    client, other = driver.connect(), driver.connect()
    client.send(METADATA, 12, topics=[{"name": wide}])
    assert "more than 1000 bytes" in client.closed_because
    assert other.ask(API_VERSIONS, 0).api_keys


def test_a_failure_in_a_slice_closes_its_own_connection(
    driver: Any, wide: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: Any) -> Generator[int, None, dict[str, Any]]:
        yield SLICE_COST
        raise Injected("broken")

    monkeypatch.setattr("ottla.broker.api.describe_configs._described", failing)
    client, other = driver.connect(), driver.connect()
    client.send(DESCRIBE_CONFIGS, 4, resources=[])
    assert client.closed_because is not None and "broken" in client.closed_because
    assert len(other.ask(METADATA, 12, topics=[{"name": wide}]).topics) == 1


def test_a_gathered_answer_that_ends_a_slice_is_given_once(short_slices: None, driver: Any) -> None:
    """The last row is there when the slice is used up: the request is put off, and answered when its handler goes on."""
    client = driver.connect()
    for cost in range(SLICE_COST):
        driver.broker.slices._spent = cost
        client.ask(CONSUMER_GROUP_DESCRIBE, 1, group_ids=["g"])
        assert not driver.broker.slices.tasks


@pytest.mark.parametrize("leaves", [False, True])
def test_what_is_encoded_of_an_answer_counts_in_the_byte_budget(
    driver: Any, client: Any, leaves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slices, "SLICE_COST", 30)
    names = [f"t{number}" for number in range(3)]
    for name in names:
        client.create(name, 40)
    asking = driver.connect()
    send_without_turns(asking, METADATA, 12, topics=[{"name": name} for name in names])
    perform(driver)
    most = 0
    while one_turn(driver):
        most = max(most, driver.broker.held_answer_bytes)
        if leaves and most and not asking.connection.closed:
            asking.disconnect()
    assert most > 10 * 40
    assert driver.broker.held_answer_bytes == 0
    assert len(asking.answers) == (not leaves)


def test_an_answer_that_is_there_when_a_slice_ends_is_sent_once_and_its_connection_goes_on(
    short_slices: None, driver: Any
) -> None:
    """DeleteGroups answered its last row, and had another turn behind it: its connection was stuck."""
    client = driver.connect()
    client.ask(10, 4, key_type=0, coordinator_keys=["g"])
    for spent in range(SLICE_COST - 4, SLICE_COST + 1):
        driver.broker.slices._spent = spent
        client.ask(42, 2, groups_names=["g"])
        client.ask(API_VERSIONS, 0)


def test_a_topic_that_is_created_again_at_once_does_not_get_the_log_of_the_deleted_one(
    driver: Any, client: Any, batch: Any
) -> None:
    """Logs of deleted topics are renamed a few a turn; a new log of the same name does not wait for that, and is empty."""
    old_id = client.create("t", 200)
    client.produce("t", batch(b"old"), 150)
    again = [
        r.TopicRemoved(old_id),
        r.Topic("t", bytes(15) + b"2"),
        r.NewPartitions(bytes(15) + b"2", 0, ((1,),) * 200),
    ]
    driver.broker.committed(again, driver.now_ms)
    assert len(driver.broker.log_maintenance.to_delete) == 200
    assert driver.replica("t", 150).log.next_offset == 0
    assert len(driver.broker.log_maintenance.to_delete) == 199
    driver.turn()
    assert not driver.broker.log_maintenance.to_delete
    assert client.fetch("t", 0, 150).high_watermark == 0
    names = driver.disk.list(driver.broker.directories.all[0].path)
    assert sum(name.endswith("-delete") for name in names) == 200


def test_logs_that_a_step_has_to_create_make_the_slice_shorter(
    drive: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ottla.broker.storage.log_opener._CREATE_MAX", 0)
    driver = drive()
    driver.are_proposals_held = True
    driver.connect().send(
        CREATE_TOPICS, topics=[{"name": "t", "num_partitions": 200, "replication_factor": 1}], timeout=60_000
    )
    held, driver.held_proposals = driver.held_proposals, []
    for _kind, records, done in held:
        driver.broker.committed(records, driver.now_ms)
        done(None)
    replicas = driver.broker.partitions.by_name["t"].replicas.values()
    client = driver.connect()
    rows = [{"partition": number, "current_leader_epoch": -1, "leader_epoch": 0} for number in range(200)]
    send_without_turns(
        client, OFFSET_FOR_LEADER_EPOCH, 4, replica_id=-1, topics=[{"topic": "t", "partitions": rows}]
    )
    opened = sum(replica.opened for replica in replicas)
    assert opened <= 20, "too many in one turn"
    while not client.answers:
        driver.broker.settle(driver.now_ms)
        perform(driver)
        before, opened = opened, sum(replica.opened for replica in replicas)
        assert opened - before <= 20, "too many in one turn"
    assert opened == 200
