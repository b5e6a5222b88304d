"""A real broker and raw sockets: members that send data that a group cannot store, while others work."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.broker.api.members import topic_rows
from tests.peer import Peer
from tests.running_broker import RunningBroker

COMMIT, FIND, JOIN, LEAVE, DESCRIBE_GROUPS, LIST_GROUPS = 8, 10, 11, 13, 15, 16
DELAY_MS = 200
LONG = "x" * 40_000
GROUPS = 30


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    settings = (
        "offsets.topic.num.partitions=1", f"group.initial.rebalance.delay.ms={DELAY_MS}",
        "group.min.session.timeout.ms=10",
    )  # fmt: skip
    broker = RunningBroker(tmp_path / "data", 0, *settings)
    yield broker.address
    assert broker.stop() == 0
    assert not [line for line in broker.said if "reloading" in line or "internal" in line]


def commit(witness: Peer, offset: int) -> int:
    answer = witness.ask(
        COMMIT, 9, group_id="witness", generation_id_or_member_epoch=-1, member_id="", group_instance_id=None,
        topics=topic_rows({("t", 0): offset}),
    )  # fmt: skip
    return int(answer.topics[0].partitions[0].error_code)


def join(peer: Peer, version: int, group: str, **fields: Any) -> None:
    asked = {
        "group_id": group, "session_timeout": 1000, "rebalance_timeout": 1000, "member_id": "", "group_instance_id": None,
        "protocol_type": "consumer", "protocols": [{"name": "range", "metadata": b"m"}], "reason": None,
    }  # fmt: skip
    peer.send(JOIN, version, **(asked | fields))


def test_members_that_cannot_be_stored_do_not_affect_others(address: str) -> None:
    """Issue 8, bugs 1 and 2, as they were shown: answers in a timer that cannot be encoded, ListGroups and
    DescribeGroups that close the connections of others, commits of an unrelated group that fail since its
    coordinator partition is loaded again.
    """
    with Peer(address) as witness, Peer(address) as rude, Peer(address) as old:
        witness.create("t")
        witness.ask(FIND, 4, key_type=0, coordinator_keys=["witness"])
        codes = [commit(witness, 0)]
        for number in range(GROUPS):
            name = f"rude-{number}"
            # A member with an old version, which would get the instance and the type of the new one.
            join(old, 5, name, group_instance_id=f"i{number}")
            join(rude, 9, name, group_instance_id=LONG)
            join(rude, 9, f"{name}-type", group_instance_id="i", protocol_type=LONG)
            codes.append(commit(witness, number + 1))
        refused = [rude.receive() for _ in range(2 * GROUPS)]
        assert {int(answer.error_code) for answer in refused} == {42}
        # When the old members have their responses, the timers of all these rebalances have fired.
        joined = [old.receive() for _ in range(GROUPS)]
        assert {int(answer.error_code) for answer in joined} == {0}
        for version in range(6):
            with Peer(address) as other:
                found = {row.group_id for row in other.ask(LIST_GROUPS, version).groups}
                assert found == {"witness", *(f"rude-{number}" for number in range(GROUPS))}
            with Peer(address) as other:
                assert len(other.ask(DESCRIBE_GROUPS, version, groups=sorted(found)).groups) == GROUPS + 1
        # Their sessions expire in timers too: each group's record is written, without members.
        while any(row.group_state != "Empty" for row in witness.ask(LIST_GROUPS, 4).groups):
            codes.append(commit(witness, 100))
        assert set(codes) == {0}
