"""A whole cluster on one machine: a ZooKeeper and N broker processes, started, told of and stopped together.

    DIR/zookeeper/       ZooKeeper's data, configuration and log
    DIR/broker-1/ …      the brokers' data directories
    DIR/broker-1.properties …   the brokers' settings, readable by their owner alone: they may have passwords
    DIR/ottla-cluster    says that DIR is no broker's own

Each broker is `ottla broker` in a process and a session of its own, so that Ctrl-C reaches us alone and we stop them in order:
the brokers one after the other, each relieved by those that are left, then ZooKeeper. What a broker says is passed on line
by line behind its number. One that dies is told of and left dead, with the command that starts it again: a restart that
nobody sees hides the reason. A broker that was restarted so is adopted: it counts as one of the cluster, and is stopped
with it. ZooKeeper is stopped last, and while the cluster is not told to stop only when no broker runs any more.

Nothing outlives us: each broker holds the other end of its standard input, which the kernel closes when we die, however we
do, and ends with it (OTTLA_STOP_WITH_STDIN=1); ZooKeeper's keeper does the same.
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

#: What a broker says when it serves, before its address (`cli/run_broker.py`).
LISTENS: Final = " listens on "
_STOP_S: Final = 20.0
_LOOK_S: Final = 1.0


class ClusterFailed(Exception):
    """The cluster cannot start; the message says which part of it, and why."""


class LocalCluster:
    """`settings` go to all brokers. Port 0 lets each take a free one."""

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
        self._news: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._zookeeper: LocalZookeeper | None = None
        self._signals = 0

    def run(self) -> int:
        """Until a signal, or until nothing of it is left; the exit code. Raises ClusterFailed, NoZookeeper."""
        for number in (signal.SIGINT, signal.SIGTERM):
            # A queue may be put to within a handler.
            signal.signal(number, lambda *_: self._news.put((None, "signal")))
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
                broker.hurry()
            for broker in self.brokers:
                broker.end(_STOP_S)
            raise
        finally:
            if self._zookeeper is not None:
                self._zookeeper.stop()

    # --- the start --------------------------------------------------------------------------------------------

    def _check(self) -> None:
        if (self.directory / "meta.properties").exists():
            if not (self.directory / CLUSTER_MARK).exists():
                raise ClusterFailed(
                    f"{self.directory} holds the data of a broker of its own: choose another --data-dir for a cluster"
                )
            raise ClusterFailed(
                f"{self.directory} is the data directory of one broker of a cluster: choose another --data-dir"
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
        return BrokerProcess(number, config, self._data_directory(number), self._news)

    def _data_directory(self, number: int) -> Path:
        return self.directory / f"broker-{number}"

    def _write_settings(self, number: int, address: str) -> Path:
        """A broker's settings in a file of the owner alone: everybody can read the arguments of a process."""
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
        # Made with its permissions: an earlier one may have had others.
        fresh.unlink(missing_ok=True)
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(format_properties(settings))
        fresh.replace(path)
        return path

    def _wait_ready(self) -> bool:
        """False if a signal came first."""
        while not all(broker.address for broker in self.brokers):
            broker, line = self._news.get()
            if broker is None:
                self._signals += 1
                return False
            if line is None:
                raise ClusterFailed(f"broker {broker.number} {broker.how_it_ended()} before it could serve")
            if LISTENS in line:
                broker.address = line.rpartition(LISTENS)[2]
                # A restart is to listen on the port that clients know.
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

    # --- while it runs ----------------------------------------------------------------------------------------

    def _follow(self) -> int:
        zookeeper_told = False
        while self._is_any_left():
            try:
                broker, line = self._news.get(timeout=_LOOK_S)
            except queue.Empty:
                self._look_for_restarted()
                if self._zookeeper is not None and not zookeeper_told and not self._zookeeper.is_running:
                    zookeeper_told = True
                    self._say(
                        f"ZooKeeper (pid {self._zookeeper.pid}) has ended; the brokers serve what they lead, but nothing "
                        "in the cluster can change: stop all with Ctrl-C and start again"
                    )
                continue
            if broker is None:
                self._signals += 1
                self._look_for_restarted()
                return self._stop()
            if line is None:
                self._tell_death(broker)
            elif not _is_usual(line):
                self._say(f"broker {broker.number}: {line}")
        self._say("no broker is left" + ("" if self._zookeeper is None else ": ZooKeeper is stopped too"))
        return 1

    def _is_any_left(self) -> bool:
        """Also while one that was restarted is not adopted yet."""
        return any(each.is_running or not each.told_dead or runs_on(each.directory) for each in self.brokers)

    def _look_for_restarted(self) -> None:
        """Adopt dead brokers that run again, and tell of adopted ones that ended."""
        for at, broker in enumerate(self.brokers):
            if isinstance(broker, AdoptedBroker) and not broker.told_dead and not broker.is_running:
                self._tell_death(broker)
            if broker.told_dead and (pid := running_pid(broker.directory)) is not None:
                self.brokers[at] = AdoptedBroker(broker, pid)
                self._say(
                    f"broker {broker.number} runs again (pid {pid}): it belongs to this cluster, which goes on while it "
                    "runs; Ctrl-C here stops it too"
                )

    def _tell_death(self, broker: BrokerProcess | AdoptedBroker) -> None:
        broker.told_dead = True
        self._say(
            f"broker {broker.number} (pid {broker.pid}) {broker.how_it_ended()}; "
            f"restart it with: ottla {shlex.join(broker.command)}"
        )

    def _stop(self) -> int:
        """One after the other, each relieved by the rest; after a second signal all at once."""
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
                    each.hurry()
            if not broker.end(max(0.1, deadline - time.monotonic())):
                self._say(f"broker {broker.number} did not stop within {_STOP_S:g} s and was killed")
                code = 1
            elif "status" in broker.how_it_ended():
                self._say(f"broker {broker.number} {broker.how_it_ended()}")
                code = 1
            # Its last words.
            while not self._news.empty():
                self._listen_while_stopping()
        return code

    def _listen_while_stopping(self) -> None:
        with suppress(queue.Empty):
            broker, line = self._news.get(timeout=0.05)
            if broker is None:
                self._signals += 1
            elif line is not None and not _is_usual(line):
                self._say(f"broker {broker.number}: {line}")


def _is_usual(line: str) -> bool:
    """What each broker says at its start and end, and the table says once for all."""
    return LISTENS in line or line.startswith("data in ") or line in ("stop with Ctrl-C", "stopped cleanly")
