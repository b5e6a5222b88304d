"""The epoll selector does what asyncio expects."""

import asyncio
import selectors
import socket
import threading

import pytest

from ottla.runtime import selector as module
from ottla.runtime.platform import HAS_EPOLL

pytestmark = pytest.mark.skipif(not HAS_EPOLL, reason="there is no epoll here")

READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


def test_events_are_those_of_the_standard_selector() -> None:
    ours, theirs = module.Epoll(), selectors.EpollSelector()
    near, far = socket.socketpair()
    with near, far:
        for each in (ours, theirs):
            each.register(near.fileno(), READ | WRITE, "data")

        def masks() -> list[int]:
            return [each.select(0)[0][1] for each in (ours, theirs)]

        assert masks() == [WRITE, WRITE]
        far.send(b"x")
        assert masks() == [READ | WRITE] * 2
        for each in (ours, theirs):
            assert each.modify(near.fileno(), READ, "other").data == "other"
        assert masks() == [READ, READ]
        far.close()
        assert masks() == [READ, READ]
        for each in (ours, theirs):
            each.modify(near.fileno(), WRITE)
        # A hang-up wakes readers and writers.
        assert masks() == [WRITE, WRITE]
        assert ours.get_key(near).data is None
        assert ours.get_key(near.fileno()).events == WRITE
        for each in (ours, theirs):
            each.unregister(near)
            assert each.select(0) == []
            assert not each.get_map()
    ours.close()
    theirs.close()


def test_unknown_and_repeated_descriptors_are_refused() -> None:
    with module.Epoll() as ours, socket.socket() as sock:
        ours.register(sock, READ)
        with pytest.raises(KeyError):
            ours.register(sock.fileno(), READ)
        ours.unregister(sock)
        with pytest.raises(KeyError):
            ours.unregister(sock)
        with pytest.raises(KeyError):
            ours.get_key(sock)


def test_a_closed_descriptor_can_be_unregistered() -> None:
    with module.Epoll() as ours:
        sock = socket.socket()
        number = sock.fileno()
        ours.register(number, READ)
        sock.close()
        assert ours.unregister(number).fd == number


def test_a_loop_waits_for_timers_threads_and_sockets() -> None:
    loop = module.new_event_loop()

    async def work() -> bytes:
        near, far = socket.socketpair()
        with near, far:
            near.setblocking(False)
            await asyncio.sleep(0.005)
            # Nothing but the thread wakes the loop.
            woken = asyncio.Event()
            threading.Thread(target=loop.call_soon_threadsafe, args=(woken.set,)).start()
            await asyncio.wait_for(woken.wait(), 30)
            threading.Thread(target=far.sendall, args=(b"hello",)).start()
            return await asyncio.wait_for(loop.sock_recv(near, 10), 30)

    try:
        assert loop.run_until_complete(work()) == b"hello"
    finally:
        loop.close()
