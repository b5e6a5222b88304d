"""A transactional producer: its requests to the coordinator and to leaders, and its reactions to responses.

Clients with transactions v1 add partitions themselves and keep their epoch. Those with v2 (KIP-890) only
produce, and get the next epoch with every end. Both retry until they know the outcome. A lost request may
still arrive, and with v1 it could become part of the next transaction. So such a client that has missed a
response requests another epoch before it continues (KIP-360).

Exceptions end its work: Fenced, Spoilt.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from ottla.model.api_key import ApiKey
from ottla.model.errors import ErrorCode
from ottla.records.record import Record, encode_batch
from testkit.checkers.partition import Anomaly
from testkit.checkers.transactions import Log, Place, Producers, Transaction
from testkit.sim.actors import RETRIABLE, Common
from testkit.sim.script import Scripted

#: By transaction version.
PRODUCE_VERSIONS: Final = {1: 11, 2: 13}
_END: Final = {1: 4, 2: 5}
_COMMIT_OFFSETS: Final = {1: 4, 2: 5}
_GROUP, _TRANSACTION = 0, 1
#: Requests that could become part of the next transaction.
_WRITES: Final = frozenset(
    (
        ApiKey.PRODUCE,
        ApiKey.ADD_PARTITIONS_TO_TXN,
        ApiKey.ADD_OFFSETS_TO_TXN,
        ApiKey.END_TXN,
        ApiKey.TXN_OFFSET_COMMIT,
    )
)
_AGAIN_MS: Final = 120

#: The coordinator has changed; the request may have been written nevertheless.
_MOVED: Final = frozenset(
    (
        ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    )
)  # fmt: skip
#: Nothing was done; the request can be repeated.
_BUSY: Final = frozenset(
    (
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    )
)  # fmt: skip
_FENCED: Final = frozenset(
    (
        ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
    )
)  # fmt: skip
_SPOILT: Final = frozenset((ErrorCode.INVALID_TXN_STATE, ErrorCode.TRANSACTION_ABORTABLE))


class Fenced(Exception):
    """Another producer uses its transactional id, or its transaction timed out."""


class Spoilt(Exception):
    """The transaction cannot be committed any more."""


class Ghost(NamedTuple):
    """A Produce request of a former producer."""

    who: TransactionClient
    name: str
    place: Place
    value: bytes
    body: dict[str, Any]


class TransactionClient(Scripted):
    def __init__(
        self,
        common: Common,
        producers: Producers,
        life: int,
        version: int,
        timeout_ms: int,
        logs: dict[Place, Log],
    ) -> None:
        super().__init__(common, producers.transactional_id)
        self.producers = producers
        self.life = life
        self.version = version
        self._timeout_ms = timeout_ms
        #: The partitions whose values are checked.
        self.logs = logs
        self.producer_id = self.epoch = -1
        self._coordinators: dict[tuple[int, str], int] = {}
        self._sequences: dict[Place, int] = {}
        #: Since the last epoch a request was sent whose outcome is unknown.
        self._is_unsettled = False
        self._count = 0
        self._numbers = 0
        #: The partitions of the current transaction, as far as it knows; and those it has produced to.
        self._added: dict[Any, None] = {}
        self._written: dict[tuple[str, Place], None] = {}
        self.transaction: Transaction | None = None
        #: A fault that follows one of its next requests.
        self._blow: Callable[[], None] | None = None
        self._blow_after = 0

    @property
    def label(self) -> str:
        return f"{self.name}/{self.life}"

    def log(self, text: str) -> None:
        self.world.log(f"{self.label}: {text}")

    @property
    def is_fenced(self) -> bool:
        """Whether another producer is known to have come, whether or not this one knows."""
        return self.producers.is_fenced(self.life, self.epoch)

    @property
    def _who(self) -> dict[str, Any]:
        return {"transactional_id": self.name, "producer_id": self.producer_id, "producer_epoch": self.epoch}

    def strike(self, blow: Callable[[], None]) -> None:
        """Let a fault happen during its next transaction."""
        self._blow, self._blow_after = blow, 1 + self.world.below(5)

    def last_words(self) -> Ghost | None:
        """One more batch of its transaction, which was in flight when it died, or gave up, and which may
        arrive at any time.
        """
        transaction = self.transaction
        if transaction is None or transaction.may_count:
            return None
        places = [(name, place) for name, place in self._written if place in self.logs]
        if not places:
            return None
        name, place = places[self.world.below(len(places))]
        value = self._new_value(place, "!")
        self._is_unsettled = True
        return Ghost(self, name, place, value, self._produce(name, place, [value]))

    # --- asking -------------------------------------------------------------------------------------------------

    async def call(
        self,
        node_id: int,
        key: int,
        body: dict[str, Any],
        version: int | None = None,
        purpose: str = "",
        as_broker: int | None = None,
    ) -> Any | None:
        if key in _WRITES and self._blow is not None:
            self._blow_after -= 1
            if self._blow_after <= 0:
                blow, self._blow = self._blow, None
                self.world.later(self.world.below(40), blow)
        answer = await super().call(node_id, key, body, version, purpose, as_broker)
        if answer is None and key in _WRITES:
            self._is_unsettled = True
        return answer

    async def coordinator(self, kind: int, name: str) -> int:
        while (kind, name) not in self._coordinators:
            body = {"key_type": kind, "coordinator_keys": [name]}
            answer = await self.call(self.any_broker(), ApiKey.FIND_COORDINATOR, body, 4)
            row = answer.coordinators[0] if answer is not None else None
            if row is None or row.error_code:
                await self.sleep(_AGAIN_MS + self.world.below(_AGAIN_MS))
            else:
                self._coordinators[kind, name] = row.node_id
        return self._coordinators[kind, name]

    async def _insist(
        self, who: tuple[int, str], key: int, version: int, body: dict[str, Any], code_of: Callable[[Any], int],
        patience: int = 1000,
    ) -> tuple[Any | None, bool]:  # fmt: skip
        """Ask a coordinator until it has a final answer, or patience ends; also whether an earlier attempt
        may have succeeded.
        """
        is_sure = True
        for _ in range(patience):
            answer = await self.call(await self.coordinator(*who), key, body, version, purpose=f"{who[0]}")
            code = code_of(answer) if answer is not None else ErrorCode.NOT_COORDINATOR
            if answer is None or code in _MOVED:
                is_sure = False
                self._coordinators.pop(who, None)
            elif code not in _BUSY:
                self.log(f"asked {key} of {self.producer_id}/{self.epoch}: {ErrorCode(code)!r}")
                return answer, is_sure
            await self.sleep(_AGAIN_MS // 2 + self.world.below(_AGAIN_MS))
        self._is_unsettled = True
        return None, False

    @property
    def _own(self) -> tuple[int, str]:
        return _TRANSACTION, self.name

    # --- coming -------------------------------------------------------------------------------------------------

    async def init(self, *, names_itself: bool = False) -> None:
        """Get the next epoch, with its current producer id and epoch if it has them."""
        body = {
            "transactional_id": self.name, "transaction_timeout": self._timeout_ms,
            "producer_id": self.producer_id if names_itself else -1, "producer_epoch": self.epoch if names_itself else -1,
        }  # fmt: skip
        was_fenced = names_itself and self.is_fenced
        answer, _is_sure = await self._insist(
            self._own, ApiKey.INIT_PRODUCER_ID, 4, body, lambda it: it.error_code
        )
        code = answer.error_code if answer is not None else ErrorCode.PRODUCER_FENCED
        if names_itself and code in _FENCED:
            raise Fenced
        if code:
            raise Anomaly("refused", f"{self.label}: InitProducerId with {ErrorCode(code)!r}")
        assert answer is not None
        self._is(answer.producer_id, answer.producer_epoch)
        self.producers.succeeds(self.life, self.epoch, was_fenced, "InitProducerId")
        self.producers.comes(self.life, self.epoch)
        self._is_unsettled = False

    def _is(self, producer_id: int, epoch: int) -> None:
        taken = self.common.producer_ids.setdefault(producer_id, self.name)
        if taken != self.name:
            raise Anomaly("producer-id-reused", f"{producer_id} was {taken}'s, now {self.label} has it")
        self.producer_id, self.epoch = producer_id, epoch
        self._sequences.clear()
        self._is_unsettled = False

    # --- a transaction ------------------------------------------------------------------------------------------

    def start(self) -> Transaction:
        self._count += 1
        self._added.clear()
        self._written.clear()
        name = f"{self.name}.{self.life}.{self._count}"
        self.transaction = self.producers.begin(self.life, self.epoch, name)
        return self.transaction

    async def _add(self, topic: str, number: int) -> None:
        if (topic, number) in self._added:
            return
        body = {
            "v3_and_below_transactional_id": self.name, "v3_and_below_producer_id": self.producer_id,
            "v3_and_below_producer_epoch": self.epoch,
            "v3_and_below_topics": [{"name": topic, "partitions": [number]}],
        }  # fmt: skip

        def code_of(answer: Any) -> int:
            return int(answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code)

        was_fenced = self.is_fenced
        answer, _is_sure = await self._insist(
            self._own, ApiKey.ADD_PARTITIONS_TO_TXN, 3, body, code_of, patience=25
        )
        if answer is None:
            raise Spoilt
        self._take(code_of(answer), was_fenced, "AddPartitionsToTxn")
        self._added[topic, number] = None

    def _take(self, code: int, was_fenced: bool, what: str) -> None:
        """A final answer."""
        if code in _FENCED:
            raise Fenced
        if code in _SPOILT:
            raise Spoilt
        if code:
            raise Anomaly("refused", f"{self.label}: {what} with {ErrorCode(code)!r}")
        self.producers.succeeds(self.life, self.epoch, was_fenced, what)

    async def send(self, name: str, place: Place, texts: list[str]) -> None:
        """Produce these to a partition in the current transaction. Raises Fenced, Spoilt."""
        transaction = self.transaction
        assert transaction is not None
        if self.version == 1:
            await self._add(name, place[1])
        log = self.logs.get(place)
        values = [self._new_value(place, text) for text in texts]
        self._written[name, place] = None
        body = self._produce(name, place, values)
        was_fenced = self.is_fenced
        self._added[name, place[1]] = None
        # A partition that is not checked may be deleted.
        for _ in range(60 if log is not None else 6):
            leader = self.leaders.get(place)
            if leader is not None and leader.node_id >= 0:
                answer = await self.call(leader.node_id, ApiKey.PRODUCE, body, PRODUCE_VERSIONS[self.version])
                code = (
                    answer.responses[0].partition_responses[0].error_code
                    if answer is not None
                    else ErrorCode.REQUEST_TIMED_OUT
                )
                self.log(f"{values[0]!r} x{len(values)} to {name}-{place[1]}: {ErrorCode(code)!r}")
                if code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
                    code = 0
                if code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and log is not None:
                    raise Anomaly(
                        "lost-write",
                        f"{self.label}: {values[0]!r} of {log.name} is out of order, all before were acknowledged",
                    )
                if code not in RETRIABLE and code not in _BUSY:
                    self._take(code, was_fenced, "Produce")
                    self._sequences[place] = self._sequences.get(place, 0) + len(values)
                    return
            if self.world.chance(0.02):
                break
            await self.refreshed()
        # A request in flight may still arrive, and the next one in this epoch would be out of order.
        self._is_unsettled = True
        raise Spoilt

    def _new_value(self, place: Place, text: str) -> bytes:
        transaction = self.transaction
        assert transaction is not None
        self._numbers += 1
        value = f"{transaction.name}.{self._numbers}{text}".encode()
        if place in self.logs:
            self.logs[place].send(transaction, place, self._numbers, value)
        return value

    def _produce(self, name: str, place: Place, values: list[bytes]) -> dict[str, Any]:
        """The request for these values, with the next sequence of the partition."""
        batch = encode_batch(
            [Record(0, self.world.now_ms, None, value) for value in values],
            producer_id=self.producer_id, producer_epoch=self.epoch, base_sequence=self._sequences.get(place, 0),
            transactional=True,
        )  # fmt: skip
        rows = [{"index": place[1], "records": batch}]
        topic = {"name": name, "topic_id": place[0], "partition_data": rows}
        return {"transactional_id": self.name, "acks": -1, "timeout": 1500, "topic_data": [topic]}

    async def commit_offset(self, group_id: str, name: str, number: int, offset: int) -> None:
        """Commit a group's offset in the current transaction. Raises Fenced, Spoilt."""
        was_fenced = self.is_fenced
        if self.version == 1 and group_id not in self._added:
            body = self._who | {"group_id": group_id}
            answer, _is_sure = await self._insist(
                self._own, ApiKey.ADD_OFFSETS_TO_TXN, 3, body, lambda it: it.error_code, patience=25
            )
            if answer is None:
                raise Spoilt
            self._take(answer.error_code, was_fenced, "AddOffsetsToTxn")
        self._added[group_id] = None
        row = {
            "partition_index": number, "committed_offset": offset, "committed_leader_epoch": -1,
            "committed_metadata": self.transaction.name if self.transaction is not None else "",
        }  # fmt: skip
        body = self._who | {
            "group_id": group_id, "generation_id": -1, "member_id": "", "group_instance_id": None,
            "topics": [{"name": name, "partitions": [row]}],
        }  # fmt: skip

        def code_of(answer: Any) -> int:
            return int(answer.topics[0].partitions[0].error_code)

        answer, _is_sure = await self._insist(
            (_GROUP, group_id),
            ApiKey.TXN_OFFSET_COMMIT,
            _COMMIT_OFFSETS[self.version],
            body,
            code_of,
            patience=25,
        )
        if answer is None:
            raise Spoilt
        self._take(code_of(answer), was_fenced, "TxnOffsetCommit")

    async def end(self, *, commit: bool) -> None:
        """Raises Fenced."""
        transaction = self.transaction
        assert transaction is not None
        was_fenced = self.is_fenced
        # With v1 a client that has added nothing has nothing to end.
        if self._added:
            if commit:
                transaction.ask_to_commit()
            body = self._who | {"committed": commit}
            answer, is_sure = await self._insist(
                self._own, ApiKey.END_TXN, _END[self.version], body, lambda it: it.error_code
            )
            code = answer.error_code if answer is not None else ErrorCode.INVALID_PRODUCER_EPOCH
            if code:
                # With v2 a client whose transaction timed out is told that it ended differently.
                if is_sure or code in _SPOILT:
                    transaction.is_off(f"EndTxn was refused: {ErrorCode(code)!r}")
                if code not in _FENCED and not (code == ErrorCode.INVALID_TXN_STATE and commit):
                    raise Anomaly("refused", f"{self.label}: EndTxn ({commit=}) with {ErrorCode(code)!r}")
                raise Fenced
            assert answer is not None
            self.producers.succeeds(self.life, self.epoch, was_fenced, "EndTxn")
            transaction.ended(commit=commit)
            if self.version == 2:
                self._is(answer.producer_id, answer.producer_epoch)
        self.transaction = None
        if self._is_unsettled:
            await self.init(names_itself=True)
