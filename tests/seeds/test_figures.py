"""The figures of mission.md that are promises to every user, not benchmarks."""

# ruff: noqa: N802 (a test bears the id of its claim)

import asyncio
import resource
from collections.abc import Iterator
from typing import Any

import pytest

from ottla.records.record import decode_batches
from ottla.wire.decode import decode_response
from ottla.wire.encode import request_encoder
from ottla.wire.frames import ClientConnection
from tests.crash.broker_process import (
    FETCH,
    PATIENCE_S,
    PRODUCE,
    BrokerProcess,
    Wire,
    batch_of,
    fetching,
    producing,
)

CLIENTS = 3_000
PARTITIONS = 30


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """This process holds the other end of every connection."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, CLIENTS + 500), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class Client:
    """One connection of an asyncio program."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.partition = number % PARTITIONS
        self._frames = ClientConnection(f"client-{number}")

    async def connect(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._reader, self._writer = await asyncio.open_connection(host, int(port))

    async def ask(self, key: int, version: int, fields: dict[str, Any]) -> Any:
        _id, frame = self._frames.request(key, version, request_encoder(key, version)(fields))
        self._writer.write(frame)
        while True:
            data = await self._reader.read(1 << 16)
            assert data, f"client {self.number} lost its connection"
            for _id, body in self._frames.feed(data):
                return decode_response(key, version, body, 0)

    async def produce_and_fetch(self, times: int) -> None:
        """Write a record, read it back from where the broker says it is, and again."""
        for turn in range(times):
            value = b"%d of client %d" % (turn, self.number)
            answer = await self.ask(PRODUCE, 9, producing("many", batch_of(value), self.partition))
            row = answer.responses[0].partition_responses[0]
            assert row.error_code.value == 0
            answer = await self.ask(
                FETCH,
                11,
                fetching("many", row.base_offset, self.partition, max_wait_ms=30_000, bytes_max=200),
            )
            records = answer.responses[0].partitions[0].records
            assert next(iter(decode_batches(records))).value == value

    async def wait_for_the_bell(self) -> bytes | None:
        answer = await self.ask(FETCH, 11, fetching("bell", 0, max_wait_ms=60_000))
        return next(iter(decode_batches(answer.responses[0].partitions[0].records))).value

    def close(self) -> None:
        self._writer.close()


async def run(address: str) -> None:
    clients = [Client(number) for number in range(CLIENTS)]
    try:
        for first in range(0, CLIENTS, 100):
            await asyncio.gather(*(client.connect(address) for client in clients[first : first + 100]))
        await asyncio.gather(*(client.produce_and_fetch(2) for client in clients))
        # All of them wait at once; one record wakes them all.
        waiting = [asyncio.create_task(client.wait_for_the_bell()) for client in clients[1:]]
        answer = await clients[0].ask(PRODUCE, 9, producing("bell", batch_of(b"ding")))
        assert answer.responses[0].partition_responses[0].error_code.value == 0
        assert await asyncio.gather(*waiting) == [b"ding"] * (CLIENTS - 1)
    finally:
        for client in clients:
            client.close()


@pytest.mark.usefixtures("many_descriptors")
def test_H2_thousands_of_clients_at_once(broker: BrokerProcess, wire: Wire) -> None:
    """Three thousand connections, all open, all producing and fetching, then all waiting."""
    wire.create("many", PARTITIONS)
    wire.create("bell")
    asyncio.run(asyncio.wait_for(run(broker.address), PATIENCE_S))
    assert sum(wire.end_offset("many", partition) for partition in range(PARTITIONS)) == 2 * CLIENTS
