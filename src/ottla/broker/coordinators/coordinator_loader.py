"""Loads coordinator partitions: replays a log from its start to the end it had at the election.

A log is read in slices between other work, one partition after another. A partition with a waiting request
goes first. A request can wait for the load instead of getting COORDINATOR_LOAD_IN_PROGRESS. It is retried
when the load is done or the wait times out. Called by `coordinator.py`; `coordinator_partition.py` interprets
the records.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from ottla.log.markers import decode_marker
from ottla.model.steps import SLICE_COST, Steps
from ottla.model.timer_wheel import Later
from ottla.ports.disk import DiskError
from ottla.records.batch import CONTROL_BIT, HEADER, TRANSACTIONAL_BIT
from ottla.records.record import CorruptRecords, Record, decode_batch, whole_batches

if TYPE_CHECKING:
    from ottla.broker.coordinators.coordinator_partition import CoordinatorPartition
    from ottla.broker.coordinators.host import CoordinatorHost

#: Bytes of log replayed in one slice: some milliseconds.
_SLICE_BYTES: Final = 256 * 1024
#: How long a request waits for a load.
_WAIT_MS: Final = 5_000


class CoordinatorLoader:
    """Calls `reload(partition, reason)` if a log cannot be read."""

    def __init__(self, broker: CoordinatorHost, reload: Callable[[CoordinatorPartition, str], None]) -> None:
        self._broker = broker
        self._reload = reload
        #: Partitions that are not loaded yet, in order of election.
        self._waiting: dict[CoordinatorPartition, None] = {}
        self._timer = Later(self._load_turn)

    def load(self, partition: CoordinatorPartition) -> None:
        self._waiting[partition] = None
        self._schedule()

    def cancel(self, partition: CoordinatorPartition) -> None:
        """Stop loading: this broker no longer leads the partition."""
        self._waiting.pop(partition, None)

    def load_first(self, partition: CoordinatorPartition) -> None:
        """Load the first slice now, for a request. That is all of most logs."""
        if partition.load_offset < 0 and partition.reload_timer is None:
            self._load_slice(partition)

    def load_now(self) -> None:
        """Load a slice of each partition out of turn, up to a limit."""
        budget = 4 * _SLICE_BYTES
        for partition in list(self._waiting):
            if budget <= 0:
                break
            budget -= self._load_slice(partition)

    # --- waiting requests -----------------------------------------------------------------------------------

    def wait(self, partition: CoordinatorPartition, again: Callable[[], None]) -> bool:
        """Call `again` when the load is done or cancelled, or after a timeout; False if a wait timed out
        before."""
        if partition.reload_timer is not None:
            return False
        if partition.wait_timer is None:
            partition.wait_timer = Later(lambda: self.retry_waiting_requests(partition))
            self._broker.timers.add(partition.wait_timer, self._broker.now_ms + _WAIT_MS)
        elif partition.wait_timer.bucket < 0:
            return False
        partition.waiting_requests.append(again)
        return True

    def retry_waiting_requests(self, partition: CoordinatorPartition) -> None:
        if partition.wait_timer is not None and partition.wait_timer.bucket >= 0:
            self._broker.timers.cancel(partition.wait_timer)
        waiting_requests, partition.waiting_requests = partition.waiting_requests, []
        for again in waiting_requests:
            self._broker.isolation.run(f"a request that waited for {partition.name}", again)

    # --- slices ---------------------------------------------------------------------------------------------

    def _schedule(self) -> None:
        if self._waiting and self._timer.bucket < 0:
            self._broker.timers.add(self._timer, self._broker.now_ms)

    def _load_turn(self) -> None:
        """Load a slice of one log, or a few short logs."""
        budget = _SLICE_BYTES
        while self._waiting and budget > 0:
            budget -= self._load_slice(next(iter(self._waiting))) + _SLICE_BYTES // 8
        self._schedule()

    def _load_slice(self, partition: CoordinatorPartition) -> int:
        """Replay the next slice of a log; returns its bytes."""
        try:
            return self._replay_slice(partition)
        except Exception as error:
            # This partition reloads; the others go on.
            self._broker.isolation.contain(f"loading {partition.name}", error, reloads=False)
            self._reload(partition, f"internal error: {error!r}")
            return _SLICE_BYTES

    def _finish(self, partition: CoordinatorPartition, steps: Steps[None]) -> None:
        """Finish a load: at once with few groups, in slices with very many."""
        cost = 0
        for step in steps:
            cost += step if isinstance(step, int) else 1
            if cost > SLICE_COST:
                self._broker.slices.begin(
                    self._finish_steps(partition, steps), partial(self._on_finished, partition)
                )
                return
        self._on_finished(partition, None, None)

    @staticmethod
    def _finish_steps(partition: CoordinatorPartition, steps: Steps[None]) -> Steps[None]:
        yield 1
        for step in steps:
            if partition.is_over:
                return
            yield step

    def _on_finished(self, partition: CoordinatorPartition, _result: None, error: Exception | None) -> None:
        if partition.is_over:
            return
        if error is not None:
            self._broker.isolation.contain(f"loading {partition.name}", error, reloads=False)
            self._reload(partition, f"internal error: {error!r}")
            return
        partition.on_loaded()
        self.retry_waiting_requests(partition)

    def _replay_slice(self, partition: CoordinatorPartition) -> int:
        replica = partition.replica
        try:
            log = replica.log
            if partition.load_offset < 0:
                partition.load_offset, partition.load_end_offset = log.log_start_offset, log.next_offset
            piece = log.slice(
                partition.load_offset, partition.load_end_offset, _SLICE_BYTES, whole_first=True
            )
            data = (
                self._broker.disk.read(piece.file, piece.position, piece.size) if piece is not None else b""
            )
        except DiskError as error:
            self._broker.disk_failed(partition.name, error)
            self._reload(partition, str(error))
            return _SLICE_BYTES
        records: list[Record] = []
        # Compaction leaves batches without records; `passed` also skips those at the end of a slice.
        passed = partition.load_offset
        try:
            for batch in whole_batches(data):
                header = HEADER.unpack_from(batch)
                attributes, producer_id = header[5], header[9]
                if not attributes & (CONTROL_BIT | TRANSACTIONAL_BIT):
                    records += decode_batch(batch)
                elif header[0] + header[6] >= partition.load_offset:
                    # Records before a transactional batch or a marker are replayed first.
                    partition.replay(record for record in records if record.offset >= partition.load_offset)
                    records = []
                    if not attributes & CONTROL_BIT:
                        whole = decode_batch(batch)
                        partition.replay_transactional(
                            producer_id, [each for each in whole if each.offset >= partition.load_offset]
                        )
                    elif (marker := decode_marker(bytes(batch))) is not None:
                        partition.replay_marker(producer_id, marker.commit)
                passed = header[0] + header[6] + 1
        except CorruptRecords as error:
            self._reload(partition, str(error))
            return _SLICE_BYTES
        if records and records[0].offset < partition.load_offset:
            # The first batch may begin before the requested offset.
            records = [record for record in records if record.offset >= partition.load_offset]
        partition.replay(records)
        if passed <= partition.load_offset or passed >= partition.load_end_offset:
            self._waiting.pop(partition, None)
            self._finish(partition, partition.finish_load())
        else:
            partition.load_offset = passed
        return len(data)
