"""OffsetCommit, OffsetFetch and OffsetDelete: what is committed stays, and comes back as it was."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from ottla.model.errors import ErrorCode
from ottla.ports.coordination import partition_of
from ottla.records.record import whole_batches
from tests.broker.api.members import COMMIT, FETCH_OFFSETS, Member, committed, find, settle, topic_rows

Start = Callable[..., Any]
DAY_MS = 86_400_000
DELETE = 47


@pytest.fixture
def driver(drive: Start) -> Any:
    driver = drive(group_initial_rebalance_delay_ms="0")
    client = driver.connect()
    find(client)
    client.create("t", 4)
    client.create("u", 1)
    return driver


def by_hand(driver: Any, group: str = "g") -> Member:
    """Somebody who commits without being a member."""
    return Member(driver, group)


def delete(client: Any, group: str, *places: tuple[str, int]) -> Any:
    topics: dict[str, list[dict[str, int]]] = {}
    for topic, number in places:
        topics.setdefault(topic, []).append({"partition_index": number})
    return client.ask(
        DELETE, group_id=group, topics=[{"name": name, "partitions": rows} for name, rows in topics.items()]
    )


def outcome(answer: Any) -> list[int]:
    return [int(each.error_code) for topic in answer.topics for each in topic.partitions]


def test_what_is_committed_comes_back_with_its_epoch_and_text(driver: Any) -> None:
    assert by_hand(driver).commit({("t", 0): 5, ("t", 3): 2**40, ("u", 0): 0}, metadata="wo ä") == {
        ("t", 0): 0, ("t", 3): 0, ("u", 0): 0,
    }  # fmt: skip
    client = driver.connect()
    assert committed(client, "g") == {("t", 0): 5, ("t", 3): 2**40, ("u", 0): 0}
    row = (
        client.ask(FETCH_OFFSETS, 7, group_id="g", topics=[{"name": "t", "partition_indexes": [0]}])
        .topics[0]
        .partitions[0]
    )
    assert (row.metadata, row.committed_leader_epoch) == ("wo ä", 7)
    assert committed(client, "g", ("t", 1), ("nowhere", 0)) == {("t", 1): -1, ("nowhere", 0): -1}
    assert committed(client, "nobody's", ("t", 0)) == {("t", 0): -1}
    assert by_hand(driver).commit({("t", 0): 3}) == {("t", 0): 0}
    assert committed(client, "g", ("t", 0)) == {("t", 0): 3}


def test_they_are_there_after_a_restart(drive: Start, tmp_path: Any) -> None:
    driver = drive(group_initial_rebalance_delay_ms="0", log_flush_policy="durable")
    find(driver.connect())
    driver.connect().create("t", 4)
    member = Member(driver, "members", "static")
    settle(member)
    assert set(member.commit({("t", 1): 11}).values()) == {0}
    assert set(by_hand(driver).commit({("t", 0): 5}, metadata="m").values()) == {0}
    records = driver.broker.image.records()
    driver.broker.stop()
    again = type(driver).__new__(type(driver))
    again.__dict__.update(driver.__dict__)
    again.broker = type(driver.broker)(
        driver.broker.config, driver.disk, driver.broker.entropy, say=driver.said.append
    )
    again.broker.start(records, again.now_ms)
    again.clients = {}
    driver.broker = again.broker
    again.turn()
    client = again.connect()
    assert committed(client, "g") == {("t", 0): 5}
    assert committed(client, "members") == {("t", 1): 11}
    # The member has a session's time to be heard of, in the generation that it has.
    member.client, member.driver = client, again
    assert member.heartbeat() == 0
    described = client.ask(15, 5, groups=["members"]).groups[0]
    assert described.group_state == "Stable" and described.members[0].group_instance_id == "static"
    member.is_leader = False
    member.send_sync()
    assert member.synced().assignment == member.member_id.encode()
    again.advance(10_100)
    assert client.ask(15, 5, groups=["members"]).groups[0].group_state == "Empty"


def test_members_commit_in_their_generation_alone(driver: Any) -> None:
    member = Member(driver, "g")
    member.begin_join()
    member.joined()
    assert set(member.commit({("t", 0): 1}).values()) == {ErrorCode.REBALANCE_IN_PROGRESS}
    member.send_sync()
    member.synced()
    assert set(member.commit({("t", 0): 1}).values()) == {0}
    wrong = [
        ({"generation_id_or_member_epoch": 7}, ErrorCode.ILLEGAL_GENERATION),
        ({"generation_id_or_member_epoch": 0}, ErrorCode.ILLEGAL_GENERATION),
        ({"member_id": "invented"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"group_instance_id": "invented"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"generation_id_or_member_epoch": -1, "member_id": ""}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"group_id": "another"}, ErrorCode.GROUP_ID_NOT_FOUND),
    ]
    for fields, code in wrong:
        assert set(member.commit({("t", 0): 99}, **fields).values()) == {code}, fields
    assert set(member.commit({("t", 0): 99}, version=8, group_id="another").values()) == {
        ErrorCode.ILLEGAL_GENERATION
    }
    assert committed(driver.connect(), "g") == {("t", 0): 1}
    # While the others are waited for, what was read before may still be committed.
    Member(driver, "g").begin_join()
    assert set(member.commit({("t", 0): 2}).values()) == {0}
    member.leave()


def test_a_group_without_members_may_be_set_by_hand(driver: Any) -> None:
    member = Member(driver, "g")
    settle(member)
    member.commit({("t", 0): 1})
    member.leave()
    assert set(by_hand(driver).commit({("t", 0): 9}).values()) == {0}
    assert committed(driver.connect(), "g") == {("t", 0): 9}


def test_committing_is_being_there(driver: Any) -> None:
    member = Member(driver, "g")
    settle(member)
    for at in range(5):
        driver.advance(6000)
        assert set(member.commit({("t", 0): at}).values()) == {0}


def test_bad_partitions_are_refused_and_the_good_ones_committed(driver: Any) -> None:
    found = by_hand(driver).commit({("t", 0): 1, ("t", 9): 1, ("t", -1): 1, ("nowhere", 0): 1, ("", 0): 1})
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert found == {
        ("t", 0): 0, ("t", 9): unknown, ("t", -1): unknown, ("nowhere", 0): unknown, ("", 0): unknown,
    }  # fmt: skip
    assert committed(driver.connect(), "g") == {("t", 0): 1}


def test_a_text_has_a_largest_size(driver: Any) -> None:
    assert by_hand(driver).commit({("t", 0): 1}, metadata="x" * 4096) == {("t", 0): 0}
    assert by_hand(driver).commit({("t", 0): 2}, metadata="x" * 4097) == {
        ("t", 0): ErrorCode.OFFSET_METADATA_TOO_LARGE
    }
    assert committed(driver.connect(), "g") == {("t", 0): 1}


def test_topics_by_their_ids(driver: Any) -> None:
    client = driver.connect()
    topic_id = driver.broker.image.topics["t"].topic_id
    [row] = topic_rows({("t", 2): 8})
    rows = [row | {"topic_id": topic_id}, row | {"topic_id": b"x" * 16}]
    answer = client.ask(COMMIT, 10, group_id="g", generation_id_or_member_epoch=-1, member_id="", topics=rows)
    assert [topic.topic_id.bytes for topic in answer.topics] == [topic_id, b"x" * 16]
    assert outcome(answer) == [0, ErrorCode.UNKNOWN_TOPIC_ID]
    asked = [{"topic_id": each, "partition_indexes": [2]} for each in (topic_id, b"x" * 16)]
    [group] = client.ask(FETCH_OFFSETS, 10, groups=[{"group_id": "g", "topics": asked}]).groups
    found = {topic.topic_id.bytes: topic.partitions[0] for topic in group.topics}
    assert found[topic_id].committed_offset == 8
    assert found[b"x" * 16].error_code == ErrorCode.UNKNOWN_TOPIC_ID
    [everything] = client.ask(FETCH_OFFSETS, 10, groups=[{"group_id": "g", "topics": None}]).groups
    assert [topic.topic_id.bytes for topic in everything.topics] == [topic_id]


def test_many_groups_at_once_in_the_order_asked_for(driver: Any) -> None:
    for at in range(20):
        by_hand(driver, f"g{at}").commit({("t", 0): at})
    groups = [{"group_id": f"g{at}", "topics": None} for at in reversed(range(20))]
    answer = driver.connect().ask(FETCH_OFFSETS, 8, groups=groups)
    assert [group.group_id for group in answer.groups] == [f"g{at}" for at in reversed(range(20))]
    assert [group.topics[0].partitions[0].committed_offset for group in answer.groups] == list(
        reversed(range(20))
    )
    assert driver.connect().ask(FETCH_OFFSETS, 8, groups=[]).groups == ()


def test_a_commit_is_answered_and_seen_when_it_is_durable(drive: Start) -> None:
    driver = drive(log_flush_policy="durable")
    find(driver.connect())
    driver.connect().create("t", 1)
    committer, reader = by_hand(driver), driver.connect()
    committer.commit({("t", 0): 1})
    driver.are_syncs_held = True
    committer.client.send(
        COMMIT, 9, group_id="g", generation_id_or_member_epoch=-1, member_id="",
        topics=topic_rows({("t", 0): 2}),
    )  # fmt: skip
    reader.send(FETCH_OFFSETS, 7, group_id="g", topics=None)
    assert not committer.client.answers and not reader.answers
    driver.sync()
    driver.turn()
    assert outcome(committer.client.answers.pop()) == [0]
    assert reader.answers.pop().topics[0].partitions[0].committed_offset == 2


def test_what_a_new_coordinator_finds_is_seen_when_it_is_durable(drive: Start) -> None:
    driver = drive(log_flush_policy="durable")
    find(driver.connect())
    driver.connect().create("t", 1)
    committer, reader = by_hand(driver), driver.connect()
    committer.commit({("t", 0): 1})
    driver.are_syncs_held = True
    committer.client.send(
        COMMIT, 9, group_id="g", generation_id_or_member_epoch=-1, member_id="",
        topics=topic_rows({("t", 0): 2}),
    )  # fmt: skip
    replica = driver.replica("__consumer_offsets", partition_of("g", 50))
    driver.broker.groups.on_resignation(replica, driver.now_ms)
    driver.broker.groups.on_election(replica, driver.now_ms)
    reader.send(FETCH_OFFSETS, 7, group_id="g", topics=None)
    assert not reader.answers
    driver.sync()
    driver.turn()
    assert reader.answers.pop().topics[0].partitions[0].committed_offset == 2


def test_commits_of_one_turn_share_a_batch(driver: Any) -> None:
    broker = driver.broker
    by_hand(driver).commit({("t", 0): 0})
    replica = next(
        driver.replica("__consumer_offsets", number)
        for number in range(50)
        if driver.replica("__consumer_offsets", number).high_watermark
    )

    def batches() -> int:
        piece = replica.log.slice(0, replica.log.next_offset, 1 << 20, whole_first=True)
        data = driver.disk.read(piece.file, piece.position, piece.size)
        return sum(1 for _ in whole_batches(data))

    before = batches()
    members = [by_hand(driver) for _ in range(10)]
    turn, driver.turn = driver.turn, lambda: None
    for at, member in enumerate(members):
        member.client.send(
            COMMIT, 9, group_id="g", generation_id_or_member_epoch=-1, member_id="",
            topics=topic_rows({("t", at % 4): at}),
        )  # fmt: skip
    assert broker.settle(driver.now_ms, is_last=False) and batches() == before
    driver.turn = turn
    driver.turn()
    assert batches() == before + 1 and replica.log.next_offset == 11
    assert [outcome(member.client.answers.pop()) for member in members] == [[0]] * 10
    assert committed(driver.connect(), "g") == {("t", 0): 8, ("t", 1): 9, ("t", 2): 6, ("t", 3): 7}


# --- forgetting -----------------------------------------------------------------------------------------------


def test_offsets_of_topics_that_nobody_reads_can_be_deleted(driver: Any) -> None:
    member = Member(driver, "g")
    settle(member)
    member.commit({("t", 0): 1, ("u", 0): 2})
    client = driver.connect()
    answer = delete(client, "g", ("t", 0), ("u", 0), ("u", 7))
    assert answer.error_code == 0
    assert outcome(answer) == [
        ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]  # fmt: skip
    assert committed(client, "g") == {("t", 0): 1}
    member.leave()
    assert outcome(delete(client, "g", ("t", 0))) == [0]
    assert committed(client, "g") == {}
    assert delete(client, "nobody's", ("t", 0)).error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_offsets_of_members_that_are_no_consumers_are_not_deleted(driver: Any) -> None:
    member = Member(driver, "g")
    member.begin_join(protocol_type="connect")
    member.joined()
    assert delete(driver.connect(), "g", ("t", 0)).error_code == ErrorCode.NON_EMPTY_GROUP


def test_offsets_go_with_their_topic(driver: Any) -> None:
    by_hand(driver).commit({("t", 0): 1, ("u", 0): 2})
    client = driver.connect()
    client.ask(20, topics=[{"name": "t"}], timeout=1000)
    assert committed(client, "g") == {("u", 0): 2}
    client.create("t", 4)
    assert committed(client, "g", ("t", 0)) == {("t", 0): -1}


@pytest.mark.parametrize("version", [7, 10])
def test_offsets_of_a_topic_that_had_the_name_before_are_not_those_of_the_new_one(
    driver: Any, version: int
) -> None:
    by_hand(driver).commit({("t", 0): 1, ("u", 0): 2})
    client, coordinating = driver.connect(), driver.broker.groups
    # While the topic goes, nobody can note it: the group's log is just read again.
    coordinating.reload(coordinating.partitions[partition_of("g", 50)], "for a test")
    client.ask(20, topics=[{"name": "t"}], timeout=1000)
    topic_id = client.create("t", 4)
    driver.advance(2000)
    if version < 10:
        assert committed(client, "g") == {("u", 0): 2}
        assert committed(client, "g", ("t", 0)) == {("t", 0): -1}
        return
    for topics in (None, [{"topic_id": topic_id, "partition_indexes": [0]}]):
        asked = {"group_id": "g", "topics": topics, "member_id": None, "member_epoch": -1}
        [group] = client.ask(FETCH_OFFSETS, 10, groups=[asked], require_stable=True).groups
        found = {topic.topic_id: topic.partitions[0].committed_offset for topic in group.topics}
        assert found.get(UUID(bytes=topic_id), -1) == -1 and len(found) == 1


def test_offsets_of_an_empty_group_expire_and_the_group_with_them(drive: Start) -> None:
    driver = drive(group_initial_rebalance_delay_ms="0", offsets_retention_minutes="1440")
    client = driver.connect()
    find(client)
    client.create("t", 2)
    client.create("u", 1)
    member = Member(driver, "g")
    member.begin_join(session_ms=1_800_000)
    member.joined()
    member.send_sync()
    member.synced()
    member.commit({("t", 0): 1, ("u", 0): 2})
    by_hand(driver, "by-hand").commit({("t", 0): 3})
    for _ in range(100):
        # For more than a day.
        driver.advance(1_000_000)
        assert member.heartbeat() == 0
    # It has read t all the time and never u; and nobody came back by hand.
    assert committed(client, "g") == {("t", 0): 1}
    assert committed(client, "by-hand") == {}
    assert [group.group_id for group in client.ask(16).groups] == ["g"]
    member.leave()
    driver.advance(DAY_MS - 60_000)
    assert committed(client, "g") == {("t", 0): 1}
    driver.advance(15 * 60_000)
    assert committed(client, "g") == {}
    assert client.ask(16).groups == ()


def test_an_offset_that_was_set_in_an_empty_group_is_kept_as_long_as_any(drive: Start) -> None:
    driver = drive(group_initial_rebalance_delay_ms="0", offsets_retention_minutes="120")
    client = driver.connect()
    find(client)
    client.create("t", 2)
    member = Member(driver, "g")
    settle(member)
    member.commit({("t", 1): 1})
    member.leave()
    driver.advance(DAY_MS // 12 - 1_800_000)
    by_hand(driver).commit({("t", 0): 2})
    driver.advance(DAY_MS // 24)
    assert committed(client, "g") == {("t", 0): 2}
    driver.advance(DAY_MS // 8)
    assert committed(client, "g") == {} and client.ask(16).groups == ()


def test_an_old_client_says_itself_how_long_its_offsets_are_kept(driver: Any) -> None:
    by_hand(driver).commit({("t", 0): 1}, version=3, retention_time=3_600_000)
    by_hand(driver).commit({("t", 1): 1}, version=3)
    driver.advance(3_600_000 + 700_000)
    assert committed(driver.connect(), "g") == {("t", 1): 1}


@pytest.mark.parametrize("retention_ms", [2**63 - 1, 2**62, 2**55, 86_400_000_000_000_000])
def test_for_ever_is_not_too_long(driver: Any, retention_ms: int) -> None:
    client = driver.connect()
    found = by_hand(driver).commit({("t", 0): 1}, version=3, retention_time=retention_ms)
    assert found == {("t", 0): 0}
    assert committed(client, "g") == {("t", 0): 1}


def test_huge_offsets_and_the_empty_group_are_taken_as_they_are(driver: Any) -> None:
    assert by_hand(driver, "").commit({("t", 0): 2**63 - 1, ("t", 1): -1}) == {("t", 0): 0, ("t", 1): 0}
    assert committed(driver.connect(), "") == {("t", 0): 2**63 - 1, ("t", 1): -1}
