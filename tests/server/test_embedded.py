"""The broker embedded in another program (A11)."""

import gc
import os
import socket
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest

import ottla
from ottla.server.embedded import Broker
from ottla.server.node import CannotStart
from tests.peer import API_VERSIONS, METADATA, Peer

FAST = {"log.flush.policy": "page-cache"}


def test_it_is_exported_by_the_package() -> None:
    assert ottla.Broker is Broker


def test_a_temporary_directory_is_deleted() -> None:
    with Broker() as broker:
        directory = broker.data_dir
        with Peer(broker.address) as peer:
            peer.create("t")
            assert peer.produce("t", b"x") == 0
        assert os.path.isdir(directory)
    assert not os.path.exists(directory)


def test_a_directory_that_was_given_stays_and_is_read_again(tmp_path: Path) -> None:
    for number in range(3):
        with Broker(str(tmp_path / "data"), config=FAST) as broker, Peer(broker.address) as peer:
            if number == 0:
                peer.create("t", retention_ms="5000000000")
            assert peer.produce("t", b"%d" % number) == number
            assert len(peer.fetch("t", 0)) == number + 1
    assert not (tmp_path / "data" / "ottla.pid").exists()


def test_the_port_may_be_chosen(free_port: int) -> None:
    with Broker(port=free_port) as broker:
        assert broker.address == f"127.0.0.1:{free_port}"


def test_two_brokers_side_by_side() -> None:
    with (
        Broker(config=FAST) as one,
        Broker(config=FAST) as two,
        Peer(one.address) as first,
        Peer(two.address) as second,
    ):
        first.create("t")
        assert second.ask(METADATA, topics=None).topics == ()


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(CannotStart, match="cannot listen"):
            Broker(str(tmp_path), port=taken.getsockname()[1])


def test_a_directory_that_is_in_use(tmp_path: Path) -> None:
    with Broker(str(tmp_path)), pytest.raises(CannotStart, match="another broker"):
        Broker(str(tmp_path))
    # The directory is free again afterwards.
    Broker(str(tmp_path)).close()


def test_a_directory_of_another_node(tmp_path: Path) -> None:
    Broker(str(tmp_path)).close()
    with pytest.raises(CannotStart, match=r"node\.id"):
        Broker(str(tmp_path), config={"node.id": "7"})


def test_an_invalid_setting_names_itself() -> None:
    with pytest.raises(Exception, match=r"num\.partitions"):
        Broker(config={"num.partitions": "many"})


def test_closing_twice_and_from_another_thread() -> None:
    broker = Broker()
    closer = threading.Thread(target=broker.close)
    closer.start()
    closer.join()
    broker.close()


def test_no_thread_and_no_descriptor_is_left(tmp_path: Path) -> None:
    Broker(str(tmp_path)).close()
    threads = set(threading.enumerate())
    descriptors = open_descriptors()
    with Broker(str(tmp_path)) as broker, Peer(broker.address) as peer:
        if broker.data_dir:
            peer.ask(API_VERSIONS, 0)
        peer.create("t", 10)
        peer.produce("t", b"x")
    assert {thread.name for thread in set(threading.enumerate()) - threads} == set()
    assert open_descriptors() == descriptors


def open_descriptors() -> set[str]:
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            found.add(os.readlink(f"/proc/self/fd/{name}"))
        except FileNotFoundError:
            continue
    return {each for each in found if not each.startswith("/proc")}


def test_settings_survive_a_restart(tmp_path: Path) -> None:
    def settings(peer: Peer) -> dict[str, Any]:
        resource = {"resource_type": 2, "resource_name": "t", "configuration_keys": ["retention.ms"]}
        [row] = peer.ask(32, resources=[resource]).results[0].configs
        return row.value

    with Broker(str(tmp_path)) as broker, Peer(broker.address) as peer:
        peer.create("t", 3)
        change = {"name": "retention.ms", "config_operation": 0, "value": "777"}
        peer.ask(44, resources=[{"resource_type": 2, "resource_name": "t", "configs": [change]}])
    with Broker(str(tmp_path)) as broker, Peer(broker.address) as peer:
        assert settings(peer) == "777"
        [topic] = peer.ask(METADATA, topics=None).topics
        assert len(topic.partitions) == 3


def test_producer_ids_are_not_handed_out_again_after_a_restart(tmp_path: Path) -> None:
    ids = []
    for _ in range(3):
        with Broker(str(tmp_path)) as broker, Peer(broker.address) as peer:
            ids += [peer.ask(22).producer_id for _ in range(5)]
    assert len(set(ids)) == 15


def test_a_closed_broker_leaves_nothing_in_memory() -> None:
    """A program that embeds brokers, or a test suite, may start hundreds of them."""
    broker = Broker(config=FAST)
    core = weakref.ref(broker._node._broker.partitions)
    broker.close()
    del broker
    gc.collect()
    assert core() is None


def test_a_stop_that_cannot_write_is_logged_and_the_next_start_recovers(tmp_path: Path) -> None:
    said: list[str] = []
    broker = Broker(str(tmp_path), say=said.append)
    (tmp_path / "replication-offset-checkpoint").mkdir()
    broker.close()
    assert sum("was not closed cleanly" in text for text in said) == 1
    assert not (tmp_path / ".kafka_cleanshutdown").exists()
    (tmp_path / "replication-offset-checkpoint").rmdir()
    Broker(str(tmp_path)).close()
    assert (tmp_path / ".kafka_cleanshutdown").exists()


def test_a_failed_start_is_reported_even_if_its_thread_has_not_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve = Broker._serve
    told = threading.Event()

    def serve_slowly(self: Broker) -> None:
        serve(self)
        told.wait(0.2)

    with Broker(str(tmp_path)):
        monkeypatch.setattr(Broker, "_serve", serve_slowly)
        with pytest.raises(CannotStart, match="another broker"):
            Broker(str(tmp_path))
