"""FindCoordinator, DescribeGroups, ListGroups and DeleteGroups; and the topic that it all lies in."""

from collections.abc import Callable
from typing import Any

import pytest

from ottla.broker.coordinators import coordinator_partition
from ottla.broker.coordinators.internal_appends import append_as_leader
from ottla.model.errors import ErrorCode, Refusal
from tests.broker.api.members import COMMIT, FIND, Member, committed, find, settle, topic_rows

Start = Callable[..., Any]
DESCRIBE, LIST, DELETE = 15, 16, 42


@pytest.fixture
def driver(drive: Start) -> Any:
    driver = drive(group_initial_rebalance_delay_ms="0")
    driver.connect().create("t", 4)
    return driver


def test_the_first_who_asks_makes_the_topic(driver: Any) -> None:
    client = driver.connect()
    assert "__consumer_offsets" not in driver.broker.image.topics
    found = find(client)
    assert (found.error_code, found.node_id, found.host, found.port) == (0, 1, "127.0.0.1", 9092)
    topic = driver.broker.image.topics["__consumer_offsets"]
    assert len(topic.partitions) == 50 and topic.partitions[0].replicas == (1,) and topic.internal
    config = driver.replica("__consumer_offsets").config
    assert config.compact and config.segment_bytes == 100 << 20


def test_a_request_before_anybody_asked_is_for_somebody_else(driver: Any) -> None:
    client = driver.connect()
    assert Member(driver, "g").heartbeat() == ErrorCode.NOT_COORDINATOR
    assert set(Member(driver, "g").commit({("t", 0): 1}).values()) == {ErrorCode.NOT_COORDINATOR}
    assert client.ask(9, 7, group_id="g", topics=None).error_code == ErrorCode.NOT_COORDINATOR
    assert client.ask(LIST).groups == ()


def test_the_topic_keeps_its_partitions(driver: Any) -> None:
    client = driver.connect()
    find(client)
    Member(driver, "g").commit({("t", 0): 5})
    topics = [{"name": "__consumer_offsets", "count": 60, "assignments": None}]
    [row] = client.ask(37, topics=topics, timeout=1000, validate_only=False).results
    assert row.error_code == ErrorCode.INVALID_PARTITIONS and "groups" in row.error_message
    # With another number of partitions it would be looked for elsewhere.
    assert committed(client, "g") == {("t", 0): 5}


def test_asking_for_metadata_makes_it_not(driver: Any) -> None:
    answer = driver.connect().ask(3, topics=[{"name": "__consumer_offsets"}], allow_auto_topic_creation=True)
    assert answer.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert "__consumer_offsets" not in driver.broker.image.topics


def test_all_who_ask_meanwhile_are_answered_by_one_creation(driver: Any) -> None:
    driver.are_proposals_held = True
    clients = [driver.connect() for _ in range(3)]
    for client in clients:
        client.send(FIND, 4, key_type=0, coordinator_keys=["g", "h", "g"])
        assert not client.answers
    assert len(driver.held_proposals) == 1
    driver.commit()
    driver.turn()
    for client in clients:
        [answer] = client.answers
        assert [(row.key, row.node_id) for row in answer.coordinators] == [("g", 1), ("h", 1)]


def test_groups_are_spread_as_on_kafka(driver: Any) -> None:
    """Java's hash of the id, by the number of partitions: a tool of Kafka's looks for a group there."""
    find(driver.connect())
    for group, number in (
        ("g", 3),
        ("console-consumer-12345", 6),
        ("", 0),
        ("größe", 7),
        ("polygenelubricants", 0),
    ):
        Member(driver, group).commit({("t", 0): 1})
        written = [each for each in range(50) if driver.replica("__consumer_offsets", each).high_watermark]
        assert number in written, (group, number, written)


def test_groups_are_described_as_they_are(driver: Any) -> None:
    find(driver.connect())
    member = Member(driver, "g", "instance")
    member.begin_join("range")
    member.joined()
    client = driver.connect()

    def described() -> Any:
        return client.ask(DESCRIBE, 6, groups=["g"]).groups[0]

    group = described()
    assert (group.group_state, group.protocol_type, group.protocol_data) == (
        "CompletingRebalance", "consumer", "",
    )  # fmt: skip
    assert group.members[0].member_metadata == b""
    member.send_sync()
    member.synced()
    group = described()
    assert (group.error_code, group.group_state, group.protocol_data) == (0, "Stable", "range")
    [row] = group.members
    assert (row.member_id, row.group_instance_id) == (member.member_id, "instance")
    assert (row.client_id, row.client_host) == ("test", "/test") and row.member_metadata
    assert group.authorized_operations == -(2**31)
    # While it is asked to join again, it still has what it had.
    Member(driver, "g").begin_join("range")
    group = described()
    assert (group.group_state, group.members[0].member_metadata) == ("PreparingRebalance", b"")
    assert group.members[0].member_assignment == row.member_assignment == member.member_id.encode()
    member.leave()
    assert described().group_state == "CompletingRebalance"


@pytest.mark.parametrize("version", [5, 6])
def test_a_group_that_is_not_there_is_dead(driver: Any, version: int) -> None:
    client = driver.connect()
    find(client)
    rows = client.ask(DESCRIBE, version, groups=["a", "b"], include_authorized_operations=True).groups
    assert [(row.group_id, row.group_state) for row in rows] == [("a", "Dead"), ("b", "Dead")]
    expected = ErrorCode.GROUP_ID_NOT_FOUND if version >= 6 else 0
    assert {int(row.error_code) for row in rows} == {expected}
    # READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS.
    assert {row.authorized_operations for row in rows} == {1 << 3 | 1 << 6 | 1 << 8 | 1 << 10 | 1 << 11}


def test_groups_are_listed_by_state_and_type(driver: Any) -> None:
    client = driver.connect()
    find(client)
    settle(Member(driver, "stable"))
    Member(driver, "by-hand").commit({("t", 0): 1})

    def listed(**fields: Any) -> dict[str, tuple[str, str, str]]:
        return {
            row.group_id: (row.protocol_type, row.group_state, row.group_type)
            for row in client.ask(LIST, **fields).groups
        }

    stable, by_hand = ("consumer", "Stable", "classic"), ("", "Empty", "classic")
    assert listed() == {"stable": stable, "by-hand": by_hand}
    assert listed(states_filter=["stable"]) == {"stable": stable}
    assert listed(states_filter=["Empty", "Dead"]) == {"by-hand": by_hand}
    assert listed(types_filter=["Classic"]) == {"stable": stable, "by-hand": by_hand}
    assert listed(types_filter=["consumer"]) == listed(states_filter=["nonsense"]) == {}


def test_only_groups_without_members_are_deleted(driver: Any) -> None:
    client = driver.connect()
    find(client)
    member = Member(driver, "members")
    settle(member)
    Member(driver, "by-hand").commit({("t", 0): 1, ("t", 1): 2})
    answer = client.ask(DELETE, groups_names=["members", "by-hand", "nobody's", "by-hand"])
    assert {row.group_id: int(row.error_code) for row in answer.results} == {
        "members": ErrorCode.NON_EMPTY_GROUP, "by-hand": 0, "nobody's": ErrorCode.GROUP_ID_NOT_FOUND,
    }  # fmt: skip
    assert committed(client, "by-hand") == {} and member.heartbeat() == 0
    member.leave()
    assert [int(row.error_code) for row in client.ask(DELETE, groups_names=["members"]).results] == [0]
    assert client.ask(LIST).groups == ()
    settle(Member(driver, "members"))


def test_what_is_in_the_topic_and_makes_no_sense_is_left_out(driver: Any, batch: Any) -> None:
    client = driver.connect()
    find(client)
    Member(driver, "g").commit({("t", 0): 1})
    for key, value in (
        (b"", b""), (b"\0", None), (b"\0\2", b"x"), (b"\0\1\0\1g\0\1t\0\0\0\0", b"\0\4"), (b"\x7f\xff", b"future"),
        (b"\0\2\0\1g", b"\0\3\0\1"), (b"\0\1\0\1g\0\1t\0\0\0\0", b"\x7f\xff"),
    ):  # fmt: skip
        assert client.produce("__consumer_offsets", batch(value, key=key), 3).error_code == 17
        # No client can put it there, but what a file may hold is not only what we wrote.
        append_as_leader(driver.broker, driver.replica("__consumer_offsets", 3), batch(value, key=key), print)
    replica = driver.replica("__consumer_offsets", 3)
    driver.broker.groups.on_resignation(replica, driver.now_ms)
    driver.broker.groups.on_election(replica, driver.now_ms)
    assert committed(client, "g") == {("t", 0): 1}


def test_a_batch_that_cannot_be_written_is_no_commit(driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    client = driver.connect()
    find(client)
    member = Member(driver, "g")
    settle(member)
    member.commit({("t", 0): 1})

    def refuse(*_arguments: Any) -> int:
        raise Refusal(ErrorCode.MESSAGE_TOO_LARGE)

    with monkeypatch.context() as patched:
        patched.setattr(coordinator_partition, "append_as_leader", refuse)
        assert set(member.commit({("t", 0): 2}).values()) == {ErrorCode.UNKNOWN_SERVER_ERROR}
    # It begins again with what was written.
    assert member.heartbeat() == 0
    driver.advance(1100)
    assert committed(client, "g") == {("t", 0): 1}
    assert member.heartbeat() == 0 and set(member.commit({("t", 0): 3}).values()) == {0}


def test_what_is_too_much_for_one_batch_is_written_in_several(driver: Any) -> None:
    client = driver.connect()
    find(client)
    client.create("wide", 80)
    replica = driver.replica("__consumer_offsets", 3)
    replica.configure(type(replica.config).resolve({"max.message.bytes": "300000"}, driver.broker.config))
    offsets = {("wide", number): number for number in range(80)}
    assert set(Member(driver, "g").commit(offsets, metadata="x" * 4096).values()) == {0}
    assert committed(client, "g") == offsets
    driver.broker.groups.on_resignation(replica, driver.now_ms)
    driver.broker.groups.on_election(replica, driver.now_ms)
    driver.advance(100)
    assert committed(client, "g") == offsets


def test_a_record_that_cannot_be_made_leaves_the_group_as_it_was_written(driver: Any) -> None:
    client = driver.connect()
    find(client)

    def join(member_id: str) -> Any:
        return client.ask(
            68, 1, group_id="g", member_id=member_id, member_epoch=0, rebalance_timeout=1000, subscribed_topic_names=["t"],
            topic_partitions=[],
        )  # fmt: skip

    def members() -> list[str]:
        return [each.member_id for each in client.ask(69, group_ids=["g"]).groups[0].members]

    assert join("one").member_epoch == 1
    group = driver.broker.groups.shard("g").groups["g"]
    # No epoch comes after this one.
    epoch, group.epoch = group.epoch, 2**31 - 1
    assert join("two").error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert members() == ["one"]
    group.epoch = epoch
    assert join("two").error_code == 0 and members() == ["one", "two"]


def commit_fields(member: Member, offset: int, text: str = "") -> dict[str, Any]:
    return {
        "group_id": "g", "generation_id_or_member_epoch": 1, "member_id": member.member_id,
        "topics": topic_rows({("t", 0): offset}, text),
    }  # fmt: skip


@pytest.fixture
def long(driver: Any) -> Member:
    """A member of a group whose log takes more than a turn to read."""
    client = driver.connect()
    find(client)
    member = Member(driver, "g")
    settle(member)
    for at in range(400):
        client.ask(COMMIT, 9, **commit_fields(member, at, "x" * 1500))
    return member


def test_while_a_partition_is_loaded_it_says_so(driver: Any, long: Member) -> None:
    client, member = driver.connect(), long
    replica = driver.replica("__consumer_offsets", 3)
    driver.broker.groups.on_resignation(replica, driver.now_ms)
    assert set(member.commit({("t", 0): 9}).values()) == {ErrorCode.NOT_COORDINATOR}
    driver.broker.groups.on_election(replica, driver.now_ms)
    loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert client.ask(9, 7, group_id="g", topics=None).error_code == loading
    assert client.ask(DESCRIBE, 5, groups=["g"]).groups[0].error_code == loading
    # Nobody is missed yet.
    assert member.heartbeat() == 0
    driver.advance(500)
    assert committed(client, "g") == {("t", 0): 399}
    assert member.heartbeat() == 0


def test_a_commit_waits_while_a_partition_is_loaded(driver: Any, long: Member) -> None:
    coordinating, replica = driver.broker.groups, driver.replica("__consumer_offsets", 3)
    coordinating.on_resignation(replica, driver.now_ms)
    coordinating.on_election(replica, driver.now_ms)
    waiting = driver.connect()
    waiting.send(COMMIT, 9, **commit_fields(long, 1000))
    assert waiting.answers == []
    driver.advance(500)
    [answer] = waiting.answers
    assert answer.topics[0].partitions[0].error_code == 0
    assert committed(driver.connect(), "g") == {("t", 0): 1000}


def test_a_commit_that_waits_for_a_load_hears_that_the_role_is_over(driver: Any, long: Member) -> None:
    coordinating, replica = driver.broker.groups, driver.replica("__consumer_offsets", 3)
    coordinating.on_resignation(replica, driver.now_ms)
    coordinating.on_election(replica, driver.now_ms)
    waiting = driver.connect()
    waiting.send(COMMIT, 9, **commit_fields(long, 1000))
    coordinating.on_resignation(replica, driver.now_ms)
    driver.turn()
    [answer] = waiting.answers
    assert answer.topics[0].partitions[0].error_code == ErrorCode.NOT_COORDINATOR


def test_a_commit_does_not_wait_for_ever(driver: Any, long: Member, monkeypatch: pytest.MonkeyPatch) -> None:
    coordinating, replica = driver.broker.groups, driver.replica("__consumer_offsets", 3)
    coordinating.on_resignation(replica, driver.now_ms)
    coordinating.on_election(replica, driver.now_ms)
    waiting = driver.connect()
    waiting.send(COMMIT, 9, **commit_fields(long, 1000))
    # A disk that is very slow.
    monkeypatch.setattr(coordinating._loader, "_load_slice", lambda _tenure: 1 << 30)
    driver.advance(6000)
    [answer] = waiting.answers
    assert answer.topics[0].partitions[0].error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    later = waiting.ask(COMMIT, 9, **commit_fields(long, 1000))
    assert later.topics[0].partitions[0].error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
