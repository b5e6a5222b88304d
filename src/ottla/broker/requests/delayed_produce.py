"""Produces that wait for their records to be committed (Kafka's DelayedProduce).

Each partition of the produce waits in the line of its replica (`Replica.waiting`): for the high watermark (acks=all), or for
the sync of its own log (acks=1, durable policy). `requests/purgatory.py` calls `reached` or `failed` for each. The response
leaves when no partition waits any more, or at the time-out of the request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.model.errors import ErrorCode

if TYPE_CHECKING:
    from ottla.broker.api.shared.api_table import Response
    from ottla.broker.core import Broker
    from ottla.broker.requests.connection import Call
    from ottla.broker.storage.partitions import LocalTopic
    from ottla.replication.replica import Replica


class DelayedProduce:
    """A produce whose response waits for some of its partitions."""

    __slots__ = ("broker", "bucket", "call", "frame", "open_rows", "response")

    def __init__(self, broker: Broker, call: Call, response: Response, frame: bytes | None) -> None:
        self.broker = broker
        self.call = call
        self.response = response
        #: The encoded response for a produce of one batch; dropped if the produce fails.
        self.frame = frame
        #: Rows of partitions that are not reached yet, by identity.
        self.open_rows: dict[int, dict[str, Any]] = {}
        self.bucket = -1

    def hold(self) -> DelayedProduce:
        """Keep the response back until `release`: more rows may come."""
        self.open_rows[-1] = {}
        return self

    def release(self) -> None:
        if self.open_rows.pop(-1, None) is not None and not self.open_rows:
            self._answer()

    def reached(self, row: dict[str, Any]) -> None:
        open_rows = self.open_rows
        if open_rows.pop(id(row), None) is not None and not open_rows:
            self._answer()

    def failed(self, replica: Replica, row: dict[str, Any], code: ErrorCode) -> bool:
        """The records of this row will not be committed, or this broker will not know of it. Returns False: it waits no longer.

        The response names the new leader if this broker knows it (KIP-951).
        """
        if id(row) in self.open_rows:
            row.update(error_code=code, base_offset=-1)
            self.frame = None
            topic = self.broker.partitions.by_name.get(replica.topic)
            if code is ErrorCode.NOT_LEADER_OR_FOLLOWER and topic is not None:
                hint_leader(self.broker, topic, row, self.response)
            self.reached(row)
        return False

    def expire(self, now_ms: int) -> None:
        code = ErrorCode.REQUEST_TIMED_OUT
        if self.broker.lifecycle.suspended:
            # Another broker may lead the partition meanwhile. After REQUEST_TIMED_OUT a client would go on producing to this
            # broker; after NOT_LEADER_OR_FOLLOWER it refreshes its metadata.
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        for row in self.open_rows.values():
            row.update(error_code=code, base_offset=-1)
        self.open_rows.clear()
        self.frame = None
        self._answer()

    def _answer(self) -> None:
        if self.bucket >= 0:
            self.broker.timers.cancel(self)
        if self.frame is not None:
            self.broker.reply(self.call, [self.frame])
        else:
            self.broker.answer(self.call, self.response)

    def abandon(self) -> None:
        self.open_rows.clear()
        self.broker.timers.cancel(self)


def hint_leader(broker: Broker, topic: LocalTopic, row: dict[str, Any], response: Response) -> None:
    """KIP-951: add the leader of this partition and its address, which saves the client a Metadata request."""
    partition = broker.image.partition(topic.topic_id, row["index"])
    node = broker.image.brokers.get(partition.leader) if partition is not None else None
    if partition is None or node is None or node.fenced or node.node_id == broker.config.node_id:
        return
    row["current_leader"] = {"leader_id": node.node_id, "leader_epoch": partition.leader_epoch}
    endpoints = response.setdefault("node_endpoints", [])
    if all(each["node_id"] != node.node_id for each in endpoints):
        endpoints.append({"node_id": node.node_id, "host": node.host, "port": node.port, "rack": node.rack})
