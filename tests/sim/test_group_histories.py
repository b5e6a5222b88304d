"""The checkers of groups can fail: each anomaly has a history that triggers it, and a similar one that does
not.
"""

import pytest

from ottla.groups.formats import CONSUMER_GROUP_METADATA, CURRENT_ASSIGNMENT, GROUP_METADATA, Record, encode
from ottla.records.record import Record as LogRecord
from ottla.records.record import encode_batch
from testkit.checkers.offsets import OffsetHistory
from testkit.checkers.ownership import Ownership
from testkit.checkers.partition import Anomaly
from testkit.sim.consumer_member import ConsumerMember
from testkit.sim.group_invariants import GroupInvariants, check_same, picture, replayed
from testkit.sim.group_member import (
    Subscription,
    cooperative,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
    range_like,
)

P, Q = (b"t" * 16, 0), (b"t" * 16, 1)


def committed(history: OffsetHistory, text: str, offset: int = 0) -> None:
    history.counts(history.commit(text, offset))


def saw(history: OffsetHistory, text: str | None, offset: int = 0) -> None:
    history.saw(history.ask(), text, offset)


# --- offsets --------------------------------------------------------------------------------------------------------


def test_what_was_acknowledged_is_seen_until_something_later_is() -> None:
    history = OffsetHistory("g")
    saw(history, None)
    committed(history, "a", 5)
    saw(history, "a", 5)
    with pytest.raises(Anomaly, match="offset-regression: g: nothing is committed, yet 5 of 'a' was"):
        saw(history, None)
    committed(history, "b", 3)
    with pytest.raises(Anomaly, match="offset-regression: g: 5 of 'a' is seen after 3 of 'b'"):
        saw(history, "a", 5)


def test_a_read_under_way_may_see_what_was_there_when_it_began() -> None:
    history = OffsetHistory("g")
    committed(history, "a")
    asked = history.ask()
    committed(history, "b")
    history.saw(asked, "a", 0)
    history.saw(asked, "b", 0)


def test_a_commit_without_an_answer_counts_once_it_is_seen() -> None:
    history = OffsetHistory("g")
    committed(history, "a")
    history.commit("b", 0)
    saw(history, "a")
    saw(history, "b")
    with pytest.raises(Anomaly, match="offset-regression"):
        saw(history, "a")
    # Until then it may take effect at any time, even after a later one.
    history.commit("c", 0)
    committed(history, "d")
    saw(history, "c")


def test_what_was_refused_or_never_committed_is_not_seen() -> None:
    history = OffsetHistory("g")
    history.is_refused(history.commit("a", 0))
    with pytest.raises(Anomaly, match="aborted-read"):
        saw(history, "a")
    with pytest.raises(Anomaly, match="foreign-offset"):
        saw(history, "b")
    write = history.commit("c", 0)
    saw(history, "c")
    with pytest.raises(Anomaly, match="aborted-read"):
        history.is_refused(write)


def test_what_is_forgotten_stays_forgotten() -> None:
    history = OffsetHistory("g")
    committed(history, "a")
    history.remove()
    saw(history, "a")
    saw(history, None)
    with pytest.raises(Anomaly, match="offset-regression"):
        saw(history, "a")


# --- owners ---------------------------------------------------------------------------------------------------------


def test_a_partition_is_not_given_to_another_while_somebody_has_it() -> None:
    owners = Ownership("g")
    owners.take("a", "a1", [P, Q], 0, 100)
    with pytest.raises(Anomaly, match="two-owners"):
        owners.take("b", "b1", [P], 99, 200)
    owners.release("a", [P])
    owners.take("b", "b1", [P], 99, 200)
    # Its session is over, and a response that arrives now does not change that.
    owners.heard("a", 100, 300)
    owners.take("b", "b1", [Q], 101, 200)


def test_whoever_was_heard_of_in_time_has_what_it_had() -> None:
    owners = Ownership("g")
    owners.take("a", "a1", [P], 0, 100)
    owners.heard("a", 50, 150)
    with pytest.raises(Anomaly, match="two-owners"):
        owners.take("b", "b1", [P], 120, 200)
    with pytest.raises(Anomaly, match="member-lost"):
        owners.is_out("a", 120, "UNKNOWN_MEMBER_ID")
    owners.is_out("a", 150, "UNKNOWN_MEMBER_ID")


def test_in_a_generation_a_partition_has_one_owner() -> None:
    owners = Ownership("g")
    owners.synced("a", -1, 1, [("t", 0)])
    owners.synced("b", 1, 1, [("t", 1)])
    with pytest.raises(Anomaly, match="two-owners"):
        owners.synced("b", 1, 1, [("t", 0)])
    owners.synced("b", 1, 2, [("t", 0)])
    with pytest.raises(Anomaly, match="generation-regression"):
        owners.synced("a", 2, 1, [("t", 0)])


def test_nobody_commits_whose_time_was_over_when_it_began() -> None:
    owners = Ownership("g")
    owners.synced("a", -1, 1, [("t", 0)])
    owners.take("a", "a1", [P], 0, 100)
    in_time = owners.commit("a", "a1", 1, [P])
    owners.synced("b", 1, 2, [("t", 0)])
    owners.take("b", "b1", [P], 100, 200)
    owners.counts(in_time)
    with pytest.raises(Anomaly, match=r"zombie-commit.*after 2 had begun"):
        owners.counts(owners.commit("a", "a1", 1, [P]))
    with pytest.raises(Anomaly, match=r"zombie-commit.*which b1 has"):
        owners.counts(owners.commit("a", "a1", 2, [P]))
    owners.unsure([P])
    owners.counts(owners.commit("a", "a1", 2, [P]))


# --- the log --------------------------------------------------------------------------------------------------------


def batch(*records: Record) -> bytes:
    rows = [LogRecord(0, 0, *encode(record)) for record in records]
    return bytes(encode_batch(rows))


def generation(number: int) -> Record:
    value = {
        "protocol_type": "consumer", "generation": number, "protocol": None, "leader": None,
        "current_state_timestamp": 0, "members": [],
    }  # fmt: skip
    return Record((GROUP_METADATA, "g"), value)


def held(member_id: str, epoch: int, *numbers: int) -> Record:
    value = {
        "member_epoch": epoch, "previous_member_epoch": 0, "state": 0, "partitions_pending_revocation": [],
        "assigned_partitions": [{"topic_id": P[0], "partitions": list(numbers)}],
    }  # fmt: skip
    return Record((CURRENT_ASSIGNMENT, "k", member_id), value)


def test_the_log_lets_nothing_go_back() -> None:
    invariants = GroupInvariants()
    invariants.committed(0, 1, batch(generation(3), generation(4)))
    with pytest.raises(Anomaly, match="epoch-regression: g: the generation goes from 4 to 3"):
        invariants.committed(0, 2, batch(generation(3)))
    # A deleted group starts again.
    invariants.committed(0, 3, batch(Record((GROUP_METADATA, "g"), None), generation(1)))
    first = Record((CONSUMER_GROUP_METADATA, "k"), {"epoch": 1, "metadata_hash": 0})
    invariants.committed(0, 5, batch(first, held("a", 5, 0)))
    with pytest.raises(Anomaly, match="epoch-regression: k: a goes from 5 to 4"):
        invariants.committed(0, 6, batch(held("a", 4, 0)))


def test_the_log_lets_no_two_hold_a_partition() -> None:
    invariants = GroupInvariants()
    invariants.committed(0, 0, batch(held("a", 1, 0, 1)))
    # Within a batch this is allowed.
    invariants.committed(0, 2, batch(held("b", 1, 1), held("a", 2, 0)))
    with pytest.raises(Anomaly, match="two-owners: k: 7474-1 is held by a and b"):
        invariants.committed(0, 3, batch(held("a", 3, 0, 1)))


def test_a_log_that_says_something_else_is_found() -> None:
    invariants = GroupInvariants()
    invariants.committed(0, 0, batch(generation(1)))
    invariants.check_replica("broker 1", 0, [batch(generation(1))])
    with pytest.raises(Anomaly, match="state-divergence: broker 1: g is"):
        invariants.check_replica("broker 1", 0, [batch(generation(2))])
    with pytest.raises(Anomaly, match="state-divergence"):
        check_same("broker 2", {}, picture(replayed(0, [batch(generation(1))])))


# --- members --------------------------------------------------------------------------------------------------------


def test_members_understand_each_other() -> None:
    said = Subscription(("t", "u"), (("t", 0), ("t", 2), ("u", 1)), 7)
    assert decode_subscription(encode_subscription(said)) == said
    assert decode_assignment(encode_assignment([("u", 1), ("t", 0)])) == (("t", 0), ("u", 1))
    assert decode_assignment(b"") == ()


def test_assignments_are_whole_and_cooperative_ones_move_in_two_steps() -> None:
    counts = {"t": 3, "u": 2}
    places = [("t", 0), ("t", 1), ("t", 2), ("u", 0), ("u", 1)]
    fresh = Subscription(("t", "u"))
    given = range_like({"a": fresh, "b": fresh}, counts)
    assert sorted(given["a"] + given["b"]) == places
    first = cooperative({"a": fresh}, counts)
    assert first == {"a": places}
    second = cooperative({"a": Subscription(("t", "u"), tuple(places), 1), "b": fresh}, counts)
    assert (len(second["a"]), second["b"]) == (3, [])
    third = cooperative({"a": Subscription(("t", "u"), tuple(second["a"]), 2), "b": fresh}, counts)
    assert third["a"] == second["a"] and sorted(third["a"] + third["b"]) == places


def test_a_member_of_kip_848_says_what_it_must() -> None:
    member = ConsumerMember("g", "m", None, ("t",), None)
    assert member.request(100)["rebalance_timeout"] == 100 and member.request(100)["topic_partitions"] == []
    member.epoch = 3
    member._says_all, member._said = False, frozenset()
    assert member.request(100)["topic_partitions"] is None
    member.owned = frozenset([P])
    assert member.request(100)["topic_partitions"] == [{"topic_id": P[0], "partitions": [0]}]
    member.unheard()
    assert member.request(100)["subscribed_topic_names"] == ["t"]
    member.told = frozenset([Q])
    assert (member.revoking, member.gaining) == ([P], [Q])
    member.begin_again()
    assert member.request(100)["member_epoch"] == 0 and not member.owned
