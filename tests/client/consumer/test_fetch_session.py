from ottla.client.consumer.fetch_session import FetchSession, Place, request_body
from ottla.client.consumer.settings import ConsumerConfig
from ottla.client.metadata import TopicPartition

A, B, C = (TopicPartition("t", number) for number in range(3))
IDS: dict[str, bytes | None] = {"t": b"1" * 16}


def places(**offsets: int) -> dict[TopicPartition, Place]:
    names = {"a": A, "b": B, "c": C}
    return {names[name]: Place(offset, 0, -1) for name, offset in offsets.items()}


def begun() -> FetchSession:
    session = FetchSession()
    session.ask(places(a=1, b=1), IDS)
    session.answered(99)
    return session


def test_the_first_fetch_asks_for_everything_and_the_next_for_what_changed() -> None:
    session = FetchSession()
    first = session.ask(places(a=1, b=1), IDS)
    assert (first.session_id, first.epoch, first.places, first.forgotten) == (0, 0, places(a=1, b=1), [])
    session.answered(99)
    second = session.ask(places(a=1, b=5), IDS)
    assert (second.session_id, second.epoch, second.places, second.forgotten) == (99, 1, places(b=5), [])
    session.answered(99)
    third = session.ask(places(b=5, c=0), IDS)
    assert (third.epoch, third.places, third.forgotten) == (2, places(c=0), [A])


def test_a_broker_that_keeps_no_sessions_is_asked_for_everything_each_time() -> None:
    session = FetchSession()
    for _ in range(3):
        asking = session.ask(places(a=1, b=1), IDS)
        assert (asking.session_id, asking.epoch, len(asking.places)) == (0, 0, 2)
        session.answered(0)


def test_a_lost_session_begins_anew_in_its_own_place() -> None:
    session = begun()
    session.restart()
    asking = session.ask(places(a=1), IDS)
    assert (asking.session_id, asking.epoch, asking.places) == (99, 0, places(a=1))
    session.answered(100)
    assert session.ask(places(a=1), IDS)[:2] == (100, 1)


def test_a_session_that_the_broker_ends_begins_anew() -> None:
    session = begun()
    session.ask(places(a=1), IDS)
    session.answered(0)
    assert session.ask(places(a=1), IDS).places == places(a=1)


def test_a_topic_that_was_made_anew_begins_a_session() -> None:
    session = begun()
    asking = session.ask(places(a=1, b=1), {"t": b"2" * 16})
    assert (asking.epoch, len(asking.places)) == (0, 2)


def test_epochs_begin_again_after_the_last() -> None:
    session = begun()
    session._epoch = 2**31 - 1
    session.ask(places(a=1), IDS)
    session.answered(99)
    assert session.ask(places(a=1), IDS).epoch == 1


def test_a_request_names_what_is_new_and_what_is_to_be_forgotten() -> None:
    session = begun()
    asking = session.ask(places(b=7), IDS)
    settings = ConsumerConfig(isolation_level="read_committed", client_rack="r1", fetch_max_bytes=1000)
    body = request_body(asking, IDS, session, settings, room_bytes=300, wait_ms=70)
    assert (body["isolation_level"], body["rack_id"]) == (1, "r1")
    assert (body["max_bytes"], body["max_wait"]) == (300, 70)
    assert body["forgotten_topics_data"] == [{"topic": "t", "topic_id": IDS["t"], "partitions": [0]}]
    ((row,),) = [topic["partitions"] for topic in body["topics"]]
    assert (row["partition"], row["fetch_offset"]) == (1, 7)
