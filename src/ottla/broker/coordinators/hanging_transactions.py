"""Finds hanging transactions: open in a partition here, while no coordinator will ever end them (KIP-664).

An administrator may abort a hanging transaction with WriteTxnMarkers. The broker checks the claim first: it
asks every transaction coordinator, with ListTransactions and DescribeTransactions. If one coordinator cannot
be reached or does not answer in time, the result is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ottla.broker.coordinators.transaction_coordinator import TRANSACTIONS_TOPIC
from ottla.model.api_key import ApiKey
from ottla.model.errors import ErrorCode
from ottla.model.limits import HANGING_CHECKS_MAX
from ottla.model.timer_wheel import Later

if TYPE_CHECKING:
    from ottla.broker.coordinators.host import HangingTransactionsHost
    from ottla.metadata.records import Partition
    from ottla.transactions.formats import Place

#: The lane of ASK: only administrators wait for it.
_LANE: Final = -5
_ANSWER_MS: Final = 2_000
#: States in which some partition has no marker yet.
_OPEN: Final = ("Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence")

#: By producer id: the partitions whose transaction a coordinator will end; None if unknown.
Coordinated: TypeAlias = Mapping[int, Collection["Place"]] | None


class HangingTransactions:
    def __init__(self, broker: HangingTransactionsHost) -> None:
        self._broker = broker
        self._under_way = 0

    def ask(self, producer_ids: Collection[int], done: Callable[[Coordinated], None]) -> None:
        """Ask all coordinators for the open transactions of these producers. Calls `done` once, now or
        later."""
        partitions = self._partitions()
        if partitions is None:
            return done({})
        leaders = {each.leader for each in partitions}
        if self._under_way >= HANGING_CHECKS_MAX or not all(map(self._broker.image.is_live, leaders)):
            return done(None)
        self._under_way += 1
        _Check(self._broker, sorted(leaders), sorted(producer_ids), self._finished(partitions, done)).begin()
        return None

    def _partitions(self) -> tuple[Partition, ...] | None:
        topic = self._broker.image.topics.get(TRANSACTIONS_TOPIC)
        return None if topic is None else tuple(topic.partitions)

    def _finished(
        self, before: tuple[Partition, ...], done: Callable[[Coordinated], None]
    ) -> Callable[[Coordinated], None]:
        def finished(found: Coordinated) -> None:
            self._under_way -= 1
            now = self._partitions()
            # A coordinator that was elected meanwhile was not asked.
            same = now is not None and [(each.leader, each.leader_epoch) for each in now] == [
                (each.leader, each.leader_epoch) for each in before
            ]
            done(found if same else None)

        return finished


class _Check:
    """One round of requests to all coordinators."""

    def __init__(
        self,
        broker: HangingTransactionsHost,
        nodes: list[int],
        producer_ids: list[int],
        done: Callable[[Coordinated], None],
    ) -> None:
        self._broker = broker
        self._nodes = nodes
        self._producer_ids = producer_ids
        self._done: Callable[[Coordinated], None] | None = done
        self._left = len(nodes)
        self._found: dict[int, set[Place]] = {}
        self._limit = Later(self._fail)

    def begin(self) -> None:
        self._broker.timers.add(self._limit, self._broker.now_ms + _ANSWER_MS)
        request = {"state_filters": [], "producer_id_filters": self._producer_ids}
        for node_id in self._nodes:

            def listed(answer: Any, _error: str | None, node_id: int = node_id) -> None:
                self._listed(node_id, answer)

            self._broker.controller_channel.ask_broker(
                node_id, _LANE, ApiKey.LIST_TRANSACTIONS, 0, request, listed
            )

    def _listed(self, node_id: int, answer: Any) -> None:
        if answer is None or answer.error_code:
            return self._fail()
        names = [row.transactional_id for row in answer.transaction_states if row.transaction_state in _OPEN]
        if not names:
            return self._answered()
        request = {"transactional_ids": names}
        self._broker.controller_channel.ask_broker(
            node_id,
            _LANE,
            ApiKey.DESCRIBE_TRANSACTIONS,
            0,
            request,
            lambda answer, _error: self._described(answer),
        )
        return None

    def _described(self, answer: Any) -> None:
        if answer is None:
            return self._fail()
        for row in answer.transaction_states:
            if row.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                continue
            if row.error_code:
                return self._fail()
            places = self._found.setdefault(int(row.producer_id), set())
            places.update((topic.topic, number) for topic in row.topics for number in topic.partitions)
        return self._answered()

    def _answered(self) -> None:
        self._left -= 1
        if not self._left:
            self._end(self._found)

    def _fail(self) -> None:
        self._end(None)

    def _end(self, found: Coordinated) -> None:
        done, self._done = self._done, None
        if done is not None:
            self._broker.timers.cancel(self._limit)
            done(found)
