"""What a sink's marker means for the next commit."""

import pytest

from ottla.client.metadata import OffsetAndMetadata, TopicPartition
from ottla.spark.topic_sink.marker import CheckpointMismatch, is_done, last_place


def done(batch_id: int, *markers: tuple[int, str], named: bool = True, adopts: bool = False) -> bool:
    rows = {TopicPartition("t", number): OffsetAndMetadata(*each) for number, each in enumerate(markers)}
    return is_done(rows, "q", batch_id, "s", named=named, adopts=adopts)


def test_what_the_query_has_written_is_not_written_again() -> None:
    assert done(4, (5, "q"))
    assert not done(5, (5, "q"))
    # It moved from one partition to another: the highest counts.
    assert done(4, (3, "q"), (5, "q"), (9, "other"))
    assert not done(6, (3, "q"), (5, "q"), (9, "other"))


def test_the_last_marker_is_the_highest_of_the_query() -> None:
    markers = {
        TopicPartition("a", 0): OffsetAndMetadata(9, "other"),
        TopicPartition("b", 0): OffsetAndMetadata(5, "q"),
        TopicPartition("c", 0): OffsetAndMetadata(3, "q"),
    }
    assert last_place(markers, "q") == TopicPartition("b", 0)
    assert last_place(markers, "nobody") is None


def test_a_new_checkpoint_begins_anew_under_an_old_name() -> None:
    assert not done(0, (5, "other"))
    assert not done(0)


def test_a_checkpoint_that_belongs_to_another_sink_is_refused() -> None:
    with pytest.raises(CheckpointMismatch, match=r"belongs to the query other.*\(q\) is at micro-batch 3"):
        done(3, (5, "other"))
    with pytest.raises(CheckpointMismatch, match="'s' has written nothing for its query q"):
        done(3)
    assert not done(3, (5, "other"), adopts=True)
    # A name that follows from the checkpoint cannot be a wrong one.
    assert not done(3, named=False)
