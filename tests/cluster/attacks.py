"""Expensive requests that a client may send, at one broker. Each attack is bounded in count and in time.

The frames are encoded before the attack begins, and answers are not decoded, so that the attacker takes little of the CPU time that the
witness in this process needs. A broker may answer, refuse, or close the connection: all of that is right.
"""

import functools
import select
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress

from ottla.model.limits import MEMBER_STRING_BYTES_MAX
from ottla.records.compression import ZSTD, compress
from ottla.records.record import Record, encode_batch
from ottla.wire.encode import request_encoder
from ottla.wire.frames import ClientConnection
from testkit.fuzz.batches import batch_around, crowd_payload
from tests.crash.broker_process import Wire

PRODUCE, METADATA, JOIN_GROUP, DESCRIBE_CONFIGS = 0, 3, 11, 32
BROKER_RESOURCE = 4
#: An address of this machine that no broker has: a broker can tell the attacker from other brokers by it.
ATTACKER = "127.0.0.2"
MIB = 1 << 20
#: One attack ends after this time, whatever it has sent by then.
ATTACK_S = 1.0

Attack = Callable[["Target"], int]


class Target:
    """The broker that is attacked, and topics whose partition `led` it leads."""

    def __init__(
        self, address: str, node_id: int, *, wide: str, plain: str, compacted: str, led: int
    ) -> None:
        host, _, port = address.rpartition(":")
        self._address, self._text = (host, int(port)), address
        self.node_id, self.led = node_id, led
        self.wide, self.plain, self.compacted = wide, plain, compacted

    def connect(self) -> socket.socket:
        """Raises OSError if the broker does not take one more."""
        return socket.create_connection(self._address, timeout=ATTACK_S, source_address=(ATTACKER, 0))

    def wire(self) -> Wire:
        """A connection that speaks the protocol; raises OSError as `connect`."""
        return Wire(self._text, ATTACK_S, source=ATTACKER)

    def producing(self, topic: str, *batches: bytes | None) -> dict[str, object]:
        rows = [{"index": self.led, "records": batch} for batch in batches]
        return {
            "acks": -1,
            "timeout": 30_000,
            "topic_data": [{"name": topic, "partition_data": rows}],
        }


def frame_of(key: int, version: int, **fields: object) -> bytes:
    return ClientConnection("attacker").request(key, version, request_encoder(key, version)(fields))[1]


def read_answer(sock: socket.socket) -> None:
    """Read one answer and forget it. Raises OSError if the connection is closed."""
    left = struct.unpack(">i", _read(sock, 4))[0]
    while left:
        left -= len(_read(sock, min(left, MIB)))


def _read(sock: socket.socket, size: int) -> bytes:
    data = sock.recv(size, socket.MSG_WAITALL)
    if len(data) < size:
        raise ConnectionResetError("closed by the broker")
    return data


def repeat(target: Target, frame: bytes, times: int, in_flight: int = 4) -> int:
    """Send a request so often, on new connections where the broker closes one; how many were sent."""
    sent, end_s = 0, time.monotonic() + ATTACK_S
    while sent < times and time.monotonic() < end_s:
        # The broker closes the connection instead of answering, or answers later than the attack lasts.
        with suppress(OSError), target.connect() as sock:
            while sent < times and time.monotonic() < end_s:
                count = min(in_flight, times - sent)
                sent += count
                sock.sendall(frame * count)
                for _ in range(count):
                    read_answer(sock)
    return sent


# --- the attacks ------------------------------------------------------------------------------------------------------


def metadata_of_one_topic_500_times(target: Target) -> int:
    rows = [{"topic_id": None, "name": target.wide}] * 500
    frame = frame_of(
        METADATA, 12, topics=rows, allow_auto_topic_creation=False, include_topic_authorized_operations=False
    )
    return repeat(target, frame, 40)


def configs_of_one_broker_500_times(target: Target) -> int:
    row = {
        "resource_type": BROKER_RESOURCE,
        "resource_name": str(target.node_id),
        "configuration_keys": None,
    }
    fields = {"resources": [row] * 500, "include_synonyms": True, "include_documentation": True}
    return repeat(target, frame_of(DESCRIBE_CONFIGS, 4, **fields), 40)


def produces_of_null_rows(target: Target) -> int:
    allowed = frame_of(PRODUCE, 9, **target.producing(target.plain, *[None] * 19_000))
    too_many = frame_of(PRODUCE, 9, **target.producing(target.plain, *[None] * 300_000))
    return repeat(target, allowed, 20) + repeat(target, too_many, 10, in_flight=1)


def produces_of_tiny_batches(target: Target) -> int:
    batch = encode_batch([Record(0, 1, None, None)])
    frame = frame_of(PRODUCE, 9, **target.producing(target.plain, batch * 50_000))
    rows = frame_of(PRODUCE, 9, **target.producing(target.plain, *[batch] * 15_000))
    return repeat(target, frame, 5, in_flight=1) + repeat(target, rows, 5, in_flight=1)


def batches_that_claim_all_offsets(target: Target) -> int:
    payload = encode_batch([Record(0, 1, None, None)])[61:]
    claim = batch_around(0, payload, 0x7FFFFFFF, 1)
    frame = frame_of(PRODUCE, 9, **target.producing(target.plain, *[claim] * 3000))
    return repeat(target, frame, 20)


@functools.cache
def _crowd() -> bytes:
    return batch_around(ZSTD, compress(ZSTD, crowd_payload(900_000)), 900_000, 1)


def many_records_to_a_compacted_topic(target: Target) -> int:
    frame = frame_of(PRODUCE, 9, **target.producing(target.compacted, _crowd()))
    return repeat(target, frame, 3, in_flight=1)


def unfinished_requests(target: Target) -> int:
    """95 MiB of 100 MiB on each of twelve connections, as far as the broker reads them."""
    part = struct.pack(">i", 100 * MIB), bytes(MIB)
    sent, end_s = 0, time.monotonic() + ATTACK_S
    with ExitStack() as stack:
        socks = [stack.enter_context(target.connect()) for _ in range(12)]
        for sock in socks:
            sock.sendall(part[0])
            sock.setblocking(False)
        left = dict.fromkeys(socks, 95 * MIB)
        while left and time.monotonic() < end_s:
            # Those that the broker reads from, or has closed. The others wait without taking CPU time from the witness.
            for sock in select.select([], list(left), [], 0.1)[1]:
                try:
                    count = sock.send(part[1])
                except BlockingIOError:
                    continue
                except OSError:
                    del left[sock]
                    continue
                sent += count
                left[sock] -= count
                if left[sock] <= 0:
                    del left[sock]
    return sent // MIB


def joins_with_long_strings(target: Target) -> int:
    """Members of as many groups, each with as much text as it may have, and some with more."""
    sent, end_s = 0, time.monotonic() + ATTACK_S
    with suppress(OSError), target.connect() as sock:
        for number, length in _joins():
            if time.monotonic() > end_s:
                break
            instance = f"{number:06}".ljust(length, "i")
            fields = {
                "group_id": f"attack-{number}", "session_timeout": 6000, "rebalance_timeout": 6000, "member_id": "",
                "group_instance_id": instance, "protocol_type": "consumer", "reason": "r" * length,
                "protocols": [{"name": "p" * length, "metadata": bytes(length)}],
            }  # fmt: skip
            sock.sendall(frame_of(JOIN_GROUP, 9, **fields))
            sent += 1
    return sent


def _joins() -> Iterator[tuple[int, int]]:
    for number in range(2000):
        yield number, 40_000 if number % 10 == 0 else MEMBER_STRING_BYTES_MAX


def connections(target: Target) -> int:
    """As many as the broker holds, and more; then made and left as fast as they can be."""
    made, end_s = 0, time.monotonic() + ATTACK_S
    with ExitStack() as stack:
        while made < 1000 and time.monotonic() < end_s:
            with suppress(OSError):
                stack.enter_context(target.connect())
            made += 1
        while made < 3000 and time.monotonic() < end_s:
            with suppress(OSError):
                target.connect().close()
            made += 1
    return made


ATTACKS: tuple[Attack, ...] = (
    metadata_of_one_topic_500_times, configs_of_one_broker_500_times, produces_of_null_rows, produces_of_tiny_batches,
    batches_that_claim_all_offsets, many_records_to_a_compacted_topic, unfinished_requests, joins_with_long_strings, connections,
)  # fmt: skip
