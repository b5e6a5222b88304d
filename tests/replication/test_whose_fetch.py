"""R5: whose fetches count: those of a proven follower with its present broker epoch. A client that says it is a broker moves nothing."""

from typing import Any

from ottla.model.api_key import ApiKey
from ottla.model.errors import ErrorCode
from testkit.sim.quiet import Quiet


def cluster() -> Quiet:
    """1 leads and has a record that 2 does not, because nothing passes between them."""
    quiet = Quiet(3, settings={"replica.lag.time.max.ms": "60000"})
    quiet.create("t", (1, 2))
    quiet.write("t", b"one")
    quiet.cut(1, 2)
    quiet.write("t", b"two", acks=1)
    return quiet


def fetch(
    quiet: Quiet, epoch: int, offset: int = 2, version: int = 16, as_broker: int | None = 2, **more: Any
) -> Any:
    body = quiet.fetch_body("t", offset, epoch=quiet.partition("t").leader_epoch, **more)
    body["replica_state" if version >= 15 else "replica_id"] = (
        {"replica_id": 2, "replica_epoch": epoch} if version >= 15 else 2
    )
    return quiet.call(1, ApiKey.FETCH, version, body, as_broker)


def refused(answer: Any) -> bool:
    row = answer.responses[0].partitions[0]
    return bool(row.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER and not row.records)


def is_unauthorized(answer: Any) -> bool:
    return bool(answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED and not answer.responses)


def test_a_client_that_has_not_proven_itself_is_no_follower_whatever_epoch_it_knows() -> None:
    quiet = cluster()
    right = quiet.ensemble.image.brokers[2].epoch
    for epoch in (right, right + 1, -1):
        assert is_unauthorized(fetch(quiet, epoch, as_broker=None))
        # Another broker is not this one either.
        assert is_unauthorized(fetch(quiet, epoch, as_broker=3))
    assert quiet.replica(1, "t").high_watermark == 1
    assert quiet.replica(1, "t").leading.followers[2].end == 1  # type: ignore[union-attr]


def test_nor_does_it_get_into_a_followers_session() -> None:
    quiet = cluster()
    epoch = quiet.ensemble.image.brokers[2].epoch
    session = fetch(quiet, epoch, offset=1, session_epoch=0)
    assert session.error_code == 0 and session.session_id
    sessions = quiet.members[1].broker.fetch_sessions.by_id
    known = sessions[session.session_id]
    for session_epoch in (known.epoch, 0, -1):
        answer = fetch(
            quiet, epoch, as_broker=None, session_id=known.id, session_epoch=session_epoch, topics=[]
        )
        assert is_unauthorized(answer)
        body = quiet.fetch_body("t", 2, session_id=known.id, session_epoch=session_epoch)
        assert is_unauthorized(quiet.call(1, ApiKey.FETCH, 16, body))
    assert known.id in sessions
    assert quiet.replica(1, "t").high_watermark == 1


def test_an_epoch_that_nobody_has_told_of_counts_neither_while_the_store_is_out_of_reach() -> None:
    quiet = cluster()
    epoch = quiet.ensemble.image.brokers[2].epoch
    quiet.members[1].broker.lifecycle.suspended = True
    assert refused(fetch(quiet, epoch + 1))
    assert refused(fetch(quiet, 1 << 62))
    assert quiet.replica(1, "t").high_watermark == 1
    assert not refused(fetch(quiet, epoch))
    assert quiet.replica(1, "t").high_watermark == 2


def test_a_client_without_an_epoch_is_no_follower() -> None:
    quiet = cluster()
    assert refused(fetch(quiet, -1, version=14))
    assert refused(fetch(quiet, -1))
    assert quiet.replica(1, "t").high_watermark == 1


def test_nor_one_with_a_life_that_never_was() -> None:
    quiet = cluster()
    assert refused(fetch(quiet, 1 << 40))
    assert quiet.replica(1, "t").high_watermark == 1


def test_nor_in_the_second_fetch_of_a_session() -> None:
    """It would read what does not count yet."""
    quiet = cluster()
    first = fetch(quiet, -1, offset=1, session_epoch=0)
    assert refused(first) and first.session_id
    again = fetch(quiet, -1, session_id=first.session_id, session_epoch=1, topics=[])
    assert refused(again)


def test_a_late_fetch_of_an_earlier_life_moves_nothing() -> None:
    quiet = cluster()
    old = quiet.ensemble.image.brokers[2].epoch
    quiet.stop(2)
    quiet.until(lambda: quiet.ensemble.image.brokers[2].fenced)
    quiet.start(2)
    quiet.until(lambda: quiet.members[2].joined)
    quiet.until(lambda: quiet.members[1].broker.image.is_live(2))
    new = quiet.ensemble.image.brokers[2].epoch
    assert not refused(fetch(quiet, new, offset=1))
    follower = quiet.replica(1, "t").leading.followers[2]  # type: ignore[union-attr]
    assert (follower.end, follower.epoch) == (1, new)
    assert refused(fetch(quiet, old))
    assert (follower.end, follower.epoch) == (1, new)


def test_a_new_life_counts_before_the_leader_has_heard_of_it_from_the_log() -> None:
    """The live registrations tell as well, and they were first."""
    quiet = cluster()
    client = quiet.members[1].client
    client.log_moved = lambda: None  # type: ignore[method-assign]
    quiet.kill(2)
    quiet.start(2)
    quiet.until(lambda: quiet.members[2].joined)
    broker = quiet.members[1].broker
    new = quiet.ensemble.image.brokers[2].epoch
    quiet.until(lambda: broker.lifecycle.live[2].epoch == new)
    assert broker.image.brokers[2].epoch < new
    body = quiet.fetch_body("t", 1, epoch=broker.image.topics["t"].partitions[0].leader_epoch)
    body["replica_state"] = {"replica_id": 2, "replica_epoch": new}
    assert not refused(quiet.call(1, ApiKey.FETCH, 16, body, as_broker=2))
