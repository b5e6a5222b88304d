"""The transaction coordinator: the partitions of `__transaction_state` that this broker leads, each with a
shard (`transactions/shard.py`).

It gives the shards what they need of the broker: producer ids, partition leaders, and markers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ottla.broker.coordinators.coordinator import Coordinator
from ottla.broker.coordinators.coordinator_partition import CoordinatorPartition
from ottla.broker.coordinators.group_coordinator import OFFSETS_TOPIC
from ottla.model import limits
from ottla.transactions.formats import Place, decode, encode
from ottla.transactions.formats import Record as TransactionRecord
from ottla.transactions.shard import Shard

if TYPE_CHECKING:
    from ottla.broker.coordinators.host import TransactionCoordinatorHost
    from ottla.records.record import Record
    from ottla.replication.replica import Replica
    from ottla.transactions.host import MarkerRequest

TRANSACTIONS_TOPIC: Final = "__transaction_state"


class TransactionPartition(CoordinatorPartition):
    _broker: TransactionCoordinatorHost
    shard: Shard

    def __init__(
        self, transactions: TransactionCoordinator, broker: TransactionCoordinatorHost, replica: Replica
    ) -> None:
        super().__init__(broker, TRANSACTIONS_TOPIC, replica, transactions.reload)
        self._transactions = transactions
        self.shard = Shard(replica.number, self)

    def encode(self, record: TransactionRecord) -> tuple[bytes, bytes | None]:
        return encode(record)

    def decode(self, record: Record) -> TransactionRecord | None:
        return decode(record.key, record.value)

    # --- the host of the shard ------------------------------------------------------------------------------

    @property
    def now_ms(self) -> int:
        return self._broker.now_ms

    @property
    def coordinator_epoch(self) -> int:
        return self.replica.leader_epoch

    def has_capacity(self, ids: int, size: int) -> bool:
        return self._transactions.has_capacity(ids, size)

    def new_producer_id(self, done: Callable[[int | None], None]) -> None:
        self._broker.producer_ids.give(done)

    def send_markers(self, requests: Sequence[MarkerRequest]) -> None:
        for each in requests:
            answered = partial(self.shard.markers_answered, each)
            try:
                self._broker.txn_markers.send(each, answered)
            except Exception as error:
                # Like a request without a response: the shard retries.
                self._broker.isolation.contain(f"markers for broker {each.node_id}", error)
                answered({})

    def leader(self, place: Place) -> int | None:
        topic = self._broker.image.topics.get(place[0])
        if topic is None or not 0 <= place[1] < len(topic.partitions):
            return None
        return topic.partitions[place[1]].leader

    def offsets_partition(self, group_id: str) -> Place | None:
        number = self._broker.groups.partition_number(group_id)
        return None if number is None else (OFFSETS_TOPIC, number)


class TransactionCoordinator(Coordinator[TransactionPartition]):
    _broker: TransactionCoordinatorHost

    def __init__(self, broker: TransactionCoordinatorHost) -> None:
        super().__init__(broker, TRANSACTIONS_TOPIC)

    def new_partition(self, replica: Replica) -> TransactionPartition:
        return TransactionPartition(self, self._broker, replica)

    def new_topic(self) -> dict[str, Any]:
        config, clustered = self._broker.config, self._broker.clustered
        # A single node never gets another replica.
        isr_min = config.transaction_state_log_min_isr if clustered else 1
        return {
            "num_partitions": config.transaction_state_log_num_partitions,
            "replication_factor": config.transaction_state_log_replication_factor if clustered else 1,
            "configs": [
                {"name": "cleanup.policy", "value": "compact"},
                {"name": "compression.type", "value": "uncompressed"},
                {"name": "unclean.leader.election.enable", "value": "false"},
                {"name": "min.insync.replicas", "value": str(isr_min)},
                {"name": "segment.bytes", "value": str(config.transaction_state_log_segment_bytes)},
            ],
        }

    def has_capacity(self, ids: int, size: int) -> bool:
        """Whether this broker can hold this many more transactional ids and bytes."""
        for shard in self.shards:
            ids += len(shard.transactions) + len(shard.awaiting_producer_id)
            size += shard.size
        return ids <= limits.TRANSACTIONAL_IDS_MAX and size <= limits.TRANSACTION_STATE_BYTES_MAX

    @property
    def shards(self) -> Iterable[Shard]:
        return [partition.shard for partition in self.partitions.values() if partition.is_loaded]
