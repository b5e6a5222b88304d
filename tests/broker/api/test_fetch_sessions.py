"""Incremental fetch sessions, KIP-227."""

from typing import Any

import pytest

UNKNOWN_TOPIC_OR_PARTITION = 3
FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH, UNKNOWN_TOPIC_ID = 70, 71, 100


class Session:
    """A client's side of a session: it names only what changed."""

    def __init__(
        self, client: Any, fetching: Any, offsets: dict[tuple[str, int], int], version: int = 12
    ) -> None:
        self.client, self.fetching, self.version = client, fetching, version
        answer = client.ask(1, version, **fetching(offsets, max_wait=0, session_id=0, session_epoch=0))
        self.first = answer
        self.id, self.epoch = answer.session_id, 1

    def fields(self, offsets: dict[tuple[str, int], int] | None = None, **more: Any) -> dict[str, Any]:
        given: dict[str, Any] = {"session_id": self.id, "session_epoch": self.epoch, "max_wait": 0, **more}
        fields: dict[str, Any] = self.fetching(offsets or {}, **given)
        return fields

    def fetch(self, offsets: dict[tuple[str, int], int] | None = None, **more: Any) -> Any:
        answer = self.client.ask(1, self.version, **self.fields(offsets, **more))
        assert answer.error_code.value == 0
        self.epoch += 1
        return answer


def named(answer: Any) -> set[tuple[str, int]]:
    return {(topic.topic, row.partition_index) for topic in answer.responses for row in topic.partitions}


@pytest.fixture
def session(client: Any, fetching: Any) -> Session:
    client.create("t", 3)
    return Session(client, fetching, {("t", 0): 0, ("t", 1): 0, ("t", 2): 0})


def test_the_first_answer_names_every_partition_and_the_session(session: Session) -> None:
    assert session.id > 0
    assert named(session.first) == {("t", 0), ("t", 1), ("t", 2)}


def test_later_answers_name_only_what_has_news(session: Session, batch: Any, values: Any) -> None:
    assert named(session.fetch()) == set()
    session.client.produce("t", batch(b"x"), 1)
    answer = session.fetch()
    assert named(answer) == {("t", 1)}
    assert answer.session_id == session.id
    assert values(answer.responses[0].partitions[0]) == [b"x"]
    # Not moved on by the client: still news.
    assert named(session.fetch()) == {("t", 1)}
    assert named(session.fetch({("t", 1): 1})) == set()


def test_a_moved_log_start_is_news(session: Session, batch: Any) -> None:
    session.client.produce("t", batch(b"x", b"y"))
    session.fetch({("t", 0): 2})
    deleting = [{"name": "t", "partitions": [{"partition_index": 0, "offset": 1}]}]
    reader = session.client.driver.connect()
    session.client, client = reader, session.client
    # Whether it waits meanwhile or not.
    reader.send(1, 12, **session.fields(max_wait=100))
    client.ask(21, topics=deleting)
    client.driver.advance(200)
    [answer] = reader.answers
    reader.answers.clear()
    session.epoch += 1
    assert [(row.partition_index, row.log_start_offset) for row in answer.responses[0].partitions] == [(0, 1)]
    assert named(session.fetch()) == set()


def test_partitions_are_added_and_forgotten(session: Session, batch: Any) -> None:
    session.client.create("u")
    for topic, partition in (("t", 0), ("t", 1), ("u", 0)):
        session.client.produce(topic, batch(b"x"), partition)
    assert named(session.fetch({("u", 0): 0}, forgotten={"t": [0]})) == {("t", 1), ("u", 0)}
    assert named(session.fetch(forgotten={"t": [1], "u": [0], "unknown": [7]})) == set()


def test_a_new_partition_without_data_is_told_once(session: Session) -> None:
    session.client.create("u")
    assert named(session.fetch({("u", 0): 0})) == {("u", 0)}
    assert named(session.fetch()) == set()


def test_an_incremental_fetch_waits_for_its_partitions(
    session: Session, driver: Any, batch: Any, values: Any
) -> None:
    reader = driver.connect()
    reader.send(1, 12, **session.fields(max_wait=10_000))
    assert reader.answers == []
    session.client.produce("t", batch(b"x"), 2)
    [answer] = reader.answers
    assert named(answer) == {("t", 2)}
    assert values(answer.responses[0].partitions[0]) == [b"x"]


def test_an_incremental_fetch_that_hears_nothing_is_answered_empty(session: Session, driver: Any) -> None:
    reader = driver.connect()
    reader.send(1, 12, **session.fields(max_wait=100))
    driver.advance(120)
    assert [named(answer) for answer in reader.answers] == [set()]


def test_errors_are_told_again_until_the_partition_is_forgotten(session: Session) -> None:
    for _ in range(2):
        answer = session.fetch({("nowhere", 0): 0} if session.epoch == 1 else None)
        assert named(answer) == {("nowhere", 0)}
        assert answer.responses[0].partitions[0].error_code.value == UNKNOWN_TOPIC_OR_PARTITION
    assert named(session.fetch(forgotten={"nowhere": [0]})) == set()


def test_a_topic_that_comes_later_is_found(session: Session, batch: Any, values: Any) -> None:
    session.fetch({("later", 0): 0})
    session.client.create("later")
    session.client.produce("later", batch(b"x"))
    answer = session.fetch()
    assert named(answer) == {("later", 0)}
    assert values(answer.responses[0].partitions[0]) == [b"x"]


def test_a_topic_made_anew_is_read_by_its_name(session: Session, batch: Any, values: Any) -> None:
    session.client.ask(20, topics=[{"name": "t"}])
    assert {row.error_code.value for row in session.fetch().responses[0].partitions} == {
        UNKNOWN_TOPIC_OR_PARTITION
    }
    session.client.create("t", 3)
    assert {row.error_code.value for row in session.fetch().responses[0].partitions} == {0}
    session.client.produce("t", batch(b"anew"))
    answer = session.fetch()
    assert values(answer.responses[0].partitions[0]) == [b"anew"]


def test_a_topic_made_anew_has_another_id(client: Any, driver: Any) -> None:
    topic_id = client.create("t")
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
    topics = [{"topic_id": topic_id, "partitions": [partition]}]
    answer = client.ask(1, 13, session_id=0, session_epoch=0, topics=topics)
    client.ask(20, topics=[{"name": "t"}])
    client.create("t")
    for epoch in (1, 2):
        later = client.ask(1, 13, session_id=answer.session_id, session_epoch=epoch)
        assert [row.error_code.value for row in later.responses[0].partitions] == [UNKNOWN_TOPIC_ID]
        assert later.responses[0].topic_id.bytes == topic_id


def test_a_wrong_epoch_and_an_unknown_session(session: Session) -> None:
    for epoch in (2, 7):
        answer = session.client.ask(1, 12, **session.fields() | {"session_epoch": epoch})
        assert answer.error_code.value == INVALID_FETCH_SESSION_EPOCH
        assert answer.responses == ()
    for unknown in (session.id + 1, 0):
        answer = session.client.ask(1, 12, **session.fields() | {"session_id": unknown})
        assert answer.error_code.value == FETCH_SESSION_ID_NOT_FOUND
    # Neither harms the session.
    session.fetch()


def test_an_epoch_is_spent_by_its_request(session: Session) -> None:
    session.fetch()
    answer = session.client.ask(1, 12, **session.fields() | {"session_epoch": session.epoch - 1})
    assert answer.error_code.value == INVALID_FETCH_SESSION_EPOCH


def test_a_session_is_closed_by_epoch_minus_one(session: Session, driver: Any) -> None:
    answer = session.client.ask(1, 12, **session.fields({("t", 0): 0}) | {"session_epoch": -1})
    assert (answer.error_code.value, answer.session_id) == (0, 0)
    assert named(answer) == {("t", 0)}
    assert driver.broker.fetch_sessions.by_id == {}
    assert driver.replica("t", 1).watchers == {}
    gone = session.client.ask(1, 12, **session.fields())
    assert gone.error_code.value == FETCH_SESSION_ID_NOT_FOUND


def test_a_full_fetch_with_an_old_session_replaces_it(session: Session, driver: Any) -> None:
    answer = session.client.ask(1, 12, **session.fields({("t", 0): 0}) | {"session_epoch": 0})
    assert answer.session_id not in (0, session.id)
    assert list(driver.broker.fetch_sessions.by_id) == [answer.session_id]


def test_without_a_session_none_is_made(client: Any, driver: Any, fetching: Any) -> None:
    client.create("t")
    for version in (4, 6, 7, 12):
        answer = client.ask(1, version, **fetching({("t", 0): 0}, max_wait=0, session_epoch=-1))
        assert version < 7 or answer.session_id == 0
    assert driver.broker.fetch_sessions.by_id == {}


def test_a_session_ends_with_the_connection_that_used_it_last(session: Session, driver: Any) -> None:
    reader = driver.connect()
    reader.send(1, 12, **session.fields(max_wait=10_000))
    session.client.disconnect()
    assert driver.broker.fetch_sessions.by_id.keys() == {session.id}
    quiet = driver.replica("t").watchers
    assert quiet
    reader.disconnect()
    assert driver.broker.fetch_sessions.by_id == {}
    assert quiet == {}


def test_the_cache_is_full_until_a_session_is_old(drive: Any, fetching: Any) -> None:
    driver = drive(max_incremental_fetch_session_cache_slots="2")
    client = driver.connect()
    client.create("t")
    offsets = {("t", 0): 0}
    oldest, used = Session(client, fetching, offsets), Session(client, fetching, offsets)
    assert Session(client, fetching, offsets).id == 0
    driver.advance(60_000)
    used.fetch()
    driver.advance(60_001)
    newest = Session(client, fetching, offsets)
    assert newest.id > 0
    evicted = client.ask(1, 12, **oldest.fields())
    assert evicted.error_code.value == FETCH_SESSION_ID_NOT_FOUND
    used.fetch()
    assert Session(client, fetching, offsets).id == 0


def test_an_evicted_session_stops_watching(drive: Any, fetching: Any) -> None:
    driver = drive(max_incremental_fetch_session_cache_slots="1")
    client = driver.connect()
    client.create("t")
    Session(client, fetching, {("t", 0): 0})
    driver.advance(130_000)
    Session(client, fetching, {("t", 0): 0})
    assert len(driver.replica("t").watchers) == 1


def test_a_full_answer_does_not_starve_the_last_partition(session: Session, batch: Any) -> None:
    """Partitions take turns when an answer cannot hold them all."""
    for partition in range(3):
        for _ in range(4):
            session.client.produce("t", batch(bytes(500)), partition)
    seen: set[tuple[str, int]] = set()
    offsets: dict[tuple[str, int], int] = {}
    for _ in range(3):
        answer = session.fetch(offsets, max_bytes=500)
        [served] = [row.partition_index for row in answer.responses[0].partitions if row.records]
        offsets = {("t", served): 1}
        seen.add(("t", served))
    assert len(seen) == 3


def test_a_fetch_that_waits_outlives_its_session(session: Session, driver: Any, batch: Any) -> None:
    """It is still woken and answered, now without a session, and watches nothing afterwards."""
    session.client.send(1, 12, **session.fields(max_wait=10_000))
    other = driver.connect()
    other.ask(1, 12, **session.fields() | {"session_epoch": -1})
    assert driver.broker.fetch_sessions.by_id == {}
    other.produce("t", batch(b"x"), 1)
    answer = session.client.answers.pop()
    assert (named(answer), answer.session_id) == ({("t", 1)}, 0)
    assert [driver.replica("t", number).watchers for number in range(3)] == [{}, {}, {}]


def test_all_sessions_of_a_connection_end_with_it(session: Session, driver: Any, fetching: Any) -> None:
    for _ in range(3):
        Session(session.client, fetching, {("t", 0): 0})
    assert len(driver.broker.fetch_sessions.by_id) == 4
    # One that moves to another connection takes no other with it.
    reader = driver.connect()
    reader.ask(1, 12, **session.fields())
    session.client.disconnect()
    assert driver.broker.fetch_sessions.by_id.keys() == {session.id}
    reader.disconnect()
    assert driver.broker.fetch_sessions.by_id == {}
    assert driver.replica("t").watchers == {}


def test_session_ids_are_not_counted(client: Any, driver: Any, fetching: Any) -> None:
    """A client that comes back after a restart must not hit upon a session of somebody else."""
    client.create("t")
    ids = [Session(client, fetching, {("t", 0): 0}).id for _ in range(5)]
    assert len(set(ids)) == 5
    assert max(ids) > 1000
