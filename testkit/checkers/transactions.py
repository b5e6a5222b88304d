"""Checker of transactions: what producers did and were answered, what the logs contain, what consumers read.

The transaction of a producer has values, each sent to one partition. `Log` is fed with the committed batches
and markers of a partition, in order. So the outcome of every value is known as soon as it is decided, and
reads can be checked at any time.

    torn               records of one transaction are committed in one partition and aborted or missing in another
    unasked-commit     records are committed though the commit was not requested, was refused, or came after fencing
    lost-write         a commit was acknowledged, and its records are aborted or missing
    aborted-read       a read_committed consumer gets an aborted record
    uncommitted-read   … or a record of an open transaction
    poll-skip          … or misses a committed record; or a read_uncommitted consumer misses any record
    duplicate          a value has two offsets
    nonmonotonic-send  the values of one producer are in another order than they were sent
    zombie             a fenced producer gets a success
    hanging-txn        at rest, records of a transaction have no marker

Pure: fed by simulated or real clients.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeAlias

from testkit.checkers.partition import Anomaly

#: Topic id and partition number.
Place: TypeAlias = tuple[bytes, int]

#: Possible outcomes of a transaction, by what its producer knows.
_NEVER: Final = "never"  # The commit was not requested, or was refused, or the transaction was aborted: nothing may be visible.
_EITHER: Final = "either"  # The commit was requested.
_SURELY: Final = "surely"  # The commit was acknowledged.


class Transaction:
    """One transaction as its producer knows it."""

    __slots__ = ("epoch", "fate", "life", "name", "prospect", "values", "who")

    def __init__(self, who: Producers, life: int, epoch: int, name: str) -> None:
        self.who = who
        self.life = life
        #: The producer epoch at its start.
        self.epoch = epoch
        self.name = name
        #: Values of checked partitions, in the order of sending.
        self.values: dict[bytes, Place] = {}
        self.prospect = _NEVER
        #: The type of its first marker; None: no marker yet.
        self.fate: bool | None = None

    @property
    def may_count(self) -> bool:
        """Whether its commit was requested."""
        return self.prospect != _NEVER

    def ask_to_commit(self) -> None:
        if self.prospect == _NEVER and not self.who.is_fenced(self.life, self.epoch):
            self.prospect = _EITHER

    def ended(self, *, commit: bool) -> None:
        """Its end was acknowledged."""
        if commit:
            if self.fate is False:
                raise Anomaly("lost-write", f"{self.name}: its commit is acknowledged, and it was aborted")
            self.prospect = _SURELY
        else:
            self.is_off("its abort is acknowledged")

    def is_off(self, why: str) -> None:
        """It will never be committed."""
        if self.fate:
            raise Anomaly("unasked-commit", f"{self.name} was committed, but {why}")
        self.prospect = _NEVER

    def is_marked(self, name: str, *, commit: bool) -> None:
        """Some of its records are committed or aborted."""
        if self.fate is None:
            self.fate = commit
        if self.fate is not commit:
            raise Anomaly("torn", f"{self.name} is {_told(self.fate)}, but in {name} it is {_told(commit)}")
        if commit and self.prospect == _NEVER:
            raise Anomaly("unasked-commit", f"{self.name} is committed in {name}")
        if not commit and self.prospect == _SURELY:
            raise Anomaly("lost-write", f"{self.name} was committed, but in {name} it is aborted")


class Producers:
    """All producers of one transactional id, by number. Each came when the previous one was believed gone."""

    def __init__(self, transactional_id: str) -> None:
        self.transactional_id = transactional_id
        self.transactions: list[Transaction] = []
        #: The epochs that each got at its start.
        self._came: dict[int, int] = {}

    def is_fenced(self, life: int, epoch: int) -> bool:
        """Whether another producer got a later epoch."""
        return any(other != life and came > epoch for other, came in self._came.items())

    def comes(self, life: int, epoch: int) -> None:
        """InitProducerId was answered: no further transaction of earlier producers can be committed."""
        self._came[life] = max(epoch, self._came.get(life, -1))
        for each in self.transactions:
            if each.life != life and each.epoch < epoch and each.fate is None and each.prospect != _SURELY:
                each.prospect = _NEVER

    def begin(self, life: int, epoch: int, name: str) -> Transaction:
        transaction = Transaction(self, life, epoch, name)
        self.transactions.append(transaction)
        return transaction

    def succeeds(self, life: int, epoch: int, was_fenced: bool, what: str) -> None:
        """A producer got a success; `was_fenced`: whether it was fenced when it asked."""
        if was_fenced:
            raise Anomaly(
                "zombie", f"{self.transactional_id}: {what} of {life} in epoch {epoch}, fenced before"
            )


class Log:
    """One partition: its committed content, and the outcome of each record."""

    def __init__(self, name: str) -> None:
        self.name = name
        #: Value → (transaction, the producer's number of the value).
        self.sent: dict[bytes, tuple[Transaction, int]] = {}
        self.at: dict[int, bytes] = {}
        self.where: dict[bytes, int] = {}
        self.fates: dict[bytes, bool] = {}
        #: By producer id: records without a marker yet.
        self.open: dict[int, list[bytes]] = {}
        #: By incarnation of a producer: the number of its last value.
        self._latest: dict[tuple[str, int], int] = {}
        self.end = 0

    def send(self, transaction: Transaction, place: Place, number: int, value: bytes) -> None:
        transaction.values[value] = place
        self.sent[value] = transaction, number

    # --- what counts --------------------------------------------------------------------------------------------

    def data(self, producer_id: int, records: Iterable[tuple[int, bytes]], last_offset: int) -> None:
        for offset, value in records:
            sent = self.sent.get(value)
            if sent is None:
                raise Anomaly("resurrected", f"{self.name} offset {offset}: {value!r} was never sent there")
            if value in self.where:
                raise Anomaly(
                    "duplicate", f"{self.name}: {value!r} at {self.where[value]} and again at {offset}"
                )
            transaction, number = sent
            whose = (transaction.who.transactional_id, transaction.life)
            if number < self._latest.get(whose, -1):
                raise Anomaly(
                    "nonmonotonic-send",
                    f"{self.name} offset {offset}: {value!r} comes after the {self._latest[whose]}th",
                )
            self._latest[whose] = number
            self.at[offset] = value
            self.where[value] = offset
            self.open.setdefault(producer_id, []).append(value)
        self.end = last_offset + 1

    def marker(self, producer_id: int, offset: int, *, commit: bool) -> None:
        for value in self.open.pop(producer_id, ()):
            self.fates[value] = commit
            self.sent[value][0].is_marked(self.name, commit=commit)
        self.end = offset + 1

    # --- readers ------------------------------------------------------------------------------------------------

    def read(self, start: int, end: int, values: dict[int, bytes], *, committed: bool) -> None:
        """A consumer read from one offset to another and got these."""
        for offset, value in values.items():
            if self.at.get(offset) != value:
                raise Anomaly(
                    "inconsistent-offsets", f"{self.name} offset {offset}: {self.at.get(offset)!r} was read as {value!r}"
                )  # fmt: skip
            fate = self.fates.get(value)
            if committed and not fate:
                kind = "uncommitted-read" if fate is None else "aborted-read"
                raise Anomaly(kind, f"{self.name} offset {offset}: {value!r}")
        for offset in range(start, end):
            value = self.at.get(offset, b"")
            if value and offset not in values and (not committed or self.fates.get(value)):
                raise Anomaly(
                    "poll-skip", f"{self.name}: {start} to {end} was read without {value!r} at {offset}"
                )

    # --- at rest ------------------------------------------------------------------------------------------------

    def check_ended(self) -> None:
        for producer_id, values in self.open.items():
            raise Anomaly("hanging-txn", f"{self.name}: {values} of producer {producer_id} have no marker")

    @property
    def committed(self) -> list[tuple[int, bytes]]:
        return [(offset, value) for offset, value in self.at.items() if self.fates.get(value)]


def check_whole(transactions: Iterable[Transaction], logs: dict[Place, Log]) -> int:
    """At rest: every committed transaction is complete. Returns their number."""
    count = 0
    for each in transactions:
        if each.fate or each.prospect == _SURELY:
            count += 1
            for value, place in each.values.items():
                if place in logs and not logs[place].fates.get(value):
                    kind = "torn" if each.fate else "lost-write"
                    raise Anomaly(kind, f"{each.name} is committed without {value!r} in {logs[place].name}")
    return count


def _told(commit: bool) -> str:
    return "committed" if commit else "aborted"
