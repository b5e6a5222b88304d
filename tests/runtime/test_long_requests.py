"""Long requests on a real broker: other clients are served meanwhile (issue 8, bugs 5 and 11).

No bound on time: what counts is that a witness is answered many times before the long request is.
"""

import struct
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from crc32c import crc32c

from ottla.records.compression import ZSTD
from ottla.records.record import Record, encode_batch
from tests.peer import API_VERSIONS, PRODUCE, Peer
from tests.running_broker import RunningBroker, start_broker

__all__ = ["start_broker"]

LIST_OFFSETS = 2
RECORDS = 300_000
#: The witness gets at least this many responses meanwhile.
ANSWERS = 10


@pytest.fixture
def broker(start_broker: Callable[..., RunningBroker]) -> RunningBroker:
    return start_broker(0, "log.flush.policy=page-cache")


def crowd() -> bytes:
    now_ms = time.time_ns() // 1_000_000
    return encode_batch([Record(at, now_ms + at, b"", None) for at in range(RECORDS)], codec=ZSTD)


def answered_meanwhile(address: str, ask: Callable[[Peer], Any]) -> tuple[Any, int]:
    """The response, and how many responses a witness on another connection got before it."""
    answers: list[Any] = []
    with Peer(address) as asking, Peer(address) as witness:
        witness.ask(API_VERSIONS, 0)
        thread = threading.Thread(target=lambda: answers.append(ask(asking)))
        thread.start()
        count = 0
        while thread.is_alive():
            witness.ask(API_VERSIONS, 0)
            count += 1
        thread.join()
    return answers[0], count


def produced(topic: str, batch: bytes) -> Callable[[Peer], Any]:
    data = [{"name": topic, "partition_data": [{"index": 0, "records": batch}]}]

    def ask(peer: Peer) -> Any:
        answer = peer.ask(PRODUCE, 12, acks=-1, timeout=30_000, topic_data=data)
        return answer.responses[0].partition_responses[0]

    return ask


@pytest.mark.parametrize("settings", [{"cleanup_policy": "compact"}, {"compression_type": "gzip"}])
def test_others_are_answered_while_a_large_batch_is_decoded(
    broker: RunningBroker, settings: dict[str, str]
) -> None:
    with Peer(broker.address) as peer:
        peer.create("t", max_message_bytes="10000000", **settings)
    row, count = answered_meanwhile(broker.address, produced("t", crowd()))
    assert (row.error_code.value, row.base_offset) == (0, 0)
    assert count > ANSWERS


def test_others_are_answered_while_a_time_is_looked_up_in_a_large_batch(broker: RunningBroker) -> None:
    with Peer(broker.address) as peer:
        peer.create("t")
        assert produced("t", crowd())(peer).error_code.value == 0

    def look_up(peer: Peer) -> Any:
        partition = {"partition_index": 0, "timestamp": -3, "current_leader_epoch": -1}
        topics = [{"name": "t", "partitions": [partition]}]
        answer = peer.ask(LIST_OFFSETS, 7, replica_id=-1, isolation_level=0, topics=topics)
        return answer.topics[0].partitions[0]

    row, count = answered_meanwhile(broker.address, look_up)
    assert (row.error_code.value, row.offset) == (0, RECORDS - 1)
    assert count > ANSWERS


def test_a_batch_that_claims_all_offsets_rolls_no_segment(broker: RunningBroker) -> None:
    """Otherwise 3,000 batches of 68 bytes in one request would create 12,000 files and keep 1.3 GB."""
    claim = bytearray(encode_batch([Record(0, 0, None, None)]))
    struct.pack_into(">i", claim, 23, 2**31 - 2)
    struct.pack_into(">i", claim, 57, 2**31 - 1)
    struct.pack_into(">I", claim, 17, crc32c(bytes(claim[21:])))
    with Peer(broker.address) as peer:
        peer.create("t")
        rows = [{"index": 0, "records": bytes(claim)}] * 3000
        answer = peer.ask(
            PRODUCE, 12, acks=-1, timeout=30_000, topic_data=[{"name": "t", "partition_data": rows}]
        )
        [topic] = answer.responses
        assert {row.error_code.value for row in topic.partition_responses} == {87, 42}
        assert peer.produce("t", b"next") == 0
