"""A running broker, Kafka's or ours, for clients by hand (`tests/broker/api/transactors.py`, `mischief.py`)."""

import time
from types import TracebackType
from typing import Self

from tests.crash.broker_process import Wire


class There:
    def __init__(self, address: str) -> None:
        self.address = address
        self._wires: list[Wire] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for wire in self._wires:
            wire.socket.close()

    @property
    def now_ms(self) -> int:
        return int(time.time() * 1000)

    def connect(self) -> Wire:
        self._wires.append(Wire(self.address))
        return self._wires[-1]

    def connect_broker(self) -> Wire:
        """Kafka without an authorizer takes anybody for a broker."""
        return self.connect()

    def wait(self) -> None:
        time.sleep(0.05)
