"""Offsets that transactions commit: which of several counts, what is unstable, against a plain list of all that happened."""

import random

from ottla.groups.formats import Committed
from ottla.groups.offsets import Offsets

PLACE = ("t", 0)


def at(offset: int) -> Committed:
    return Committed(offset, -1, "", 0)


def counting(offsets: Offsets) -> int | None:
    found = offsets.get("g", *PLACE)
    return None if found is None else found.offset


def test_they_count_when_their_transaction_is_committed() -> None:
    offsets = Offsets()
    offsets.replay_pending(1, "g", PLACE, at(5))
    assert counting(offsets) is None and offsets.is_unstable("g", *PLACE)
    assert offsets.replay_end_marker(1, commit=True) == {"g"}
    assert counting(offsets) == 5 and not offsets.pending
    offsets.replay_pending(1, "g", PLACE, at(6))
    assert offsets.replay_end_marker(1, commit=False) == set()
    assert counting(offsets) == 5 and not offsets.is_unstable("g", *PLACE)
    assert offsets.replay_end_marker(1, commit=True) == set()


def test_the_later_of_two_counts_whichever_ends_first() -> None:
    offsets = Offsets()
    offsets.replay_pending(1, "g", PLACE, at(1))
    offsets.replay_pending(2, "g", PLACE, at(2))
    offsets.replay_end_marker(2, commit=True)
    assert counting(offsets) == 2 and offsets.is_unstable("g", *PLACE)
    offsets.replay_end_marker(1, commit=True)
    assert counting(offsets) == 2 and not offsets.is_unstable("g", *PLACE)


def test_a_plain_commit_in_between() -> None:
    offsets = Offsets()
    offsets.replay_pending(1, "g", PLACE, at(1))
    offsets.replay("g", *PLACE, at(9))
    offsets.replay_pending(2, "g", PLACE, at(2))
    offsets.replay_end_marker(1, commit=True)
    assert counting(offsets) == 9
    offsets.replay_end_marker(2, commit=True)
    assert counting(offsets) == 2


def test_what_is_forgotten_is_forgotten_in_transactions_too() -> None:
    """A group that is deleted, or one of its offsets, does not come back when a transaction from before is committed."""
    offsets = Offsets()
    other = ("u", 0)
    offsets.replay("g", *PLACE, at(1))
    offsets.replay_pending(1, "g", PLACE, at(2))
    offsets.replay_pending(2, "g", PLACE, at(3))
    offsets.replay_pending(2, "g", other, at(4))
    forgotten = offsets.tombstones("g")
    assert {record.key[2:] for record in forgotten} == {PLACE, other}
    for _kind, *where in (record.key for record in forgotten):
        offsets.replay(*where, None)
    assert not offsets.pending and not offsets.is_unstable("g", *PLACE)
    offsets.replay_pending(2, "g", other, at(5))
    assert offsets.replay_end_marker(1, commit=True) == set() and counting(offsets) is None
    assert offsets.replay_end_marker(2, commit=True) == {"g"}
    assert offsets.of("g") == {other: at(5)}
    assert not offsets.pending and not offsets._by_producer and not offsets._settled


def test_some_are_forgotten() -> None:
    offsets = Offsets()
    offsets.replay_pending(1, "g", PLACE, at(2))
    offsets.replay_pending(1, "h", ("u", 0), at(2))
    assert [record.key[1:] for record in offsets.tombstones("g", [PLACE, ("u", 1)])] == [("g", *PLACE)]
    assert [record.key[1:] for record in offsets.of_topics({"u"})] == [("h", "u", 0)]


def test_a_stray_of_a_topic_before_leaves_what_a_transaction_commits_for_the_present_one() -> None:
    offsets = Offsets()
    old, new = b"o" * 16, b"n" * 16
    offsets.replay("g", *PLACE, at(1)._replace(topic_id=old))
    assert len(offsets.strays(lambda _name: new)) == 1
    offsets.replay_pending(1, "g", PLACE, at(2)._replace(topic_id=new))
    assert offsets.strays(lambda _name: new) == []
    offsets.replay_end_marker(1, commit=True)
    assert counting(offsets) == 2


def test_what_counts_is_the_last_that_is_committed() -> None:
    """Random histories; a commit counts from the end of its transaction on, unless a later one does already."""
    for seed in range(300):
        chance = random.Random(seed)
        offsets = Offsets()
        #: (value, by which producer, whether it counts)
        written: list[tuple[int, int, bool | None]] = []
        for value in range(30):
            producer = chance.randint(0, 3)
            if producer == 0:
                written.append((value, 0, True))
                offsets.replay("g", *PLACE, at(value))
            elif chance.random() < 0.5:
                written.append((value, producer, None))
                offsets.replay_pending(producer, "g", PLACE, at(value))
            else:
                commit = chance.random() < 0.6
                written = [
                    (each, by, commit if by == producer and counts is None else counts)
                    for each, by, counts in written
                ]
                offsets.replay_end_marker(producer, commit)
            expected = [each for each, _by, counts in written if counts]
            assert counting(offsets) == (expected[-1] if expected else None)
            assert offsets.is_unstable("g", *PLACE) == any(counts is None for _each, _by, counts in written)
        for producer in (1, 2, 3):
            offsets.replay_end_marker(producer, commit=False)
        assert not offsets.pending and not offsets._by_producer and not offsets._settled
