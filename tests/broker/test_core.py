import struct
from typing import Any

import pytest

from ottla.broker.api.shared.api_table import APIS
from ottla.model.limits import REQUESTS_WAITING_PER_CONNECTION_MAX
from ottla.ports.disk import DiskError
from ottla.ports.effects import RUN
from ottla.wire.encode import request_encoder

API_VERSIONS, FETCH, METADATA = 18, 1, 3


def head(key: int, version: int, client_id: bytes | None = b"test") -> bytes:
    length = -1 if client_id is None else len(client_id)
    return struct.pack(">hhih", key, version, 7, length) + (client_id or b"")


# --- what is no request -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "frame",
    [
        b"x",
        b"\0\0\0\0\0\0\0\0\0",
        head(METADATA, 12, None)[:-2] + struct.pack(">h", 500),
        head(METADATA, 12) + b"\0",
        head(METADATA, 12) + b"\xff\xff\xff\xff\xff\xff",
        head(METADATA, 4) + struct.pack(">i", 2**31 - 1),
        head(0, 9) + b"\0" + b"\xff" * 40,
        head(0, 9) + b"\xc0\x84\x3d" + bytes(2_000_000),
        head(777, 0),
        head(METADATA, 99),
        head(METADATA, -1),
        head(-1, -1),
    ],
)
def test_what_is_no_request_closes_that_connection_alone(client: Any, driver: Any, frame: bytes) -> None:
    other = driver.connect()
    client.send_frame(frame)
    assert client.closed_because
    assert client.answers == []
    assert other.ask(METADATA, topics=None).brokers


def test_a_request_beyond_its_apis_size_is_not_decoded(client: Any) -> None:
    limit = APIS[METADATA].request_bytes_max
    client.send_frame(head(METADATA, 12) + bytes(limit or 0))
    assert "at most" in client.closed_because


def test_unknown_tagged_fields_are_skipped(client: Any, monkeypatch: Any) -> None:
    sent: list[bytes] = []
    monkeypatch.setattr(client, "sent", sent.append)
    tags = b"\x02" + b"\x05\x03abc" + b"\x80\x01\x00"
    body = request_encoder(METADATA, 12)({"topics": None})
    assert body.endswith(b"\0")
    client.send_frame(head(METADATA, 12) + tags + body[:-1] + tags)
    assert len(sent) == 1
    assert client.closed_because is None


def test_no_client_id_and_an_empty_one(client: Any, monkeypatch: Any) -> None:
    sent: list[bytes] = []
    monkeypatch.setattr(client, "sent", sent.append)
    for client_id in (None, b""):
        client.send_frame(head(API_VERSIONS, 0, client_id))
    assert len(sent) == 2


def raises(*_: Any) -> Any:
    raise ZeroDivisionError("broken on purpose")


def answers_what_cannot_be_encoded(*_: Any) -> Any:
    return {"error_code": "broken on purpose"}


@pytest.mark.parametrize("handler", [raises, answers_what_cannot_be_encoded])
def test_an_error_in_a_handler_closes_that_connection_and_is_not_lost(
    client: Any, driver: Any, monkeypatch: Any, handler: Any
) -> None:
    monkeypatch.setitem(APIS, API_VERSIONS, APIS[API_VERSIONS]._replace(handler=handler))
    with pytest.raises((ZeroDivisionError, struct.error)):
        client.send(API_VERSIONS, 0)
    driver.turn()
    assert "internal error" in client.closed_because
    assert any("internal error in " in text and "API 18" in text for text in driver.said)
    assert driver.connect().ask(METADATA, topics=None).brokers


# --- answers leave in the order of their requests -----------------------------------------------------------------


def test_an_answer_waits_for_those_before_it(
    client: Any, driver: Any, batch: Any, fetching: Any, values: Any
) -> None:
    client.create("t", 2)
    reader = driver.connect()
    reader.send(FETCH, 12, **fetching({("t", 0): 0}, max_wait=10_000))
    reader.send(METADATA, 12, topics=None)
    reader.send(FETCH, 12, **fetching({("t", 1): 0}, max_wait=10_000))
    reader.send(API_VERSIONS, 0)
    assert reader.answers == []
    client.produce("t", batch(b"x"))
    fetched, metadata = reader.answers
    assert values(fetched.responses[0].partitions[0]) == [b"x"]
    assert [topic.name for topic in metadata.topics] == ["t"]
    client.produce("t", batch(b"y"), 1)
    assert values(reader.answers[2].responses[0].partitions[0]) == [b"y"]
    assert len(reader.answers) == 4
    assert not reader.connection.waiting


def test_a_later_wait_that_ends_first_waits_for_the_earlier(client: Any, driver: Any, fetching: Any) -> None:
    client.create("t")
    reader = driver.connect()
    reader.send(FETCH, 12, **fetching({("t", 0): 0}, max_wait=1000))
    reader.send(FETCH, 12, **fetching({("t", 0): 0}, max_wait=100))
    driver.advance(500)
    assert reader.answers == []
    driver.advance(600)
    assert len(reader.answers) == 2


@pytest.mark.parametrize("key", [API_VERSIONS, FETCH])
def test_a_line_of_waiting_requests_that_grows_too_long_stops_the_reading(
    client: Any, driver: Any, batch: Any, fetching: Any, key: int
) -> None:
    """Whether they wait themselves, or are answered and stand behind one that waits."""
    client.create("t")
    fields = fetching({("t", 0): 0}, max_wait=10_000)
    reader = driver.connect()
    reader.send(FETCH, 12, **fields)
    for _ in range(REQUESTS_WAITING_PER_CONNECTION_MAX - 2):
        reader.send(key, 0 if key == API_VERSIONS else 12, **fields)
    assert not reader.is_paused
    reader.send(METADATA, 12, topics=None)
    assert reader.is_paused
    client.produce("t", batch(b"x"))
    assert len(reader.answers) == REQUESTS_WAITING_PER_CONNECTION_MAX
    assert not reader.is_paused


# --- upkeep by the clock ------------------------------------------------------------------------------------------


def test_retention_by_time_takes_whole_segments(client: Any, driver: Any, batch: Any) -> None:
    client.create("t", retention_ms="60000", segment_bytes="1048576", file_delete_delay_ms="0")
    for _ in range(15):
        client.produce("t", batch(bytes(100_000), timestamp_ms=driver.now_ms))
    driver.advance(50_000)
    client.produce("t", batch(b"new", timestamp_ms=driver.now_ms))
    driver.advance(400_000)
    row = client.fetch("t", 16)
    assert row.log_start_offset == 16
    assert row.high_watermark == 16


def test_a_silent_log_is_flushed_in_the_background(client: Any, driver: Any, batch: Any) -> None:
    client.create("t")
    client.produce("t", batch(b"x"))
    log = driver.replica("t").log
    assert log.recovery_point == 0
    driver.advance(10_000)
    assert log.recovery_point == 1


def test_a_flush_for_which_there_is_no_room_is_made_up_for(
    client: Any, driver: Any, batch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.create("t")
    client.produce("t", batch(b"x"))
    log = driver.replica("t").log

    def refuse(_log: Any) -> None:
        raise DiskError("no space left on device", full=True)

    with monkeypatch.context() as full:
        full.setattr(type(log), "begin_flush", refuse)
        driver.advance(120_000)
    assert log.recovery_point == 0
    driver.advance(120_000)
    assert log.recovery_point == 1


def test_a_flush_does_not_write_into_the_next_topic_of_the_same_name(
    client: Any, driver: Any, batch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its snapshot there would be taken for what producers have written to the new log."""
    client.create("t")
    client.produce("t", batch(b"x"))
    jobs: list[Any] = []
    perform = driver._perform
    with monkeypatch.context() as held:
        held.setattr(
            driver, "_perform", lambda effect: (jobs.append if effect[0] == RUN else perform)(effect)
        )
        driver.broker.log_maintenance.flush(driver.replica("t"))
        driver.turn()
        client.ask(20, topics=[{"name": "t"}])
        client.create("t")
        directory = driver.replica("t").log.directory
    for effect in jobs:
        driver._perform(effect)
    driver.turn()
    assert [name for name in driver.disk.list(directory) if name.endswith(".snapshot")] == []


def test_a_flush_that_failed_while_stopping_leaves_no_clean_mark(
    client: Any, driver: Any, batch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R11: the end of the job is not told any more, and a second sync would succeed."""
    client.create("t")
    client.produce("t", batch(b"x"))
    driver.broker.log_maintenance.flush(driver.replica("t"))
    [(_kind, job, _done)] = [effect for effect in driver.broker.outbox if effect[0] == RUN]

    def refuse(_file: Any) -> None:
        raise DiskError("Input/output error", broken=True)

    with monkeypatch.context() as broken:
        broken.setattr(driver.disk, "sync", refuse)
        assert job(driver.disk).broken
    driver.broker.stop()
    assert ".kafka_cleanshutdown" not in driver.disk.list(driver.broker.directories.all[0].path)


def test_a_sync_that_fails_before_a_checkpoint_is_final(
    client: Any, driver: Any, batch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R11: the leader epochs that bear out a new start are synced there, and nowhere else."""
    client.create("t")
    for _ in range(2):
        client.produce("t", batch(b"x"))
    jobs: list[Any] = []
    perform = driver._perform
    with monkeypatch.context() as held:
        held.setattr(
            driver, "_perform", lambda effect: (jobs.append if effect[0] == RUN else perform)(effect)
        )
        row = {"partition_index": 0, "offset": 1}
        client.ask(21, topics=[{"name": "t", "partitions": [row]}])

    def refuse(_file: Any) -> None:
        raise DiskError("Input/output error", broken=True)

    [(_kind, job, done)] = jobs
    with monkeypatch.context() as broken:
        broken.setattr(driver.disk, "sync", refuse)
        failed = job(driver.disk)
    done(failed, None)
    assert driver.broker.directories.offline


def test_nothing_leaves_a_connection_that_is_to_be_closed(
    client: Any, driver: Any, fetching: Any, batch: Any
) -> None:
    client.create("t")
    reader = driver.connect()
    reader.send(FETCH, 12, **fetching({("t", 0): 0}, max_wait=9000))
    core = driver.broker
    core.receive(reader.connection, memoryview(b"x"), core.now_ms)
    log = driver.replica("t").log
    log.append(batch(b"a"), 0, core.now_ms)
    core.appended(driver.replica("t"), log, core.now_ms)
    driver.turn()
    assert reader.closed_because
    assert reader.answers == []
