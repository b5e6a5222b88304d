"""The transaction requests of a producer, to its coordinator and to group coordinators. `transaction_states`
drives them.

Temporary errors are retried until `max_block_ms`: a coordinator that moves or loads, markers of the previous
transaction that are still being written, a dead broker. Then the error is raised and the state stays, so that
the call can be repeated. Runs on the client's event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from ottla.client.cluster import Cluster, backoff_ms
from ottla.client.connection import Body, BrokerConnection
from ottla.client.coordinators import MOVED, Kind, find_coordinator
from ottla.client.errors import KafkaError, RequestTimedOut, refused
from ottla.client.metadata import GroupMetadata, OffsetAndMetadata, TopicPartition
from ottla.client.producer.accumulator import Accumulator
from ottla.client.producer.batches import ProducerBatch, ProducerId
from ottla.client.producer.requests import CONCURRENT_BACKOFF_MS
from ottla.client.producer.settings import ProducerConfig
from ottla.client.producer.transaction_states import State, TransactionStates
from ottla.model.api_key import ApiKey
from ottla.model.errors import ErrorCode

ADD_PARTITIONS = 24
ADD_OFFSETS = 25
END = 26
COMMIT_OFFSETS = 28
#: The last versions of v1 transactions. Later ones belong to v2 (KIP-890) or to brokers.
ADD_PARTITIONS_CLIENTS_MAX, END_ANNOUNCED, COMMIT_OFFSETS_ANNOUNCED = 3, 4, 4
END_IMPLICIT_MIN = 5
FEATURE, IMPLICIT_LEVEL = "transaction.version", 2


class Transactions:
    def __init__(
        self, cluster: Cluster, settings: ProducerConfig, accumulator: Accumulator, transactional_id: str
    ) -> None:
        self.states = TransactionStates(transactional_id)
        self._id = transactional_id
        self._cluster = cluster
        self._settings = settings
        self._accumulator = accumulator
        self._coordinators: dict[tuple[Kind, str], BrokerConnection] = {}
        self._adding: asyncio.Task[None] | None = None
        self._one_at_a_time = asyncio.Lock()
        self._wake: Callable[[], None] = lambda: None
        self._flush: Callable[[], Awaitable[None]]
        accumulator.on_failed = self._batch_failed
        self._gate()

    def attach(self, wake: Callable[[], None], flush: Callable[[], Awaitable[None]]) -> None:
        self._wake, self._flush = wake, flush

    async def start(self) -> None:
        """Get the producer id. The open transaction of an older producer of the id is aborted, and that
        producer is fenced.
        """
        await self._initialize((-1, -1))
        self._gate()

    async def renew(self) -> None:
        async with self._one_at_a_time:
            self.states.check_between("ask for the producer id again")
            await self._initialize((-1, -1))

    async def close(self) -> None:
        if self._adding is not None:
            self._adding.cancel()
            await asyncio.gather(self._adding, return_exceptions=True)

    # What the application asks for

    async def begin(self) -> None:
        self.states.begin()
        self._gate()

    async def commit(self) -> None:
        async with self._one_at_a_time:
            again = self.states.state is State.COMMITTING
            self.states.commit()
            self._gate()
            try:
                await self._flush()
            except BaseException:
                if not again:
                    # A caller that gives up here can still abort: no EndTxn was sent.
                    self.states.commit_given_up()
                    self._gate()
                raise
            if self.states.state is not State.COMMITTING:
                # A batch failed: this raises the error for it.
                self.states.commit()
            await self._end(committed=True)

    async def abort(self) -> None:
        async with self._one_at_a_time:
            self.states.abort()
            self._gate()
            self.give_up_waiting()
            await self._flush()
            if self._adding is not None:
                # The coordinator may have started the transaction with the AddPartitionsToTxn in flight.
                await asyncio.wait([self._adding])
            if self.states.state is State.FATAL:
                self.states.abort()
            await self._end(committed=False)

    async def send_offsets(
        self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata], group: str | GroupMetadata
    ) -> None:
        async with self._one_at_a_time:
            states = self.states
            states.check_ongoing("send offsets")
            member = GroupMetadata(group, -1, "", None) if isinstance(group, str) else group
            if not offsets:
                return
            if states.implicit:
                states.started = True
            elif member.group_id not in states.groups:
                try:
                    await self._ask(
                        "transactional id", self._id, ADD_OFFSETS, {**self._signed(), "group_id": member.group_id},
                        lambda answer: [answer.error_code], f"adding the group {member.group_id!r} to the transaction",
                    )  # fmt: skip
                except BaseException:
                    states.perhaps_started()
                    raise
                states.groups.add(member.group_id)
                states.started = True
            await self._ask(
                "group", member.group_id, COMMIT_OFFSETS, {**self._signed(), **_offsets_body(offsets, member)},
                lambda answer: [part.error_code for topic in answer.topics for part in topic.partitions],
                f"offsets of the group {member.group_id!r} in the transaction",
                version_max=None if states.implicit else COMMIT_OFFSETS_ANNOUNCED,
            )  # fmt: skip

    @property
    def open(self) -> bool:
        """Whether a transaction is open that an abort would end."""
        return self.states.state in (State.ONGOING, State.ABORTABLE, State.ABORTING)

    # For the sender

    def add_partitions(self) -> None:
        """Add the pending partitions to the transaction (AddPartitionsToTxn)."""
        if (
            self._adding is None
            and self.states.pending
            and self.states.state in (State.ONGOING, State.COMMITTING)
        ):
            self._adding = asyncio.get_running_loop().create_task(self._add_partitions())

    def give_up_waiting(self) -> None:
        """Fail the buffered batches of a transaction that will not be committed."""
        states = self.states
        if states.state in (State.ABORTABLE, State.FATAL):
            assert states.error is not None
            self._accumulator.fail_waiting(states.error)
        elif states.state is State.ABORTING:
            self._accumulator.fail_waiting(
                KafkaError("the transaction was aborted before the record was sent")
            )

    def _batch_failed(self, batch: ProducerBatch, error: KafkaError) -> None:
        self.states.batch_failed(error, numbered=batch.sequence >= 0)
        self._gate()
        self.give_up_waiting()

    def _gate(self) -> None:
        self._accumulator.refuse(self.states.refusal())

    # Requests

    async def _add_partitions(self) -> None:
        tps = list(self.states.pending)
        topics: dict[str, list[int]] = {}
        for tp in tps:
            topics.setdefault(tp.topic, []).append(tp.partition)
        signed = {f"v3_and_below_{name}": value for name, value in self._signed().items()}
        body = {
            **signed,
            "v3_and_below_topics": [{"name": name, "partitions": parts} for name, parts in topics.items()],
        }
        try:
            await self._ask(
                "transactional id", self._id, ADD_PARTITIONS, body,
                lambda answer: [
                    part.partition_error_code
                    for topic in answer.results_by_topic_v3_and_below
                    for part in topic.results_by_partition
                ],
                f"adding {', '.join(map(str, tps[:3]))}{' …' if len(tps) > 3 else ''} to the transaction",
                version_max=ADD_PARTITIONS_CLIENTS_MAX,
            )  # fmt: skip
            self.states.added(tps)
            self.states.started = True
        except KafkaError as error:
            # If it was refused for good, the state has changed. Otherwise the batches wait until they expire.
            self.states.perhaps_started()
            self._accumulator.unreachable(tps, error)
            self.give_up_waiting()
        finally:
            self._adding = None
            self._wake()

    async def _end(self, *, committed: bool) -> None:
        states = self.states
        producer: ProducerId | None = None
        if states.started:
            answer = await self._ask(
                "transactional id", self._id, END, {**self._signed(), "committed": committed},
                lambda answer: [answer.error_code], "committing" if committed else "aborting",
                version_max=None if states.implicit else END_ANNOUNCED,
            )  # fmt: skip
            states.started = False
            if states.implicit:
                producer = (int(answer.producer_id), int(answer.producer_epoch))
        if states.gap and producer is None and states.producer is not None:
            await self._initialize(states.producer)
        states.ended(producer)
        self._gate()

    async def _initialize(self, producer: ProducerId) -> None:
        body = {
            "transactional_id": self._id,
            "transaction_timeout": self._settings.transaction_timeout_ms,
            "producer_id": producer[0],
            "producer_epoch": producer[1],
        }
        what = f"getting the producer id of {self._id!r}"
        answer = await self._ask(
            "transactional id",
            self._id,
            ApiKey.INIT_PRODUCER_ID,
            body,
            lambda answer: [answer.error_code],
            what,
        )
        connection = self._coordinators["transactional id", self._id]
        implicit = (
            connection.features.get(FEATURE, 0) >= IMPLICIT_LEVEL
            and connection.version_for(END) >= END_IMPLICIT_MIN
        )
        self.states.initialized((int(answer.producer_id), int(answer.producer_epoch)), implicit=implicit)

    def _signed(self) -> Body:
        assert self.states.producer is not None
        producer_id, epoch = self.states.producer
        return {"transactional_id": self._id, "producer_id": producer_id, "producer_epoch": epoch}

    async def _ask(
        self,
        kind: Kind,
        key: str,
        api_key: int,
        body: Body,
        codes: Callable[[Any], Iterable[int]],
        what: str,
        *,
        version_max: int | None = None,
    ) -> Any:
        """Send a request to a coordinator until it succeeds or fails for good. A final error changes the
        state and is raised.
        """
        deadline_s = asyncio.get_running_loop().time() + self._settings.max_block_ms / 1000
        attempt = 0
        while True:
            attempt += 1
            try:
                async with asyncio.timeout_at(deadline_s):
                    connection = await self._coordinator(kind, key)
                    answer = await connection.request(api_key, body, version_max=version_max)
            except TimeoutError:
                raise RequestTimedOut(
                    f"{what}: the coordinator did not answer within max_block_ms",
                    advice="Call again: the outcome is unknown",
                ) from None
            except KafkaError as failed:
                error = failed
                self._coordinators.pop((kind, key), None)
            else:
                code = next((int(code) for code in codes(answer) if code), 0)
                if not code:
                    return answer
                error = refused(code, what, broker=connection.address)
                if code in MOVED:
                    self._coordinators.pop((kind, key), None)
            if not error.retriable:
                self._refused(error, ending=api_key == END)
            wait_s = backoff_ms(self._settings, attempt) / 1000
            if error.code == ErrorCode.CONCURRENT_TRANSACTIONS:
                wait_s = min(wait_s, CONCURRENT_BACKOFF_MS / 1000)
            if asyncio.get_running_loop().time() + wait_s > deadline_s:
                raise error
            await asyncio.sleep(wait_s)

    def _refused(self, error: KafkaError, *, ending: bool) -> None:
        states = self.states
        states.failed(error, ending=ending)
        self._gate()
        if states.state in (State.ABORTABLE, State.FATAL):
            self.give_up_waiting()
            states.check_ongoing("go on")
        raise error

    async def _coordinator(self, kind: Kind, key: str) -> BrokerConnection:
        connection = self._coordinators.get((kind, key))
        if connection is None or not connection.open_now:
            _, connection = await find_coordinator(self._cluster, kind, key)
            self._coordinators[kind, key] = connection
        return connection


def _offsets_body(offsets: Mapping[TopicPartition, int | OffsetAndMetadata], group: GroupMetadata) -> Body:
    topics: dict[str, list[Body]] = {}
    for (topic, partition), given in offsets.items():
        at = OffsetAndMetadata(given) if isinstance(given, int) else given
        topics.setdefault(topic, []).append(
            {
                "partition_index": partition,
                "committed_offset": at.offset,
                "committed_leader_epoch": at.leader_epoch,
                "committed_metadata": at.metadata,
            }
        )
    return {
        "group_id": group.group_id,
        "generation_id": group.generation_id,
        "member_id": group.member_id,
        "group_instance_id": group.group_instance_id,
        "topics": [{"name": topic, "partitions": rows} for topic, rows in topics.items()],
    }
