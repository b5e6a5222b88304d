"""Reading a coordinator's partition when its role begins: from the start of the log to where it ended then, in slices between the
turns of others, several partitions one after another.

Whoever is asked for goes first. Requests that would rather wait than hear that a partition is being loaded are called when it
has been, or when that takes too long. Called by `coordinating.py`; what the records mean is the tenure's.
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

#: What of a log is replayed before others have their turn: some milliseconds.
_SLICE_BYTES: Final = 256 * 1024
#: How long a request waits for a load.
_WAIT_MS: Final = 5_000


class CoordinatorLoader:
    """`reload(tenure, reason)` is called if a log cannot be read."""

    def __init__(self, broker: CoordinatorHost, reload: Callable[[CoordinatorPartition, str], None]) -> None:
        self._broker = broker
        self._reload = reload
        #: Those whose logs are still to be replayed, in the order in which their roles began.
        self._waiting: dict[CoordinatorPartition, None] = {}
        self._timer = Later(self._load_turn)

    def load(self, partition: CoordinatorPartition) -> None:
        self._waiting[partition] = None
        self._schedule()

    def cancel(self, partition: CoordinatorPartition) -> None:
        """The role is over."""
        self._waiting.pop(partition, None)

    def load_first(self, partition: CoordinatorPartition) -> None:
        """It is asked for. Most logs are short, and read at once."""
        if partition.load_offset < 0 and partition.reload_timer is None:
            self._load_slice(partition)

    def load_now(self) -> None:
        """All are asked for: go on with those whose logs are short, before their turn comes."""
        budget = 4 * _SLICE_BYTES
        for partition in list(self._waiting):
            if budget <= 0:
                break
            budget -= self._load_slice(partition)

    # --- those who wait -----------------------------------------------------------------------------------------

    def wait(self, partition: CoordinatorPartition, again: Callable[[], None]) -> bool:
        """Have `again` called when it has been loaded, or its role is over, or that takes long; False if it took long before."""
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

    # --- slices -------------------------------------------------------------------------------------------------

    def _schedule(self) -> None:
        if self._waiting and self._timer.bucket < 0:
            self._broker.timers.add(self._timer, self._broker.now_ms)

    def _load_turn(self) -> None:
        """A slice of the log, or a few short logs."""
        budget = _SLICE_BYTES
        while self._waiting and budget > 0:
            budget -= self._load_slice(next(iter(self._waiting))) + _SLICE_BYTES // 8
        self._schedule()

    def _load_slice(self, partition: CoordinatorPartition) -> int:
        """Replay the next piece of a log; how many bytes it had."""
        try:
            return self._replay_slice(partition)
        except Exception as error:
            # This partition begins again; those behind it go on.
            self._broker.isolation.contain(f"loading {partition.name}", error, reloads=False)
            self._reload(partition, f"internal error: {error!r}")
            return _SLICE_BYTES

    def _finish(self, partition: CoordinatorPartition, steps: Steps[None]) -> None:
        """The log was replayed. With few groups the rest is done at once, with very many in slices."""
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
        # Compaction leaves batches without records: those at the end of a piece are passed over.
        passed = partition.load_offset
        try:
            for batch in whole_batches(data):
                header = HEADER.unpack_from(batch)
                attributes, producer_id = header[5], header[9]
                if not attributes & (CONTROL_BIT | TRANSACTIONAL_BIT):
                    records += decode_batch(batch)
                elif header[0] + header[6] >= partition.load_offset:
                    # What came before it is looked at before it.
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
            # The first batch may begin before the offset that was asked for.
            records = [record for record in records if record.offset >= partition.load_offset]
        partition.replay(records)
        if passed <= partition.load_offset or passed >= partition.load_end_offset:
            self._waiting.pop(partition, None)
            self._finish(partition, partition.finish_load())
        else:
            partition.load_offset = passed
        return len(data)
