"""Requests for the controller: two real cores, of which one controls, and a network that is this file.

The metadata log of the controller reaches the other core when a test says so.
"""

import struct
from collections.abc import Callable
from typing import Any

import pytest

from ottla.metadata import records as r
from ottla.metadata.image import Image
from ottla.model.errors import ErrorCode
from ottla.ports.effects import ASK, REFUSED
from ottla.wire.encode import request_encoder
from ottla.wire.frames import ClientConnection
from tests.broker.conftest import Client, Driver

CREATE_TOPICS, DELETE_TOPICS, INIT_PRODUCER_ID, ALTER_CONFIGS, CREATE_PARTITIONS = 19, 20, 22, 33, 37
INCREMENTAL_ALTER_CONFIGS, UPDATE_FEATURES, ENVELOPE, METADATA = 44, 57, 58, 3


class Pair:
    """Broker 1 controls, broker 2 does not."""

    def __init__(self, drive: Callable[..., Driver]) -> None:
        self.controller = drive(node_id="1")
        self.other = drive(
            node_id="2",
            listeners="PLAINTEXT://127.0.0.1:9093",
            log_cleaner_max_compaction_lag_ms="1000",
        )
        self.log: list[r.Record] = []
        self.is_log_held = False
        #: What is answered instead of by the controller, while set.
        self.refusing: str | None = None
        #: Effects that were not performed, while this is set.
        self.is_network_held = False
        self.held: list[Any] = []
        self.asked: list[tuple[Any, int, int]] = []
        one, two = self.controller.broker, self.other.broker
        one.committed([r.BrokerRegistration(2, 1, "127.0.0.1", 9093)], 0)
        one.proposed = one.image
        two.image = two.proposed = Image().apply(one.image.records())
        two.controller_driver.is_active = False
        two.lifecycle.controller_id = 1
        committed = one.committed

        def and_passed_on(records: list[r.Record], now_ms: int) -> None:
            committed(records, now_ms)
            self.log += records
            if not self.is_log_held:
                self.deliver()

        one.committed = and_passed_on  # type: ignore[method-assign]
        perform = self.other._perform

        def with_asks(effect: Any) -> None:
            if effect[0] == ASK:
                self.held.append(effect)
                self.asked.append(effect[1:4])
                if not self.is_network_held:
                    self.exchange()
            else:
                perform(effect)

        self.other._perform = with_asks  # type: ignore[method-assign]

    def deliver(self) -> None:
        """Let broker 2 read the log."""
        records, self.log = self.log, []
        self.other.broker.committed(records, self.other.now_ms)
        self.other.turn()

    def exchange(self) -> None:
        """Carry out what was asked, on a connection for each."""
        held, self.held = self.held, []
        for _kind, _peer, _lane, key, version, body, done in held:
            if self.refusing is not None:
                done(None, self.refusing)
                continue
            wire = ClientConnection("broker 2")
            client = Client(self.controller, self.controller.broker.connected("127.0.0.1:5"))
            client.connection.broker_id = 2
            self.controller.clients[client.connection] = client
            answered: list[memoryview] = []
            client.sent = lambda data, wire=wire, answered=answered: answered.extend(  # type: ignore[misc]
                body for _id, body in wire.feed(data)
            )
            client.send_frame(wire.request(key, version, body)[1][4:])
            assert client.closed_because is None
            [answer] = answered
            memory = bytearray(answer)
            done(memoryview(memory).toreadonly(), None)
            memory[:] = bytes(len(memory))
        self.other.turn()


@pytest.fixture
def pair(drive: Callable[..., Driver]) -> Pair:
    return Pair(drive)


@pytest.fixture
def client(pair: Pair) -> Client:
    """A client of the broker that does not control."""
    return pair.other.connect()


def creating(*names: str, **more: Any) -> dict[str, Any]:
    rows = [{"name": name, "num_partitions": 1, "replication_factor": 1} for name in names]
    return {"topics": rows, "timeout": 10_000, **more}


@pytest.mark.parametrize("version", range(2, 8))
def test_a_client_of_any_broker_creates_a_topic(pair: Pair, client: Client, version: int) -> None:
    [row] = client.ask(CREATE_TOPICS, version, **creating("new")).topics
    assert row.error_code == 0
    assert "new" in pair.controller.broker.image.topics
    assert "new" in pair.other.broker.image.topics
    assert pair.asked == [((1, "127.0.0.1", 9092), -1, ENVELOPE)]


def test_the_controller_refuses_as_it_does_at_home(client: Client) -> None:
    client.ask(CREATE_TOPICS, **creating("twice"))
    [row] = client.ask(CREATE_TOPICS, **creating("twice")).topics
    assert row.error_code == ErrorCode.TOPIC_ALREADY_EXISTS
    assert row.error_message == "topic 'twice' already exists"


def test_answers_keep_the_order_of_their_connection(pair: Pair, client: Client) -> None:
    pair.is_network_held = True
    client.send(CREATE_TOPICS, **creating("first"))
    client.send(METADATA, topics=None, allow_auto_topic_creation=False)
    assert client.answers == []
    pair.is_network_held = False
    pair.exchange()
    created, metadata = client.answers
    assert created.topics[0].name == "first"
    assert metadata.brokers


def test_the_answer_waits_until_this_broker_has_the_change_too(pair: Pair, client: Client) -> None:
    pair.is_log_held = True
    client.send(CREATE_TOPICS, **creating("seen"))
    assert "seen" in pair.controller.broker.image.topics
    assert client.answers == []
    pair.deliver()
    [answer] = client.answers
    assert answer.topics[0].error_code == 0


def test_the_answer_waits_for_a_broker_that_began_from_a_snapshot(pair: Pair, client: Client) -> None:
    """Its image has fewer records behind it and is as new all the same."""
    for name in ("a", "b"):
        client.ask(CREATE_TOPICS, **creating(name))
        client.ask(DELETE_TOPICS, topics=[{"name": name}], timeout=1000)
    one, two = pair.controller.broker, pair.other.broker
    assert len(one.image.records()) < one.image.end
    two.image = Image().apply(one.image.records())
    assert two.image.end == one.image.end
    assert client.ask(CREATE_TOPICS, **creating("c")).topics[0].error_code == 0


def test_an_answer_is_not_held_for_ever(pair: Pair, client: Client) -> None:
    pair.is_log_held = True
    client.send(CREATE_TOPICS, **creating("slow"))
    pair.other.advance(6_000)
    assert client.answers[0].topics[0].error_code == 0


def test_it_is_asked_again_until_there_is_a_controller(pair: Pair, client: Client) -> None:
    pair.other.broker.lifecycle.controller_id = -1
    client.send(CREATE_TOPICS, **creating("patient"))
    pair.other.advance(500)
    assert client.answers == []
    pair.other.broker.lifecycle.controller_id = 1
    pair.other.advance(100)
    assert client.answers[0].topics[0].error_code == 0


def test_it_is_asked_again_when_the_controller_cannot_be_reached_or_is_none(
    pair: Pair, client: Client
) -> None:
    pair.refusing = REFUSED
    client.send(CREATE_TOPICS, **creating("patient"))
    pair.refusing = None
    pair.controller.broker.controller_driver.is_active = False
    pair.other.advance(100)
    assert client.answers == []
    pair.controller.broker.controller_driver.is_active = True
    pair.other.advance(100)
    assert client.answers[0].topics[0].error_code == 0


def test_it_is_served_here_when_control_comes_here(pair: Pair, client: Client) -> None:
    pair.refusing = REFUSED
    client.send(CREATE_TOPICS, **creating("mine"))
    pair.other.broker.controller_driver.is_active = True
    pair.other.broker.controller_channel.controller_changed()
    pair.other.turn()
    assert client.answers[0].topics[0].error_code == 0
    assert "mine" in pair.other.broker.image.topics
    assert "mine" not in pair.controller.broker.image.topics


def test_a_controller_that_does_not_answer_is_given_up_for_the_next(pair: Pair, client: Client) -> None:
    pair.is_network_held = True
    client.send(CREATE_TOPICS, **creating("again"))
    first = pair.held.pop()
    pair.is_network_held = False
    pair.other.broker.controller_channel.controller_changed()
    pair.other.turn()
    assert client.answers[0].topics[0].error_code == 0
    first[-1](None, "late")
    pair.other.turn()
    assert len(client.answers) == 1


REQUESTS: list[tuple[int, dict[str, Any], Callable[[Any], list[Any]]]] = [
    (CREATE_TOPICS, creating("a", "b"), lambda answer: answer.topics),
    (DELETE_TOPICS, {"topics": [{"name": "a"}], "topic_names": ["a"], "timeout": 10_000}, lambda answer: answer.responses),
    (CREATE_PARTITIONS, {"topics": [{"name": "a", "count": 2, "assignments": None}], "timeout": 10_000}, lambda answer: answer.results),
    (ALTER_CONFIGS, {"resources": [{"resource_type": 2, "resource_name": "a", "configs": []}]}, lambda answer: answer.responses),
    (INCREMENTAL_ALTER_CONFIGS, {"resources": [{"resource_type": 2, "resource_name": "a", "configs": []}]}, lambda answer: answer.responses),
    (UPDATE_FEATURES, {"feature_updates": [], "timeout": 10_000}, lambda answer: [answer]),
]  # fmt: skip


@pytest.mark.parametrize(("key", "fields", "rows"), REQUESTS)
@pytest.mark.parametrize("is_newest", [False, True])
def test_without_a_controller_every_row_says_so_in_the_end(
    pair: Pair,
    client: Client,
    key: int,
    fields: dict[str, Any],
    rows: Callable[[Any], list[Any]],
    is_newest: bool,
) -> None:
    from ottla.broker.api.shared.api_table import APIS

    pair.other.broker.lifecycle.controller_id = -1
    client.send(key, APIS[key].newest if is_newest else APIS[key].oldest, **fields)
    pair.other.advance(9_000)
    assert client.answers == []
    pair.other.advance(31_000)
    [answer] = client.answers
    assert rows(answer)
    assert {int(row.error_code) for row in rows(answer)} == {ErrorCode.NOT_CONTROLLER}


def test_one_that_may_have_been_carried_out_is_said_to_have_timed_out(pair: Pair, client: Client) -> None:
    pair.is_network_held = True
    client.send(CREATE_TOPICS, **creating("perhaps"))
    pair.other.advance(11_000)
    assert client.answers[0].topics[0].error_code == ErrorCode.REQUEST_TIMED_OUT


def test_a_client_that_left_is_not_asked_for(pair: Pair, client: Client) -> None:
    pair.other.broker.lifecycle.controller_id = -1
    client.send(CREATE_TOPICS, **creating("nobody"))
    client.disconnect()
    assert not pair.other.broker.controller_channel.attempts
    pair.other.broker.lifecycle.controller_id = 1
    pair.other.advance(1_000)
    assert pair.asked == []


# --- envelopes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("head", "error"),
    [
        (b"", ErrorCode.INVALID_REQUEST),
        ((ENVELOPE << 16).to_bytes(4, "big") + bytes(6), ErrorCode.INVALID_REQUEST),
        ((METADATA << 16 | 12).to_bytes(4, "big") + bytes(6), ErrorCode.INVALID_REQUEST),
        ((CREATE_TOPICS << 16 | 99).to_bytes(4, "big") + bytes(6), ErrorCode.UNSUPPORTED_VERSION),
        # Begins well and is no request.
        ((CREATE_TOPICS << 16 | 7).to_bytes(4, "big") + bytes(6) + b"\xff" * 9, ErrorCode.INVALID_REQUEST),
    ],
)
def test_an_envelope_holds_only_what_the_controller_serves(pair: Pair, head: bytes, error: int) -> None:
    client = pair.controller.connect(broker_id=2)
    answer = client.ask(ENVELOPE, request_data=head, request_principal=None, client_host_address=b"")
    assert answer.error_code == error
    assert answer.response_data is None


def test_an_envelope_of_a_client_is_not_opened(pair: Pair) -> None:
    """It would say whose request it is."""
    head = struct.pack(">hhihb", CREATE_TOPICS, 7, 1, -1, 0)
    enclosed = head + request_encoder(CREATE_TOPICS, 7)(creating("new"))
    client = pair.controller.connect()
    fields = {"request_data": enclosed, "request_principal": None, "client_host_address": b""}
    assert client.ask(ENVELOPE, **fields).error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert "new" not in pair.controller.broker.image.topics
    assert pair.controller.connect(broker_id=2).ask(ENVELOPE, **fields).error_code == 0
    assert "new" in pair.controller.broker.image.topics


def test_a_broker_that_does_not_control_says_so(client: Client) -> None:
    client.connection.broker_id = 1
    answer = client.ask(ENVELOPE, request_data=b"", request_principal=None, client_host_address=b"")
    assert answer.error_code == ErrorCode.NOT_CONTROLLER


# --- this broker's own requests -----------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [2, 7])
def test_a_broker_asks_the_controller_itself(pair: Pair, version: int) -> None:
    answers: list[Any] = []
    pair.other.broker.controller_channel.ask(
        CREATE_TOPICS, version, creating("own"), lambda answer, error: answers.append((answer, error))
    )
    pair.other.turn()
    [(answer, error)] = answers
    assert error is None and answer.topics[0].error_code == 0
    assert pair.asked == [((1, "127.0.0.1", 9092), 0, CREATE_TOPICS)]


@pytest.mark.parametrize("version", [2, 7])
def test_the_controller_asks_itself_without_a_network(pair: Pair, version: int) -> None:
    answers: list[Any] = []
    pair.controller.broker.controller_channel.ask(
        CREATE_TOPICS, version, creating("own"), lambda answer, error: answers.append((answer, error))
    )
    pair.controller.turn()
    [(answer, error)] = answers
    assert error is None and answer.topics[0].error_code == 0


def test_a_topic_is_created_on_first_use_through_the_controller(pair: Pair, client: Client) -> None:
    pair.is_log_held = True
    client.send(METADATA, topics=[{"name": "auto"}, {"name": "."}], allow_auto_topic_creation=True)
    assert client.answers == []
    pair.deliver()
    auto, bad = client.answers[0].topics
    assert (auto.error_code, len(auto.partitions)) == (0, 1)
    assert bad.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_a_topic_that_cannot_be_created_now_is_asked_for_again(pair: Pair, client: Client) -> None:
    pair.other.broker.lifecycle.controller_id = -1
    client.send(METADATA, topics=[{"name": "auto"}], allow_auto_topic_creation=True)
    pair.other.advance(6_000)
    [row] = client.answers[0].topics
    assert row.error_code == ErrorCode.LEADER_NOT_AVAILABLE


def test_metadata_tells_who_controls_and_who_is_there(pair: Pair, client: Client) -> None:
    client.ask(
        CREATE_TOPICS,
        topics=[{"name": "t", "num_partitions": -1, "replication_factor": -1,
                 "assignments": [{"partition_index": 0, "broker_ids": [1, 2]}]}],
        timeout=1000,
    )  # fmt: skip
    answer = client.ask(METADATA, topics=[{"name": "t"}], allow_auto_topic_creation=False)
    assert answer.controller_id == 1
    assert [node.node_id for node in answer.brokers] == [1, 2]
    [partition] = answer.topics[0].partitions
    assert partition.offline_replicas == ()

    before = pair.other.broker.image.partition(answer.topics[0].topic_id.bytes, 0)
    assert before is not None
    stopped = before._replace(leader=-1, isr=(1,), leader_epoch=1, partition_epoch=1, last_leader=1)
    pair.other.broker.committed([r.BrokerRegistration(1, 1, "127.0.0.1", 9092, fenced=True), stopped], 0)
    answer = client.ask(METADATA, topics=[{"name": "t"}], allow_auto_topic_creation=False)
    assert [node.node_id for node in answer.brokers] == [2]
    [partition] = answer.topics[0].partitions
    assert partition.offline_replicas == (1,)
    assert (partition.leader_id, partition.error_code) == (-1, ErrorCode.LEADER_NOT_AVAILABLE)
    [partition] = (
        client.ask(75, topics=[{"name": "t"}], response_partition_limit=10, cursor=None).topics[0].partitions
    )
    assert (partition.leader_id, partition.offline_replicas, partition.last_known_elr) == (-1, (1,), (1,))


# --- settings of brokers ------------------------------------------------------------------------------------------


def altering(name: str, **settings: str) -> dict[str, Any]:
    configs = [
        {"name": key.replace("_", "."), "config_operation": 0, "value": value}
        for key, value in settings.items()
    ]
    return {"resources": [{"resource_type": 4, "resource_name": name, "configs": configs}]}


@pytest.mark.parametrize(("name", "reached"), [("1", [1]), ("2", [2]), ("", [1, 2])])
def test_any_brokers_settings_are_altered_through_the_controller(
    pair: Pair, client: Client, name: str, reached: list[int]
) -> None:
    fields = altering(name, leader_replication_throttled_rate="7777")
    [row] = client.ask(INCREMENTAL_ALTER_CONFIGS, **fields).responses
    assert row.error_code == 0
    rates = {
        broker.config.node_id: broker.config.leader_replication_throttled_rate
        for broker in (pair.controller.broker, pair.other.broker)
    }
    assert [node for node, rate in rates.items() if rate == 7777] == reached


def test_a_broker_keeps_its_settings_if_those_made_elsewhere_do_not_go_with_them(
    pair: Pair, client: Client
) -> None:
    fields = altering("2", log_cleaner_min_compaction_lag_ms="5000")
    assert client.ask(INCREMENTAL_ALTER_CONFIGS, **fields).responses[0].error_code == 0
    assert pair.other.broker.config.log_cleaner_min_compaction_lag_ms == 0
    assert any("do not go with this broker's own" in text for text in pair.other.said)


def test_only_a_broker_itself_describes_its_settings(client: Client) -> None:
    resources = [
        {"resource_type": 4, "resource_name": name, "configuration_keys": None} for name in ("1", "2", "")
    ]
    rows = client.ask(32, resources=resources).results
    assert [int(row.error_code) for row in rows] == [ErrorCode.INVALID_REQUEST, 0, 0]
    assert "only broker 1 knows its own settings" in rows[0].error_message


# --- producer ids -------------------------------------------------------------------------------------------------


def test_producer_ids_come_from_the_controller(
    pair: Pair, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its handler is stood in for: what is tested is who is asked, how, and what is done with the answer."""
    asked = []

    def ask(broker: Any, key: int, version: int, request: dict[str, Any], done: Any) -> bool:
        asked.append((key, version, request))
        answer = type("Answer", (), {"error_code": 0, "producer_id_start": 5000, "producer_id_len": 2})
        if len(asked) == 1:
            answer.error_code = ErrorCode.NOT_CONTROLLER
        done(answer, None)
        return True

    monkeypatch.setattr(type(pair.other.broker.controller_channel), "ask", ask)
    client.send(INIT_PRODUCER_ID, transactional_id=None, transaction_timeout=0)
    pair.other.advance(100)
    assert client.answers.pop().producer_id == 5000
    assert client.ask(INIT_PRODUCER_ID, transactional_id=None, transaction_timeout=0).producer_id == 5001
    assert asked == [(67, 0, {"broker_id": 2, "broker_epoch": 1})] * 2
