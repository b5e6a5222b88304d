"""A local cluster on one machine: ZooKeeper and N broker processes, started, supervised and stopped together.

    DIR/zookeeper/              ZooKeeper's data, configuration and log
    DIR/broker-1/ …             the data directories of the brokers
    DIR/broker-1.properties …   the settings of the brokers (perhaps with passwords), readable only by the owner
    DIR/ottla-cluster           marks DIR as the directory of a cluster

Each broker is an `ottla broker` process in its own session, so Ctrl-C reaches only the supervisor. It stops
the brokers one after the other, each with a controlled shutdown, then ZooKeeper. Log lines of a broker are
printed after its number.

A broker that dies is reported with the command that restarts it. It is not restarted automatically, because
that would hide the cause. A broker that was restarted by hand is adopted and stopped with the cluster.
Without a signal, ZooKeeper stops only when no broker runs any more.

No process outlives the supervisor: when it dies, the kernel closes the standard input of each broker, and the
broker stops (OTTLA_STOP_WITH_STDIN=1). The keeper process of ZooKeeper does the same.
"""

from __future__ import annotations

import os
import queue
import shlex
import signal
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from ottla.config.properties import format_properties
from ottla.runtime.disk import SystemDisk
from ottla.runtime.local_zookeeper import LocalZookeeper, find_program, free_ports
from ottla.server.broker_process import AdoptedBroker, BrokerProcess, running_pid, runs_on
from ottla.server.directories import CLUSTER_MARK, mark_a_clusters

#: In the log line of a broker that serves, before its address (`cli/run_broker.py`).
LISTENS: Final = " listens on "
_STOP_S: Final = 20.0
_POLL_S: Final = 1.0


class ClusterFailed(Exception):
    """The cluster cannot start; the message says which part, and why."""


class LocalCluster:
    """All brokers get `settings`. With port 0 each takes a free port."""

    def __init__(
        self,
        directory: Path,
        brokers: int,
        *,
        host: str,
        port: int,
        zookeeper: str | None,
        settings: Mapping[str, str],
        say: Callable[[str], None],
    ) -> None:
        self.directory = directory
        self.host = host
        self.port = port
        self.zookeeper_connect = zookeeper or ""
        self.brokers: list[BrokerProcess | AdoptedBroker] = []
        self._count = brokers
        self._settings = settings
        self._say = say
        self._events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._zookeeper: LocalZookeeper | None = None
        self._signals = 0

    def run(self) -> int:
        """Run until a signal or until no broker is left; returns the exit code.

        Raises ClusterFailed, NoZookeeper.
        """
        for number in (signal.SIGINT, signal.SIGTERM):
            # SimpleQueue.put is safe in a signal handler.
            signal.signal(number, lambda *_: self._events.put((None, "signal")))
        self._check()
        try:
            if not self.zookeeper_connect:
                self._start_zookeeper()
            self.brokers = [self._start(number) for number in range(1, self._count + 1)]
            if not self._wait_ready():
                return self._stop()
            self._show()
            return self._follow()
        except BaseException:
            for broker in self.brokers:
                broker.stop()
                broker.skip_controlled_shutdown()
            for broker in self.brokers:
                broker.end(_STOP_S)
            raise
        finally:
            if self._zookeeper is not None:
                self._zookeeper.stop()

    # --- start ----------------------------------------------------------------------------------------------

    def _check(self) -> None:
        if (self.directory / "meta.properties").exists():
            if not (self.directory / CLUSTER_MARK).exists():
                raise ClusterFailed(
                    f"{self.directory} has the data of a single broker: choose another --data-dir for a "
                    "cluster"
                )
            raise ClusterFailed(
                f"{self.directory} is the data directory of one broker of a cluster: choose another "
                "--data-dir"
            )
        self.directory.mkdir(parents=True, exist_ok=True)
        zookeeper = self.zookeeper_connect or "of its own"
        mark_a_clusters(SystemDisk(), str(self.directory), zookeeper=zookeeper, brokers=self._count)

    def _start_zookeeper(self) -> None:
        server = LocalZookeeper(find_program(), self.directory / "zookeeper", free_ports(1)[0])
        server.start()
        self._zookeeper = server
        self.zookeeper_connect = server.address

    def _start(self, number: int) -> BrokerProcess:
        port = self.port + number - 1 if self.port else 0
        config = self._write_settings(number, f"{self.host}:{port}")
        return BrokerProcess(number, config, self._data_directory(number), self._events)

    def _data_directory(self, number: int) -> Path:
        return self.directory / f"broker-{number}"

    def _write_settings(self, number: int, address: str) -> Path:
        """Write a broker's settings to a file that only the owner can read: process arguments are public."""
        settings = {
            "broker.rack": socket.gethostname(),
            **self._settings,
            "node.id": str(number),
            "zookeeper.connect": self.zookeeper_connect,
            "listeners": f"PLAINTEXT://{address}",
            "log.dirs": str(self._data_directory(number)),
        }
        path = self.directory / f"broker-{number}.properties"
        fresh = path.with_suffix(".new")
        # Created with its permissions: an earlier file may have others.
        fresh.unlink(missing_ok=True)
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(format_properties(settings))
        fresh.replace(path)
        return path

    def _wait_ready(self) -> bool:
        """Wait until all brokers serve; False if a signal came first."""
        while not all(broker.address for broker in self.brokers):
            broker, line = self._events.get()
            if broker is None:
                self._signals += 1
                return False
            if line is None:
                raise ClusterFailed(
                    f"broker {broker.number} {broker.how_it_ended()} before it could serve; its log lines "
                    "are above"
                )
            if LISTENS in line:
                broker.address = line.rpartition(LISTENS)[2]
                # After a restart it has to listen on the port that clients know.
                self._write_settings(broker.number, broker.address)
            elif not _is_usual(line):
                self._say(f"broker {broker.number}: {line}")
        return True

    def _show(self) -> None:
        rows = [("", "address", "pid", "data")]
        rows += [
            (f"broker {each.number}", each.address, str(each.pid), str(each.directory))
            for each in self.brokers
        ]
        if self._zookeeper is None:
            rows.append(("ZooKeeper", self.zookeeper_connect, "", ""))
        else:
            rows.append(
                (
                    "ZooKeeper",
                    self._zookeeper.address,
                    str(self._zookeeper.pid),
                    str(self._zookeeper.directory),
                )
            )
        widths = [max(len(row[column]) for row in rows) for column in range(4)]
        for row in rows:
            self._say(
                f"{row[0]:<{widths[0]}}  {row[1]:<{widths[1]}}  {row[2]:>{widths[2]}}  {row[3]}".rstrip()
            )
        self._say(f"connect to {','.join(each.address for each in self.brokers)}")
        self._say("stop all with Ctrl-C")

    # --- supervision ----------------------------------------------------------------------------------------

    def _follow(self) -> int:
        zookeeper_end_logged = False
        while self._is_any_left():
            try:
                broker, line = self._events.get(timeout=_POLL_S)
            except queue.Empty:
                self._look_for_restarted()
                if (
                    self._zookeeper is not None
                    and not zookeeper_end_logged
                    and not self._zookeeper.is_running
                ):
                    zookeeper_end_logged = True
                    self._say(
                        f"ZooKeeper (pid {self._zookeeper.pid}) has ended: the brokers serve their "
                        "partitions, but "
                        "metadata cannot change. Stop all with Ctrl-C and start again"
                    )
                continue
            if broker is None:
                self._signals += 1
                self._look_for_restarted()
                return self._stop()
            if line is None:
                self._log_end(broker)
            elif not _is_usual(line):
                self._say(f"broker {broker.number}: {line}")
        self._say("no broker is left" + ("" if self._zookeeper is None else ": stopping ZooKeeper"))
        return 1

    def _is_any_left(self) -> bool:
        """Whether a broker runs; also true while a restarted broker is not adopted yet."""
        return any(each.is_running or not each.end_logged or runs_on(each.directory) for each in self.brokers)

    def _look_for_restarted(self) -> None:
        """Adopt restarted brokers, and log the end of adopted ones."""
        for at, broker in enumerate(self.brokers):
            if isinstance(broker, AdoptedBroker) and not broker.end_logged and not broker.is_running:
                self._log_end(broker)
            if broker.end_logged and (pid := running_pid(broker.directory)) is not None:
                self.brokers[at] = AdoptedBroker(broker, pid)
                self._say(
                    f"broker {broker.number} runs again (pid {pid}) as part of this cluster; Ctrl-C here "
                    "stops it too"
                )

    def _log_end(self, broker: BrokerProcess | AdoptedBroker) -> None:
        broker.end_logged = True
        self._say(
            f"broker {broker.number} (pid {broker.pid}) {broker.how_it_ended()}; "
            f"restart it with: ottla {shlex.join(broker.command)}"
        )

    def _stop(self) -> int:
        """Stop one broker after the other with a controlled shutdown; after a second signal, all at once."""
        code = 0
        left = [broker for broker in self.brokers if broker.is_running]
        while left:
            broker = left.pop()
            broker.stop()
            deadline = time.monotonic() + _STOP_S
            while broker.is_running and self._signals < 2 and time.monotonic() < deadline:
                self._listen_while_stopping()
            if self._signals > 1:
                for each in left:
                    each.stop()
                for each in (broker, *left):
                    each.skip_controlled_shutdown()
            if not broker.end(max(0.1, deadline - time.monotonic())):
                self._say(f"broker {broker.number} did not stop within {_STOP_S:g} s and was killed")
                code = 1
            elif "status" in broker.how_it_ended():
                self._say(f"broker {broker.number} {broker.how_it_ended()}")
                code = 1
            # Its last log lines.
            while not self._events.empty():
                self._listen_while_stopping()
        return code

    def _listen_while_stopping(self) -> None:
        with suppress(queue.Empty):
            broker, line = self._events.get(timeout=0.05)
            if broker is None:
                self._signals += 1
            elif line is not None and not _is_usual(line):
                self._say(f"broker {broker.number}: {line}")


def _is_usual(line: str) -> bool:
    """Whether a line is one that every broker logs at its start or end; the table shows the same."""
    return LISTENS in line or line.startswith("data in ") or line in ("stop with Ctrl-C", "stopped cleanly")
