"""Subscriptions and assignments of classic consumers: byte by byte, and as clients write them."""

import struct

import pytest
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata
from hypothesis import given
from hypothesis import strategies as st

from ottla.records.consumer_protocol import read_assignment, read_subscription, write_assignment
from ottla.records.layout import Malformed

#: Topics a and bc, user data "x", owned a-1 and a-2, generation 7, rack "r".
NEWEST = (
    b"\0\3" b"\0\0\0\2" b"\0\1a" b"\0\2bc" b"\0\0\0\1x"
    b"\0\0\0\1" b"\0\1a" b"\0\0\0\2\0\0\0\1\0\0\0\2"
    b"\0\0\0\7" b"\0\1r"
)  # fmt: skip


def test_a_subscription_of_each_version() -> None:
    topics, owned = {"a", "bc"}, {("a", 1), ("a", 2)}
    assert read_subscription(NEWEST) == (topics, owned, "r", 7, b"x")
    assert read_subscription(b"\0\2" + NEWEST[2:-3]) == (topics, owned, None, 7, b"x")
    assert read_subscription(b"\0\1" + NEWEST[2:-7]) == (topics, owned, None, -1, b"x")
    assert read_subscription(b"\0\0" + NEWEST[2:18]) == (topics, set(), None, -1, b"x")


def test_a_version_from_the_future_goes_on_behind_what_is_known() -> None:
    assert read_subscription(b"\0\7" + NEWEST[2:] + b"more").rack == "r"
    assert read_assignment(b"\0\7" + write_assignment(0, [("a", 1)])[2:] + b"more")[0] == {("a", 1)}


def test_a_client_that_claims_more_than_it_writes_still_has_topics() -> None:
    assert read_subscription(b"\0\1" + NEWEST[2:18]) == ({"a", "bc"}, set(), None, -1, b"")
    assert read_subscription(b"\0\0" + NEWEST[2:13]) == ({"a", "bc"}, set(), None, -1, b"")


@pytest.mark.parametrize(
    "damaged",
    [b"", b"\0", b"\xff\xff\0\0\0\0", b"\0\1\0\0\0\1", b"\0\1\0\0\0\1\0\5a", b"\0\1\xff\xff\xff\xff", b"\0\1\0\0\0\1\0\1\xff"],
)  # fmt: skip
def test_what_is_no_subscription_is_malformed(damaged: bytes) -> None:
    with pytest.raises(Malformed):
        read_subscription(damaged)


def test_nothing_is_an_empty_assignment_and_damage_is_none() -> None:
    assert read_assignment(b"") == (set(), b"")
    for damaged in (b"\0", b"\0\0", b"\0\0\0\0\0\1", b"\xff\xff\0\0\0\0\xff\xff\xff\xff"):
        with pytest.raises(Malformed):
            read_assignment(damaged)


@given(
    st.integers(0, 9),
    st.frozensets(st.tuples(st.text("abc", min_size=1, max_size=3), st.integers(0, 2**31 - 1)), max_size=8),
)
def test_an_assignment_comes_back(version: int, places: frozenset[tuple[str, int]]) -> None:
    data = write_assignment(version, places)
    assert struct.unpack_from(">h", data)[0] == min(version, 3)
    assert read_assignment(data) == (places, b"")


def test_a_client_reads_what_is_written_and_the_other_way_round() -> None:
    data = write_assignment(0, [("t", 2), ("t", 0), ("u", 1)])
    theirs = ConsumerProtocolMemberAssignment.decode(data)
    assert sorted(theirs.partitions()) == [("t", 0), ("t", 2), ("u", 1)]
    metadata = ConsumerProtocolMemberMetadata(0, ["t", "u"], b"mine").encode()
    assert read_subscription(metadata).topics == {"t", "u"}
    assert read_assignment(ConsumerProtocolMemberAssignment(0, [("t", [1])], b"mine").encode()) == (
        {("t", 1)},
        b"mine",
    )
