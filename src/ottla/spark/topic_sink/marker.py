"""How far a sink has come: which micro-batch of which query it wrote last, and what follows for the next commit. Pure.

The marker is an offset of the group `ottla-sink-…`, committed in the transaction that writes the micro-batch, so that both count or neither: the
offset is the number of the next micro-batch, its metadata the query's id, which stands in the checkpoint. It is kept with a partition
that the query writes to, as a group's offsets must belong to one; wherever it is, the highest counts. Who takes a name over writes over the
markers that are there, wherever they are.
"""

from __future__ import annotations

from collections.abc import Mapping

from ottla.client.errors import KafkaError
from ottla.client.metadata import OffsetAndMetadata, TopicPartition


class CheckpointMismatch(KafkaError):
    """The checkpoint and the sink id do not belong together: to go on could write rows twice, or leave some out."""


def last_place(markers: Mapping[TopicPartition, OffsetAndMetadata], query_id: str) -> TopicPartition | None:
    """Where the query's last marker is."""
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
    """Whether this micro-batch is written already. `named`: the sink id was given, and may belong to something else."""
    own = [each.offset for each in markers.values() if each.metadata == query_id]
    if own:
        return max(own) > batch_id
    if batch_id == 0 or not named or adopts:
        # A new checkpoint begins anew, whatever was written under the name before.
        return False
    others = {each.metadata for each in markers.values()}
    if others:
        raise CheckpointMismatch(
            f"the sink id {sink_id!r} belongs to the query {', '.join(sorted(others))} now, and the checkpoint of this one "
            f"({query_id}) stands at micro-batch {batch_id}",
            advice="Give each query a sinkId of its own, or leave that option out; "
            "if this checkpoint is to go on under this name, set the option adoptCheckpoint to true once",
        )
    raise CheckpointMismatch(
        f"the checkpoint stands at micro-batch {batch_id}, and the sink id {sink_id!r} has not written one of its query {query_id}",
        advice="Use the sinkId that the checkpoint was used with before (after a pause longer than the broker's offsets.retention.minutes "
        "it has forgotten); if it is meant to go on under this name, set the option adoptCheckpoint to true once",
    )
