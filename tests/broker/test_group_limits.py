"""What groups, transactions and producers may hold: beyond a limit the one that asks is refused, and nobody else notices.

The first tests are about records that cannot be written: they are refused alone, and the coordinator partition goes on for all others.
"""

from collections.abc import Callable
from typing import Any

import pytest

from ottla.broker.storage.log_maintenance import share_of
from ottla.log.producers import Producers
from ottla.model import limits
from ottla.model.errors import ErrorCode
from tests.broker.api.members import JOIN, Member, committed, find, settle, topic_rows
from tests.broker.api.transactors import Transactor
from tests.broker.conftest import Client, Driver, make_batch

Drive = Callable[..., Driver]
LIST_GROUPS, DELETE_GROUPS, ALTER, HEARTBEAT_848 = 16, 42, 44, 68


@pytest.fixture
def driver(drive: Drive) -> Driver:
    """All groups in one coordinator partition, and all transactional ids in another."""
    driver = drive(
        offsets_topic_num_partitions="1", transaction_state_log_num_partitions="1", group_initial_rebalance_delay_ms="0"
    )  # fmt: skip
    find(driver.connect())
    return driver


def group_ids(client: Client) -> set[str]:
    return {row.group_id for row in client.ask(LIST_GROUPS, 4, states_filter=[]).groups}


def beat(client: Client, group: str, member: str = "m", version: int = 1, **fields: Any) -> int:
    asked = {
        "group_id": group, "member_id": member, "member_epoch": 0, "instance_id": None, "rack_id": None,
        "rebalance_timeout": 1000, "subscribed_topic_names": ["t"], "topic_partitions": [], **fields,
    }  # fmt: skip
    return int(client.ask(HEARTBEAT_848, version, **asked).error_code)


def delete(client: Client, group: str) -> int:
    [row] = client.ask(DELETE_GROUPS, 2, groups_names=[group]).results
    return int(row.error_code)


def join(driver: Driver, group: str, version: int = 3, **more: Any) -> int:
    """The error of a join that is answered at once."""
    member = Member(driver, group)
    member.send_join(version=version, **more)
    return int(member.joined().error_code)


# --- records that cannot be written ------------------------------------------------------------------------------


class Witness:
    """A group in the same coordinator partition. Whatever others send, its commits succeed and nothing is loaded again."""

    def __init__(self, driver: Driver) -> None:
        self.member = Member(driver, "witness")
        settle(self.member)
        self.offset = 0
        self._coordinating = driver.broker.groups
        self._partition = self._coordinating.partitions[0]

    def look(self, after: str) -> None:
        self.offset += 1
        assert self.member.commit({("t", 0): self.offset}) == {("t", 0): 0}, after
        assert self.member.heartbeat() == 0, after
        assert self._coordinating.partitions[0] is self._partition and self._partition.is_loaded, after


def rude(driver: Driver) -> dict[str, Callable[[], Any]]:
    """Requests that lead to records which are too large, or cannot be written at all."""
    client = driver.connect()
    long, huge = "x" * 40_000, bytes(1_500_000)

    def come_and_go(name: str, *protocols: str, **more: Any) -> None:
        """Join, sync if that is possible, and leave: the last record is that of a group without members."""
        member = Member(driver, name, more.pop("instance", None))
        member.begin_join(*protocols, version=9, **more)
        if member.client.answers and not member.joined().error_code:
            member.send_sync(**({member.member_id: more["metadata"]} if "metadata" in more else {}))
            member.client.answers.clear()
        member.leave()

    def lose(name: str, **more: Any) -> None:
        """The same, but the member is lost: its session ends in a timer."""
        member = Member(driver, name)
        member.begin_join(version=9, session_ms=6000, **more)

    def assign_too_much() -> None:
        member = Member(driver, "assigned")
        member.begin_join()
        member.joined()
        member.send_sync(**{member.member_id: huge})

    def crowd() -> None:
        for number in range(4):
            member = Member(driver, "crowd", f"static-{number}")
            member.begin_join(metadata=bytes(400_000))

    def commit(group: str, **more: Any) -> None:
        asked = {
            "group_id": group, "generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None,
            "topics": topic_rows({("t", 0): 1}), **more,
        }  # fmt: skip
        client.ask(8, 9, **asked)

    def transact() -> None:
        tx = Transactor(driver, make_batch)
        assert tx.init() == 0 and tx.add_offsets("g") == 0
        offsets = dict.fromkeys((("wide", number) for number in range(1000)), 1)
        codes = tx.client.ask(
            28, 3, **tx.who, group_id="g", generation_id=-1, member_id="", group_instance_id=None,
            topics=topic_rows(offsets, "x" * 4000),
        )  # fmt: skip
        found = {int(row.error_code) for topic in codes.topics for row in topic.partitions}
        assert found == {ErrorCode.INVALID_COMMIT_OFFSET_SIZE}
        assert tx.end(commit=False) == 0

    def shrink() -> None:
        """Nothing fits any more, but what a group cannot do without."""
        config = {"name": "max.message.bytes", "value": "1", "config_operation": 0}
        row = {"resource_type": 2, "resource_name": "__consumer_offsets", "configs": [config]}
        assert client.ask(ALTER, 1, resources=[row]).responses[0].error_code == 0

    things: dict[str, Callable[[], Any]] = {
        "a long protocol type": lambda: come_and_go("type", protocol_type=long),
        "a long protocol type, lost": lambda: lose("type", protocol_type=long),
        "a long instance id": lambda: come_and_go("instance", instance=long),
        "a long protocol name": lambda: come_and_go("name", long),
        "huge metadata": lambda: come_and_go("huge", metadata=huge),
        "huge metadata, lost": lambda: lose("huge", metadata=huge),
        "a huge assignment": assign_too_much,
        "members that are too much together": crowd,
        "a long group id": lambda: commit("g" * 9000),
        "the longest group id": lambda: commit("g" * 8191),
        "a long text": lambda: commit("text", topics=topic_rows({("t", 0): 1}, "x" * 40_000)),
        "a long member id": lambda: beat(client, "modern", long),
        "a long rack": lambda: beat(client, "modern", rack_id=long),
        "many topics": lambda: beat(client, "modern", subscribed_topic_names=[f"{at:0200}" for at in range(9000)]),
        "offsets of a transaction": transact,
    }  # fmt: skip
    everything = dict(things)
    things["no room for any record"] = shrink
    things |= {f"{name}, again": action for name, action in everything.items() if "transaction" not in name}
    return things


def test_a_record_that_cannot_be_written_is_refused_alone(driver: Driver) -> None:
    """Issue 8, bug 2: 769 of 1,458 commits of an unrelated group failed, since the whole coordinator partition was loaded again."""
    client = driver.connect()
    client.create("t")
    client.create("wide", 1000)
    witness = Witness(driver)
    for name, action in rude(driver).items():
        action()
        witness.look(name)
        for _ in range(4):
            driver.advance(3000)
            witness.look(f"{name}, and a while later")
    assert not [line for line in driver.said if "reloading" in line]
    assert committed(client, "witness") == {("t", 0): witness.offset}


def test_a_small_max_message_bytes_means_small_batches(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "COORDINATOR_RECORD_BYTES", 1000)
    replica = driver.replica("__consumer_offsets", 0)
    replica.configure(type(replica.config).resolve({"max.message.bytes": "1000"}, driver.broker.config))
    client = driver.connect()
    client.create("t", 50)
    offsets = {("t", number): number for number in range(50)}
    assert set(Member(driver, "g").commit(offsets).values()) == {0}
    assert committed(client, "g") == offsets


def test_a_member_that_cannot_be_removed_stays_and_is_removed_later(driver: Driver) -> None:
    """In a timer: the record after this epoch cannot be written, and nobody is there who could be told."""
    client = driver.connect()
    client.create("t")
    witness = Witness(driver)
    assert beat(client, "g") == 0
    group = driver.broker.groups.shard("g").groups["g"]
    epoch, group.epoch = group.epoch, 2**31 - 1
    for _ in range(12):
        driver.advance(5000)
        witness.look("a session that cannot end")
    assert list(group.members) == ["m"]
    group.epoch = epoch
    for _ in range(12):
        driver.advance(5000)
        witness.look("a session that ends")
    assert not group.members


# --- groups and members ------------------------------------------------------------------------------------------


def test_groups_are_limited_and_those_that_exist_go_on(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = driver.connect()
    client.create("t")
    monkeypatch.setattr(limits, "GROUPS_MAX", 4)
    members = [Member(driver, f"g{number}") for number in range(2)]
    for member in members:
        settle(member)
    assert beat(client, "modern") == 0
    assert Member(driver, "by-hand").commit({("t", 0): 1}) == {("t", 0): 0}
    full = ErrorCode.GROUP_MAX_SIZE_REACHED
    assert join(driver, "new", version=9) == join(driver, "new") == beat(client, "new") == full
    too_many = ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    assert Member(driver, "new").commit({("t", 0): 1}) == {("t", 0): too_many}
    assert group_ids(client) == {"g0", "g1", "modern", "by-hand"}
    # Whoever is there may go on, and others may come to the same groups.
    assert members[0].commit({("t", 0): 5}) == {("t", 0): 0} and members[0].heartbeat() == 0
    assert Member(driver, "by-hand").commit({("t", 0): 2}) == {("t", 0): 0}
    assert beat(client, "modern", "other") == 0
    # What is gone makes room, once it has been counted again.
    assert delete(client, "by-hand") == 0
    driver.advance(1000)
    assert beat(client, "new") == 0


@pytest.mark.parametrize("kind", ["pending", "joined", "consumer"])
def test_members_are_limited_with_those_that_have_not_joined_yet(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    client = driver.connect()
    monkeypatch.setattr(limits, "MEMBERS_MAX", 5)

    def come(number: int) -> int:
        if kind == "consumer":
            return beat(client, f"g{number % 2}", f"m{number}")
        if kind == "pending":
            return join(driver, f"g{number % 2}", version=9)
        member = Member(driver, f"g{number % 2}")
        member.send_join(version=3, rebalance_ms=600_000)
        return int(member.joined().error_code) if member.client.answers else 0

    answers = [come(number) for number in range(7)]
    expected = ErrorCode.MEMBER_ID_REQUIRED if kind == "pending" else 0
    assert answers == [expected] * 5 + [ErrorCode.GROUP_MAX_SIZE_REACHED] * 2
    driver.advance(1_000_000)
    assert come(8) == expected, "those that went make room"


@pytest.mark.parametrize("kind", ["classic", "consumer"])
def test_members_of_one_group_are_limited(driver: Driver, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    client = driver.connect()
    monkeypatch.setattr(limits, "GROUP_MEMBERS_MAX", 3)
    if kind == "consumer":
        answers = [beat(client, "g", f"m{number}") for number in range(4)]
        assert answers == [0, 0, 0, ErrorCode.GROUP_MAX_SIZE_REACHED]
        return
    member = Member(driver, "g")
    settle(member)
    assert [join(driver, "g", version=9) for _ in range(3)] == [
        ErrorCode.MEMBER_ID_REQUIRED, ErrorCode.MEMBER_ID_REQUIRED, ErrorCode.GROUP_MAX_SIZE_REACHED,
    ]  # fmt: skip
    # Who is a member may come again.
    member.send_join()
    assert not member.client.answers or member.joined().error_code == 0
    assert join(driver, "other", version=9) == ErrorCode.MEMBER_ID_REQUIRED


def test_what_the_members_of_a_group_send_is_limited(driver: Driver) -> None:
    """A thousand members with a megabyte each: the group's record could not be written, and nobody keeps what they sent."""
    refused = 0
    for number in range(20):
        member = Member(driver, "g", f"static-{number}")
        member.send_join(metadata=bytes(300_000), rebalance_ms=600_000)
        if member.client.answers:
            refused += member.client.answers[-1].error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert refused == 17
    [shard] = driver.broker.groups.shards
    assert len(shard.groups["g"].members) == 3 and shard.usage.size < 1_000_000


@pytest.mark.parametrize("kind", ["classic", "consumer"])
def test_many_protocols_of_many_members_are_limited(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(limits, "GROUP_BYTES_MAX", 100_000)
    client = driver.connect()
    codes = []
    for number in range(5):
        if kind == "consumer":
            names = [f"{at:0200}" for at in range(200)]
            codes.append(beat(client, "g", f"m{number}", subscribed_topic_names=names))
        else:
            member = Member(driver, "g", f"static-{number}")
            member.send_join("a", "b", "c", "d", metadata=bytes(10_000), rebalance_ms=600_000)
            codes.append(int(member.joined().error_code) if member.client.answers else 0)
    assert codes[:2] == [0, 0] and set(codes[2:]) == {ErrorCode.GROUP_MAX_SIZE_REACHED}


def test_what_all_groups_hold_is_limited(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    client = driver.connect()
    client.create("t", 100)
    monkeypatch.setattr(limits, "GROUP_STATE_BYTES_MAX", 100_000)
    full, too_many = ErrorCode.GROUP_MAX_SIZE_REACHED, ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    member = Member(driver, "g")
    settle(member)
    assert join(driver, "big", metadata=bytes(120_000)) == full
    names = [f"{at:0200}" for at in range(600)]
    assert beat(client, "modern", subscribed_topic_names=names) == full
    texts = {("t", number): 1 for number in range(100)}
    assert set(member.commit(texts, metadata="x" * 2000).values()) == {too_many}
    # An assignment counts as well.
    other = Member(driver, "other")
    other.begin_join()
    other.joined()
    other.send_sync(**{other.member_id: bytes(120_000)})
    assert other.synced().error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert member.commit({("t", 0): 1}, metadata="short") == {("t", 0): 0}


def test_offsets_are_limited(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    client = driver.connect()
    client.create("t", 10)
    monkeypatch.setattr(limits, "OFFSETS_MAX", 6)
    first, second = Member(driver, "one"), Member(driver, "two")
    some = {("t", number): 1 for number in range(5)}
    assert set(first.commit(some).values()) == {0}
    assert set(second.commit(some).values()) == {ErrorCode.INVALID_COMMIT_OFFSET_SIZE}
    assert group_ids(client) == {"one"}, "a commit that was refused makes no group"
    # What is there may be committed again.
    assert set(first.commit(some).values()) == {0}
    tx = Transactor(driver, make_batch)
    assert tx.init() == 0 and tx.add_offsets("two") == 0
    assert tx.commit_offsets("two", some) == ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    assert delete(client, "one") == 0
    driver.advance(1000)
    assert set(second.commit(some).values()) == {0}


# --- DeleteGroups ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["classic", "consumer", "pending"])
def test_a_group_whose_sessions_are_over_can_be_deleted_at_once(driver: Driver, kind: str) -> None:
    """Timers fire up to 8 ms late, or later if the broker is busy: what is over is over."""
    client = driver.connect()
    client.create("t")
    if kind == "classic":
        settle(Member(driver, "g"))
    elif kind == "consumer":
        assert beat(client, "g") == 0
    else:
        assert Member(driver, "g").commit({("t", 0): 1}) == {("t", 0): 0}
        assert join(driver, "g", version=9) == ErrorCode.MEMBER_ID_REQUIRED
    session_ms = 45_000 if kind == "consumer" else 10_000
    driver.now_ms += session_ms - 1
    assert delete(client, "g") == ErrorCode.NON_EMPTY_GROUP
    driver.now_ms += 1
    assert delete(client, "g") == 0
    assert group_ids(client) == set()
    driver.advance(100_000)
    assert delete(client, "g") == ErrorCode.GROUP_ID_NOT_FOUND


# --- transactions ------------------------------------------------------------------------------------------------


def test_transactional_ids_are_limited(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TRANSACTIONAL_IDS_MAX", 3)
    producers = [Transactor(driver, make_batch, f"tx{number}") for number in range(4)]
    assert [tx.init() for tx in producers] == [0, 0, 0, ErrorCode.POLICY_VIOLATION]
    assert producers[0].init() == 0, "a known one goes on"
    monkeypatch.setattr(limits, "TRANSACTIONAL_IDS_MAX", 100)
    monkeypatch.setattr(limits, "TRANSACTION_STATE_BYTES_MAX", 1000)
    assert Transactor(driver, make_batch, "x" * 2000).init() == ErrorCode.POLICY_VIOLATION
    assert producers[3].init() == 0


@pytest.mark.parametrize("version", [1, 2])
def test_partitions_of_a_transaction_are_limited(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    driver.connect().create("t", 8)
    monkeypatch.setattr(limits, "TRANSACTION_PARTITIONS_MAX", 3)
    tx = Transactor(driver, make_batch, version=version)
    assert tx.init() == 0
    assert [tx.send("t", b"x", number=number) for number in range(4)] == [0, 0, 0, ErrorCode.POLICY_VIOLATION]
    # What was added is still a part, and the transaction can be ended.
    assert tx.send("t", b"x", number=2) == 0
    assert tx.end(commit=True) == 0
    assert tx.send("t", b"x", number=5) == 0


# --- producers ---------------------------------------------------------------------------------------------------


def test_made_up_producers_are_forgotten_before_real_ones(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = driver.connect()
    client.create("t")
    tx = Transactor(driver, make_batch)
    assert tx.init() == 0 and tx.send("t", b"open") == 0
    for sequence in range(2):
        real = make_batch(b"x", producer_id=7_000, producer_epoch=0, base_sequence=sequence)
        assert client.produce("t", real).error_code == 0
    producers = driver.replica("t").log.producers
    monkeypatch.setattr(limits, "PARTITION_PRODUCERS_MAX", 20)
    monkeypatch.setattr(producers, "_trim_at", 20)
    for number in range(200):
        made_up = make_batch(b"x", producer_id=10_000 + number, producer_epoch=0, base_sequence=0)
        assert client.produce("t", made_up).error_code == 0
        assert len(producers.by_id) <= 20
    assert {tx.producer_id, 7_000, 10_199} <= set(producers.by_id)
    # The real one is still known: a repetition is answered and not written.
    end = driver.replica("t").log.next_offset
    assert client.produce("t", real).error_code == 0
    assert driver.replica("t").log.next_offset == end
    assert tx.end(commit=True) == 0


def test_producers_with_open_transactions_are_never_forgotten() -> None:
    producers = Producers()
    for number in range(30):
        producers.appended(number, 0, 0, 1, number, number, number, transactional=number % 2)
    producers.trim(3)
    assert set(producers.by_id) == set(range(1, 30, 2))


def test_producers_of_all_partitions_are_limited(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    client = driver.connect()
    client.create("few")
    client.create("many")
    for number in range(40):
        topic = "few" if number < 5 else "many"
        made_up = make_batch(b"x", producer_id=number, producer_epoch=0, base_sequence=0)
        assert client.produce(topic, made_up).error_code == 0
    monkeypatch.setattr(limits, "BROKER_PRODUCERS_MAX", 20)
    driver.advance(30_000)
    assert {
        name: len(driver.replica(name).log.producers.by_id) for name in ("few", "many")
    } == {"few": 5, "many": 15}  # fmt: skip


@pytest.mark.parametrize(
    ("limit", "counts", "share"),
    [(10, [], 10), (10, [3, 3], 10), (10, [3, 30], 7), (10, [30, 30], 5), (10, [1, 2, 9, 9], 3), (0, [5], 0)],
)
def test_each_partition_has_a_fair_share(limit: int, counts: list[int], share: int) -> None:
    assert share_of(limit, counts) == share
    if counts and share < limit:
        assert sum(min(count, share) for count in counts) <= limit


def test_the_join_of_a_large_group_costs_little(driver: Driver) -> None:
    """The weight of a group is kept up to date, not counted again for each member."""
    for number in range(300):
        member = Member(driver, "g", f"static-{number}")
        member.send_join(version=5, rebalance_ms=600_000)
    group = driver.broker.groups.shard("g").groups["g"]
    assert len(group.members) == 300
    assert group.sent_bytes == sum(member.weight.sent for member in group.members.values())
    assert group.stored_bytes == sum(member.weight.stored for member in group.members.values())


def test_a_join_in_every_version_is_limited_alike(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "GROUP_BYTES_MAX", 10)
    client = driver.connect()
    for version in range(10):
        answer = client.ask(
            JOIN, version, group_id="g", session_timeout=10_000, rebalance_timeout=10_000, member_id="",
            group_instance_id=None, protocol_type="consumer", protocols=[{"name": "range", "metadata": bytes(100)}],
            reason=None,
        )  # fmt: skip
        assert answer.error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert group_ids(client) == set()
