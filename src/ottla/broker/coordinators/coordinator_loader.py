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
        self._timer = Later(self._load)

    def begin(self, tenure: CoordinatorPartition) -> None:
        self._waiting[tenure] = None
        self._go_on()

    def end(self, tenure: CoordinatorPartition) -> None:
        """The role is over."""
        self._waiting.pop(tenure, None)

    def prefer(self, tenure: CoordinatorPartition) -> None:
        """It is asked for. Most logs are short, and read at once."""
        if tenure.at < 0 and tenure.retry is None:
            self._load_slice(tenure)

    def load_now(self) -> None:
        """All are asked for: go on with those whose logs are short, before their turn comes."""
        budget = 4 * _SLICE_BYTES
        for tenure in list(self._waiting):
            if budget <= 0:
                break
            budget -= self._load_slice(tenure)

    # --- those who wait -----------------------------------------------------------------------------------------

    def wait(self, tenure: CoordinatorPartition, again: Callable[[], None]) -> bool:
        """Have `again` called when it has been loaded, or its role is over, or that takes long; False if it took long before."""
        if tenure.retry is not None:
            return False
        if tenure.patience is None:
            tenure.patience = Later(lambda: self.call_visitors(tenure))
            self._broker.timers.add(tenure.patience, self._broker.now_ms + _WAIT_MS)
        elif tenure.patience.bucket < 0:
            return False
        tenure.visitors.append(again)
        return True

    def call_visitors(self, tenure: CoordinatorPartition) -> None:
        if tenure.patience is not None and tenure.patience.bucket >= 0:
            self._broker.timers.cancel(tenure.patience)
        visitors, tenure.visitors = tenure.visitors, []
        for again in visitors:
            self._broker.isolation.run(f"a request that waited for {tenure.name}", again)

    # --- slices -------------------------------------------------------------------------------------------------

    def _go_on(self) -> None:
        if self._waiting and self._timer.bucket < 0:
            self._broker.timers.add(self._timer, self._broker.now_ms)

    def _load(self) -> None:
        """A slice of the log, or a few short logs."""
        budget = _SLICE_BYTES
        while self._waiting and budget > 0:
            budget -= self._load_slice(next(iter(self._waiting))) + _SLICE_BYTES // 8
        self._go_on()

    def _load_slice(self, tenure: CoordinatorPartition) -> int:
        """Replay the next piece of a log; how many bytes it had."""
        try:
            return self._replay_slice(tenure)
        except Exception as error:
            # This partition begins again; those behind it go on.
            self._broker.isolation.contain(f"loading {tenure.name}", error, reloads=False)
            self._reload(tenure, f"internal error: {error!r}")
            return _SLICE_BYTES

    def _resume(self, tenure: CoordinatorPartition, steps: Steps[None]) -> None:
        """The log was replayed. With few groups the rest is done at once, with very many in slices."""
        cost = 0
        for step in steps:
            cost += step if isinstance(step, int) else 1
            if cost > SLICE_COST:
                self._broker.slices.begin(self._go_on_with(tenure, steps), partial(self._resumed, tenure))
                return
        self._resumed(tenure, None, None)

    @staticmethod
    def _go_on_with(tenure: CoordinatorPartition, steps: Steps[None]) -> Steps[None]:
        yield 1
        for step in steps:
            if tenure.is_over:
                return
            yield step

    def _resumed(self, tenure: CoordinatorPartition, _result: None, error: Exception | None) -> None:
        if tenure.is_over:
            return
        if error is not None:
            self._broker.isolation.contain(f"loading {tenure.name}", error, reloads=False)
            self._reload(tenure, f"internal error: {error!r}")
            return
        tenure.loaded()
        self.call_visitors(tenure)

    def _replay_slice(self, tenure: CoordinatorPartition) -> int:
        replica = tenure.replica
        try:
            log = replica.log
            if tenure.at < 0:
                tenure.at, tenure.end = log.log_start_offset, log.next_offset
            piece = log.slice(tenure.at, tenure.end, _SLICE_BYTES, whole_first=True)
            data = (
                self._broker.disk.read(piece.file, piece.position, piece.size) if piece is not None else b""
            )
        except DiskError as error:
            self._broker.disk_failed(tenure.name, error)
            self._reload(tenure, str(error))
            return _SLICE_BYTES
        records: list[Record] = []
        # Compaction leaves batches without records: those at the end of a piece are passed over.
        passed = tenure.at
        try:
            for batch in whole_batches(data):
                header = HEADER.unpack_from(batch)
                attributes, producer_id = header[5], header[9]
                if not attributes & (CONTROL_BIT | TRANSACTIONAL_BIT):
                    records += decode_batch(batch)
                elif header[0] + header[6] >= tenure.at:
                    # What came before it is looked at before it.
                    tenure.replay(record for record in records if record.offset >= tenure.at)
                    records = []
                    if not attributes & CONTROL_BIT:
                        whole = decode_batch(batch)
                        tenure.replay_transactional(
                            producer_id, [each for each in whole if each.offset >= tenure.at]
                        )
                    elif (marker := decode_marker(bytes(batch))) is not None:
                        tenure.replay_marker(producer_id, marker.commit)
                passed = header[0] + header[6] + 1
        except CorruptRecords as error:
            self._reload(tenure, str(error))
            return _SLICE_BYTES
        if records and records[0].offset < tenure.at:
            # The first batch may begin before the offset that was asked for.
            records = [record for record in records if record.offset >= tenure.at]
        tenure.replay(records)
        if passed <= tenure.at or passed >= tenure.end:
            self._waiting.pop(tenure, None)
            self._resume(tenure, tenure.resume())
        else:
            tenure.at = passed
        return len(data)
