"""What transactions promised, and whether that is kept: what producers did and were told, what the logs say,
what readers were given.

A producer's transaction has values, each sent to one partition. `Log` is fed with what counts of a partition,
in its order: batches of values, and the markers that decide over them. So what became of every value is known
as soon as it is certain, and readers can be held to it at any time.

    torn               the records of one transaction are committed in one place and aborted in another, or missing
    unasked-commit     records count of a transaction whose commit was never asked for, was refused, or came after its fencing
    lost-write         a commit was acknowledged, and its records are aborted or gone
    aborted-read       a reader of committed records is given one that was aborted
    uncommitted-read   … or one of a transaction that has not ended
    poll-skip          … or is not given one that was committed, or anything that counts if it reads all
    duplicate          a value stands at two offsets
    nonmonotonic-send  the values of one producer stand in another order than they were sent
    zombie             who was fenced is told of a success
    hanging-txn        at rest, records of a transaction have no marker

Pure: fed by clients, simulated or real.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeAlias

from testkit.checkers.partition import Anomaly

#: A topic's id and the partition's number.
Place: TypeAlias = tuple[bytes, int]

#: What may become of a transaction, by what its producer knows.
_NEVER: Final = (
    "never"  # Its commit was not asked for, or refused, or it was aborted: nobody may see anything of it.
)
_EITHER: Final = "either"  # Its commit was asked for.
_SURELY: Final = "surely"  # Its commit was acknowledged.


class Transaction:
    """One transaction as its producer knows it."""

    __slots__ = ("epoch", "fate", "life", "name", "prospect", "values", "who")

    def __init__(self, who: Producers, life: int, epoch: int, name: str) -> None:
        self.who = who
        self.life = life
        #: Its producer's epoch when it began.
        self.epoch = epoch
        self.name = name
        #: Values of partitions that are looked at, in the order in which they were sent.
        self.values: dict[bytes, Place] = {}
        self.prospect = _NEVER
        #: What the first marker said; None while there is none.
        self.fate: bool | None = None

    @property
    def may_count(self) -> bool:
        """Whether its commit was asked for."""
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
        """Records of it are committed or aborted somewhere."""
        if self.fate is None:
            self.fate = commit
        if self.fate is not commit:
            raise Anomaly("torn", f"{self.name} is {_told(self.fate)}, but in {name} it is {_told(commit)}")
        if commit and self.prospect == _NEVER:
            raise Anomaly("unasked-commit", f"{self.name} is committed in {name}")
        if not commit and self.prospect == _SURELY:
            raise Anomaly("lost-write", f"{self.name} was committed, but in {name} it is aborted")


class Producers:
    """All who ever had a transactional id, by number; each came when the one before was thought to be gone."""

    def __init__(self, transactional_id: str) -> None:
        self.transactional_id = transactional_id
        self.transactions: list[Transaction] = []
        #: The epochs that each was given when it came.
        self._came: dict[int, int] = {}

    def is_fenced(self, life: int, epoch: int) -> bool:
        """Whether somebody else has been given a later epoch."""
        return any(other != life and came > epoch for other, came in self._came.items())

    def comes(self, life: int, epoch: int) -> None:
        """InitProducerId was answered: nothing of those before can be committed from now on but what has
        been.
        """
        self._came[life] = max(epoch, self._came.get(life, -1))
        for each in self.transactions:
            if each.life != life and each.epoch < epoch and each.fate is None and each.prospect != _SURELY:
                each.prospect = _NEVER

    def begin(self, life: int, epoch: int, name: str) -> Transaction:
        transaction = Transaction(self, life, epoch, name)
        self.transactions.append(transaction)
        return transaction

    def succeeds(self, life: int, epoch: int, was_fenced: bool, what: str) -> None:
        """Somebody is told of a success; `was_fenced`: when it asked for it."""
        if was_fenced:
            raise Anomaly(
                "zombie", f"{self.transactional_id}: {what} of {life} in epoch {epoch}, fenced before"
            )


class Log:
    """One partition: what counts of it, and what became of that."""

    def __init__(self, name: str) -> None:
        self.name = name
        #: Whose values they are: (transaction, its producer's number of the value).
        self.sent: dict[bytes, tuple[Transaction, int]] = {}
        self.at: dict[int, bytes] = {}
        self.where: dict[bytes, int] = {}
        self.fates: dict[bytes, bool] = {}
        #: By producer id: what awaits its marker.
        self.open: dict[int, list[bytes]] = {}
        #: By producer's life: its last value's number.
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
        """A reader went from one offset to another and was given these."""
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
    """At rest: what is committed is so as a whole. How many are."""
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
