from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.client.errors import KafkaError, ProducerFenced, TransactionAbortable, TransactionMisused, refused
from ottla.client.metadata import TopicPartition
from ottla.client.producer.transaction_states import TRANSITIONS, State, TransactionStates
from ottla.model.errors import ErrorCode

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
FENCED = refused(ErrorCode.PRODUCER_FENCED, "committing")
GENERATION = refused(ErrorCode.ILLEGAL_GENERATION, "offsets")
BAD_RECORD = refused(ErrorCode.INVALID_RECORD, "producing")


def ready(*, implicit: bool = True) -> TransactionStates:
    states = TransactionStates("id")
    states.initialized((7, 0), implicit=implicit)
    return states


def ongoing(*, implicit: bool = True) -> TransactionStates:
    states = ready(implicit=implicit)
    states.begin()
    return states


def test_the_way_of_a_transaction() -> None:
    states = ready()
    assert states.refusal() is not None
    states.begin()
    assert states.refusal() is None
    states.commit()
    assert states.refusal() is not None
    states.ended((7, 1))
    assert (states.state, states.producer) == (State.READY, (7, 1))


def test_of_old_a_partition_waits_until_it_is_announced() -> None:
    states = ongoing(implicit=False)
    assert not states.admitted(A)
    assert not states.started
    assert states.pending == {A}
    states.added([A])
    assert states.admitted(A)
    assert not states.pending
    states.commit()
    states.ended(None)
    assert states.producer == (7, 0)
    states.begin()
    assert not states.admitted(A), "each transaction has its own"


def test_with_version_2_it_joins_with_its_first_batch() -> None:
    states = ongoing()
    assert not states.started
    assert states.admitted(A)
    assert states.started


def test_a_batch_that_failed_leaves_only_the_abort() -> None:
    states = ongoing()
    states.batch_failed(BAD_RECORD, numbered=True)
    assert states.gap
    refusal = states.refusal()
    assert refusal is not None
    assert isinstance(refusal(), TransactionAbortable)
    with pytest.raises(TransactionAbortable) as caught:
        states.commit()
    assert caught.value.__cause__ is BAD_RECORD
    states.abort()
    states.ended((7, 1))
    states.begin()
    assert not states.gap
    assert states.error is None


def test_a_batch_that_fails_while_it_is_committed_keeps_it_from_that() -> None:
    states = ongoing()
    states.commit()
    states.batch_failed(BAD_RECORD, numbered=False)
    with pytest.raises(TransactionAbortable):
        states.commit()


def test_whether_one_is_fenced_its_coordinator_says_and_not_a_partition() -> None:
    states = ongoing()
    states.batch_failed(refused(ErrorCode.INVALID_PRODUCER_EPOCH, "producing"), numbered=True)
    assert states.state is State.ABORTABLE
    states.abort()
    states.failed(FENCED)
    assert states.state is State.FATAL


def test_a_coordinator_that_refuses_an_abort_ends_the_producer() -> None:
    states = ongoing()
    states.abort()
    states.failed(GENERATION)
    assert states.state is State.ABORTING, "what was asked for before it does not matter any more"
    states.failed(refused(ErrorCode.TRANSACTION_ABORTABLE, "aborting"), ending=True)
    assert states.state is State.FATAL


@pytest.mark.parametrize("call", [TransactionStates.begin, TransactionStates.commit, TransactionStates.abort])
def test_one_that_is_fenced_refuses_all(call: Callable[[TransactionStates], None]) -> None:
    states = ongoing()
    states.failed(FENCED)
    with pytest.raises(ProducerFenced, match="cannot be used any more") as caught:
        call(states)
    assert caught.value.__cause__ is FENCED
    with pytest.raises(ProducerFenced):
        states.check_ongoing("send offsets")


def test_a_commit_is_asked_for_again_and_not_taken_back() -> None:
    states = ongoing()
    states.commit()
    states.commit()
    with pytest.raises(TransactionMisused, match=r"commit\(\) again"):
        states.abort()


CALLS: dict[str, Callable[[TransactionStates], object]] = {
    "begin": TransactionStates.begin,
    "commit": TransactionStates.commit,
    "abort": TransactionStates.abort,
    "ended": lambda states: (
        states.ended((7, 1)) if states.state in (State.COMMITTING, State.ABORTING) else None
    ),
    "admitted": lambda states: states.admitted(A),
    "batch failed": lambda states: states.batch_failed(BAD_RECORD, numbered=True),
    "batch fenced": lambda states: states.batch_failed(FENCED, numbered=True),
    "refused": lambda states: states.failed(GENERATION),
    "fenced": lambda states: states.failed(FENCED),
}


@given(st.lists(st.sampled_from(sorted(CALLS)), max_size=30))
def test_whatever_is_called_when_the_table_holds(names: list[str]) -> None:
    """Nothing but a KafkaError comes out, records get in while it is ongoing alone, and FATAL is for ever."""
    states = ready()
    for name in names:
        before = states.state
        try:
            CALLS[name](states)
        except KafkaError:
            assert states.state is before
        assert states.state is before or states.state in TRANSITIONS[before]
        assert (states.refusal() is None) == (states.state is State.ONGOING)
        if states.state in (State.ABORTABLE, State.FATAL):
            assert states.error is not None
