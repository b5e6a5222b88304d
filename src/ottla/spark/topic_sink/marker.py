"""The marker of a sink: the last micro-batch that was written, and what this means for the next commit. Pure.

The marker is a committed offset of the group `ottla-sink-…`, written in the transaction of the micro-batch.
Its offset is the number of the next micro-batch. Its metadata is the query id from the checkpoint. A
committed offset belongs to a partition, so the marker uses a partition that the query writes to. If there are
several, the highest is valid. A query that takes over a sink id overwrites all existing markers.
"""

from __future__ import annotations

from collections.abc import Mapping

from ottla.client.errors import KafkaError
from ottla.client.metadata import OffsetAndMetadata, TopicPartition


class CheckpointMismatch(KafkaError):
    """The checkpoint does not belong to the sink id: continuing could duplicate or lose rows."""


def last_place(markers: Mapping[TopicPartition, OffsetAndMetadata], query_id: str) -> TopicPartition | None:
    """The partition of the query's last marker."""
    own = [(each.offset, place) for place, each in markers.items() if each.metadata == query_id]
    return max(own)[1] if own else None


def is_done(
    markers: Mapping[TopicPartition, OffsetAndMetadata],
    query_id: str,
    batch_id: int,
    sink_id: str,
    *,
    named: bool,
    adopts: bool,
) -> bool:
    """Whether this micro-batch is already written.

    `named`: the user set the sink id, so another query may have it.
    """
    own = [each.offset for each in markers.values() if each.metadata == query_id]
    if own:
        return max(own) > batch_id
    if batch_id == 0 or not named or adopts:
        # A new checkpoint starts over, whatever was written with this sink id.
        return False
    others = {each.metadata for each in markers.values()}
    if others:
        raise CheckpointMismatch(
            f"the sink id {sink_id!r} belongs to the query {', '.join(sorted(others))}, but the checkpoint "
            "of this query "
            f"({query_id}) is at micro-batch {batch_id}",
            advice="Give each query its own sinkId, or leave that option out; "
            "to continue this checkpoint with this sinkId, set the option adoptCheckpoint to true once",
        )
    raise CheckpointMismatch(
        f"the checkpoint is at micro-batch {batch_id}, but the sink id {sink_id!r} has written nothing for "
        f"its query {query_id}",
        advice="Use the sinkId of the checkpoint (the broker forgets it after a pause longer than "
        "offsets.retention.minutes); to continue with this sinkId, set the option adoptCheckpoint to true "
        "once",
    )
