"""What members and others send to coordinators that they should not: each hears the protocol's error, and nothing has changed.

Nothing: neither what the coordinator knows of groups, members and offsets, nor a byte of `__consumer_offsets`.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ottla.groups.consumer import ConsumerProtocol
from ottla.model.errors import ErrorCode
from ottla.model.steps import run
from tests.broker.api.members import COMMIT, FETCH_OFFSETS, LEAVE, SYNC, Member, committed, find, settle
from tests.broker.conftest import Driver

Start = Callable[..., Any]
OFFSETS_TOPIC = "__consumer_offsets"
DESCRIBE, DELETE_GROUPS, OFFSET_DELETE, CONSUMER_HEARTBEAT, CONSUMER_DESCRIBE = 15, 42, 47, 68, 69
LONG = "x" * 9000
#: What a mischievous client may call a subscription or an assignment.
GARBAGE = (
    b"",
    b"\0",
    b"\xff" * 40,
    b"\0\3\xff\xff\xff\xff",
    b"\0\1\0\0\0\1\x7f\xff" + b"t" * 20,
    bytes(range(256)),
)


class Scene:
    """A classic group of two members, a consumer group of two, and one that somebody commits to by hand; all have committed."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver
        self.client = driver.connect()
        find(self.client)
        self.topic_id = self.client.create("t", 4)
        first, second = (Member(driver, "classic", name) for name in ("one", "two"))
        settle(first)
        second.begin_join()
        first.send_join()
        first.joined(), second.joined()
        first.send_sync(), second.send_sync()
        first.synced(), second.synced()
        self.leader, self.follower = first, second
        assert set(first.commit({("t", 0): 5, ("t", 1): 5}).values()) == {0}
        for member in ("m1", "m2"):
            self.beat(member, 0, rebalance_timeout=1000, subscribed_topic_names=["t"], topic_partitions=[])
        for _ in range(3):
            for member in ("m1", "m2"):
                self.beat(member, self.epoch(member), topic_partitions=self.owned(member))
        assert self.epoch("m1") == self.epoch("m2") > 1
        assert set(self.commit("modern", "m1", self.epoch("m1"), ("t", 0)).values()) == {0}
        assert set(Member(driver, "by-hand").commit({("t", 0): 5}).values()) == {0}

    # --- a consumer group ---------------------------------------------------------------------------------------

    def beat(self, member: str, epoch: int, *, version: int = 1, group: str = "modern", **fields: Any) -> Any:
        return self.client.ask(
            CONSUMER_HEARTBEAT, version,
            **{
                "group_id": group, "member_id": member, "member_epoch": epoch, "instance_id": None, "rack_id": None,
                "rebalance_timeout": -1, "subscribed_topic_names": None, "subscribed_topic_regex": None,
                "server_assignor": None, "topic_partitions": None, **fields,
            },
        )  # fmt: skip

    def _member(self, member: str) -> Any:
        [group] = self.client.ask(CONSUMER_DESCRIBE, 1, group_ids=["modern"]).groups
        [row] = [row for row in group.members if row.member_id == member]
        return row

    def epoch(self, member: str) -> int:
        return int(self._member(member).member_epoch)

    def owned(self, member: str) -> list[dict[str, Any]]:
        return [
            {"topic_id": topic.topic_id.bytes, "partitions": list(topic.partitions)}
            for topic in self._member(member).assignment.topic_partitions
        ]

    def commit(self, group: str, member: str, epoch: int, *places: tuple[str, int], version: int = 9) -> Any:
        somebody = Member(self.driver, group)
        somebody.member_id, somebody.generation = member, epoch
        return somebody.commit(dict.fromkeys(places, 99), version=version)

    # --- all of it ----------------------------------------------------------------------------------------------

    def state(self) -> Any:
        """All that is known and all that is written."""
        self.driver.turn()
        coordinating = self.driver.broker.groups
        known = {
            group_id: (
                shard.classic.describe(group) if shard.classic_group(group_id) else run(shard.consumer.describe(group)),
                getattr(group, "generation", None), sorted(getattr(group, "pending", ())),
                sorted((place, tuple(value)) for place, value in shard.offsets.of(group_id).items()),
            )
            for shard in coordinating.shards
            for group_id, group in shard.groups.items()
        }  # fmt: skip
        ends = [self.driver.replica(OFFSETS_TOPIC, number).log.next_offset for number in range(50)]
        return known, ends


@pytest.fixture
def scene(drive: Start) -> Scene:
    return Scene(drive(group_initial_rebalance_delay_ms="0"))


@pytest.fixture(scope="module")
def unchanging(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """One for all that change nothing."""
    driver = Driver(str(tmp_path_factory.mktemp("scene") / "data"), {"group.initial.rebalance.delay.ms": "0"})
    yield Scene(driver)
    driver.close()


# --- what is refused ------------------------------------------------------------------------------------------


def join(
    scene: Scene, group: str, *protocols: str, member: str = "", instance: str | None = None, **more: Any
) -> Any:
    somebody = Member(scene.driver, group, instance)
    somebody.member_id = member
    somebody.send_join(*protocols, **more)
    return somebody.joined().error_code


def sync(scene: Scene, **fields: Any) -> Any:
    asked = {
        "group_id": "classic", "generation_id": scene.leader.generation, "member_id": scene.leader.member_id,
        "group_instance_id": None, "protocol_type": None, "protocol_name": None, "assignments": [],
    }  # fmt: skip
    return scene.client.ask(SYNC, 5, **(asked | fields)).error_code


def leave(scene: Scene, group: str, member: str, instance: str | None = None) -> Any:
    row = {"member_id": member, "group_instance_id": instance, "reason": None}
    answer = scene.client.ask(LEAVE, 5, group_id=group, members=[row])
    return answer.error_code or answer.members[0].error_code


def by_member(scene: Scene, offsets: dict[tuple[str, int], int], **fields: Any) -> Any:
    return scene.leader.commit(offsets, **fields)


def commit_by_id(scene: Scene, topic_id: bytes, partition: int) -> Any:
    row = {
        "partition_index": partition, "committed_offset": 99, "committed_leader_epoch": -1, "committed_metadata": "",
    }  # fmt: skip
    answer = scene.client.ask(
        COMMIT, 10, group_id="by-hand", generation_id_or_member_epoch=-1, member_id="", group_instance_id=None,
        topics=[{"topic_id": topic_id, "partitions": [row]}],
    )  # fmt: skip
    return answer.topics[0].partitions[0].error_code


def fetch_as(scene: Scene, member: str, epoch: int, group: str = "modern") -> Any:
    asked = {"group_id": group, "member_id": member, "member_epoch": epoch, "topics": None}
    return scene.client.ask(FETCH_OFFSETS, 9, groups=[asked], require_stable=False).groups[0].error_code


def delete_offsets(scene: Scene, group: str, topic: str, partition: int) -> Any:
    rows = [{"name": topic, "partitions": [{"partition_index": partition}]}]
    answer = scene.client.ask(OFFSET_DELETE, group_id=group, topics=rows)
    return answer.error_code or answer.topics[0].partitions[0].error_code


def delete_group(scene: Scene, group: str) -> Any:
    return scene.client.ask(DELETE_GROUPS, groups_names=[group]).results[0].error_code


def beat_now(scene: Scene, **fields: Any) -> Any:
    """A heartbeat of the first member in its epoch, but for what is said."""
    member, epoch = fields.pop("member_id", "m1"), fields.pop("member_epoch", None)
    return scene.beat(member, scene.epoch("m1") if epoch is None else epoch, **fields).error_code


def beat_first(scene: Scene, member: str = "m3", **fields: Any) -> Any:
    """Somebody new joins."""
    first = {"rebalance_timeout": 1000, "subscribed_topic_names": ["t"], "topic_partitions": []}
    return scene.beat(member, 0, **(first | fields)).error_code


E = ErrorCode
REFUSED: list[tuple[str, Callable[[Scene], Any], ErrorCode]] = [
    # Who joins, or says that it had joined.
    ("join as somebody", lambda s: join(s, "classic", member="invented"), E.UNKNOWN_MEMBER_ID),
    ("join as somebody of another group", lambda s: join(s, "other", member=s.leader.member_id), E.UNKNOWN_MEMBER_ID),
    ("join as another's instance", lambda s: join(s, "classic", member=s.leader.member_id, instance="two"), E.FENCED_INSTANCE_ID),
    ("join with nothing in common", lambda s: join(s, "classic", "theirs"), E.INCONSISTENT_GROUP_PROTOCOL),
    ("join as no consumer", lambda s: join(s, "classic", protocol_type="connect"), E.INCONSISTENT_GROUP_PROTOCOL),
    ("join a consumer group as no consumer", lambda s: join(s, "modern", protocol_type="connect"), E.INCONSISTENT_GROUP_PROTOCOL),
    ("join nameless", lambda s: join(s, ""), E.INVALID_GROUP_ID),
    ("join a name too long", lambda s: join(s, LONG), E.INVALID_GROUP_ID),
    ("join for no time", lambda s: join(s, "new", session_ms=-1), E.INVALID_SESSION_TIMEOUT),
    ("join for ever", lambda s: join(s, "new", session_ms=2**31 - 1), E.INVALID_SESSION_TIMEOUT),
    # Assignments.
    ("sync as somebody", lambda s: sync(s, member_id="invented"), E.UNKNOWN_MEMBER_ID),
    ("sync as another's instance", lambda s: sync(s, group_instance_id="two"), E.FENCED_INSTANCE_ID),
    ("sync in the past", lambda s: sync(s, generation_id=s.leader.generation - 1), E.ILLEGAL_GENERATION),
    ("sync in the future", lambda s: sync(s, generation_id=2**31 - 1), E.ILLEGAL_GENERATION),
    ("sync in no generation", lambda s: sync(s, generation_id=-1), E.ILLEGAL_GENERATION),
    ("sync another protocol", lambda s: sync(s, protocol_name="theirs"), E.INCONSISTENT_GROUP_PROTOCOL),
    ("sync another type", lambda s: sync(s, protocol_type="connect"), E.INCONSISTENT_GROUP_PROTOCOL),
    ("sync in a group that is not there", lambda s: sync(s, group_id="nothing"), E.UNKNOWN_MEMBER_ID),
    ("sync nameless", lambda s: sync(s, group_id=""), E.INVALID_GROUP_ID),
    ("sync an assignment when there is one",
     lambda s: sync(s, assignments=[{"member_id": s.leader.member_id, "assignment": b"garbage"}]), E.NONE),
    # Being there, and going.
    ("heartbeat as somebody", lambda s: s.leader.heartbeat(member_id="invented", group_instance_id=None), E.UNKNOWN_MEMBER_ID),
    ("heartbeat in the past", lambda s: s.leader.heartbeat(generation_id=0), E.ILLEGAL_GENERATION),
    ("heartbeat in the future", lambda s: s.leader.heartbeat(generation_id=2**31 - 1), E.ILLEGAL_GENERATION),
    ("heartbeat as another's instance", lambda s: s.leader.heartbeat(group_instance_id="two"), E.FENCED_INSTANCE_ID),
    ("heartbeat nameless", lambda s: s.leader.heartbeat(group_id=""), E.INVALID_GROUP_ID),
    ("leave as somebody", lambda s: leave(s, "classic", "invented"), E.UNKNOWN_MEMBER_ID),
    ("leave as another's instance", lambda s: leave(s, "classic", s.leader.member_id, "two"), E.FENCED_INSTANCE_ID),
    ("leave a group that is not there", lambda s: leave(s, "nothing", "invented"), E.UNKNOWN_MEMBER_ID),
    ("leave a name too long", lambda s: leave(s, LONG, "invented"), E.INVALID_GROUP_ID),
    # Commits.
    ("commit as somebody", lambda s: by_member(s, {("t", 0): 99}, member_id="invented", group_instance_id=None), E.UNKNOWN_MEMBER_ID),
    ("commit as nobody, while there are members", lambda s: s.commit("classic", "", -1, ("t", 0)), E.UNKNOWN_MEMBER_ID),
    ("commit as another's instance", lambda s: by_member(s, {("t", 0): 99}, group_instance_id="two"), E.FENCED_INSTANCE_ID),
    ("commit in the past", lambda s: by_member(s, {("t", 0): 99}, generation_id_or_member_epoch=0), E.ILLEGAL_GENERATION),
    ("commit in the future", lambda s: by_member(s, {("t", 0): 99}, generation_id_or_member_epoch=2**31 - 1), E.ILLEGAL_GENERATION),
    ("commit for a group that is not there", lambda s: s.commit("nothing", "m", 3, ("t", 0)), E.GROUP_ID_NOT_FOUND),
    ("the same by an older client", lambda s: s.commit("nothing", "m", 3, ("t", 0), version=8), E.ILLEGAL_GENERATION),
    ("commit for a name too long", lambda s: s.commit(LONG, "", -1, ("t", 0)), E.INVALID_GROUP_ID),
    ("commit for topics that are not there", lambda s: by_member(s, {("nowhere", 0): 99, ("", 0): 99, (LONG, 0): 99}),
     E.UNKNOWN_TOPIC_OR_PARTITION),
    ("commit for partitions that are not there", lambda s: by_member(s, {("t", 4): 99, ("t", -1): 99, ("t", 2**31 - 1): 99, ("t", -(2**31)): 99}),
     E.UNKNOWN_TOPIC_OR_PARTITION),
    ("commit for an id that is not there", lambda s: commit_by_id(s, b"x" * 16, 0), E.UNKNOWN_TOPIC_ID),
    ("commit for no id", lambda s: commit_by_id(s, bytes(16), 0), E.UNKNOWN_TOPIC_ID),
    ("commit by id for a partition that is not there", lambda s: commit_by_id(s, s.topic_id, -1), E.UNKNOWN_TOPIC_OR_PARTITION),
    ("commit too long a text", lambda s: by_member(s, {("t", 0): 99, ("t", 1): 99}, metadata="ä" * 4097), E.OFFSET_METADATA_TOO_LARGE),
    ("commit much too long a text", lambda s: by_member(s, {("t", 0): 99}, metadata="x" * 3_000_000), E.OFFSET_METADATA_TOO_LARGE),
    # The same in a group of KIP-848.
    ("commit in an epoch of the past what is another's", lambda s: s.commit("modern", "m1", s.epoch("m1") - 1, ("t", s.owned("m2")[0]["partitions"][0])),
     E.STALE_MEMBER_EPOCH),
    ("commit in an epoch long past", lambda s: s.commit("modern", "m1", 0, ("t", 0)), E.STALE_MEMBER_EPOCH),
    ("commit in an epoch of the future", lambda s: s.commit("modern", "m1", 2**31 - 1, ("t", 0)), E.STALE_MEMBER_EPOCH),
    ("commit with an invented id", lambda s: s.commit("modern", "invented", 2, ("t", 0)), E.UNKNOWN_MEMBER_ID),
    ("commit by hand, while there are members", lambda s: s.commit("modern", "", -1, ("t", 0)), E.UNKNOWN_MEMBER_ID),
    ("commit in a version without epochs", lambda s: s.commit("modern", "m1", s.epoch("m1"), ("t", 0), version=8), E.UNSUPPORTED_VERSION),
    ("fetch offsets in an epoch of the past", lambda s: fetch_as(s, "m1", s.epoch("m1") - 1), E.STALE_MEMBER_EPOCH),
    ("fetch offsets with an invented id", lambda s: fetch_as(s, "invented", 2), E.UNKNOWN_MEMBER_ID),
    ("beat in an epoch of the past", lambda s: beat_now(s, member_epoch=1), E.FENCED_MEMBER_EPOCH),
    ("beat in an epoch of the future", lambda s: beat_now(s, member_epoch=2**31 - 1), E.FENCED_MEMBER_EPOCH),
    ("beat in an epoch that is none", lambda s: beat_now(s, member_epoch=-(2**31)), E.INVALID_REQUEST),
    ("beat with an invented id", lambda s: beat_now(s, member_id="invented"), E.UNKNOWN_MEMBER_ID),
    ("beat without an id", lambda s: beat_now(s, member_id=""), E.INVALID_REQUEST),
    ("beat in a group that is not there", lambda s: beat_now(s, group="nothing"), E.GROUP_ID_NOT_FOUND),
    ("beat nameless", lambda s: beat_now(s, group=""), E.INVALID_GROUP_ID),
    ("beat a name too long", lambda s: beat_first(s, group=LONG), E.INVALID_GROUP_ID),
    ("beat as an instance that is not there", lambda s: beat_now(s, instance_id="nobody"), E.UNKNOWN_MEMBER_ID),
    ("join with partitions", lambda s: beat_first(s, topic_partitions=[{"topic_id": s.topic_id, "partitions": [0]}]), E.INVALID_REQUEST),
    ("join without a subscription", lambda s: beat_first(s, subscribed_topic_names=None), E.INVALID_REQUEST),
    ("join without a time-out", lambda s: beat_first(s, rebalance_timeout=-1), E.INVALID_REQUEST),
    ("join with an assignor of one's own", lambda s: beat_first(s, server_assignor="mine"), E.UNSUPPORTED_ASSIGNOR),
    ("change to an assignor of one's own", lambda s: beat_now(s, server_assignor="x" * 30_000), E.UNSUPPORTED_ASSIGNOR),
    ("join with half a pattern", lambda s: beat_first(s, subscribed_topic_regex="(t"), E.INVALID_REGULAR_EXPRESSION),
    ("join with a pattern that looks back", lambda s: beat_first(s, subscribed_topic_regex=r"(a)\1"), E.INVALID_REGULAR_EXPRESSION),
    ("join with a pattern that explodes", lambda s: beat_first(s, subscribed_topic_regex="((x{1,100}){1,100}){1,100}"), E.INVALID_REGULAR_EXPRESSION),
    ("change to a pattern of a megabyte", lambda s: beat_now(s, subscribed_topic_regex="a|" * 500_000), E.INVALID_REGULAR_EXPRESSION),
    ("join with more names than can be written", lambda s: beat_first(s, subscribed_topic_names=[f"{at}-{'x' * 200}" for at in range(10_000)]), E.INVALID_REQUEST),
    # Administrators.
    ("delete a group that has members", lambda s: delete_group(s, "classic"), E.NON_EMPTY_GROUP),
    ("delete a consumer group that has members", lambda s: delete_group(s, "modern"), E.NON_EMPTY_GROUP),
    ("delete a group that is not there", lambda s: delete_group(s, "nothing"), E.GROUP_ID_NOT_FOUND),
    ("delete offsets that are wanted", lambda s: delete_offsets(s, "classic", "t", 0), E.GROUP_SUBSCRIBED_TO_TOPIC),
    ("delete offsets that are wanted in a consumer group", lambda s: delete_offsets(s, "modern", "t", 0), E.GROUP_SUBSCRIBED_TO_TOPIC),
    ("delete offsets of a topic that is not there", lambda s: delete_offsets(s, "by-hand", "nowhere", 0), E.UNKNOWN_TOPIC_OR_PARTITION),
    ("delete offsets of a partition that is not there", lambda s: delete_offsets(s, "by-hand", "t", -7), E.UNKNOWN_TOPIC_OR_PARTITION),
    ("delete offsets of a group that is not there", lambda s: delete_offsets(s, "nothing", "t", 0), E.GROUP_ID_NOT_FOUND),
]  # fmt: skip


@pytest.mark.parametrize(("attempt", "code"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_what_is_wrong_is_refused_and_changes_nothing(
    unchanging: Scene, attempt: Callable[[Scene], Any], code: ErrorCode
) -> None:
    scene = unchanging
    before = scene.state()
    told = attempt(scene)
    codes = set(told.values()) if isinstance(told, dict) else {told}
    assert {ErrorCode(int(each)) for each in codes} == {code}
    assert scene.state() == before
    # And everybody goes on.
    assert scene.leader.heartbeat() == 0 and scene.follower.heartbeat() == 0
    assert beat_now(scene) == 0


# --- what is nobody's business --------------------------------------------------------------------------------


@pytest.mark.parametrize("garbage", GARBAGE, ids=range(len(GARBAGE)))
def test_what_members_tell_each_other_is_handed_on_unread(drive: Start, garbage: bytes) -> None:
    """Subscriptions and assignments are between the members. Only who might read a topic is asked: whoever is not understood might."""
    driver = drive(group_initial_rebalance_delay_ms="0")
    client = driver.connect()
    find(client)
    client.create("t", 1)
    member = Member(driver, "g")
    member.begin_join(metadata=garbage)
    assert member.joined().members[0].metadata == garbage
    member.send_sync(**{member.member_id: garbage, "nobody": garbage})
    assert member.synced().assignment == garbage
    [described] = client.ask(DESCRIBE, 5, groups=["g"]).groups
    assert [row.member_id for row in described.members] == [member.member_id]
    assert (described.members[0].member_metadata, described.members[0].member_assignment) == (
        garbage,
        garbage,
    )
    assert member.commit({("t", 0): 3}) == {("t", 0): 0}
    assert client.ask(OFFSET_DELETE, group_id="g", topics=[
        {"name": "t", "partitions": [{"partition_index": 0}]},
    ]).topics[0].partitions[0].error_code == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC  # fmt: skip
    assert committed(client, "g") == {("t", 0): 3}


def test_a_subscription_too_large_to_be_written_is_refused_alone(scene: Scene) -> None:
    before = scene.state()
    huge = Member(scene.driver, "huge")
    huge.send_join(metadata=bytes(3 << 20))
    assert huge.joined().error_code == ErrorCode.INVALID_REQUEST
    assert scene.state() == before
    assert scene.leader.heartbeat() == 0 and beat_now(scene) == 0


def test_a_member_may_claim_many_partitions_and_has_its_own(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few bytes a partition must not become a few hundred, and a second of everybody's time."""
    heard: list[Any] = []
    hear = ConsumerProtocol.heartbeat

    def overhear(self: ConsumerProtocol, request: Any, *more: Any) -> None:
        heard.append(request.owned)
        hear(self, request, *more)

    monkeypatch.setattr(ConsumerProtocol, "heartbeat", overhear)
    before = scene.state()
    claimed = [{"topic_id": scene.topic_id, "partitions": list(range(-10, 20_000))}] * 2
    claimed += [{"topic_id": bytes([at % 256]) * 16, "partitions": [at, -at]} for at in range(1000)]
    assert beat_now(scene, topic_partitions=claimed) == 0
    assert heard == [{(scene.topic_id, number) for number in range(4)}]
    assert scene.state() == before


def test_the_last_of_several_commits_for_one_partition_counts(scene: Scene) -> None:
    rows = [
        {
            "name": "t",
            "partitions": [
                {
                    "partition_index": 0, "committed_offset": at, "committed_leader_epoch": -1, "committed_metadata": "",
                }
                for at in (7, 9, 8)
            ],
        }
    ] * 2  # fmt: skip
    answer = scene.client.ask(
        COMMIT, 9, group_id="by-hand", generation_id_or_member_epoch=-1, member_id="", group_instance_id=None, topics=rows,
    )  # fmt: skip
    assert [int(each.error_code) for topic in answer.topics for each in topic.partitions] == [0] * 6
    assert committed(scene.client, "by-hand") == {("t", 0): 8}


def test_a_commit_is_taken_as_far_as_it_is_right(scene: Scene) -> None:
    told = scene.leader.commit({("t", 0): 6, ("t", 9): 6, ("nowhere", 0): 6})
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert told == {("t", 0): 0, ("t", 9): unknown, ("nowhere", 0): unknown}
    assert committed(scene.client, "classic") == {("t", 0): 6, ("t", 1): 5}
