"""A broker that hears late: what it may not do while its image of the metadata is older than the decision.

Real cores in a simulated cluster. News of the metadata log are held back from one broker, everything else reaches it.
"""

from types import SimpleNamespace
from typing import Any

import pytest

from ottla.model.errors import ErrorCode
from ottla.replication.replica import Replica
from testkit.sim.quiet import Quiet

ALTER_PARTITION_REASSIGNMENTS = 45


def hold_news(quiet: Quiet, node_id: int) -> Any:
    """From now on this broker hears nothing of the metadata log; call what is returned to let it hear again."""
    client = quiet.members[node_id].client
    client.log_moved = lambda: None  # type: ignore[method-assign]

    def let_go() -> None:
        del client.log_moved
        client.log_moved()

    return let_go


def follower(quiet: Quiet) -> int:
    """One that does not control: a controller hears its own decisions at once."""
    return next(node for node in quiet.members if node != quiet.ensemble.holder)


def test_a_leader_that_was_replaced_by_what_it_asked_for_acknowledges_nothing_alone() -> None:
    quiet = Quiet(3)
    old = follower(quiet)
    new = next(node for node in quiet.members if node not in (old, quiet.ensemble.holder))
    quiet.create("t", (old,))
    quiet.write("t", b"one")
    quiet.cut(old, new)
    row = {"partition_index": 0, "replicas": [new]}
    body = {"timeout": 5000, "topics": [{"name": "t", "partitions": [row]}]}
    quiet.call(quiet.ensemble.holder, ALTER_PARTITION_REASSIGNMENTS, 0, body)
    leading = quiet.replica(old, "t").leading
    assert leading is not None
    quiet.until(lambda: new in leading.followers)
    let_go = hold_news(quiet, old)
    quiet.mend()
    quiet.until(lambda: quiet.leader("t") == new)
    quiet.run(100)
    # The answer has told that another one leads; the news of it have not come.
    assert quiet.replica(old, "t").leading is leading
    rows = quiet.produce(old, "t", b"two")
    quiet.run(200)
    acknowledged = bool(rows) and rows[0].error_code == 0
    let_go()
    quiet.until(lambda: bool(rows))
    quiet.until(lambda: quiet.replica(new, "t").leading is not None)
    found = quiet.values(quiet.fetch(new, "t", 0))
    assert not acknowledged or b"two" in found


def answered(quiet: Quiet, code: ErrorCode) -> Replica:
    """What a leader has that asked for an ISR with broker 2 in it, which is dead, heard this, and has one record more."""
    quiet.create("t", (1, 2))
    quiet.write("t", b"one")
    quiet.kill(2)
    quiet.until(lambda: quiet.partition("t").isr == (1,))
    replica = quiet.replica(1, "t")
    quiet.until(lambda: replica.leading is not None and replica.leading.isr == (1,))
    assert replica.leading is not None
    leading, updates = replica.leading, quiet.members[1].broker.replica_roles.isr_updates
    leading.ask_for((1, 2))
    updates._decided(replica, leading, leading.partition_epoch, SimpleNamespace(error_code=code))
    quiet.produce(1, "t", b"two")
    return replica


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.INVALID_UPDATE_VERSION, ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.NEW_LEADER_ELECTED,
        ErrorCode.NOT_CONTROLLER, ErrorCode.UNKNOWN_TOPIC_ID,
    ],
)  # fmt: skip
def test_a_change_that_may_have_been_granted_is_waited_for(code: ErrorCode) -> None:
    """A request whose answer was lost is asked again, and then refused because it was granted the first time."""
    quiet = Quiet(2)
    replica = answered(quiet, code)
    quiet.run(100)
    assert replica.high_watermark == 1, "2 may be in the ISR, and does not have it"


@pytest.mark.parametrize("code", [ErrorCode.NONE, ErrorCode.INVALID_UPDATE_VERSION])
def test_what_nothing_comes_of_is_asked_for_again(code: ErrorCode) -> None:
    """A controller answers by what it has proposed: if it is replaced meanwhile, that is in no image ever."""
    quiet = Quiet(2)
    replica = answered(quiet, code)
    quiet.until(lambda: replica.high_watermark == 2)


def test_a_change_that_was_refused_holds_up_nothing() -> None:
    quiet = Quiet(2)
    quiet.create("t", (1, 2))
    quiet.kill(2)
    replica = quiet.replica(1, "t")
    quiet.until(lambda: replica.leading is not None and replica.leading.isr == (1,))
    leading, updates = replica.leading, quiet.members[1].broker.replica_roles.isr_updates
    assert leading is not None
    leading.ask_for((1, 2))
    row = SimpleNamespace(error_code=ErrorCode.INELIGIBLE_REPLICA)
    updates._decided(replica, leading, leading.partition_epoch, row)
    quiet.write("t", b"one")
