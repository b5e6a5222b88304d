import pytest
from kio.schema.request_header.v1.header import RequestHeader as RequestHeaderV1
from kio.schema.request_header.v2.header import RequestHeader as RequestHeaderV2
from kio.serial import entity_reader

from ottla.wire.frames import ClientConnection, after_tags
from ottla.wire.guard import MalformedMessage

PRODUCE, METADATA, API_VERSIONS = 0, 3, 18
LEGACY, FLEXIBLE = 8, 9


def frame(correlation_id: int, rest: bytes) -> bytes:
    return (4 + len(rest)).to_bytes(4, "big") + correlation_id.to_bytes(4, "big") + rest


@pytest.mark.parametrize(("version", "header"), [(LEGACY, RequestHeaderV1), (FLEXIBLE, RequestHeaderV2)])
@pytest.mark.parametrize("client_id", ["a client", "", None])
def test_a_request_is_size_header_and_body(
    version: int, header: type[RequestHeaderV1 | RequestHeaderV2], client_id: str | None
) -> None:
    connection = ClientConnection(client_id)
    connection.request(METADATA, version, b"first")
    correlation_id, sent = connection.request(METADATA, version, b"the body")
    assert correlation_id == 1
    assert int.from_bytes(sent[:4], "big") == len(sent) - 4
    read, size = entity_reader(header)(sent, 4)
    assert (read.request_api_key, read.request_api_version, read.correlation_id) == (METADATA, version, 1)
    assert read.client_id == client_id
    assert sent[4 + size :] == b"the body"


def test_correlation_ids_wrap_below_the_sign_bit() -> None:
    connection = ClientConnection(None)
    connection._next_correlation_id = 2**31 - 1
    ids = [connection.request(METADATA, LEGACY, b"")[0] for _ in range(2)]
    assert ids == [2**31 - 1, 0]


def fed(connection: ClientConnection, data: bytes | memoryview) -> list[tuple[int, bytes]]:
    return [(correlation_id, bytes(body)) for correlation_id, body in connection.feed(data)]


def conversation(connection: ClientConnection) -> tuple[bytes, list[tuple[int, bytes]]]:
    """Three requests, the broker's responses, and the expected results."""
    connection.request(METADATA, LEGACY, b"")
    connection.request(METADATA, FLEXIBLE, b"")
    connection.request(METADATA, FLEXIBLE, b"")
    with_tags = b"\x02\x00\x03abc\x85\x01\x00" + b"third"
    answers = frame(0, b"first") + frame(1, b"\0" + b"second" * 50) + frame(2, with_tags)
    return answers, [(0, b"first"), (1, b"second" * 50), (2, b"third")]


def test_answers_split_at_every_byte() -> None:
    size = len(conversation(ClientConnection("c"))[0])
    for cut in range(size + 1):
        connection = ClientConnection("c")
        answers, expected = conversation(connection)
        assert fed(connection, answers[:cut]) + fed(connection, answers[cut:]) == expected
        assert connection.in_flight == 0


@pytest.mark.parametrize("step", [1, 2, 3, 5, 7, 1000])
def test_answers_in_small_steps_from_a_reused_buffer(step: int) -> None:
    connection = ClientConnection("c")
    answers, expected = conversation(connection)
    received = bytearray(step)
    got = []
    for start in range(0, len(answers), step):
        piece = answers[start : start + step]
        received[: len(piece)] = piece
        got += connection.feed(memoryview(received)[: len(piece)])
        received[:] = b"\xaa" * step
    assert [(correlation_id, bytes(body)) for correlation_id, body in got] == expected


def test_an_answer_comes_out_as_soon_as_its_last_byte_is_in() -> None:
    connection = ClientConnection("c")
    connection.request(METADATA, LEGACY, b"")
    answer = frame(0, b"body")
    assert all(connection.feed(answer[at : at + 1]) == [] for at in range(len(answer) - 1))
    assert connection.feed(b"") == []
    [(correlation_id, body)] = connection.feed(answer[-1:])
    assert (correlation_id, bytes(body)) == (0, b"body")
    assert body.readonly


def test_the_answer_to_api_versions_has_no_tagged_section_in_its_header() -> None:
    connection = ClientConnection("c")
    connection.request(API_VERSIONS, 3, b"")
    assert fed(connection, frame(0, b"\x00\x23body")) == [(0, b"\x00\x23body")]


def test_an_unanswered_request_expects_nothing() -> None:
    connection = ClientConnection("c")
    connection.request(PRODUCE, FLEXIBLE, b"", is_answered=False)
    assert connection.in_flight == 0
    correlation_id, _ = connection.request(PRODUCE, LEGACY, b"")
    assert fed(connection, frame(correlation_id, b"")) == [(correlation_id, b"")]


@pytest.mark.parametrize("received", [frame(1, b""), frame(0, b"") + frame(0, b""), frame(7, b"")])
def test_an_answer_out_of_order_is_malformed(received: bytes) -> None:
    connection = ClientConnection("c")
    connection.request(METADATA, LEGACY, b"")
    with pytest.raises(MalformedMessage, match="response to request"):
        connection.feed(received)


@pytest.mark.parametrize("size", [-1, 0, 3, 1001, 2**31 - 1])
def test_an_impossible_size_is_malformed_before_the_rest_arrives(size: int) -> None:
    connection = ClientConnection("c", response_bytes_max=1000)
    connection.request(METADATA, LEGACY, b"")
    with pytest.raises(MalformedMessage, match=f"response of {size} bytes"):
        connection.feed(size.to_bytes(4, "big", signed=True))


def test_the_largest_answer_is_taken() -> None:
    connection = ClientConnection("c", response_bytes_max=1000)
    connection.request(METADATA, LEGACY, b"")
    assert fed(connection, frame(0, bytes(996))) == [(0, bytes(996))]


@pytest.mark.parametrize("rest", [b"", b"\x01\x00", b"\xff" * 9, b"\x80", b"\x01\x00\xff\xff\x03"])
def test_a_response_header_that_does_not_end_is_malformed(rest: bytes) -> None:
    connection = ClientConnection("c")
    connection.request(METADATA, FLEXIBLE, b"")
    with pytest.raises(MalformedMessage):
        connection.feed(frame(0, rest))


def test_a_header_of_too_many_tagged_fields() -> None:
    """Refused by their number: reading them would take seconds."""
    with pytest.raises(MalformedMessage, match="1000000 tagged fields"):
        after_tags(memoryview(b"\xc0\x84\x3d" + bytes(2_000_000)), 0)
