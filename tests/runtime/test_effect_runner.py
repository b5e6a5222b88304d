"""Effects that fail: only their own request, connection or job fails with them."""

import threading
from typing import Any

import pytest

from ottla.broker.api.shared.api_table import APIS
from ottla.broker.storage import checkpoint_writer, log_maintenance
from testkit.injected import Injected, is_injected
from tests.peer import API_VERSIONS, FETCH, METADATA, PATIENCE_S, Peer, fetch_fields
from tests.runtime.embedded_core import eventually, on_loop


def test_an_internal_error_ends_that_connection_and_is_logged(
    start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    broker = start(said.append)

    def broken(*_: Any) -> Any:
        raise ZeroDivisionError("broken on purpose")

    monkeypatch.setitem(APIS, API_VERSIONS, APIS[API_VERSIONS]._replace(handler=broken))
    with Peer(broker.address) as unlucky, Peer(broker.address) as other:
        unlucky.send(API_VERSIONS, 0)
        assert unlucky.is_closed()
        assert other.ask(METADATA, topics=[]).brokers
    assert any("Traceback" in text and "broken on purpose" in text for text in said)


def test_an_unexpected_sync_error_is_reported(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = start(log_flush_policy="durable")
    with Peer(broker.address) as peer:
        peer.create("t")

        def refuse(_file: Any) -> None:
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr(broker._node._disk, "sync", refuse)
        with pytest.raises(AssertionError):
            peer.produce("t", b"x")
        assert "can't start" in on_loop(broker, lambda core: core.directories.all[0].offline)


def test_an_error_in_a_timer_does_not_stop_the_clock(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = start()
    with Peer(broker.address) as peer:
        peer.create("t")
        core = broker._node._broker
        tick = core.tick
        failed = threading.Event()

        def refuse(now_ms: int) -> None:
            monkeypatch.setattr(core, "tick", tick)
            failed.set()
            raise RuntimeError("a timer that fails")

        on_loop(broker, lambda core: monkeypatch.setattr(core, "tick", refuse))
        broker._loop.set_exception_handler(lambda _loop, _context: None)
        peer.send(FETCH, 12, **fetch_fields("t", 0, max_wait=50))
        assert failed.wait(PATIENCE_S)
        assert peer.receive().responses[0].partitions[0].error_code.value == 0


def test_an_internal_error_in_a_flush_or_a_checkpoint_does_not_take_the_directory_offline(
    start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was damaged: the error is logged and the work retried."""
    for each in (checkpoint_writer, log_maintenance):
        monkeypatch.setattr(each, "_RETRY_MS", 100)
    broker = start()
    runner = broker._node._runner
    runner.isolation.tolerates = is_injected
    replace_file = runner.disk.replace_file
    failures: dict[str, int] = {}

    def fail_at_first(path: str, data: bytes) -> None:
        kind = path.rpartition(".")[2] if path.endswith(".snapshot") else "checkpoint"
        failures[kind] = failures.get(kind, 0) + 1
        if failures[kind] == 1:
            raise Injected(kind)
        replace_file(path, data)

    def replica(core: Any) -> Any:
        return core.partitions.by_name["t"].replicas[0]

    with Peer(broker.address) as peer:
        peer.create("t")
        monkeypatch.setattr(runner.disk, "replace_file", fail_at_first)
        peer.produce("t", b"x")
        on_loop(broker, lambda core: core.log_maintenance.flush(replica(core)))
        eventually(broker, lambda core: replica(core).log.recovery_point == 1)
        on_loop(broker, lambda core: core.log_maintenance.delete_records(replica(core), 1))
        eventually(broker, lambda _core: failures.get("checkpoint", 0) > 1)
        assert on_loop(broker, lambda core: [each.offline for each in core.directories.all]) == [None]
        peer.produce("t", b"y")
    assert failures["snapshot"] > 1
    assert runner.isolation.count == 2
