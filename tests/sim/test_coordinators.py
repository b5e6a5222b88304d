"""Coordinators move with their partitions: members and offsets are intact afterwards, and nothing uncommitted
is visible.
"""

from typing import Any

from ottla.model.errors import ErrorCode
from ottla.ports.coordination import partition_of
from testkit.sim.node import DATA_DIR
from testkit.sim.quiet import Quiet

FIND, JOIN, HEARTBEAT, SYNC, COMMIT, FETCH, CONSUMER_HEARTBEAT = 10, 11, 12, 14, 8, 9, 68
DELETE_TOPICS = 20
TOPIC = "__consumer_offsets"
SETTINGS = {
    "group.initial.rebalance.delay.ms": "0", "offsets.topic.num.partitions": "4", "min.insync.replicas": "2",
}  # fmt: skip


class Cluster(Quiet):
    def __init__(self, count: int = 3, **settings: str) -> None:
        own = {name.replace("_", "."): value for name, value in settings.items()}
        super().__init__(count, settings=SETTINGS | own)
        self.create("t", tuple(range(1, count + 1)))

    def find(self, group: str = "g") -> int:
        """Ask any broker until there is a coordinator."""
        for _ in range(100):
            node_id = next(iter(self.members))
            row = self.call(node_id, FIND, 4, {"key_type": 0, "coordinator_keys": [group]}).coordinators[0]
            if not row.error_code and row.node_id in self.members:
                return int(row.node_id)
            self.run(100)
        raise AssertionError("no coordinator")

    def insist(self, key: int, version: int, body: dict[str, Any], code_of: Any) -> Any:
        """Ask the current coordinator until it has answered."""
        for _ in range(100):
            answers = self.ask(self.find(), key, version, body)
            self.until(lambda answers=answers: bool(answers))  # type: ignore[misc]
            answer = answers[0]
            if answer is not None and code_of(answer) not in (14, 15, 16):
                return answer
            self.run(50)
        raise AssertionError("no answer")

    def join(self, member_id: str = "") -> Any:
        body = {
            "group_id": "g", "session_timeout": 30_000, "rebalance_timeout": 30_000, "member_id": member_id,
            "group_instance_id": None, "protocol_type": "consumer", "protocols": [{"name": "range", "metadata": b"m"}],
        }  # fmt: skip
        return self.insist(JOIN, 5, body, lambda answer: answer.error_code)

    def commit(self, member_id: str, offset: int, generation: int = 1) -> int:
        body = {
            "group_id": "g", "generation_id_or_member_epoch": generation, "member_id": member_id, "group_instance_id": None,
            "topics": [
                {"name": "t", "partitions": [{
                    "partition_index": 0, "committed_offset": offset, "committed_leader_epoch": -1, "committed_metadata": "",
                }]},
            ],
        }  # fmt: skip
        answer = self.insist(COMMIT, 8, body, lambda answer: answer.topics[0].partitions[0].error_code)
        return int(answer.topics[0].partitions[0].error_code)

    def committed(self) -> int:
        answer = self.insist(
            FETCH,
            7,
            {"group_id": "g", "topics": None, "require_stable": True},
            lambda answer: answer.error_code,
        )
        return int(answer.topics[0].partitions[0].committed_offset) if answer.topics else -1

    def heartbeat(self, member_id: str, generation: int = 1) -> int:
        body = {
            "group_id": "g", "generation_id": generation, "member_id": member_id, "group_instance_id": None,
        }  # fmt: skip
        return int(self.insist(HEARTBEAT, 4, body, lambda answer: answer.error_code).error_code)

    def consumer_heartbeat(self, member_id: str, epoch: int, owned: list[int] | None = None) -> Any:
        topics = [{"topic_id": self.image_topic("t").topic_id, "partitions": owned}] if owned else []
        body = {"group_id": "g", "member_id": member_id, "member_epoch": epoch, "topic_partitions": topics}
        if not epoch:
            body |= {"rebalance_timeout": 10_000, "subscribed_topic_names": ["t"]}
        return self.insist(CONSUMER_HEARTBEAT, 1, body, lambda answer: answer.error_code)

    def settle(self) -> str:
        """One member with an assignment; returns its id."""
        member_id = str(self.join().member_id)
        assert self.join(member_id).generation_id == 1
        body = {
            "group_id": "g", "generation_id": 1, "member_id": member_id, "group_instance_id": None,
            "assignments": [{"member_id": member_id, "assignment": b"all"}],
        }  # fmt: skip
        assert self.insist(SYNC, 3, body, lambda answer: answer.error_code).assignment == b"all"
        return member_id


def test_a_coordinator_that_dies_is_followed_by_one_that_knows_all() -> None:
    cluster = Cluster()
    first = cluster.find()
    assert len(cluster.image_topic(TOPIC).partitions[0].replicas) == 3
    member_id = cluster.settle()
    assert cluster.commit(member_id, 7) == 0
    cluster.kill(first)
    cluster.until(lambda: cluster.find() != first)
    assert cluster.heartbeat(member_id) == 0
    assert cluster.committed() == 7
    assert cluster.commit(member_id, 8) == 0
    # And back again, in order.
    second = cluster.find()
    cluster.start(first)
    cluster.until(lambda: all(cluster.all_in_sync(TOPIC, number) for number in range(4)))
    cluster.stop(second)
    assert cluster.committed() == 8
    assert cluster.heartbeat(member_id) == 0
    assert cluster.commit(member_id, 9, generation=0) == ErrorCode.ILLEGAL_GENERATION


def test_the_sessions_of_members_begin_rebuild_with_a_coordinator() -> None:
    cluster = Cluster()
    first = cluster.find()
    member_id = cluster.settle()
    cluster.run(20_000)
    cluster.kill(first)
    cluster.run(20_000)
    assert cluster.heartbeat(member_id) == 0
    cluster.run(31_000)
    assert cluster.heartbeat(member_id) == ErrorCode.UNKNOWN_MEMBER_ID


def test_how_many_replicas_the_topic_has_is_configured() -> None:
    cluster = Cluster(2, offsets_topic_replication_factor="2")
    assert cluster.find() in (1, 2)
    assert [sorted(each.replicas) for each in cluster.image_topic(TOPIC).partitions] == [[1, 2]] * 4


def test_the_topic_waits_for_enough_brokers() -> None:
    cluster = Cluster(2)
    row = cluster.call(1, FIND, 4, {"key_type": 0, "coordinator_keys": ["g"]}).coordinators[0]
    assert row.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    cluster.disks[3] = type(cluster.disks[1])(cluster.world.random, strict=True)
    cluster.disks[3].make_dir(DATA_DIR.rpartition("/")[0])
    cluster.disks[3].sync_dir("/")
    cluster.start(3)
    cluster.until(lambda: cluster.members[3].joined)
    assert cluster.find() in (1, 2, 3)
    assert {len(each.replicas) for each in cluster.image_topic(TOPIC).partitions} == {3}


def test_nothing_is_told_that_the_next_coordinator_may_not_know() -> None:
    """A coordinator without followers neither acknowledges nor shows what it has written."""
    cluster = Cluster()
    first = cluster.find()
    member_id = cluster.settle()
    assert cluster.commit(member_id, 1) == 0
    number = partition_of("g", 4)
    others = [node for node in cluster.members if node != first]
    for node in others:
        cluster.cut(first, node)
    cluster.run(600)
    body = {
        "group_id": "g", "generation_id_or_member_epoch": 1, "member_id": member_id, "group_instance_id": None,
        "topics": [
            {"name": "t", "partitions": [{
                "partition_index": 0, "committed_offset": 2, "committed_leader_epoch": -1, "committed_metadata": "",
            }]},
        ],
    }  # fmt: skip
    replica = cluster.replica(first, TOPIC, number)
    end = replica.log.next_offset
    written = cluster.ask(first, COMMIT, 8, body)
    cluster.until(lambda: replica.log.next_offset > end)
    read = cluster.ask(first, FETCH, 7, {"group_id": "g", "topics": None, "require_stable": False})
    cluster.run(500)
    assert not written and not read
    controller = cluster.members[others[0]].broker.lifecycle.controller_id
    if controller == first:
        # It would stay the leader: another controller has to be elected, which elects another leader.
        cluster.members[first].client.expire()
    else:
        cluster.members[controller].suspect(first)
    cluster.until(lambda: bool(written) and bool(read), 60_000)
    assert written[0] is None or written[0].topics[0].partitions[0].error_code == ErrorCode.NOT_COORDINATOR
    assert read[0] is None or read[0].error_code == ErrorCode.NOT_COORDINATOR
    cluster.mend()
    cluster.until(lambda: cluster.all_in_sync(TOPIC, number), 60_000)
    assert cluster.committed() == 1


def test_a_consumer_group_goes_on_where_another_coordinator_left_it() -> None:
    """One coordinator asks a member to revoke, and the next one assigns its partition to another member."""
    cluster = Cluster()
    first = cluster.find()
    one = cluster.consumer_heartbeat("one", 0)
    assert (one.member_epoch, [list(row.partitions) for row in one.assignment.topic_partitions]) == (1, [[0]])
    two = cluster.consumer_heartbeat("two", 0)
    assert (two.member_epoch, list(two.assignment.topic_partitions)) == (2, [])
    cluster.kill(first)
    cluster.until(lambda: cluster.find() != first)
    assert cluster.consumer_heartbeat("one", 1, [0]).error_code == 0
    assert cluster.consumer_heartbeat("two", 1, [0]).error_code == ErrorCode.FENCED_MEMBER_EPOCH
    assert cluster.consumer_heartbeat("one", -1).member_epoch == -1
    two = cluster.consumer_heartbeat("two", 2)
    assert (two.member_epoch, [list(row.partitions) for row in two.assignment.topic_partitions]) == (3, [[0]])


def test_a_topic_made_anew_has_nothing_of_the_one_before() -> None:
    """It is deleted while its group coordinator cannot write: the old offset does not belong to the new
    topic.
    """
    cluster = Cluster(offsets_retention_check_interval_ms="60000")
    first = cluster.find()
    member_id = cluster.settle()
    assert cluster.commit(member_id, 7) == 0
    number = partition_of("g", 4)
    others = [node for node in cluster.members if node != first]
    for node in others:
        cluster.kill(node)
    cluster.until(lambda: len(cluster.partition(TOPIC, number).isr) < 2, 60_000)
    body = {"topics": [{"name": "t", "topic_id": bytes(16)}], "timeout": 5000}
    assert cluster.call(first, DELETE_TOPICS, 6, body).responses[0].error_code == 0
    for node in others:
        cluster.start(node)
    cluster.until(lambda: cluster.all_in_sync(TOPIC, number), 60_000)
    cluster.create("t", (1, 2, 3))
    assert cluster.committed() == -1
    # And after a while nothing of it is kept.
    shard = cluster.members[cluster.find()].broker.groups.partitions[number].shard
    assert len(shard.offsets.of("g")) == 1
    cluster.until(lambda: not shard.offsets.of("g"), 120_000)
