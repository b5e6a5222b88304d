"""Every string that the broker stores fits every version of every API that returns it, at its largest size.

A version that is not flexible gives strings a 16-bit length. What a newer version takes, and stores, must fit there: otherwise the
answer to *another* client cannot be encoded. The tables here are driven by the schemas: a new field or version must be added.
"""

import struct
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ottla.broker.api.shared.api_table import APIS
from ottla.broker.coordinators.internal_appends import append_as_leader
from ottla.groups.formats import OFFSET_COMMIT, Committed, Record, encode
from ottla.metadata.image import TOPIC_RESOURCE
from ottla.metadata.records import Config
from ottla.model import limits
from ottla.model.errors import ErrorCode
from ottla.wire.decode import decode_response
from ottla.wire.encode import request_encoder
from ottla.wire.layout import body_fields
from ottla.wire.schema import request_header_is_flexible, response_class, response_header_is_flexible
from tests.broker.api.members import Member, find
from tests.broker.conftest import Client, Driver, make_batch

#: Four bytes each in UTF-8, one character in Python.
WIDE = "\U0001f40d"
GROUP = WIDE * limits.NAME_LENGTH_MAX
MODERN = "m" + GROUP[1:]
INSTANCE = WIDE * (limits.MEMBER_STRING_BYTES_MAX // 4)
PROTOCOL = "p" * limits.MEMBER_STRING_BYTES_MAX
TOPIC = "t" * limits.TOPIC_NAME_LENGTH_MAX
TEXT = "x" * limits.STRING_BYTES_MAX
VALUE = ",".join(f"{number}:1" for number in range(10_000, 10_000 + limits.STRING_BYTES_MAX // 8))
LONGER = ",".join([VALUE, *(f"{number}:2" for number in range(10_000, 10_010))])
TOO_LONG_LIST = ",".join([VALUE] * (limits.CONFIG_LIST_BYTES_MAX // len(VALUE) + 1))
TRANSACTIONAL = "\u00e9" * limits.NAME_LENGTH_MAX
MEMBER = "i" * limits.MEMBER_ID_BYTES_MAX
#: Each byte is invalid UTF-8, and three bytes once it has been decoded.
CLIENT_ID = b"\xff" * limits.STRING_BYTES_MAX

NAME, SETTING, ECHO, OWN, MESSAGE = (
    "a topic's name: NAMES in limits.py",
    "a setting, or the value of one: 32,767 bytes, longer lists are left out in these versions",
    "from a request of the same version",
    "the broker's own",
    "at most ERROR_MESSAGE_LENGTH_MAX characters",
)
NONE = "there is none: no authorizer, no quotas"
STORED = "stored by a client: bounded where it comes in"
#: Each string in an answer of a version with 16-bit lengths, and why it fits.
FITS = {
    "add_partitions_to_txn": {"results_by_topic_v3_and_below.name": ECHO},
    "alter_client_quotas": {
        "entries.entity.entity_name": ECHO, "entries.entity.entity_type": ECHO, "entries.error_message": MESSAGE
    },
    "alter_configs": {"responses.error_message": MESSAGE, "responses.resource_name": ECHO},
    "alter_replica_log_dirs": {"results.topic_name": ECHO},
    "create_acls": {"results.error_message": MESSAGE},
    "create_partitions": {"results.error_message": MESSAGE, "results.name": ECHO},
    "create_topics": {"topics.error_message": MESSAGE, "topics.name": ECHO},
    "delete_acls": {
        "filter_results.error_message": MESSAGE, "filter_results.matching_acls.error_message": NONE,
        "filter_results.matching_acls.host": NONE, "filter_results.matching_acls.principal": NONE,
        "filter_results.matching_acls.resource_name": NONE,
    },
    "delete_groups": {"results.group_id": ECHO},
    "delete_records": {"topics.name": ECHO},
    "delete_topics": {"responses.name": ECHO},
    "describe_acls": {
        "error_message": MESSAGE, "resources.acls.host": NONE, "resources.acls.principal": NONE,
        "resources.resource_name": NONE,
    },
    "describe_client_quotas": {
        "entries.entity.entity_name": NONE, "entries.entity.entity_type": NONE, "entries.values.key": NONE,
        "error_message": MESSAGE,
    },
    "describe_configs": {
        "results.configs.documentation": OWN, "results.configs.name": OWN, "results.configs.synonyms.name": OWN,
        "results.configs.synonyms.value": SETTING, "results.configs.value": SETTING, "results.error_message": MESSAGE,
        "results.resource_name": ECHO,
    },
    "describe_groups": {
        "groups.group_id": ECHO, "groups.group_state": OWN, "groups.members.client_host": OWN,
        "groups.members.client_id": STORED, "groups.members.group_instance_id": STORED, "groups.members.member_id": STORED,
        "groups.protocol_data": STORED, "groups.protocol_type": STORED,
    },
    "describe_log_dirs": {"results.log_dir": OWN, "results.topics.name": NAME},
    "elect_leaders": {
        "replica_election_results.partition_result.error_message": MESSAGE, "replica_election_results.topic": NAME
    },
    "fetch": {"responses.topic": NAME},
    "find_coordinator": {"error_message": OWN, "host": OWN},
    "incremental_alter_configs": {"responses.error_message": MESSAGE, "responses.resource_name": ECHO},
    "join_group": {
        "leader": STORED, "member_id": STORED, "members.group_instance_id": STORED, "members.member_id": STORED,
        "protocol_name": STORED,
    },
    "leave_group": {"members.group_instance_id": ECHO, "members.member_id": ECHO},
    "list_groups": {"groups.group_id": STORED, "groups.protocol_type": STORED},
    "list_offsets": {"topics.name": ECHO},
    "metadata": {"brokers.host": OWN, "brokers.rack": OWN, "cluster_id": OWN, "topics.name": NAME},
    "offset_commit": {"topics.name": ECHO},
    "offset_delete": {"topics.name": ECHO},
    "offset_fetch": {"topics.name": NAME, "topics.partitions.metadata": STORED},
    "offset_for_leader_epoch": {"topics.topic": ECHO},
    "produce": {
        "responses.name": ECHO, "responses.partition_responses.error_message": MESSAGE,
        "responses.partition_responses.record_errors.batch_index_error_message": MESSAGE,
    },
    "sasl_authenticate": {"error_message": OWN},
    "sasl_handshake": {"mechanisms": OWN},
    "txn_offset_commit": {"topics.name": ECHO},
}  # fmt: skip

JOIN, SYNC, DESCRIBE_GROUPS, LIST_GROUPS, DESCRIBE_CONFIGS, HEARTBEAT_848 = 11, 14, 15, 16, 32, 68

#: Requests whose answers have the strings above, with the fields of all versions.
ASKED: dict[int, dict[str, Any]] = {
    3: {"topics": []},
    9: {
        "group_id": GROUP, "topics": [{"name": TOPIC, "partition_indexes": [0]}],
        "groups": [{"group_id": GROUP, "member_id": None, "member_epoch": -1, "topics": None}],
    },
    10: {"key": GROUP, "coordinator_keys": [GROUP, MODERN]},
    DESCRIBE_GROUPS: {"groups": [GROUP, MODERN], "include_authorized_operations": True},
    LIST_GROUPS: {"states_filter": [], "types_filter": []},
    DESCRIBE_CONFIGS: {
        "resources": [{"resource_type": 2, "resource_name": TOPIC, "configuration_keys": None}],
        "include_synonyms": True, "include_documentation": True,
    },
    35: {"topics": None},
    42: {"groups_names": [GROUP, MODERN]},
    61: {"topics": [{"name": TOPIC, "partition_indexes": [0]}]},
    65: {"transactional_ids": [TRANSACTIONAL]},
    66: {"state_filters": [], "producer_id_filters": [], "duration_filter": -1, "transactional_id_pattern": None},
    69: {"group_ids": [GROUP, MODERN], "include_authorized_operations": True},
    74: {"resource_types": []},
    75: {"topics": [{"name": TOPIC}], "cursor": None},
}  # fmt: skip

EVERY = [
    pytest.param(key, version, id=f"{APIS[key].handler.__name__}-v{version}")
    for key in ASKED
    for version in range(APIS[key].oldest, APIS[key].newest + 1)
]


def short_strings(cls: Any, path: tuple[str, ...] = ()) -> Iterator[str]:
    """The strings of a message that have a 16-bit length."""
    for field in body_fields(cls):
        if field.struct is not None:
            yield from short_strings(field.struct, (*path, field.name))
        elif field.kind == "string" and not field.is_flexible:
            yield ".".join((*path, field.name))


def test_every_string_with_a_16_bit_length_is_known_to_fit() -> None:
    found: dict[str, set[str]] = {}
    for api in APIS.values():
        for version in range(api.oldest, api.newest + 1):
            for name in short_strings(response_class(api.key, version)):
                found.setdefault(api.handler.__name__, set()).add(name)
    assert found == {name: set(fields) for name, fields in FITS.items()}


def ask_as(client: Client, client_id: bytes, key: int, version: int, **fields: Any) -> Any:
    """A request with another client.id; its answer, or None if none has come yet."""
    body = request_encoder(key, version)(fields)
    tags = b"\0" if request_header_is_flexible(key, version) else b""
    answers: list[bytes] = []
    client.sent = answers.append  # type: ignore[method-assign]  # its correlation ids are not the helper's
    client.send_frame(struct.pack(">hhih", key, version, 7, len(client_id)) + client_id + tags + body)
    assert client.closed_because is None, client.closed_because
    start = 9 if response_header_is_flexible(key, version) else 8
    return decode_response(key, version, answers[0], start) if answers else None


def fill(driver: Driver) -> None:
    """Store every string at its largest size, with the newest versions."""
    client = driver.connect()
    client.create(TOPIC)
    find(client)
    client.ask(10, 4, key_type=1, coordinator_keys=[TRANSACTIONAL])
    config = {"name": "leader.replication.throttled.replicas", "value": VALUE, "config_operation": 0}
    rows = [{"resource_type": 2, "resource_name": TOPIC, "configs": [config]}]
    assert client.ask(44, 1, resources=rows).responses[0].error_code == 0
    member = join(driver)
    assert member.error_code == 0
    sync = {
        "group_id": GROUP, "generation_id": 1, "member_id": member.member_id, "group_instance_id": INSTANCE,
        "protocol_type": None, "protocol_name": None,
        "assignments": [{"member_id": member.member_id, "assignment": bytes(70_000)}],
    }  # fmt: skip
    assert client.ask(SYNC, 5, **sync).error_code == 0
    offset = {
        "partition_index": 0,
        "committed_offset": 1,
        "committed_leader_epoch": 0,
        "committed_metadata": TEXT,
    }
    committed = client.ask(
        8, 9, group_id=GROUP, generation_id_or_member_epoch=1, member_id=member.member_id, group_instance_id=INSTANCE,
        topics=[{"name": TOPIC, "partitions": [offset]}],
    )  # fmt: skip
    assert committed.topics[0].partitions[0].error_code == 0
    modern = ask_as(
        driver.connect(), CLIENT_ID, HEARTBEAT_848, 1, group_id=MODERN, member_id=MEMBER, member_epoch=0,
        instance_id=INSTANCE, rack_id=INSTANCE, rebalance_timeout=1000, subscribed_topic_names=[TOPIC],
        subscribed_topic_regex="t" * 2000, server_assignor="range", topic_partitions=[],
    )  # fmt: skip
    assert modern.error_code == 0, modern.error_message
    settings = {"resource_type": 32, "resource_name": MODERN}
    config = {"name": "consumer.session.timeout.ms", "value": "50000", "config_operation": 0}
    assert client.ask(44, 1, resources=[settings | {"configs": [config]}]).responses[0].error_code == 0
    assert (
        client.ask(
            22, 5, transactional_id=TRANSACTIONAL, transaction_timeout=900_000, producer_id=-1
        ).error_code
        == 0
    )


def join(driver: Driver, version: int = 9, protocols: int = 2) -> Any:
    return ask_as(
        driver.connect(), CLIENT_ID, JOIN, version, group_id=GROUP, session_timeout=1_800_000, rebalance_timeout=60_000,
        member_id="", group_instance_id=INSTANCE, protocol_type=PROTOCOL,
        protocols=[{"name": PROTOCOL[:-1] + str(at), "metadata": bytes(70_000)} for at in range(protocols)], reason=None,
    )  # fmt: skip


@pytest.fixture(scope="module", params=["as they came", "after a restart"])
def filled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    settings = {
        "group.initial.rebalance.delay.ms": "0", "offset.metadata.max.bytes": str(1 << 20),
        "group.consumer.session.timeout.ms": "60000",
    }  # fmt: skip
    driver = Driver(str(tmp_path_factory.mktemp("strings") / "data"), settings)
    fill(driver)
    if request.param == "after a restart":
        for owner in (driver.broker.groups, driver.broker.transactions):
            for tenure in list(owner.partitions.values()):
                owner.on_resignation(tenure.replica, driver.now_ms)
                owner.on_election(tenure.replica, driver.now_ms)
        driver.advance(1000)
    yield driver
    driver.close()


@pytest.mark.parametrize(("key", "version"), EVERY)
def test_stored_strings_are_returned_in_every_version(filled: Driver, key: int, version: int) -> None:
    """Issue 8, bug 2: these closed the connections of others."""
    answer = filled.connect().ask(key, version, **ASKED[key])
    assert not int(getattr(answer, "error_code", 0))
    if key == LIST_GROUPS:
        assert {(row.group_id, row.protocol_type) for row in answer.groups} == {
            (GROUP, PROTOCOL), (MODERN, "consumer")
        }  # fmt: skip
    if key == DESCRIBE_GROUPS:
        [member] = answer.groups[0].members
        assert len(member.client_id.encode()) <= limits.CLIENT_ID_BYTES_MAX and member.client_id
        assert member.group_instance_id == (INSTANCE if version >= 4 else None)
    if key == 9:
        topics = answer.groups[0].topics if version >= 8 else answer.topics
        assert topics[0].partitions[0].metadata == TEXT


@pytest.mark.parametrize("version", range(APIS[JOIN].oldest, APIS[JOIN].newest + 1))
def test_the_leader_is_told_of_all_members_in_every_version(
    drive: Callable[..., Driver], version: int
) -> None:
    """Issue 8, bug 1: the answer to a v5 member could not be encoded, in a timer."""
    driver = drive(group_initial_rebalance_delay_ms="3000")
    find(driver.connect())
    asked = {
        "group_id": GROUP, "session_timeout": 10_000, "rebalance_timeout": 60_000, "protocol_type": PROTOCOL,
        "protocols": [{"name": PROTOCOL, "metadata": b"m"}], "reason": None,
    }  # fmt: skip
    leader, other = driver.connect(), driver.connect()
    leader.send(JOIN, version, **asked, member_id="", group_instance_id=None)
    if version >= 4:
        leader.send(JOIN, version, **asked, member_id=leader.answers.pop().member_id, group_instance_id=None)
    other.send(JOIN, 9, **asked, member_id="", group_instance_id=INSTANCE)
    driver.advance(7000)
    assert leader.closed_because is None and other.closed_because is None
    [answer] = leader.answers
    assert int(answer.error_code) == 0 and len(answer.members) == 2 and len(other.answers) == 1


TOO_LONG: dict[str, tuple[str, Any]] = {
    "group_instance_id": ("group_instance_id", INSTANCE + "x"),
    "protocol type": ("protocol_type", PROTOCOL + "x"),
    "protocol name": ("protocols", [{"name": PROTOCOL + "x", "metadata": b"m"}]),
    "many protocols": ("protocols", [{"name": str(at), "metadata": b""} for at in range(101)]),
    "metadata": ("protocols", [{"name": "p", "metadata": bytes(2 << 20)}]),
}


@pytest.mark.parametrize("what", TOO_LONG)
@pytest.mark.parametrize("version", [6, 9])
def test_a_join_with_strings_that_are_too_long_is_refused(client: Client, what: str, version: int) -> None:
    find(client)
    name, value = TOO_LONG[what]
    asked = {
        "group_id": "g", "session_timeout": 10_000, "rebalance_timeout": 60_000, "protocol_type": "consumer",
        "protocols": [{"name": "p", "metadata": b"m"}], "reason": None, "member_id": "", "group_instance_id": None,
    }  # fmt: skip
    assert client.ask(JOIN, version, **(asked | {name: value})).error_code == ErrorCode.INVALID_REQUEST
    assert client.ask(LIST_GROUPS, 4, states_filter=[]).groups == ()


@pytest.mark.parametrize(
    "field",
    [
        {"member_id": MEMBER + "x"}, {"instance_id": INSTANCE + "x"}, {"rack_id": INSTANCE + "x"},
        {"subscribed_topic_names": [TOPIC + "t"]},
    ],
    ids=lambda field: next(iter(field)),
)  # fmt: skip
def test_a_consumer_heartbeat_with_strings_that_are_too_long_is_refused(client: Client, field: Any) -> None:
    find(client)
    asked = {
        "group_id": "g", "member_id": "m", "member_epoch": 0, "instance_id": None, "rack_id": None,
        "rebalance_timeout": 1000, "subscribed_topic_names": ["t"], "topic_partitions": [],
    }  # fmt: skip
    answer = client.ask(HEARTBEAT_848, 1, **(asked | field))
    assert answer.error_code == ErrorCode.INVALID_REQUEST and "at most" in answer.error_message
    assert client.ask(LIST_GROUPS, 4, states_filter=[]).groups == ()


def test_ids_and_texts_that_are_too_long_are_refused(drive: Callable[..., Driver]) -> None:
    client = drive(offset_metadata_max_bytes=str(1 << 20)).connect()
    find(client)
    client.create("t")
    client.ask(10, 4, key_type=1, coordinator_keys=["tx"])
    long_id = "x" * (limits.NAME_LENGTH_MAX + 1)
    init = client.ask(22, 5, transactional_id=long_id, transaction_timeout=1000, producer_id=-1)
    assert init.error_code == ErrorCode.INVALID_REQUEST
    for kind, code in ((0, ErrorCode.INVALID_GROUP_ID), (1, ErrorCode.INVALID_REQUEST)):
        [row] = client.ask(10, 4, key_type=kind, coordinator_keys=[long_id]).coordinators
        assert row.error_code == code and "characters" in row.error_message
    text = WIDE * 8192
    assert Member(client.driver, "g").commit({("t", 0): 1}, metadata=text) == {
        ("t", 0): ErrorCode.OFFSET_METADATA_TOO_LARGE
    }
    assert client.ask(LIST_GROUPS, 4, states_filter=[]).groups == ()
    for name, kind in (("t", 2), (long_id, 32)):
        setting = "leader.replication.throttled.replicas" if kind == 2 else "consumer.session.timeout.ms"
        value = TOO_LONG_LIST if kind == 2 else "50000"
        row = {"resource_type": kind, "resource_name": name}
        config = {"name": setting, "value": value, "config_operation": 0}
        [altered] = client.ask(44, 1, resources=[row | {"configs": [config]}]).responses
        expected = ErrorCode.INVALID_CONFIG if kind == 2 else ErrorCode.INVALID_REQUEST
        assert altered.error_code == expected
    topic = {"name": "u", "num_partitions": 1, "replication_factor": 1}
    config = {"name": "leader.replication.throttled.replicas", "value": TOO_LONG_LIST}
    [made] = client.ask(19, 7, topics=[topic | {"configs": [config]}]).topics
    assert made.error_code == ErrorCode.INVALID_CONFIG


@pytest.mark.parametrize("version", range(1, 5))
def test_an_error_that_quotes_a_long_name_is_told(client: Client, version: int) -> None:
    row = {"resource_type": 2, "resource_name": "é" * 16_383, "configuration_keys": None}
    [result] = client.ask(DESCRIBE_CONFIGS, version, resources=[row]).results
    assert result.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    row = {"resource_type": 2, "resource_name": "t", "configs": [{"name": "é" * 16_383, "value": "1"}]}
    client.create("t")
    [altered] = client.ask(33, 1, resources=[row]).responses
    assert altered.error_code == ErrorCode.INVALID_CONFIG


# --- what is in the log already -----------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(APIS[9].oldest, APIS[9].newest + 1))
def test_a_text_that_another_broker_stored_is_cut_where_it_does_not_fit(driver: Driver, version: int) -> None:
    client = driver.connect()
    topic_id = client.create("t")
    find(client)
    replica = driver.replica("__consumer_offsets", 3)
    committed = Committed(5, 0, WIDE * 20_000, 1, -1, topic_id)
    key, value = encode(Record((OFFSET_COMMIT, "g", "t", 0), committed))
    append_as_leader(driver.broker, replica, make_batch(value, key=key), print)
    driver.broker.groups.on_resignation(replica, driver.now_ms)
    driver.broker.groups.on_election(replica, driver.now_ms)
    driver.advance(100)
    topics = [{"name": "t", "topic_id": topic_id, "partition_indexes": [0]}]
    group = {"group_id": "g", "member_id": None, "member_epoch": -1, "topics": topics}
    answer = client.ask(9, version, group_id="g", topics=topics, groups=[group])
    rows = answer.groups[0].topics if version >= 8 else answer.topics
    assert rows[0].partitions[0].committed_offset == 5
    assert rows[0].partitions[0].metadata == WIDE * 8191


@pytest.mark.parametrize("version", range(APIS[32].oldest, APIS[32].newest + 1))
def test_a_list_that_is_too_long_is_left_out_where_it_does_not_fit(driver: Driver, version: int) -> None:
    client = driver.connect()
    client.create("t")
    name, value = "leader.replication.throttled.replicas", LONGER
    driver.broker.committed([Config(TOPIC_RESOURCE, "t", name, value)], driver.now_ms)
    row = {"resource_type": 2, "resource_name": "t", "configuration_keys": [name]}
    [result] = client.ask(DESCRIBE_CONFIGS, version, resources=[row], include_synonyms=True).results
    assert result.configs[0].value == (value if version >= 4 else None)
