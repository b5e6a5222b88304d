"""TxnOffsetCommit (28): a group notes how far it has read, as a part of a transaction: that counts once it is committed.

From version 3 on the member and its generation are looked at (KIP-447). The coordinator of the transaction is asked first whether the
group's offsets are a part of it, or from version 5 on makes them one (KIP-890). Errors by partition: UNKNOWN_TOPIC_OR_PARTITION,
OFFSET_METADATA_TOO_LARGE; for all: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION, INVALID_PRODUCER_EPOCH,
INVALID_PRODUCER_ID_MAPPING, INVALID_TXN_STATE, TRANSACTION_ABORTABLE (from version 4 on), CONCURRENT_TRANSACTIONS, INVALID_GROUP_ID,
INVALID_COMMIT_OFFSET_SIZE (too much for one batch, or for this broker) and those of a coordinator that is elsewhere or not ready.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from ottla.broker.api.offset_commit import is_long, sorted_out, sorted_out_in_steps
from ottla.broker.api.shared.api_table import Response, Result, serves
from ottla.broker.api.shared.group_requests import CoordinatorReply
from ottla.broker.coordinators.group_coordinator import OFFSETS_TOPIC
from ottla.broker.coordinators.txn_verification import Producer
from ottla.model.errors import ErrorCode, Refusal
from ottla.model.limits import ROWS_PER_WRITE_MAX
from ottla.model.steps import STEP_COST
from ottla.model.strings import is_name

if TYPE_CHECKING:
    from ottla.broker.coordinators.group_coordinator import GroupPartition
    from ottla.broker.core import Broker
    from ottla.broker.requests.connection import Call
    from ottla.broker.requests.slices import Work
    from ottla.groups.shard import Commit
    from ottla.records.record import Record
    from ottla.transactions.formats import Place

#: From this version on it says who commits.
_MEMBERS_SINCE: Final = 3
#: Before this version nobody knows TRANSACTION_ABORTABLE.
_ABORTABLE_SINCE: Final = 4
#: From this version on the partition of the offsets is added to the transaction here.
_ADDS_SINCE: Final = 5
#: In the schema of OffsetCommit the rows of these versions are the same.
_ROWS_AS_IN: Final = 6

#: What a client hears of a coordinator of transactions that did not answer, or of a batch that was not written.
_TOLD: Final = {
    ErrorCode.PRODUCER_FENCED: ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.NETWORK_EXCEPTION: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
}


@serves(28, rows_max=ROWS_PER_WRITE_MAX)
def txn_offset_commit(broker: Broker, call: Call, request: Any, now_ms: int) -> Result:
    return _TxnOffsetCommit(broker, call, request).begin()


class _TxnOffsetCommit:
    """One request, from its checks over the coordinator's word to the batch."""

    def __init__(self, broker: Broker, call: Call, request: Any) -> None:
        self._broker = broker
        self._call = call
        self._request = request
        self._version = call.version
        self._producer = Producer(request.transactional_id, request.producer_id, request.producer_epoch)
        self._reply = CoordinatorReply(broker, call, self._refusal)
        self._is_long = is_long(request)

    def begin(self) -> Result:
        self._verify()
        return self._reply.outcome

    def _verify(self) -> None:
        verification = self._broker.txn_verification
        if verification.waits(self._producer, self._verify):
            return
        try:
            good, response = (None, None) if self._is_long else self._sorted_out()
            partition = self._checked(good)
            producers = partition.replica.log.producers
            producers.check_epoch(self._producer.producer_id, self._producer.producer_epoch)
        except Refusal as refusal:
            self._reply.refuse(refusal.code)
            return
        if good == [] or producers.has_open(self._producer.producer_id, self._producer.producer_epoch):
            self._write_or_begin(partition, good, response)
        else:
            place = (OFFSETS_TOPIC, partition.replica.number)
            verification.verify(
                self._producer,
                {place: partition.replica},
                adds=self._version >= _ADDS_SINCE,
                done=self._verified,
            )

    def _verified(self, codes: Mapping[Place, ErrorCode]) -> None:
        [code] = codes.values()
        if code is ErrorCode.TRANSACTION_ABORTABLE and self._version < _ABORTABLE_SINCE:
            code = ErrorCode.INVALID_TXN_STATE
        if code:
            self._reply.refuse(_TOLD.get(code, code))
            return
        try:
            # Members and topics may have come and gone meanwhile.
            good, response = (None, None) if self._is_long else self._sorted_out()
            partition = self._checked(good)
        except Refusal as refusal:
            self._reply.refuse(refusal.code)
            return
        self._write_or_begin(partition, good, response)

    def _write_or_begin(
        self, partition: GroupPartition, good: list[Commit] | None, response: Response | None
    ) -> None:
        if good is None or response is None:
            self._broker.slices.answer_later(self._call, self._write_in_slices())
        else:
            self._write(partition, good, response)

    def _write_in_slices(self) -> Work:
        """Very many offsets are checked and encoded in slices, and then written in one go."""
        request, producer = self._request, self._producer
        try:
            partition = self._checked(None)
        except Refusal as refusal:
            return self._refusal(_TOLD.get(refusal.code, refusal.code))
        partition.under_way.setdefault(producer.producer_id, set()).add(self)
        try:
            good, response = yield from sorted_out_in_steps(self._broker, self._rows_version, request)
            records = partition.shard.offset_records(request.group_id, good, -1)
            rows: list[Record] = []
            for at in range(0, len(records), STEP_COST):
                rows += partition.rows(records[at : at + STEP_COST])
                yield STEP_COST
            if not good:
                return response
            if self._checked(good) is not partition:
                raise Refusal(ErrorCode.NOT_COORDINATOR)
            if self not in partition.under_way.get(producer.producer_id, ()):
                # The transaction has ended: what would be written now would begin another that nobody ends.
                raise Refusal(ErrorCode.INVALID_TXN_STATE)
            if not partition.shard.reserve_offsets(request.group_id, good, self._broker.now_ms):
                raise Refusal(ErrorCode.INVALID_COMMIT_OFFSET_SIZE)
            partition.append_in_transaction(
                producer.producer_id, producer.producer_epoch, records, rows, (self._reply, response)
            )
        except Refusal as refusal:
            return self._refusal(_TOLD.get(refusal.code, refusal.code))
        finally:
            self._end(partition)
        return self._reply.outcome

    def _end(self, partition: GroupPartition) -> None:
        under_way = partition.under_way.get(self._producer.producer_id, set())
        under_way.discard(self)
        if not under_way:
            partition.under_way.pop(self._producer.producer_id, None)

    def _write(self, partition: GroupPartition, good: list[Commit], response: Response) -> None:
        request = self._request
        if not good:
            self._reply.answer(response)
            return
        if not partition.shard.reserve_offsets(request.group_id, good, self._broker.now_ms):
            self._reply.refuse(ErrorCode.INVALID_COMMIT_OFFSET_SIZE)
            return
        try:
            partition.commit_in_transaction(
                request.group_id, request.producer_id, request.producer_epoch, good, (self._reply, response)
            )
        except Refusal as refusal:
            self._reply.refuse(_TOLD.get(refusal.code, refusal.code))

    def _checked(self, good: list[Commit] | None) -> GroupPartition:
        """Whether this member may commit these offsets now, and where; None if they are not known yet. Raises Refusal."""
        request, version = self._request, self._version
        if not request.group_id or not is_name(request.group_id):
            raise Refusal(ErrorCode.INVALID_GROUP_ID)
        if not request.transactional_id or not is_name(request.transactional_id):
            raise Refusal(ErrorCode.INVALID_REQUEST)
        partition = self._broker.groups.writable_partition(request.group_id)
        if version >= _MEMBERS_SINCE:
            code = partition.shard.check_transactional_commit(
                request.group_id, request.generation_id, request.member_id, request.group_instance_id, good
            )
            if code:
                raise Refusal(code)
        return partition

    @property
    def _rows_version(self) -> int:
        return _ROWS_AS_IN if self._version >= 2 else 0

    def _sorted_out(self) -> tuple[list[Commit], Response]:
        return sorted_out(self._broker, self._rows_version, self._request)

    def _refusal(self, code: ErrorCode) -> Response:
        return {
            "topics": [
                {
                    "name": topic.name,
                    "partitions": [
                        {"partition_index": each.partition_index, "error_code": code}
                        for each in topic.partitions
                    ],
                }
                for topic in self._request.topics
            ]
        }
