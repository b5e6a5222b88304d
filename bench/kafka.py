"""Apache Kafka for comparison: fetched with Maven, formatted, started as one KRaft node.

The newest 4.x release and its dependencies are copied once into the cache directory; `make bench` passes
`--update-kafka` to fetch again. The interop tests also use 3.9, the last release with ZooKeeper. JVM options
are those of Kafka's start scripts. The properties are those of its server.properties, on loopback, with
internal topics at replication factor 1. Logging uses a simple logger at warning level, without JMX and GC
log: all three favor Kafka.

`python -m bench.kafka --port 9092 --data-dir DIR` runs one node in the foreground until SIGTERM or Ctrl-C.
"""

import argparse
import base64
import os
import re
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.process import BrokerFailed, Process, free_port

CACHE = Path(__file__).resolve().parent / ".cache"
JAVA_MAJOR_MIN = 17
JVM_OPTIONS = [
    "-Xmx1G",
    "-Xms1G",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-XX:MaxInlineLevel=15",
    "-Djava.awt.headless=true",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
]
# slf4j-simple prints the broker's warnings: the artifact has no logging backend.
POM = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>bench</groupId><artifactId>kafka-peer</artifactId><version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{versions}</version>
    </dependency>
    <dependency>
      <groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId><version>1.7.36</version>
    </dependency>
  </dependencies>
</project>
"""
#: The Maven version, and the folder in the cache.
SERIES = {"4": ("[4.0,5.0)", "kafka"), "3.9": ("[3.9,3.10)", "kafka-3.9")}
PROPERTIES = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
    "num.network.threads": "3",
    "num.io.threads": "8",
    "socket.send.buffer.bytes": "102400",
    "socket.receive.buffer.bytes": "102400",
    "offsets.topic.replication.factor": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
}


class KafkaUnavailable(RuntimeError):
    """Kafka cannot run here. The message says what is missing and what to do."""


def find_java() -> str:
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=str(Path(home) / "bin")) if home else None
    java = java or shutil.which("java")
    if java is None:
        raise KafkaUnavailable(
            f"no `java` on the PATH: install a Java {JAVA_MAJOR_MIN} runtime or set JAVA_HOME"
        )
    answer = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    version = re.search(r'version "(\d+)', answer.stderr)
    if version is None or int(version[1]) < JAVA_MAJOR_MIN:
        raise KafkaUnavailable(f"{java} is not Java {JAVA_MAJOR_MIN} or newer: point JAVA_HOME at one")
    return java


class Distribution:
    """The jars of one Kafka release, and the Java that runs them."""

    def __init__(self, java: str, libraries: Path) -> None:
        self._java = java
        self._libraries = libraries
        (broker_jar,) = libraries.glob("kafka_2.13-*.jar")
        self.version = broker_jar.stem.removeprefix("kafka_2.13-")

    def start(
        self,
        directory: Path,
        *,
        port: int,
        settings: Mapping[str, str] | None = None,
        cluster_id: str | None = None,
        scram: Sequence[str] = (),
    ) -> Process:
        """Start a node with its data in `directory`.

        A new directory is formatted with these SCRAM credentials.
        """
        data = directory / "data"
        data.mkdir(parents=True, exist_ok=True)
        controller_port = free_port()
        properties = {
            **PROPERTIES,
            "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
            "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
            "log.dirs": str(data),
            **(settings or {}),
        }
        properties_file = directory / "server.properties"
        properties_file.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
        if not (data / "meta.properties").exists():
            self._format(properties_file, cluster_id or _new_cluster_id(), scram)
        command = [*self._java_command(), *JVM_OPTIONS, "kafka.Kafka", str(properties_file)]
        return Process(f"Kafka {self.version}", command, port=port, log=directory / "kafka.log")

    def start_cluster(self, directory: Path, *, count: int, settings: Mapping[str, str]) -> list[Process]:
        """Start this many nodes of a new cluster, each broker and controller."""
        controllers = [free_port() for _ in range(count)]
        voters = ",".join(f"{at + 1}@127.0.0.1:{port}" for at, port in enumerate(controllers))
        cluster_id = _new_cluster_id()
        replicas = {name: str(count) for name in PROPERTIES if name.endswith(".replication.factor")}
        nodes = []
        for at, controller_port in enumerate(controllers):
            port = free_port()
            nodes.append(
                self.start(
                    directory / f"node-{at + 1}",
                    port=port,
                    settings={
                        **replicas,
                        "node.id": str(at + 1),
                        "controller.quorum.voters": voters,
                        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
                        **settings,
                    },
                    cluster_id=cluster_id,
                )
            )
        return nodes

    def _java_command(self) -> list[str]:
        return [self._java, "-cp", str(self._libraries / "*")]

    def _format(self, properties_file: Path, cluster_id: str, scram: Sequence[str]) -> None:
        # With "=", because an id may start with a dash, which the tool would parse as an option.
        tool = [
            "kafka.tools.StorageTool",
            "format",
            f"--cluster-id={cluster_id}",
            "--config",
            str(properties_file),
            *(word for credential in scram for word in ("--add-scram", credential)),
        ]
        done = subprocess.run(
            [*self._java_command(), *tool], capture_output=True, text=True, check=False, timeout=120
        )
        if done.returncode != 0:
            raise BrokerFailed(f"Kafka's storage could not be formatted:\n{done.stdout}{done.stderr}")


def _new_cluster_id() -> str:
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")


def fetch(series: str = "4", *, update: bool = False, cache: Path = CACHE) -> Distribution:
    """The newest release of a series, from the cache or by Maven."""
    java = find_java()
    versions, folder = SERIES[series]
    home = cache / folder
    libraries = home / "libs"
    if update or not libraries.is_dir():
        maven = shutil.which("mvn")
        if maven is None:
            raise KafkaUnavailable("no `mvn` on the PATH: install Apache Maven, which fetches Kafka")
        cache.mkdir(parents=True, exist_ok=True)
        (cache / ".gitignore").write_text("*\n")
        home.mkdir(exist_ok=True)
        (home / "pom.xml").write_text(POM.format(versions=versions))
        print("bench: fetching Apache Kafka with Maven (once, about 45 MB) ...", file=sys.stderr, flush=True)
        # Copied to a temporary folder and renamed, so that an interrupted download is not used.
        arriving = home / "arriving"
        shutil.rmtree(arriving, ignore_errors=True)
        goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={arriving}"]
        done = subprocess.run(
            [maven, "-B", "-q", "-f", str(home / "pom.xml"), *goal],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            reason = (done.stdout + done.stderr).strip()[-1500:]
            raise KafkaUnavailable(
                f"Maven could not fetch Kafka; check its network settings and try again:\n{reason}"
            )
        shutil.rmtree(libraries, ignore_errors=True)
        arriving.rename(libraries)
    return Distribution(java, libraries)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.kafka",
        description="Runs one Apache Kafka node in the foreground until SIGTERM or Ctrl-C.",
        epilog="example: python -m bench.kafka --port 9092 --data-dir /tmp/kafka",
    )
    parser.add_argument("--port", type=int, default=9092)
    parser.add_argument("--data-dir", type=Path, required=True, help="kept at the end; formatted when new")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a broker property")
    parser.add_argument("--update-kafka", action="store_true", help="fetch the newest release again")
    options = parser.parse_args()
    settings = dict(setting.split("=", 1) for setting in options.set)

    def end(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, end)
    broker: Process | None = None
    try:
        broker = fetch(update=options.update_kafka).start(
            options.data_dir.resolve(), port=options.port, settings=settings
        )
        seconds = broker.wait_ready()
        print(f"{broker.name} answers on {broker.address} (pid {broker.pid}, {seconds:.1f} s)", flush=True)
        code = broker.wait()
        print(f"{broker.name} ended with exit code {code}.\n{broker.log_tail()}", file=sys.stderr)
        return 1
    except (KafkaUnavailable, BrokerFailed) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopping ...", flush=True)
        return 0
    finally:
        if broker is not None:
            broker.stop()


if __name__ == "__main__":
    raise SystemExit(main())
