"""One broker with its settings, data directories, core and effect runner: start and stop.

`run` is the broker process (`ottla up`, `ottla broker`). On SIGINT or SIGTERM it flushes everything, writes
the clean-shutdown mark and ends. The embedded broker uses `Node` as well.

With `zookeeper.connect` the broker belongs to a cluster. It keeps no metadata journal, serves once the
controller has registered it, and stops with a controlled shutdown (`cluster_membership.py`). A second signal
skips that.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from ottla.broker.core import Broker
from ottla.broker.storage.kafka_import import import_kafka_directory
from ottla.broker.storage.log_directories import NoDirectory
from ottla.broker.storage.log_directory import ForeignDirectory
from ottla.config.broker import BrokerConfig
from ottla.config.not_honoured import no_effect
from ottla.log.names import id_text
from ottla.ports.disk import DiskError
from ottla.runtime.clock import Clock
from ottla.runtime.descriptors import share_out
from ottla.runtime.disk import SystemDisk
from ottla.runtime.effect_runner import EffectRunner
from ottla.runtime.embedded_store import DamagedJournal, EmbeddedStore
from ottla.runtime.entropy import SystemEntropy
from ottla.runtime.garbage import Collector
from ottla.runtime.platform import use_one_heap
from ottla.runtime.selector import new_event_loop
from ottla.runtime.turns import LongestTurn
from ottla.security.cluster_secret import SECRET_BYTES, ClusterSecret
from ottla.server.directories import (
    PID_FILE,
    BadDirectories,
    claim,
    is_a_clusters,
    mark_a_clusters,
    refuse_a_clusters,
    refuse_a_single_brokers,
    with_absolute_paths,
)

if TYPE_CHECKING:
    from ottla.server.cluster_membership import ClusterMembership

#: A journal with more records than this, and more than four times the image's, is rewritten at the start.
_JOURNAL_RECORDS = 1000


class CannotStart(Exception):
    """The node cannot start; the message says why and what to do."""


def log_to_stderr(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


class Node:
    """A broker on an event loop. `start` and `stop` are called on the loop's own thread."""

    def __init__(self, config: BrokerConfig, *, say: Callable[[str], None] = log_to_stderr) -> None:
        self.config = with_absolute_paths(config)
        self.say = say
        self.host = ""
        self.port = 0
        self._runner: EffectRunner | None = None
        self._longest_turn = LongestTurn()
        self._store: EmbeddedStore | None = None
        self._member: ClusterMembership | None = None
        self._loop: asyncio.AbstractEventLoop
        #: The task that joins the cluster.
        self._joining: asyncio.Task[None] | None = None
        self._stopping = False

    @property
    def address(self) -> str:
        """Where clients connect: host:port."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def longest_turn(self) -> LongestTurn:
        """The turn of the event loop that has used most CPU time so far."""
        return self._runner.turns.longest if self._runner is not None else self._longest_turn

    @property
    def data_dir(self) -> str:
        """The first of the log directories."""
        return self.config.log_dirs[0]

    @property
    def metadata_dir(self) -> str:
        """The directory of the metadata journal and of the process id."""
        return self.config.metadata_log_dir

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        shares = self._shares = share_out(clustered=self.config.zookeeper_connect is not None)
        self._disk = SystemDisk(files_max=shares.files)
        # The journal is written in its own thread: the limit on open log files must not close its descriptor.
        self._journal_disk = SystemDisk()
        sock = self._bind()
        self._loop = loop
        news = shares.news(self.config.max_connections, is_set="max.connections" in self.config.properties)
        if news is not None:
            self.say(news)
        try:
            unusable = claim(self._disk, self.config)
            for name in self.config.ignored:
                self.say(no_effect(name))
            if self.config.zookeeper_connect is None:
                self._open(loop, sock, unusable)
            else:
                self._joining = loop.create_task(self._join(loop, sock, unusable))
                loop.run_until_complete(self._joining)
        except (DiskError, DamagedJournal, ForeignDirectory, NoDirectory, BadDirectories) as error:
            raise CannotStart(str(error)) from error
        finally:
            if self._runner is None:
                sock.close()
                self._disk.release()
                self._journal_disk.release()

    def _open(self, loop: asyncio.AbstractEventLoop, sock: socket.socket, unusable: dict[str, str]) -> None:
        """Start as a broker without a cluster."""
        refuse_a_clusters(self._disk, self.config)
        clock = Clock()
        self._store = EmbeddedStore(self._journal_disk, self.metadata_dir, say=self.say)
        entropy = SystemEntropy()
        journal = self._store.load()
        found = import_kafka_directory(
            self._disk, self.config, journal, unusable=unusable, new_id=entropy.id_bytes
        )
        self.config = found.config
        if found.records:
            self._store.append(found.records)
            journal += found.records
        for note in found.notes:
            self.say(note)
        self._broker = Broker(self.config, self._disk, entropy, say=self.say, unusable=unusable)
        now_ms = clock.now_ms()
        first = self._broker.start(journal, now_ms)
        if first:
            self._store.append(first)
            self._broker.committed(first, now_ms)
            self._broker.proposed = self._broker.image
        live = self._broker.image.records()
        if self._store.records_on_disk > max(_JOURNAL_RECORDS, 4 * len(live)):
            self._store.rewrite(live)
        self._listen(sock)
        self._runner = EffectRunner(
            self._broker,
            self._disk,
            clock,
            self._store,
            loop,
            self.say,
            connections_max=self._shares.connections,
        )
        self._runner.listen(sock)

    async def _join(
        self, loop: asyncio.AbstractEventLoop, sock: socket.socket, unusable: dict[str, str]
    ) -> None:
        """Start as a broker of a cluster."""
        # Imported here: a broker without a cluster needs no ZooKeeper client.
        from ottla.server.cluster_membership import CannotJoin, ClusterMembership

        refuse_a_single_brokers(self._disk, self.config, unusable)
        entropy = SystemEntropy()
        clock = Clock()
        broker = self._broker = Broker(
            self.config, self._disk, entropy, say=self.say, unusable=unusable, clustered=True
        )
        try:
            member = self._member = ClusterMembership(self.config, clock, self.say)
            # A directory of one cluster never starts another cluster: the start fails if that cluster is not
            # here.
            own = None if is_a_clusters(self._disk, self.config) else broker.directories.unused_cluster_id()
            cluster_id, secret = await member.connect(
                own or id_text(entropy.id_bytes()), ClusterSecret(entropy.token(SECRET_BYTES))
            )
            broker.start(member.cluster.records, clock.now_ms(), cluster_id=cluster_id, secret=secret)
            for each in broker.directories.online:
                mark_a_clusters(
                    self._disk, each.path, zookeeper=self.config.zookeeper_connect, cluster_id=cluster_id
                )
            self._listen(sock)
            runner = self._runner = EffectRunner(
                broker,
                self._disk,
                clock,
                member.cluster,
                loop,
                self.say,
                connections_max=self._shares.connections,
            )
            member.cluster.attach(broker, member.store, runner.turn)
            runner.listen(sock)
            await member.join(broker, runner.turn)
        except BaseException as error:
            # Also after a signal, which is a cancellation: close everything. R7: a crash that the controller
            # does not know of yet must not be hidden by a clean-shutdown mark of this start, which never
            # served.
            self._close(mark=all(each.clean or each.was_unused for each in broker.directories.online))
            if self._member is not None:
                await self._member.close()
                self._member = None
            if isinstance(error, CannotJoin):
                raise CannotStart(str(error)) from error
            raise

    def _listen(self, sock: socket.socket) -> None:
        """Called once the logs are open: until then the kernel refuses clients, so they do not wait."""
        self._disk.replace_file(f"{self.metadata_dir}/{PID_FILE}", f"{os.getpid()}\n".encode())
        try:
            sock.listen(self.config.socket_listen_backlog_size)
        except OSError as error:
            raise self._cannot_listen(error) from error

    def _bind(self) -> socket.socket:
        if len(self.config.listeners) != 1:
            raise CannotStart(
                f"listeners has {len(self.config.listeners)} entries, but ottla supports one: remove the "
                "others"
            )
        listener = self.config.listeners[0]
        family = socket.AF_INET6 if ":" in listener.host else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        for option, size in (
            (socket.SO_SNDBUF, self.config.socket_send_buffer_bytes),
            (socket.SO_RCVBUF, self.config.socket_receive_buffer_bytes),
        ):
            if size > 0:
                # Set before listening: accepted sockets inherit it.
                sock.setsockopt(socket.SOL_SOCKET, option, size)
        try:
            sock.bind((listener.host, listener.port))
        except OSError as error:
            sock.close()
            raise self._cannot_listen(error) from error
        self.port = sock.getsockname()[1]
        advertised = self.config.advertised_listeners[0]
        self.host = advertised.host or socket.gethostname()
        port = advertised.port or self.port
        if (self.host, port) != (advertised.host, advertised.port):
            self.config = BrokerConfig.from_properties(
                {**self.config.properties, "advertised.listeners": f"{advertised.name}://{self.host}:{port}"}
            )
        self.port = port
        return sock

    def _cannot_listen(self, error: OSError) -> CannotStart:
        listener = self.config.listeners[0]
        return CannotStart(
            f"cannot listen on {listener.host}:{listener.port}: {error.strerror}. "
            "Choose another address with --listen HOST:PORT"
        )

    def count_partitions(self) -> int:
        return sum(directory.partitions for directory in self._broker.directories.all)

    # --- stop -----------------------------------------------------------------------------------------------

    def interrupt(self, *, at_once: bool = False) -> None:
        """Stop the loop, or cancel what it waits for: the start, or the controlled shutdown."""
        if self._joining is not None and not self._joining.done():
            self._joining.cancel()
            return
        if self._member is not None and (at_once or self._stopping):
            self._member.skip_controlled_shutdown()
        if not self._stopping:
            self._stopping = True
            self._loop.stop()

    def stop(self) -> bool:
        """Flush everything and write the clean-shutdown mark. False, and a log line, if a part fails.

        Called while the loop does not run.
        """
        self._stopping = True
        member, runner = self._member, self._runner
        if member is not None and runner is not None and self.config.controlled_shutdown_enable:
            self._loop.run_until_complete(member.leave(self._broker, runner.turn))
        problems = self._close()
        if member is not None:
            self._loop.run_until_complete(member.close())
        for problem in problems:
            self.say(f"{problem}. The next start recovers the affected logs")
        return not problems

    def _close(self, *, mark: bool = True) -> list[str]:
        """Stop serving, close the logs and write the clean-shutdown mark; returns the problems."""
        if self._runner is None:
            return []
        self._runner.stop()
        self._longest_turn = self._runner.turns.longest
        self._runner = None
        try:
            return self._broker.stop() if mark else []
        finally:
            if self._store is not None:
                self._store.close()
            with suppress(DiskError):
                self._disk.remove(f"{self.metadata_dir}/{PID_FILE}")
            self._disk.release()
            self._journal_disk.release()


def run(
    config: BrokerConfig,
    on_ready: Callable[[Node], None],
    *,
    say: Callable[[str], None] = log_to_stderr,
    lifeline: int | None = None,
) -> int:
    """Serve until SIGINT or SIGTERM; returns the process's exit code. Raises CannotStart.

    `lifeline` is a descriptor to read from: at its end this process stops without a controlled shutdown.
    """
    # Before the first thread starts.
    use_one_heap()
    loop = new_event_loop()
    node = Node(config, say=say)
    is_clustered = config.zookeeper_connect is not None
    try:
        if is_clustered:
            _handle_signals(loop, node, lifeline)
        try:
            node.start(loop)
        except asyncio.CancelledError:
            return 0
        if not is_clustered:
            # The start without a cluster does not run the loop: during it a signal ends the process directly.
            _handle_signals(loop, node, lifeline)
        on_ready(node)
        collector = Collector(node.count_partitions, say)
        collector.start(loop)
        loop.run_forever()
        collector.stop()
        is_clean = node.stop()
        say(f"the longest turn of the event loop: {node.longest_turn}")
    finally:
        loop.close()
    return 0 if is_clean else 1


def _handle_signals(loop: asyncio.AbstractEventLoop, node: Node, lifeline: int | None) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, node.interrupt)
    if lifeline is not None:

        def cut() -> None:
            if not os.read(lifeline, 4096):
                loop.remove_reader(lifeline)
                node.interrupt(at_once=True)

        os.set_blocking(lifeline, False)
        loop.add_reader(lifeline, cut)
