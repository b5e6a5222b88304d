"""The checker finds each anomaly of transactions in a history that has it, and none in one without."""

import pytest

from testkit.checkers.partition import Anomaly
from testkit.checkers.transactions import Log, Place, Producers, Transaction, check_whole

X: Place = (b"x", 0)
Y: Place = (b"x", 1)


class Story:
    """Two partitions, and a producer with id 7 and epoch 1."""

    def __init__(self) -> None:
        self.logs = {X: Log("x-0"), Y: Log("x-1")}
        self.who = Producers("tx")
        self.who.comes(1, 1)
        self.ends = {X: 0, Y: 0}
        self._number = 0

    def begin(self, *places: Place, life: int = 1, epoch: int = 1, name: str = "t") -> Transaction:
        """A transaction with a value in each."""
        transaction = self.who.begin(life, epoch, name)
        for place in places:
            self.write(transaction, place)
        return transaction

    def write(self, transaction: Transaction, place: Place, value: bytes = b"") -> None:
        self._number += 1
        value = value or b"%d" % self._number
        self.logs[place].send(transaction, place, self._number, value)
        self.append(place, value)

    def append(self, place: Place, value: bytes) -> None:
        at = self.ends[place]
        self.logs[place].data(7, [(at, value)], at)
        self.ends[place] += 1

    def mark(self, place: Place, *, commit: bool) -> None:
        self.logs[place].marker(7, self.ends[place], commit=commit)
        self.ends[place] += 1

    def check(self) -> int:
        for log in self.logs.values():
            log.check_ended()
        return check_whole(self.who.transactions, self.logs)


def test_a_history_that_is_well() -> None:
    story = Story()
    one = story.begin(X, Y)
    one.ask_to_commit()
    one.ended(commit=True)
    story.mark(X, commit=True)
    story.mark(Y, commit=True)
    two = story.begin(X)
    story.mark(X, commit=False)
    two.ended(commit=False)
    story.logs[X].read(0, 4, {0: b"1"}, committed=True)
    story.logs[X].read(0, 4, {0: b"1", 2: b"3"}, committed=False)
    assert story.check() == 1
    assert story.logs[X].committed == [(0, b"1")]


def test_torn_by_two_kinds_of_markers() -> None:
    story = Story()
    story.begin(X, Y).ask_to_commit()
    story.mark(X, commit=True)
    with pytest.raises(Anomaly, match="torn"):
        story.mark(Y, commit=False)


def test_torn_since_something_is_missing() -> None:
    story = Story()
    transaction = story.begin(X)
    story.logs[Y].send(transaction, Y, 9, b"never there")
    transaction.ask_to_commit()
    story.mark(X, commit=True)
    with pytest.raises(Anomaly, match="torn: t is committed without b'never there' in x-1"):
        story.check()


@pytest.mark.parametrize("is_asked", [True, False])
def test_a_commit_that_nobody_asked_for(is_asked: bool) -> None:
    story = Story()
    transaction = story.begin(X)
    if is_asked:
        # And then it was refused.
        transaction.ask_to_commit()
        transaction.is_off("EndTxn was refused")
    with pytest.raises(Anomaly, match="unasked-commit"):
        story.mark(X, commit=True)


def test_an_acknowledged_abort_that_was_a_commit() -> None:
    story = Story()
    transaction = story.begin(X)
    transaction.ask_to_commit()
    story.mark(X, commit=True)
    with pytest.raises(Anomaly, match="unasked-commit"):
        transaction.ended(commit=False)


def test_an_acknowledged_commit_that_becomes_an_abort() -> None:
    story = Story()
    transaction = story.begin(X)
    transaction.ask_to_commit()
    transaction.ended(commit=True)
    with pytest.raises(Anomaly, match="lost-write"):
        story.mark(X, commit=False)


def test_an_acknowledged_commit_that_was_an_abort() -> None:
    story = Story()
    transaction = story.begin(X)
    transaction.ask_to_commit()
    story.mark(X, commit=False)
    with pytest.raises(Anomaly, match="lost-write"):
        transaction.ended(commit=True)


def test_who_is_fenced_commits_nothing_more() -> None:
    story = Story()
    asked = story.begin(X)
    asked.ask_to_commit()
    story.who.comes(2, 2)
    assert story.who.is_fenced(1, 1) and not story.who.is_fenced(2, 2)
    with pytest.raises(Anomaly, match="unasked-commit"):
        story.mark(X, commit=True)
    late = story.begin(Y)
    late.ask_to_commit()
    with pytest.raises(Anomaly, match="unasked-commit"):
        story.mark(Y, commit=True)
    with pytest.raises(Anomaly, match="zombie"):
        story.who.succeeds(1, 1, True, "EndTxn")


def test_what_was_committed_before_the_fencing_stays() -> None:
    story = Story()
    story.begin(X, Y).ask_to_commit()
    story.mark(X, commit=True)
    story.who.comes(2, 2)
    story.mark(Y, commit=True)
    assert story.check() == 1


def test_reads_of_what_does_not_count() -> None:
    story = Story()
    story.begin(X)
    log = story.logs[X]
    with pytest.raises(Anomaly, match="uncommitted-read"):
        log.read(0, 1, {0: b"1"}, committed=True)
    story.mark(X, commit=False)
    with pytest.raises(Anomaly, match="aborted-read"):
        log.read(0, 1, {0: b"1"}, committed=True)
    log.read(0, 2, {}, committed=True)
    with pytest.raises(Anomaly, match="poll-skip"):
        log.read(0, 2, {}, committed=False)
    with pytest.raises(Anomaly, match="inconsistent-offsets"):
        log.read(0, 2, {0: b"2"}, committed=False)


def test_a_committed_record_that_is_left_out() -> None:
    story = Story()
    story.begin(X).ask_to_commit()
    story.mark(X, commit=True)
    with pytest.raises(Anomaly, match="poll-skip"):
        story.logs[X].read(0, 2, {}, committed=True)


def test_a_value_that_stands_twice() -> None:
    story = Story()
    story.begin(X)
    with pytest.raises(Anomaly, match="duplicate"):
        story.append(X, b"1")


def test_values_in_another_order() -> None:
    story = Story()
    transaction = story.begin()
    story.logs[X].send(transaction, X, 1, b"a")
    story.logs[X].send(transaction, X, 2, b"b")
    story.append(X, b"b")
    with pytest.raises(Anomaly, match="nonmonotonic-send"):
        story.append(X, b"a")


def test_a_value_of_nobody() -> None:
    with pytest.raises(Anomaly, match="resurrected"):
        Story().append(X, b"?")


def test_a_transaction_that_hangs() -> None:
    story = Story()
    story.begin(X)
    with pytest.raises(Anomaly, match="hanging-txn"):
        story.check()
