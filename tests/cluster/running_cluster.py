"""A cluster of real broker processes on a real ZooKeeper, to be killed, stopped, paused and started again one by one.

Every wait is for a condition, with a deadline that only a broken cluster reaches; then it says what all brokers said.
"""

import itertools
import os
import random
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

from tests.crash.broker_process import METADATA, BrokerProcess, Wire

PATIENCE_S = 60.0

#: Short, so that a test need not wait long for a broker that stands still to be missed.
SESSION_MS = 4000

_METADATA_VERSION = 12
_UNREGISTER_BROKER = 64


class PartitionState(NamedTuple):
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline: tuple[int, ...]


class RunningCluster:
    """`with` starts nothing and ends everything."""

    def __init__(
        self, directory: Path, zookeeper_connect: str, settings: Mapping[str, str] | None = None
    ) -> None:
        self.directory = directory
        self.zookeeper_connect = zookeeper_connect
        self._settings = {
            "zookeeper.session.timeout.ms": str(SESSION_MS),
            "log.flush.policy": "page-cache",
            **(settings or {}),
        }
        self.nodes: dict[int, BrokerProcess] = {}
        self._ports = free_ports()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        for node in self.nodes.values():
            node.kill()

    # --- brokers ----------------------------------------------------------------------------------------------

    def add(self, node_id: int, **settings: str) -> BrokerProcess:
        """Begin to start one more broker; `wait` follows."""
        own = {name.replace("_", "."): value for name, value in settings.items()}
        node = self.nodes[node_id] = BrokerProcess(
            self.directory / f"broker-{node_id}",
            next(self._ports),
            {
                **self._settings,
                "node.id": str(node_id),
                "zookeeper.connect": self.zookeeper_connect,
                **own,
            },
            ends_with_us=True,
        )
        return node.spawn()

    def start(self, *node_ids: int) -> Self:
        """Start these at once and wait until all of them serve."""
        for node_id in node_ids:
            if node_id in self.nodes:
                self.nodes[node_id].spawn()
            else:
                self.add(node_id)
        for node_id in node_ids:
            self.nodes[node_id].wait_for(" listens on ")
        return self

    def restart(self, node_id: int) -> None:
        """Start it again, after it was stopped or killed, and wait until it serves."""
        self.start(node_id)

    def kill(self, node_id: int) -> None:
        self.nodes[node_id].kill()

    def stop(self, node_id: int) -> None:
        """As an operator does: SIGTERM, and a clean end."""
        code = self.nodes[node_id].stop()
        assert code == 0, f"broker {node_id} ended with {code}:\n{self.nodes[node_id].words}"

    def remove(self, node_id: int) -> None:
        """Stop a broker that holds nothing, and have the cluster forget it."""
        self.stop(node_id)
        del self.nodes[node_id]
        via = self.nodes[self.running()[0]]

        def is_forgotten() -> bool:
            # The controller may not know yet that it is gone.
            with Wire(via.address, timeout_s=10) as wire:
                return not wire.ask(_UNREGISTER_BROKER, 0, broker_id=node_id).error_code.value

        self.wait_until(is_forgotten, f"broker {node_id} is forgotten")

    def pause(self, node_id: int) -> None:
        self.nodes[node_id].signal(signal.SIGSTOP)

    def resume(self, node_id: int) -> None:
        self.nodes[node_id].signal(signal.SIGCONT)

    def running(self) -> list[int]:
        return [number for number, node in self.nodes.items() if node.is_running]

    def heal(self) -> None:
        """Whoever does not run is started, whoever stands still goes on."""
        for node in self.nodes.values():
            if node.is_running:
                node.signal(signal.SIGCONT)
        self.start(*(number for number, node in self.nodes.items() if not node.is_running))

    @property
    def bootstrap(self) -> str:
        return ",".join(node.address for node in self.nodes.values())

    def said(self) -> str:
        return "\n".join(
            f"broker {number}: {line}" for number, node in self.nodes.items() for line in node.said
        )

    # --- what it knows of itself ------------------------------------------------------------------------------

    def metadata(self, via: int, *topics: str) -> Any:
        """The answer of one broker to Metadata."""
        with Wire(self.nodes[via].address, timeout_s=10) as wire:
            return wire.ask(
                METADATA,
                _METADATA_VERSION,
                topics=[{"topic_id": None, "name": name} for name in topics],
                allow_auto_topic_creation=False,
                include_topic_authorized_operations=False,
            )

    def partitions(self, topic: str, via: int) -> dict[int, PartitionState]:
        """A topic as one broker sees it; nothing if it does not know it."""
        [answer] = self.metadata(via, topic).topics
        return {
            row.partition_index: PartitionState(
                row.leader_id,
                row.leader_epoch,
                tuple(row.replica_nodes),
                tuple(sorted(row.isr_nodes)),
                tuple(sorted(row.offline_replicas)),
            )
            for row in answer.partitions
        }

    def partition(self, topic: str, via: int, number: int = 0) -> PartitionState | None:
        return self.partitions(topic, via).get(number)

    def controller(self, via: int) -> int:
        """Who controls, as one broker sees it."""
        return int(self.metadata(via).controller_id)

    def wait_until(self, condition: Callable[[], object], what: str) -> None:
        """Look until it holds. A broker that cannot be asked just now has not answered yes."""
        try:
            wait_until(condition, what)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.said()}") from None

    def wait_in_sync(
        self, topic: str, via: int, members: Iterable[int], numbers: Iterable[int] = (0,)
    ) -> None:
        """Until these are the ISR of these partitions."""
        wanted = tuple(sorted(members))

        def are_in_sync() -> bool:
            known = self.partitions(topic, via)
            return all(number in known and known[number].isr == wanted for number in numbers)

        self.wait_until(are_in_sync, f"the ISR of {topic} is {wanted}")

    # --- files ------------------------------------------------------------------------------------------------

    def log_bytes(self, node_id: int, topic: str, number: int = 0) -> bytes:
        """All of a replica's log files, one after the other."""
        folder = self.nodes[node_id].data_dir / f"{topic}-{number}"
        return b"".join(path.read_bytes() for path in sorted(folder.glob("*.log")))


def wait_until(condition: Callable[[], object], what: str, patience_s: float = PATIENCE_S) -> None:
    pause = threading.Event()
    deadline = time.monotonic() + patience_s
    last: OSError | None = None
    while True:
        try:
            if condition():
                return
        except OSError as error:
            last = error
        assert time.monotonic() < deadline, f"waited for {patience_s:.0f} s: {what} ({last})"
        pause.wait(0.02)


def free_ports() -> Iterator[int]:
    """Ports that are free, below those that outgoing connections get: a broker that is dead for a while wants its own back."""
    first = random.Random(os.getpid() ^ time.monotonic_ns()).randrange(20_000, 32_000)
    for port in itertools.chain(range(first, 32_000), range(20_000, first)):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        yield port
