from hypothesis import given
from hypothesis import strategies as st

from ottla.metadata import records as r
from ottla.metadata.image import BROKER_RESOURCE, TOPIC_RESOURCE, Image

A, B = bytes([1] * 16), bytes([2] * 16)


def part(topic_id: bytes, number: int, leader: int = 1) -> r.Partition:
    return r.Partition(topic_id, number, (1,), (1,), leader)


def test_a_topic_is_found_by_name_and_by_id() -> None:
    image = Image().apply([r.Topic("a", A), part(A, 1), part(A, 0)])
    assert image.topics["a"] is image.topics_by_id[A]
    assert [partition.partition for partition in image.topics["a"].partitions] == [0, 1]
    assert not image.topics["a"].internal
    assert image.end == 3


def test_an_image_never_changes() -> None:
    before = Image().apply(
        [r.Topic("a", A), part(A, 0), r.Config(2, "a", "x", "1"), r.BrokerRegistration(1, 1, "h", 1)]
    )
    kept = (dict(before.topics), dict(before.configs), dict(before.brokers), dict(before.flat_names))
    before.apply(
        [part(A, 0, 2), part(A, 1), r.Config(2, "a", "x", "2"), r.Topic("b_c", B), r.BrokerRegistration(1, 2, "h", 2),
         r.TopicRemoved(A)]
    )  # fmt: skip
    assert (before.topics, before.configs, before.brokers, before.flat_names) == kept


def test_a_changed_partition_replaces_the_old_one() -> None:
    image = Image().apply([r.Topic("a", A), part(A, 0), part(A, 1)]).apply([part(A, 1, leader=5)])
    assert [partition.leader for partition in image.topics["a"].partitions] == [1, 5]
    assert image.topics["a"] is image.topics_by_id[A]


def test_a_removed_topic_leaves_nothing() -> None:
    image = Image().apply(
        [
            r.Topic("a.b", A),
            part(A, 0),
            r.Config(TOPIC_RESOURCE, "a.b", "x", "1"),
            r.TopicRemoved(A),
            part(A, 0),
        ]
    )
    assert not image.topics and not image.topics_by_id and not image.configs and not image.flat_names
    assert image.apply([r.TopicRemoved(A)]).topics == {}


def test_a_topic_may_come_again_under_its_name() -> None:
    image = Image().apply([r.Topic("a", A), part(A, 0), r.TopicRemoved(A), r.Topic("a", B), part(B, 0)])
    assert image.topics["a"].topic_id == B
    assert set(image.topics_by_id) == {B}


def test_settings_are_set_and_taken_back() -> None:
    image = Image().apply([r.Config(TOPIC_RESOURCE, "a", "x", "1"), r.Config(BROKER_RESOURCE, "", "y", "2")])
    assert image.topic_config("a") == {"x": "1"}
    assert image.topic_config("b") == {}
    image = image.apply([r.Config(TOPIC_RESOURCE, "a", "x", None), r.Config(TOPIC_RESOURCE, "b", "z", None)])
    assert image.configs == {(BROKER_RESOURCE, ""): {"y": "2"}}


def test_unknown_records_count() -> None:
    assert Image().apply([None, r.ProducerIds(1000), None]) == Image(end=3, next_producer_id=1000)


def test_colliding_names_are_found() -> None:
    image = Image().apply([r.Topic("a.b", A), r.Topic("plain", B)])
    assert image.collision("a_b") == "a.b"
    assert image.collision("a-b") is None
    assert image.collision("plain") is None


names = st.sampled_from(["a", "b", "a.b", "a_b"])
ids = st.sampled_from([A, B, bytes([3] * 16)])
anything = st.one_of(
    st.builds(r.Topic, names, ids),
    st.builds(part, ids, st.integers(0, 3)),
    st.builds(r.TopicRemoved, ids),
    st.builds(
        r.Config, st.sampled_from([2, 4]), names, st.sampled_from("xy"), st.sampled_from(["1", "2", None])
    ),
    st.builds(r.BrokerRegistration, st.integers(1, 3), st.integers(0, 9), st.just("h"), st.just(1)),
    st.builds(r.ProducerIds, st.integers(0, 9)),
    st.builds(r.Cluster, st.sampled_from(["c", "d"])),
)


def sensible(made: list[r.Record]) -> list[r.Record]:
    """Without what a controller never writes: a name or an id that is taken, or that looks like one."""
    image, kept = Image(), []
    for record in made:
        taken = isinstance(record, r.Topic) and (
            record.name in image.topics
            or record.topic_id in image.topics_by_id
            or image.collision(record.name)
        )
        if taken:
            continue
        image = image.apply([record])
        kept.append(record)
    return kept


@given(st.lists(anything, max_size=30))
def test_one_by_one_or_at_once_and_through_its_own_records_it_is_the_same_image(made: list[r.Record]) -> None:
    made = sensible(made)
    at_once = Image().apply(made)
    one_by_one = Image()
    for record in made:
        one_by_one = one_by_one.apply([record])
    assert one_by_one == at_once
    assert Image().apply(at_once.records())._replace(end=at_once.end) == at_once
