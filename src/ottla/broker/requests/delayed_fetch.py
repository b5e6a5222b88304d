"""Fetches that wait for data (Kafka's DelayedFetch).

A fetch waits if its partitions have fewer than `bytes_min` bytes. It needs no task: its partitions are watched, and it has a
place in the timer wheel. When one of the partitions moves, or at the deadline, the fetch goes into the line of woken fetches.
`wake` reads their partitions, a bounded number in each turn, and answers those that have enough bytes or are due.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeAlias

from ottla.model.steps import Steps

if TYPE_CHECKING:
    from ottla.broker.core import Broker
    from ottla.broker.requests.connection import Call
    from ottla.broker.requests.fetch_session import FetchSession, FetchSessionCache
    from ottla.broker.requests.partition_read import PartitionData

#: Reading this many partitions takes about as long as answering a fetch.
_READS_PER_WAKE: Final = 50
#: A woken fetch with more partitions to read than this reads them in slices.
_READS_AT_ONCE_MAX: Final = 2_000

#: Encodes and sends the response to a fetch.
Reply: TypeAlias = "Callable[[Broker, Call, FetchSession, list[PartitionData]], None]"


class DelayedFetches:
    def __init__(self, broker: Broker, sessions: FetchSessionCache, reply: Reply) -> None:
        self._broker = broker
        self._count = sessions.count
        self._reply = reply
        #: Woken fetches, in order. One that was abandoned since then stays until its turn, with `FetchSession.woken` unset.
        self.woken: deque[FetchSession] = deque()

    def wait(self, session: FetchSession, call: Call, deadline_ms: int) -> None:
        """Let a fetch wait until its partitions have `bytes_min`, or until this time."""
        session.call = call
        session.watch()
        call.abandon = session.abandon
        if not session.id:
            self._count(session)
        self._broker.timers.add(session, deadline_ms)

    def abandon(self, session: FetchSession) -> None:
        """End the wait of a fetch."""
        session.call = None
        session.woken = session.is_due = False
        self._broker.timers.cancel(session)
        if not session.id:
            self._count(session)
            session.unwatch()

    def wake(self, most: int, now_ms: int) -> bool:
        """Answer up to `most` woken fetches that have enough bytes, fewer if they read many partitions.

        True if some are left.
        """
        woken = self.woken
        while most > 0:
            if not woken:
                return False
            session = woken.popleft()
            most -= 1
            if session.woken and len(session.dirty) > _READS_AT_ONCE_MAX:
                self._read_in_slices(session)
            elif session.woken:
                session.woken = False
                most -= len(session.dirty) // _READS_PER_WAKE
                try:
                    rows, total, failed = session.collect()
                    if total >= session.bytes_min or failed or session.is_due:
                        self._finish(session, rows)
                except Exception as error:
                    self._broker.isolation.contain("the answer to a fetch", error, call=session.call)
        return bool(woken)

    def _read_in_slices(self, session: FetchSession) -> None:
        if session.is_reading:
            # It stays woken, and reads again afterwards.
            return
        session.woken = False
        session.is_reading = True

        def done(_result: None, error: Exception | None) -> None:
            session.is_reading = False
            if error is not None:
                self._broker.isolation.contain("the answer to a fetch", error, call=session.call)
            if session.woken:
                self.woken.append(session)

        self._broker.slices.begin(self._read(session, session.call), done)

    def _read(self, session: FetchSession, call: Call | None) -> Steps[None]:
        rows, total, failed = yield from session.collect_in_steps()
        if (
            call is not None
            and session.call is call
            and (total >= session.bytes_min or failed or session.is_due)
        ):
            self._finish(session, rows)

    def recheck(self, session: FetchSession, rows: list[PartitionData]) -> None:
        """Wake a fetch that waits after it read in slices, if a partition moved meanwhile: nobody woke it then."""
        for row in rows:
            replica = row.partition.replica
            # A follower waits for the log end, which its rows do not have: it reads again in any case.
            if replica is not None and (
                session.follower >= 0 or replica.high_watermark != row.high_watermark
            ):
                row.partition.moved()
                return

    def answer(self, session: FetchSession) -> None:
        """Answer a waiting fetch with the data there is."""
        rows, _total, _failed = session.collect()
        self._finish(session, rows)

    def _finish(self, session: FetchSession, rows: list[PartitionData]) -> None:
        call = session.call
        assert call is not None
        self.abandon(session)
        self._reply(self._broker, call, session, rows)
        session.clear()
