"""Who somebody is, by id and epoch; and which records may follow each other."""

import pytest

from ottla.transactions.formats import EPOCH_MAX, Entry, State
from ottla.transactions.transaction import PREPARED, TRANSITIONS, V1, V2, Event, ProducerMatch, Transaction

ENDS = (State.PREPARE_COMMIT, State.PREPARE_ABORT, State.COMPLETE_COMMIT, State.COMPLETE_ABORT)


def transaction(state: State, epoch: int = 5, version: int = V2, **more: int) -> Transaction:
    return Transaction("t", Entry(1, epoch, 9, state, 0, client_version=version, **more))  # type: ignore[arg-type]


@pytest.mark.parametrize("state", [State.EMPTY, State.ONGOING])
@pytest.mark.parametrize("version", [V1, V2])
def test_before_an_end_only_the_present_counts(state: State, version: int) -> None:
    known = transaction(state, version=version)
    assert known.match_producer(1, 5) is ProducerMatch.CURRENT
    assert known.match_producer(1, 4) is ProducerMatch.FENCED
    assert known.match_producer(1, 6) is ProducerMatch.FENCED
    assert known.match_producer(2, 5) is ProducerMatch.OTHER
    assert known.match_producer(-1, -1) is ProducerMatch.OTHER


@pytest.mark.parametrize("state", ENDS)
def test_an_old_client_keeps_its_epoch_at_the_end(state: State) -> None:
    known = transaction(state, version=V1)
    assert known.match_producer(1, 5) is ProducerMatch.CURRENT
    assert known.match_producer(1, 4) is ProducerMatch.FENCED
    assert known.match_producer(-1, -1) is ProducerMatch.OTHER


@pytest.mark.parametrize("state", ENDS)
def test_a_new_client_may_repeat_its_end_with_the_epoch_before(state: State) -> None:
    known = transaction(state)
    assert known.match_producer(1, 4) is ProducerMatch.PREVIOUS
    assert known.match_producer(1, 3) is ProducerMatch.FENCED
    assert known.match_producer(1, 5) is (ProducerMatch.NEXT if state in PREPARED else ProducerMatch.CURRENT)
    assert known.match_producer(2, 5) is ProducerMatch.OTHER


def test_while_the_id_changes_both_are_known() -> None:
    known = transaction(State.PREPARE_COMMIT, EPOCH_MAX, next_producer_id=8)
    assert known.match_producer(1, EPOCH_MAX - 1) is ProducerMatch.PREVIOUS
    assert known.match_producer(8, 0) is ProducerMatch.NEXT
    # Nobody is ever given the last epoch.
    assert known.match_producer(1, EPOCH_MAX) is ProducerMatch.FENCED
    assert known.match_producer(8, 1) is ProducerMatch.OTHER
    done = Transaction(
        "t",
        known.entry._replace(
            state=State.COMPLETE_COMMIT,
            producer_id=8,
            producer_epoch=0,
            previous_producer_id=1,
            next_producer_id=-1,
        ),
    )
    assert done.match_producer(1, EPOCH_MAX - 1) is ProducerMatch.PREVIOUS
    assert done.match_producer(8, 0) is ProducerMatch.CURRENT
    assert done.match_producer(1, 0) is ProducerMatch.OTHER


def test_an_empty_one_knows_who_asked_for_its_epoch() -> None:
    known = transaction(State.EMPTY, last_epoch=4)
    assert known.match_producer(1, 4) is ProducerMatch.PREVIOUS
    assert known.match_producer(1, 3) is ProducerMatch.FENCED


def test_what_is_not_in_the_table_cannot_be_written() -> None:
    for state in (*ENDS, State.EMPTY, State.ONGOING):
        for event in Event:
            if (state, event) in TRANSITIONS:
                entry = transaction(state).after(event, 77).entry
                assert entry is not None
                assert (entry.state, entry.updated_ms) == (TRANSITIONS[state, event], 77)
            else:
                with pytest.raises(KeyError):
                    transaction(state).after(event, 77)


def test_a_record_that_decides_is_never_undone() -> None:
    for decided in PREPARED:
        assert [event for state, event in TRANSITIONS if state is decided] == [Event.MARKED]
