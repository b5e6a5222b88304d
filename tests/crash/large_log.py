"""A large log of one-message batches, written by a live broker as fast as it takes them, and a timed restart on it."""

import re
import threading
import time
from pathlib import Path

from tests.crash.broker_process import (
    PATIENCE_S,
    PRODUCE,
    BrokerProcess,
    Wire,
    batch_of,
    producing,
    wait_until,
)

TOPIC = "large"
BATCH_BYTES = 1024
#: The default of log.recovery.point.interval.bytes.
FLUSH_INTERVAL_BYTES = 64 << 20
_FRAMES_PER_SEND = 200


def fill(address: str, size: int) -> tuple[int, int]:
    """Produce batches of one message until `size` bytes of them are acknowledged: how many were, how many were sent.

    When it returns, requests are still on their way and the broker is still appending them.
    """
    batch = batch_of(bytes(BATCH_BYTES - len(batch_of(b""))))
    with Wire(address) as wire:
        wire.create(TOPIC)
        first = wire.produce(TOPIC, batch)
        assert first == 0
        # The broker does not care whether correlation ids differ, so one frame made once serves for all.
        frame = wire.frame(PRODUCE, 9, **producing(TOPIC, batch, acks=1))
        wire.socket.sendall(frame)
        size_of_answer = len(wire.socket.recv(4096))
        wanted = size // len(batch)
        sent = 2
        enough = threading.Event()

        def send() -> None:
            nonlocal sent
            frames = frame * _FRAMES_PER_SEND
            while not enough.is_set():
                sent += _FRAMES_PER_SEND
                try:
                    wire.socket.sendall(frames)
                except OSError:
                    return

        sender = threading.Thread(target=send, daemon=True)
        sender.start()
        received = 2 * size_of_answer
        buffer = bytearray(1 << 18)
        while received < wanted * size_of_answer:
            received += wire.socket.recv_into(buffer)
        acknowledged = received // size_of_answer
        enough.set()
    sender.join(PATIENCE_S)
    return acknowledged, sent


def restart_seconds(broker: BrokerProcess, acknowledged: int, sent: int) -> float:
    """From the start of the process to its first answer, which must know every acknowledged message."""
    started = time.perf_counter()
    broker.spawn()
    connected: list[Wire] = []

    def connects() -> bool:
        try:
            connected.append(Wire(broker.address))
        except ConnectionRefusedError:
            return False
        return True

    wait_until(connects, "the broker does not listen")
    with connected[0] as wire:
        end = wire.end_offset(TOPIC)
        seconds = time.perf_counter() - started
        assert acknowledged <= end <= sent
        [last] = wire.fetch(TOPIC, end - 1)
        assert last.offset == end - 1 and last.value == bytes(len(last.value or b""))
    return seconds


def timed_restart_after_kill(data_dir: Path, port: int, size: int) -> tuple[float, int]:
    """Seconds to the first answer after kill -9 in the middle of the writing; and the log's size.

    However large the log, what is read again is what came since the last background flush, and during it.
    """
    with BrokerProcess(data_dir, port, {"log.flush.policy": "page-cache"}) as broker:
        began = time.perf_counter()
        acknowledged, sent = fill(broker.address, size)
        broker.kill()
        written = sum(path.stat().st_size for path in data_dir.glob(f"{TOPIC}-0/*.log"))
        print(f"{written >> 20} MiB of one-message batches written in {time.perf_counter() - began:.1f} s")
        seconds = restart_seconds(broker, acknowledged, sent)
        print(f"restart after kill -9: {seconds:.3f} s to the first answer; it said: {broker.words}")
        read_again = re.search(r"([\d,]+) bytes read again", broker.words)
        assert read_again is not None
        assert int(read_again[1].replace(",", "")) < 3 * FLUSH_INTERVAL_BYTES
    return seconds, written
