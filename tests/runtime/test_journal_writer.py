"""Metadata changes of a broker without a cluster."""

import threading
from typing import Any

from ottla.ports.disk import DiskError
from tests.peer import CREATE_TOPICS, PATIENCE_S, Peer
from tests.runtime.embedded_core import eventually, on_loop

KAFKA_STORAGE_ERROR = 56


def test_proposals_on_top_of_a_rejected_one_fail_with_it(start: Any) -> None:
    """Otherwise a topic could be created twice, while its first proposal is still being written."""
    broker = start()
    reached, go_on = threading.Event(), threading.Event()
    store = broker._node._store

    def refuse(_records: Any) -> None:
        del store.append
        reached.set()
        go_on.wait(PATIENCE_S)
        raise DiskError("no space left on device", full=True)

    store.append = refuse
    topic = {"num_partitions": 1, "replication_factor": 1}
    with Peer(broker.address) as first, Peer(broker.address) as second:
        first.send(CREATE_TOPICS, topics=[topic | {"name": "a"}])
        assert reached.wait(PATIENCE_S)
        second.send(CREATE_TOPICS, topics=[topic | {"name": "b"}])
        eventually(broker, lambda core: "b" in core.proposed.topics)
        go_on.set()
        codes = [each.receive().topics[0].error_code.value for each in (first, second)]
        assert codes == [KAFKA_STORAGE_ERROR, KAFKA_STORAGE_ERROR]
        assert on_loop(broker, lambda core: (core.image.topics, core.proposed.topics)) == ({}, {})
        second.create("b")
