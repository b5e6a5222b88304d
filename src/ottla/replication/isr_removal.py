"""Replicas that are whole no more: this broker takes them out of their ISRs itself (R12).

A log directory that fails takes its replicas with it, and a log that turns out damaged lacks records that it had reported. Either
way the replica's role ends here at once, before the metadata has it so; then the controller is asked, with AlterPartition, for
the ISR without this broker. Kafka's leaders alone may ask for another ISR; here every member may ask to be left out. Another
one leads then. A damaged replica takes a role again when it is out, as a follower; one whose directory failed, after
the next start. Where nobody else has everything, the controller refuses: an offline partition stays so, a damaged one is led by what is left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ottla.model.api_key import ApiKey
from ottla.model.timer_wheel import Later

if TYPE_CHECKING:
    from ottla.broker.core import Broker
    from ottla.metadata.records import Partition
    from ottla.replication.replica import Replica

_ALTER_PARTITION_VERSION: Final = 3
_ANY_EPOCH: Final = -1
#: Between two requests about the same replicas: the first may have failed, or its outcome be not known here yet.
_AGAIN_MS: Final = 200
_REPLICAS_MAX: Final = 1000


class IsrRemoval:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        #: Those that should not be in an ISR and, as far as is known here, are.
        self._leaving: dict[Replica, None] = {}
        self._asking = False
        self._timer = Later(self._ask)

    def leave(self, replica: Replica) -> None:
        self._leaving[replica] = None
        self._soon(0)

    def holds(self, replica: Replica, partition: Partition) -> bool:
        """Whether a replica may have no role yet. Looked at whenever the partition has changed."""
        if replica not in self._leaving:
            return False
        if self._is_member(partition):
            return True
        del self._leaving[replica]
        return False

    def _is_member(self, partition: Partition) -> bool:
        me = self._broker.config.node_id
        return me in partition.isr or me in partition.eligible

    def _soon(self, delay_ms: int) -> None:
        timers = self._broker.timers
        timers.cancel(self._timer)
        timers.add(self._timer, self._broker.now_ms + delay_ms)

    def _ask(self) -> None:
        broker = self._broker
        if self._asking:
            return None
        topics: dict[bytes, list[dict[str, Any]]] = {}
        asked: dict[tuple[bytes, int], Replica] = {}
        for replica in list(self._leaving):
            hosted = broker.partitions.by_name.get(replica.topic)
            partition = broker.image.partition(hosted.topic_id, replica.number) if hosted else None
            if replica.gone or partition is None or not self._is_member(partition):
                del self._leaving[replica]
            elif len(asked) < _REPLICAS_MAX:
                asked[partition.topic_id, replica.number] = replica
                topics.setdefault(partition.topic_id, []).append(self._row(partition))
        if not asked:
            return None
        if broker.lifecycle.suspended or not broker.lifecycle.is_serving:
            return self._soon(_AGAIN_MS)
        self._asking = True
        request = {
            "broker_id": broker.lifecycle.node_id,
            "broker_epoch": broker.lifecycle.broker_epoch,
            "topics": [{"topic_id": topic, "partitions": rows} for topic, rows in topics.items()],
        }

        def answered(response: Any, error: str | None) -> None:
            self._asking = False
            # Those that are out are found so in the image; the others are asked for again.
            self._soon(_AGAIN_MS)
            if error is None and not response.error_code:
                self._stay_where_alone(asked)
            if not self._leaving:
                broker.timers.cancel(self._timer)

        try:
            broker.controller_channel.ask(ApiKey.ALTER_PARTITION, _ALTER_PARTITION_VERSION, request, answered)
        except Exception:
            self._asking = False
            self._soon(_AGAIN_MS)
            raise
        return None

    def _row(self, partition: Partition) -> dict[str, Any]:
        me = self._broker.config.node_id
        others = [node for node in partition.isr if node != me]
        return {
            "partition_index": partition.partition,
            "leader_epoch": partition.leader_epoch,
            "partition_epoch": partition.partition_epoch,
            "new_isr_with_epochs": [{"broker_id": node, "broker_epoch": _ANY_EPOCH} for node in others],
            "leader_recovery_state": 0,
        }

    def _stay_where_alone(self, asked: dict[tuple[bytes, int], Replica]) -> None:
        """A damaged replica beside which nobody has more is what there is: it goes on."""
        broker = self._broker
        me = (broker.config.node_id,)
        for (topic_id, number), replica in asked.items():
            partition = broker.image.partition(topic_id, number)
            if (
                replica.offline is None
                and replica in self._leaving
                and partition is not None
                and partition.isr == me
                and not partition.eligible
            ):
                del self._leaving[replica]
                broker.replica_roles.assign(replica, topic_id, partition)
        broker.replica_roles.settle()
