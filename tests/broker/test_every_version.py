"""Every API in every version that is advertised: a request of that version gets an answer that decodes and succeeds."""

import random
import struct
from typing import Any

import pytest

from ottla.broker.api.shared.api_table import APIS
from ottla.model.errors import ErrorCode
from ottla.wire.encode import request_encoder
from ottla.wire.schema import request_header_is_flexible
from tests.broker.api.members import Member, committed, find, settle

GROUPS = (8, 9, 10, 11, 12, 13, 14, 15, 16, 42, 47, 68, 69)
TRANSACTIONS = (24, 25, 26, 27, 28, 65, 66)
#: A client may send AddPartitionsToTxn up to version 3; the test sends all versions as a broker.
BETWEEN_BROKERS = (24, 27, 56, 58, 63, 67)

EVERY = [
    pytest.param(api.key, version, id=f"{api.handler.__name__}-v{version}")
    for api in sorted(APIS.values(), key=lambda api: api.key)
    for version in range(api.oldest, api.newest + 1)
]


def requests(topic_id: bytes, batch: bytes, log_dir: str, member_id: str) -> dict[int, dict[str, Any]]:
    """A request of each API with the fields of all its versions, about the topic `t`.

    The group `g` has one member and an assignment, the group `by-hand` has committed and no members, the group `k848` is a consumer
    group with one member. The transactional id `tx` has a transaction with partition 0 and the offsets of `g`.
    """
    who = {"transactional_id": "tx", "producer_id": 0, "producer_epoch": 0}
    member = {"group_id": "g", "generation_id": 1, "member_id": member_id, "group_instance_id": None}
    offset = {
        "partition_index": 0,
        "committed_offset": 1,
        "committed_leader_epoch": 0,
        "committed_metadata": "m",
    }
    asked = {"name": "t", "topic_id": topic_id, "partition_indexes": [0, 1]}
    partition = {
        "partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20, "partition_index": 0, "offset": 1,
        "timestamp": -1, "index": 0, "records": batch, "current_leader_epoch": -1, "leader_epoch": 0,
    }  # fmt: skip
    topic = {
        "topic": "t",
        "name": "t",
        "topic_id": topic_id,
        "partitions": [partition],
        "partition_data": [partition],
    }
    resource = {"resource_type": 2, "resource_name": "t", "configuration_keys": None}
    acl = {"principal": "User:u", "host": "*", "operation": 3, "permission_type": 3}
    enclosed = struct.pack(">hhihb", 57, 2, 7, -1, 0) + request_encoder(57, 2)({"feature_updates": []})
    return {
        0: {"acks": -1, "timeout": 1000, "topic_data": [topic]},
        1: {"replica_id": -1, "max_wait": 0, "min_bytes": 1, "max_bytes": 1 << 20, "topics": [topic]},
        2: {"replica_id": -1, "topics": [topic]},
        3: {"topics": [{"name": "t"}]},
        8: member | {
            "generation_id_or_member_epoch": 1, "retention_time": -1,
            "topics": [{"name": "t", "topic_id": topic_id, "partitions": [offset]}],
        },
        9: {
            "group_id": "by-hand", "topics": [asked],
            "groups": [{"group_id": "by-hand", "member_id": None, "member_epoch": -1, "topics": [asked]}],
        },
        10: {"key": "g", "coordinator_keys": ["g"]},
        11: member | {
            "session_timeout": 10_000, "rebalance_timeout": 10_000, "protocol_type": "consumer", "reason": "",
            "protocols": [{"name": "range", "metadata": b"m"}],
        },
        12: member,
        13: member | {"members": [{"member_id": member_id, "group_instance_id": None, "reason": None}]},
        14: member | {"protocol_type": None, "protocol_name": None, "assignments": []},
        15: {"groups": ["g"], "include_authorized_operations": True},
        16: {"states_filter": ["Stable"], "types_filter": ["classic"]},
        18: {"client_software_name": "test", "client_software_version": "1"},
        19: {"topics": [{"name": "new", "num_partitions": 2, "replication_factor": 1}]},
        20: {"topic_names": ["t"], "topics": [{"name": "t"}], "timeout": 1000},
        21: {"topics": [topic], "timeout": 1000},
        22: {"transaction_timeout": 1000},
        23: {"replica_id": -1, "topics": [topic]},
        17: {"mechanism": "PLAIN"},
        24: {
            "v3_and_below_transactional_id": "tx", "v3_and_below_producer_id": 0, "v3_and_below_producer_epoch": 0,
            "v3_and_below_topics": [{"name": "t", "partitions": [0, 1]}],
            "transactions": [who | {"verify_only": False, "topics": [{"name": "t", "partitions": [0, 1]}]}],
        },
        25: who | {"group_id": "g"},
        26: who | {"committed": True},
        27: {
            "markers": [
                {
                    "producer_id": 0, "producer_epoch": 0, "transaction_result": True, "coordinator_epoch": 3,
                    "topics": [{"name": "t", "partition_indexes": [0]}],
                }
            ]
        },
        28: who | {
            "group_id": "g", "generation_id": -1, "member_id": "", "group_instance_id": None,
            "topics": [{"name": "t", "partitions": [offset]}],
        },
        29: acl | {"resource_type_filter": 2, "resource_name_filter": None, "pattern_type_filter": 3},
        30: {"creations": [acl | {"resource_type": 2, "resource_name": "t", "resource_pattern_type": 3}] * 2},
        31: {"filters": [acl | {"resource_type_filter": 2, "pattern_type_filter": 3}]},
        32: {"resources": [resource], "include_synonyms": True, "include_documentation": True},
        33: {"resources": [resource | {"configs": [{"name": "retention.ms", "value": "1000"}]}]},
        34: {"dirs": [{"path": log_dir, "topics": [{"name": "t", "partitions": [0]}]}]},
        35: {"topics": [{"topic": "t", "partitions": [0]}]},
        36: {"auth_bytes": b"a"},
        37: {"topics": [{"name": "t", "count": 4, "assignments": None}], "timeout": 1000},
        42: {"groups_names": ["by-hand"]},
        43: {"election_type": 0, "topic_partitions": None},
        44: {"resources": [resource | {"configs": [{"name": "retention.ms", "value": "1000"}]}]},
        45: {"topics": [{"name": "t", "partitions": [{"partition_index": 0, "replicas": [1]}]}]},
        46: {"topics": [{"name": "t", "partition_indexes": [0]}]},
        47: {"group_id": "by-hand", "topics": [{"name": "t", "partitions": [{"partition_index": 0}]}]},
        48: {"components": [{"entity_type": "user", "match_type": 2, "match": None}], "strict": False},
        49: {
            "entries": [
                {
                    "entity": [{"entity_type": "user", "entity_name": "u"}],
                    "ops": [{"key": "producer_byte_rate", "value": 1.5, "remove": False}],
                }
            ]
        },
        50: {"users": None},
        51: {"deletions": [{"name": "u", "mechanism": 1}], "upsertions": []},
        55: {"topics": [{"topic_name": "__cluster_metadata", "partitions": [partition]}]},
        56: {
            "broker_id": 1, "broker_epoch": 1,
            "topics": [
                topic | {
                    "partitions": [
                        partition | {
                            "partition_epoch": 0, "new_isr": [1],
                            "new_isr_with_epochs": [{"broker_id": 1, "broker_epoch": 1}],
                        }
                    ]
                }
            ],
        },
        57: {"feature_updates": []},
        58: {"request_data": enclosed, "request_principal": None, "client_host_address": bytes(4)},
        60: {},
        61: {"topics": [{"name": "t", "partition_indexes": [0]}]},
        63: {
            "broker_id": 1, "broker_epoch": 1, "current_metadata_offset": 1 << 40, "want_fence": False,
            "want_shut_down": True,
        },
        64: {"broker_id": 7},
        65: {"transactional_ids": ["tx"]},
        66: {"state_filters": ["Ongoing"], "duration_filter": 0, "transactional_id_pattern": "t."},
        67: {"broker_id": 1, "broker_epoch": 1},
        68: {
            "group_id": "new", "member_id": "m", "member_epoch": 0, "instance_id": None, "rack_id": "r",
            "rebalance_timeout": 1000, "subscribed_topic_names": ["t"], "subscribed_topic_regex": "t+",
            "server_assignor": "range", "topic_partitions": [],
        },
        69: {"group_ids": ["k848"], "include_authorized_operations": True},
        71: {"client_instance_id": topic_id},
        72: {"client_instance_id": topic_id, "subscription_id": 1, "metrics": b"dropped"},
        74: {"resource_types": []},
        75: {"topics": [{"name": "t"}], "cursor": {"topic_name": "t", "partition_index": 1}},
    }  # fmt: skip


def groups(client: Any) -> str:
    """Make the groups that the requests speak of; the id of the member."""
    find(client)
    member = Member(client.driver, "g")
    settle(member)
    assert set(Member(client.driver, "by-hand").commit({("t", 0): 5}, metadata="text").values()) == {0}
    row = client.ask(
        68, 1, group_id="k848", member_id="one", member_epoch=0, rebalance_timeout=1000, subscribed_topic_names=["t"],
        subscribed_topic_regex="t", topic_partitions=[],
    )  # fmt: skip
    assert row.error_code == 0
    return member.member_id


def transactions(client: Any) -> None:
    """Begin the transaction that the requests speak of."""
    find(client)
    client.ask(10, 4, key_type=1, coordinator_keys=["tx"])
    answer = client.ask(22, 4, transactional_id="tx", transaction_timeout=1000)
    assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (0, 0, 0)
    who = {"transactional_id": "tx", "producer_id": 0, "producer_epoch": 0}
    added = {"name": "t", "partitions": [0]}
    adding = [who | {"verify_only": False, "topics": [added]}]
    assert not error_codes(client.driver.connect(broker_id=2).ask(24, 5, transactions=adding))[0]
    assert client.ask(25, 4, **who, group_id="g").error_code == 0
    client.driver.advance(1)


def error_codes(entity: Any) -> list[int]:
    """All error codes anywhere in an answer."""
    if isinstance(entity, tuple):
        return [code for item in entity for code in error_codes(item)]
    if not hasattr(entity, "__dataclass_fields__"):
        return []
    found = []
    for name in entity.__dataclass_fields__:
        value = getattr(entity, name)
        found += [value.value] if name in ("error_code", "partition_error_code") else error_codes(value)
    return found


@pytest.mark.parametrize(("key", "version"), EVERY)
def test_every_version_is_answered(key: int, version: int, client: Any, batch: Any) -> None:
    topic_id = client.create("t", 2)
    client.produce("t", batch(b"one", b"two"))
    member_id = groups(client) if key in GROUPS else ""
    if key in TRANSACTIONS:
        transactions(client)
    path = client.driver.broker.directories.all[0].path
    if key in BETWEEN_BROKERS:
        client.connection.broker_id = 1
    answer = client.ask(key, version, **requests(topic_id, batch(b"x"), path, member_id)[key])
    no_such_broker, illegal_sasl_state = 102, 34
    no_authorizer, not_supported = ErrorCode.SECURITY_DISABLED.value, ErrorCode.UNSUPPORTED_VERSION.value
    expected = {
        17: illegal_sasl_state, 29: no_authorizer, 30: no_authorizer, 31: no_authorizer, 36: illegal_sasl_state,
        49: not_supported, 51: not_supported, 64: no_such_broker,
    }  # fmt: skip
    assert set(error_codes(answer)) <= {expected.get(key, 0)}
    check = globals()[f"check_{APIS[key].handler.__name__}"]
    check(answer, version, client)


@pytest.mark.parametrize(("key", "version"), EVERY)
def test_no_request_however_broken_is_an_error_of_ours(
    key: int, version: int, client: Any, batch: Any
) -> None:
    """Bytes changed, cut off and put in at random: each is answered, or ends its connection, and no more."""
    driver = client.driver
    topic_id = client.create("t", 2)
    member_id = groups(client) if key in GROUPS else ""
    if key in TRANSACTIONS:
        transactions(client)
    path = client.driver.broker.directories.all[0].path
    body = request_encoder(key, version)(requests(topic_id, batch(b"x"), path, member_id)[key])
    tags = b"\0" if request_header_is_flexible(key, version) else b""
    chance = random.Random(key * 100 + version)
    for _ in range(60):
        broken = bytearray(body)
        for _ in range(chance.randint(1, 4)):
            at = chance.randint(0, len(broken))
            match chance.randrange(4):
                case 0 if at < len(broken):
                    broken[at] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
                case 1:
                    del broken[at:]
                case 2:
                    broken[at:at] = chance.randbytes(chance.randint(1, 5))
                case _:
                    del broken[at : at + chance.randint(1, 4)]
        stranger = driver.connect(broker_id=chance.choice((None, 1)))
        stranger.sent = lambda _data: None
        stranger.send_frame(struct.pack(">hhih", key, version, 1, -1) + tags + broken)
        stranger.disconnect()
    assert [text for text in driver.said if "internal" in text] == []
    assert driver.connect().ask(3, topics=None).brokers


def check_envelope(answer: Any, version: int, client: Any) -> None:
    correlation_id, _tags = struct.unpack_from(">ib", answer.response_data)
    assert correlation_id == 7


def check_sasl_handshake(answer: Any, version: int, client: Any) -> None:
    assert answer.mechanisms == ()


def check_sasl_authenticate(answer: Any, version: int, client: Any) -> None:
    assert "PLAINTEXT" in answer.error_message and answer.auth_bytes == b""


def check_produce(answer: Any, version: int, client: Any) -> None:
    [[row]] = [topic.partition_responses for topic in answer.responses]
    assert (row.index, row.base_offset) == (0, 2)
    assert version < 5 or row.log_start_offset == 0


def check_fetch(answer: Any, version: int, client: Any) -> None:
    [[row]] = [topic.partitions for topic in answer.responses]
    assert (row.partition_index, row.high_watermark, row.last_stable_offset) == (0, 2, 2)
    assert len(row.records) > 61


def check_list_offsets(answer: Any, version: int, client: Any) -> None:
    [[row]] = [topic.partitions for topic in answer.topics]
    assert row.offset == 2


def check_metadata(answer: Any, version: int, client: Any) -> None:
    [broker] = answer.brokers
    assert (broker.node_id, broker.host, broker.port) == (1, "127.0.0.1", 9092)
    [topic] = answer.topics
    assert topic.name == "t"
    assert [p.partition_index for p in topic.partitions] == [0, 1]
    assert {(p.leader_id, tuple(p.replica_nodes), tuple(p.isr_nodes)) for p in topic.partitions} == {
        (1, (1,), (1,))
    }


def check_find_coordinator(answer: Any, version: int, client: Any) -> None:
    rows = answer.coordinators if version >= 4 else [answer]
    assert [(row.node_id, row.host, row.port) for row in rows] == [(1, "127.0.0.1", 9092)]


def check_consumer_group_heartbeat(answer: Any, version: int, client: Any) -> None:
    assert (answer.member_id, answer.member_epoch) == ("m", 1)
    [topic] = answer.assignment.topic_partitions
    assert topic.topic_id.bytes == client.driver.broker.image.topics["t"].topic_id
    assert list(topic.partitions) == [0, 1]


def check_consumer_group_describe(answer: Any, version: int, client: Any) -> None:
    [group] = answer.groups
    assert (group.group_state, group.group_epoch, group.assignment_epoch) == ("Stable", 1, 1)
    assert group.assignor_name == "uniform" and group.authorized_operations > 0
    [member] = group.members
    assert (member.member_id, member.member_epoch, member.subscribed_topic_regex) == ("one", 1, "t")
    for assignment in (member.assignment, member.target_assignment):
        assert [(row.topic_name, list(row.partitions)) for row in assignment.topic_partitions] == [
            ("t", [0, 1])
        ]
    assert version < 1 or member.member_type == 1


def check_join_group(answer: Any, version: int, client: Any) -> None:
    assert answer.generation_id == 2 and answer.leader == answer.member_id
    assert [(row.member_id, row.metadata) for row in answer.members] == [(answer.member_id, b"m")]
    assert version < 7 or answer.protocol_type == "consumer"


def check_sync_group(answer: Any, version: int, client: Any) -> None:
    assert answer.assignment.startswith(b"test-")
    assert version < 5 or (answer.protocol_type, answer.protocol_name) == ("consumer", "range")


def check_heartbeat(answer: Any, version: int, client: Any) -> None:
    pass


def check_leave_group(answer: Any, version: int, client: Any) -> None:
    assert version < 3 or len(answer.members) == 1
    assert client.ask(15, 5, groups=["g"]).groups[0].group_state == "Empty"


def check_offset_commit(answer: Any, version: int, client: Any) -> None:
    assert [len(topic.partitions) for topic in answer.topics] == [1]
    assert committed(client, "g", ("t", 0)) == {("t", 0): 1}


def check_offset_fetch(answer: Any, version: int, client: Any) -> None:
    topics = answer.groups[0].topics if version >= 8 else answer.topics
    first, second = topics[0].partitions
    assert (first.committed_offset, first.metadata) == (5, "text")
    assert version < 5 or first.committed_leader_epoch == 7
    assert second.committed_offset == -1


def check_offset_delete(answer: Any, version: int, client: Any) -> None:
    assert committed(client, "by-hand", ("t", 0)) == {("t", 0): -1}


def check_describe_groups(answer: Any, version: int, client: Any) -> None:
    [group] = answer.groups
    assert (group.group_state, group.protocol_type, group.protocol_data) == ("Stable", "consumer", "range")
    [member] = group.members
    assert (member.client_id, member.client_host) == ("test", "/test")
    assert member.member_assignment == member.member_id.encode()


def check_list_groups(answer: Any, version: int, client: Any) -> None:
    expected = {"g"} if version >= 5 else {"g", "k848"} if version >= 4 else {"g", "by-hand", "k848"}
    assert {group.group_id for group in answer.groups} == expected


def check_delete_groups(answer: Any, version: int, client: Any) -> None:
    assert [row.group_id for row in answer.results] == ["by-hand"]
    assert committed(client, "by-hand") == {}


def check_api_versions(answer: Any, version: int, client: Any) -> None:
    advertised = {row.api_key: (row.min_version, row.max_version) for row in answer.api_keys}
    assert advertised == {api.key: (api.oldest, api.newest) for api in APIS.values()}


def check_create_topics(answer: Any, version: int, client: Any) -> None:
    assert [topic.name for topic in answer.topics] == ["new"]
    assert version < 5 or answer.topics[0].num_partitions == 2
    assert version < 7 or answer.topics[0].topic_id is not None
    assert len(client.driver.broker.image.topics["new"].partitions) == 2


def check_delete_topics(answer: Any, version: int, client: Any) -> None:
    assert [topic.name for topic in answer.responses] == ["t"]
    assert "t" not in client.driver.broker.image.topics


def check_delete_records(answer: Any, version: int, client: Any) -> None:
    [[row]] = [topic.partitions for topic in answer.topics]
    assert row.low_watermark == 1


def check_init_producer_id(answer: Any, version: int, client: Any) -> None:
    assert answer.producer_id >= 0 and answer.producer_epoch == 0


def check_describe_configs(answer: Any, version: int, client: Any) -> None:
    [result] = answer.results
    settings = {config.name: config for config in result.configs}
    assert settings["cleanup.policy"].value == "delete"
    assert [synonym.name for synonym in settings["cleanup.policy"].synonyms]
    assert version < 3 or settings["cleanup.policy"].documentation


def check_create_partitions(answer: Any, version: int, client: Any) -> None:
    assert [result.name for result in answer.results] == ["t"]
    assert len(client.driver.broker.image.topics["t"].partitions) == 4


def check_incremental_alter_configs(answer: Any, version: int, client: Any) -> None:
    assert client.driver.broker.image.topic_config("t") == {"retention.ms": "1000"}


def check_describe_cluster(answer: Any, version: int, client: Any) -> None:
    assert [(row.broker_id, row.host, row.port) for row in answer.brokers] == [(1, "127.0.0.1", 9092)]
    assert answer.cluster_id


def check_offset_for_leader_epoch(answer: Any, version: int, client: Any) -> None:
    [[row]] = [topic.partitions for topic in answer.topics]
    assert (row.partition, row.leader_epoch, row.end_offset) == (0, 0, 2)


def check_alter_configs(answer: Any, version: int, client: Any) -> None:
    assert [(row.resource_type, row.resource_name) for row in answer.responses] == [(2, "t")]
    assert client.driver.broker.image.topic_config("t") == {"retention.ms": "1000"}


def check_alter_replica_log_dirs(answer: Any, version: int, client: Any) -> None:
    [[row]] = [topic.partitions for topic in answer.results]
    assert (row.partition_index, row.error_code.value) == (0, 0)


def check_describe_log_dirs(answer: Any, version: int, client: Any) -> None:
    [directory] = answer.results
    assert directory.log_dir == client.driver.broker.directories.all[0].path
    [[row]] = [topic.partitions for topic in directory.topics]
    assert row.partition_index == 0 and row.partition_size > 61
    assert version < 4 or 0 < directory.usable_bytes <= directory.total_bytes


def check_describe_acls(answer: Any, version: int, client: Any) -> None:
    assert (answer.error_code, answer.resources) == (ErrorCode.SECURITY_DISABLED, ())
    assert answer.error_message == "No Authorizer is configured on the broker."


def check_create_acls(answer: Any, version: int, client: Any) -> None:
    assert [row.error_code for row in answer.results] == [ErrorCode.SECURITY_DISABLED] * 2


def check_delete_acls(answer: Any, version: int, client: Any) -> None:
    [row] = answer.filter_results
    assert (row.error_code, row.matching_acls) == (ErrorCode.SECURITY_DISABLED, ())


def check_describe_client_quotas(answer: Any, version: int, client: Any) -> None:
    assert (answer.error_code.value, answer.entries) == (0, ())


def check_alter_client_quotas(answer: Any, version: int, client: Any) -> None:
    [row] = answer.entries
    assert (row.error_code, row.entity[0].entity_name) == (ErrorCode.UNSUPPORTED_VERSION, "u")


def check_describe_user_scram_credentials(answer: Any, version: int, client: Any) -> None:
    assert (answer.error_code.value, answer.results) == (0, ())


def check_alter_user_scram_credentials(answer: Any, version: int, client: Any) -> None:
    assert [(row.user, row.error_code) for row in answer.results] == [("u", ErrorCode.UNSUPPORTED_VERSION)]


def check_describe_quorum(answer: Any, version: int, client: Any) -> None:
    [[row]] = [topic.partitions for topic in answer.topics]
    assert (row.leader_id, row.high_watermark) == (1, client.driver.broker.image.end)
    assert [voter.replica_id for voter in row.current_voters] == [1]
    assert version < 2 or [node.listeners[0].port for node in answer.nodes] == [9092]


def check_update_features(answer: Any, version: int, client: Any) -> None:
    assert version > 1 or answer.results == ()


def check_describe_producers(answer: Any, version: int, client: Any) -> None:
    [[row]] = [topic.partitions for topic in answer.topics]
    assert (row.partition_index, row.active_producers) == (0, ())


def check_get_telemetry_subscriptions(answer: Any, version: int, client: Any) -> None:
    assert (answer.subscription_id, answer.requested_metrics) == (1, ())


def check_push_telemetry(answer: Any, version: int, client: Any) -> None:
    assert answer.error_code.value == 0


def check_list_config_resources(answer: Any, version: int, client: Any) -> None:
    assert [row.resource_name for row in answer.config_resources] == (["t", "1"] if version else [])


def check_describe_topic_partitions(answer: Any, version: int, client: Any) -> None:
    [topic] = answer.topics
    assert (topic.name, [row.partition_index for row in topic.partitions]) == ("t", [1])
    assert answer.next_cursor is None


def check_elect_leaders(answer: Any, version: int, client: Any) -> None:
    # Of all partitions none needs an election.
    assert answer.replica_election_results == ()


def check_alter_partition_reassignments(answer: Any, version: int, client: Any) -> None:
    [[row]] = [topic.partitions for topic in answer.responses]
    assert row.partition_index == 0
    assert client.driver.broker.image.topics["t"].partitions[0].replicas == (1,)


def check_list_partition_reassignments(answer: Any, version: int, client: Any) -> None:
    assert answer.topics == ()


def check_alter_partition(answer: Any, version: int, client: Any) -> None:
    [[row]] = [topic.partitions for topic in answer.topics]
    assert (row.partition_index, row.leader_id, row.leader_epoch, row.isr) == (0, 1, 0, (1,))
    assert row.partition_epoch == 0


def check_broker_heartbeat(answer: Any, version: int, client: Any) -> None:
    assert (answer.is_caught_up, answer.is_fenced, answer.should_shut_down) == (True, False, True)


def check_unregister_broker(answer: Any, version: int, client: Any) -> None:
    assert "7" in answer.error_message


def check_allocate_producer_ids(answer: Any, version: int, client: Any) -> None:
    start, end = answer.producer_id_start, answer.producer_id_start + answer.producer_id_len
    assert start < end == client.driver.broker.image.next_producer_id


def check_add_partitions_to_txn(answer: Any, version: int, client: Any) -> None:
    if version < 4:
        [topic] = answer.results_by_topic_v3_and_below
    else:
        [row] = answer.results_by_transaction
        assert row.transactional_id == "tx"
        [topic] = row.topic_results
    assert [row.partition_index for row in topic.results_by_partition] == [0, 1]
    [state] = client.ask(65, 0, transactional_ids=["tx"]).transaction_states
    assert ("t", (0, 1)) in [(each.topic, each.partitions) for each in state.topics]


def check_add_offsets_to_txn(answer: Any, version: int, client: Any) -> None:
    [state] = client.ask(65, 0, transactional_ids=["tx"]).transaction_states
    assert {topic.topic for topic in state.topics} == {"t", "__consumer_offsets"}


def check_end_txn(answer: Any, version: int, client: Any) -> None:
    if version >= 5:
        assert (answer.producer_id, answer.producer_epoch) == (0, 1)
    [state] = client.ask(65, 0, transactional_ids=["tx"]).transaction_states
    assert state.transaction_state == "CompleteCommit"


def check_write_txn_markers(answer: Any, version: int, client: Any) -> None:
    [marker] = answer.markers
    assert marker.producer_id == 0 and marker.topics[0].partitions[0].partition_index == 0
    assert client.fetch("t", 0).high_watermark == 3


def check_txn_offset_commit(answer: Any, version: int, client: Any) -> None:
    assert (
        client.ask(26, 4, transactional_id="tx", producer_id=0, producer_epoch=0, committed=True).error_code
        == 0
    )
    assert committed(client, "g") == {("t", 0): 1}


def check_describe_transactions(answer: Any, version: int, client: Any) -> None:
    [row] = answer.transaction_states
    assert (row.transaction_state, row.producer_id, row.producer_epoch) == ("Ongoing", 0, 0)
    assert row.transaction_timeout.total_seconds() == 1


def check_list_transactions(answer: Any, version: int, client: Any) -> None:
    [row] = answer.transaction_states
    assert (row.transactional_id, row.producer_id, row.transaction_state) == ("tx", 0, "Ongoing")
