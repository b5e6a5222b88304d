"""`ottla.Broker`: a broker inside another Python program (A11).

It runs the same `Node` as the server process, on an event loop in one background thread.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import threading
from collections.abc import Callable, Mapping
from types import TracebackType

from ottla.config.broker import BrokerConfig
from ottla.runtime.selector import new_event_loop
from ottla.runtime.turns import LongestTurn
from ottla.server.node import CannotStart, Node


class Broker:
    """A broker in this process. The constructor starts it; `close`, or the end of a `with` block, stops it.

    Args:
        data_dir: Directory of the logs. Default: a temporary directory, which `close` removes.
        host: Address to listen on. Default: "127.0.0.1".
        port: Port to listen on. Default: 0, a free port.
        config: Broker properties by their Kafka names. Default: none.
        say: Called with each line that a server process would print. Default: the lines are dropped.

    Raises:
        CannotStart: The port is in use, or the data directory cannot be used.

    Example:
        >>> with ottla.Broker(config={"num.partitions": "3"}) as broker:
        ...     with ottla.Producer(broker.address) as producer:
        ...         print(producer.partitions_for("payments"))
        [0, 1, 2]
    """

    def __init__(
        self,
        data_dir: str | None = None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        config: Mapping[str, str] | None = None,
        say: Callable[[str], None] = lambda _text: None,
    ) -> None:
        self._temporary = tempfile.mkdtemp(prefix="ottla-") if data_dir is None else None
        directory = data_dir if data_dir is not None else self._temporary
        assert directory is not None
        properties = {"listeners": f"PLAINTEXT://{host}:{port}", "log.dirs": directory, **(config or {})}
        try:
            self._node = Node(BrokerConfig.from_properties(properties), say=say)
        except BaseException:
            self._remove_temporary()
            raise
        self._loop = new_event_loop()
        self._ready = threading.Event()
        self._problems: list[BaseException] = []
        self._thread = threading.Thread(target=self._serve, name="ottla-broker", daemon=True)
        self._thread.start()
        self._ready.wait()
        if self._problems:
            # The thread has ended: there is nothing to stop.
            self._thread.join()
            self._remove_temporary()
            raise CannotStart(str(self._problems[0])) from self._problems[0]

    @property
    def address(self) -> str:
        """The bootstrap server for clients: `host:port`."""
        return self._node.address

    @property
    def data_dir(self) -> str:
        """The directory of the logs."""
        return self._node.data_dir

    @property
    def longest_turn(self) -> LongestTurn:
        """The event loop turn with the most CPU time so far. Other clients wait during a turn."""
        return self._node.longest_turn

    def close(self) -> None:
        """Stop the broker cleanly and remove a temporary data directory. A second call does nothing.

        Example:
            >>> other = ottla.Broker()
            >>> other.close()
        """
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
        self._remove_temporary()

    def _remove_temporary(self) -> None:
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)
            self._temporary = None

    def __enter__(self) -> Broker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._node.start(self._loop)
        except BaseException as error:
            self._problems.append(error)
            self._ready.set()
            self._loop.close()
            return
        self._ready.set()
        try:
            self._loop.run_forever()
            self._node.stop()
        finally:
            self._loop.close()
