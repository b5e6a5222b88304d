"""The base of the blocking clients: an event loop in a background thread, and closing once.

`ottla.Producer`, `ottla.Consumer` and `ottla.Admin` own one thread each, on which their asyncio core does all
I/O. A fork copies no thread, and the sockets belong to the parent. So in the child every client of the parent
is replaced by `Forked`, which raises.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import logging
import os
import threading
import weakref
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

from ottla.client.errors import ClientClosed, KafkaError

Result = TypeVar("Result")

logger = logging.getLogger(__name__)


class LoopThread:
    """An event loop in a daemon thread. `run` executes a coroutine there and waits for the result."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        # Work that is submitted after the loop was stopped would hang.
        self._handing_over = threading.Lock()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        while not self._stopping:
            try:
                self.loop.run_forever()
            except (KeyboardInterrupt, SystemExit):
                # asyncio lets these through. In this thread they would only end the client, and its callers
                # would hang.
                logger.exception("a callback on the client's own thread raised")
        # Tasks of a cancelled client must end before the loop does.
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        if tasks:
            self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()

    def run(self, work: Coroutine[Any, Any, Result], timeout_s: float | None = None) -> Result:
        try:
            self.check_not_current()
            with self._handing_over:
                if self._stopping or not self._thread.is_alive():
                    raise _closed()
                future = asyncio.run_coroutine_threadsafe(work, self.loop)
        except KafkaError:
            work.close()
            raise
        try:
            return future.result(timeout_s)
        except concurrent.futures.CancelledError:
            # Only `stop` cancels it: the client was closed meanwhile.
            raise _closed() from None
        except BaseException:
            future.cancel()
            raise

    @property
    def is_current(self) -> bool:
        """Whether this is the client's own thread, which must not wait for itself."""
        return threading.current_thread() is self._thread

    def check_not_current(self) -> None:
        if self.is_current:
            raise KafkaError(
                "a callback that runs on the client's own thread cannot wait for the client",
                advice="Make the call in another thread",
            )

    def stop(self) -> None:
        with self._handing_over:
            first, self._stopping = not self._stopping, True
            if first and self._thread.is_alive():
                self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(5)


def _closed() -> ClientClosed:
    return ClientClosed("this client is closed", advice="Create a new one")


class Forked:
    """Replaces the core of a client in a forked child: there is nothing to use or to close."""

    def __init__(self, core: object) -> None:
        # Keep a reference: otherwise asyncio warns about destroyed tasks.
        self._core = core

    def __getattr__(self, name: str) -> Any:
        raise ClientClosed(
            "this client was created in another process, before a fork",
            advice="Create a new one after the fork",
        )


_open_clients: weakref.WeakSet[BlockingClient] = weakref.WeakSet()


def _after_fork() -> None:
    for client in list(_open_clients):
        client._core = Forked(client._core)


os.register_at_fork(after_in_child=_after_fork)


@atexit.register
def _stop_open_clients() -> None:
    """Stop the clients of a program that did not call `close()`. Producers have sent their records before."""
    for client in list(_open_clients):
        if not isinstance(client._core, Forked):
            client._thread.stop()


class BlockingClient:
    """The common part of the blocking clients: the thread, and closing once."""

    _core: Any

    def _open(self, name: str, make: Any) -> Any:
        self._closed = False
        self._thread = LoopThread(name)

        async def build() -> Any:
            core = make()
            try:
                await core.start()
            except BaseException:
                await core._cluster.close()
                raise
            return core

        try:
            core = self._thread.run(build())
        except BaseException:
            self._thread.stop()
            raise
        _open_clients.add(self)
        return core

    def _closes(self) -> bool:
        """Whether there is something to close: not the second time, and not in a forked child."""
        first = not self._closed and not isinstance(self._core, Forked)
        if first:
            # Check before it is marked as closed, so that the owner can still close it.
            self._thread.check_not_current()
        self._closed = True
        return first

    def _shut(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            self._thread.run(work)
        finally:
            self._thread.stop()

    def close(self) -> None:
        """Disconnect. A second call does nothing.

        Example:
            >>> admin = ottla.Admin(broker.address)
            >>> admin.close()
        """
        if self._closes():
            self._shut(self._core.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
