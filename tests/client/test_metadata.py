import uuid
from types import SimpleNamespace
from typing import Any

from ottla.client.metadata import Metadata
from ottla.model.errors import ErrorCode

ID = uuid.UUID(int=7)


def partition(index: int, leader: int, epoch: int) -> Any:
    return SimpleNamespace(
        partition_index=index,
        leader_id=leader,
        leader_epoch=epoch,
        replica_nodes=(1, 2),
        isr_nodes=(1,),
        offline_replicas=(),
    )


def topic(name: str, *partitions: Any, topic_id: uuid.UUID | None = ID, error: int = 0) -> Any:
    return SimpleNamespace(
        name=name, topic_id=topic_id, error_code=error, is_internal=False, partitions=partitions
    )


def response(*topics: Any) -> Any:
    return SimpleNamespace(
        cluster_id="c",
        controller_id=1,
        topics=topics,
        brokers=[SimpleNamespace(node_id=node, host="h", port=9000 + node, rack=None) for node in (1, 2)],
    )


def test_leaders_and_topic_ids_are_found() -> None:
    metadata = Metadata().merged(response(topic("t", partition(1, 2, 0), partition(0, 1, 0))), complete=False)
    leader = metadata.leader("t", 1)
    assert leader is not None and leader.address == "h:9002"
    assert list(metadata.topics["t"].partitions) == [0, 1]
    assert metadata.names[ID.bytes] == "t"
    assert metadata.leader("t", 9) is None
    assert metadata.leader("other", 0) is None


def test_an_older_leader_epoch_does_not_replace_a_newer() -> None:
    known = Metadata().merged(response(topic("t", partition(0, 2, 5))), complete=False)
    later = known.merged(response(topic("t", partition(0, 1, 4))), complete=False)
    assert later.topics["t"].partitions[0].leader == 2
    assert (
        known.merged(response(topic("t", partition(0, 1, 6))), complete=False)
        .topics["t"]
        .partitions[0]
        .leader
        == 1
    )


def test_a_topic_made_anew_begins_its_epochs_anew() -> None:
    known = Metadata().merged(response(topic("t", partition(0, 2, 5))), complete=False)
    again = topic("t", partition(0, 1, 0), topic_id=uuid.UUID(int=8))
    later = known.merged(response(again), complete=False)
    assert later.topics["t"].partitions[0].leader == 1
    assert ID.bytes not in later.names


def test_a_partial_answer_keeps_other_topics_and_a_complete_one_does_not() -> None:
    known = Metadata().merged(response(topic("a", partition(0, 1, 0))), complete=False)
    other = response(topic("b", partition(0, 1, 0), topic_id=uuid.UUID(int=9)))
    assert set(known.merged(other, complete=False).topics) == {"a", "b"}
    assert set(known.merged(other, complete=True).topics) == {"b"}


def test_a_topic_in_error_is_forgotten_and_its_error_kept() -> None:
    known = Metadata().merged(response(topic("t", partition(0, 1, 0))), complete=False)
    gone = known.merged(response(topic("t", topic_id=None, error=3)), complete=False)
    assert "t" not in gone.topics
    assert gone.errors["t"] is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    back = gone.merged(response(topic("t", partition(0, 1, 0))), complete=False)
    assert "t" in back.topics and "t" not in back.errors


def test_a_topic_in_the_making_is_not_known_before_it_has_partitions() -> None:
    making = Metadata().merged(response(topic("t", topic_id=None, error=5)), complete=False)
    assert "t" not in making.topics
    assert making.errors["t"].retriable
    leaderless = topic("t", partition(0, -1, 0), error=5)
    assert making.merged(response(leaderless), complete=False).partition_count("t") == 1


def test_the_old_metadata_is_left_as_it_was() -> None:
    known = Metadata().merged(response(topic("t", partition(0, 1, 0))), complete=False)
    known.merged(response(topic("t", partition(0, 2, 1))), complete=False)
    assert known.topics["t"].partitions[0].leader == 1
