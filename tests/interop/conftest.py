"""The brokers and the foreign toolchains of the interop tests.

What is fetched is fetched once: the jars, Go modules, npm packages and databases lie in `.cache` beside this file (the broker of
Apache Kafka itself in the cache of `bench`). A toolchain that is not on the machine skips its tests; one that is there and fails
makes them fail.
"""

import itertools
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from bench.kafka import CACHE as BROKER_CACHE
from bench.kafka import KafkaUnavailable, fetch, find_java
from bench.process import free_port
from tests.crash.broker_process import BrokerProcess
from tests.interop.programs import CACHE, HERE, Java, Program, Said, run

#: Members of groups on Apache Kafka come and are heard at once.
QUICK_GROUPS = {
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.min.heartbeat.interval.ms": "200",
    "group.consumer.heartbeat.interval.ms": "200",
}

#: Maven, Go and npm fetch and compile within the first test that needs them.
FETCH_S_MAX = 600


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.timeout(FETCH_S_MAX))


# --- brokers ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One broker for all tests that leave it running."""
    # Records bear timestamps of years ago, and it lives for longer than retention waits.
    settings = {"log.retention.check.interval.ms": "3600000"}
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data", free_port(), settings) as process:
        yield process
        assert process.stop() == 0, process.words


@pytest.fixture
def start_broker(tmp_path: Path) -> Iterator[Callable[..., BrokerProcess]]:
    """Brokers of a test's own, with settings (underscores for dots)."""
    started: list[BrokerProcess] = []

    def start(**settings: str) -> BrokerProcess:
        named = {name.replace("_", "."): value for name, value in settings.items()}
        started.append(BrokerProcess(tmp_path / f"data-{len(started)}", free_port(), named))
        return started[-1].start()

    yield start
    for process in started:
        process.kill()


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of one Apache Kafka node of the newest release, for all tests of the SDK against it."""
    try:
        find_java()
    except KafkaUnavailable:
        pytest.skip("Java 17 is not here")
    if shutil.which("mvn") is None:
        pytest.skip("Maven is not here")
    # Groups of tests that join and leave would wait three seconds each time.
    process = fetch().start(tmp_path_factory.mktemp("kafka"), port=free_port(), settings=QUICK_GROUPS)
    try:
        process.wait_ready()
        yield process.address
    finally:
        process.stop()


_NUMBERS = itertools.count()


@pytest.fixture
def topic() -> str:
    """The name of a topic that no other test uses."""
    return f"topic-{next(_NUMBERS)}"


# --- Java ---------------------------------------------------------------------------------------------------------

TOOLS_POM = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>interop</groupId><artifactId>kafka-tools</artifactId><version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId><artifactId>kafka-tools</artifactId><version>{version}</version>
    </dependency>
  </dependencies>
</project>
"""


def fetch_tools(version: str) -> Path:
    """The jar of the command-line tools. What it needs, as far as it is used here, the broker's jars bring."""
    home = CACHE / f"kafka-tools-{version}"
    if not home.is_dir():
        arriving = CACHE / "kafka-tools-arriving"
        shutil.rmtree(arriving, ignore_errors=True)
        arriving.mkdir(parents=True)
        (arriving / "pom.xml").write_text(TOOLS_POM.format(version=version))
        goal = ["dependency:copy-dependencies", "-DexcludeTransitive=true", f"-DoutputDirectory={arriving}"]
        run(["mvn", "-B", "-q", "-f", str(arriving / "pom.xml"), *goal])
        # Renamed at the end, so that an interrupted fetch is not taken for a whole one.
        arriving.rename(home)
    return home


@pytest.fixture(scope="session")
def java() -> Java:
    """Apache's jars on a class path, of one release."""
    try:
        find_java()
    except KafkaUnavailable:
        pytest.skip("Java 17 is not here")
    if shutil.which("mvn") is None:
        pytest.skip("Maven is not here")
    version = fetch().version
    return Java(find_java(), [BROKER_CACHE / "kafka" / "libs", fetch_tools(version)])


@pytest.fixture
def tool(java: Java, broker: BrokerProcess) -> Callable[..., Said]:
    """Runs one of Apache's command-line tools against the shared broker."""

    def call(name: str, *arguments: str, text: str = "", code: int = 0) -> Said:
        return java.tool(name, *arguments, "--bootstrap-server", broker.address, text=text, code=code)

    return call


@pytest.fixture(scope="session")
def java_classes(java: Java, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs in `java/`, compiled."""
    if shutil.which("javac") is None:
        pytest.skip("Java's compiler is not here")
    classes = tmp_path_factory.mktemp("classes")
    sources = sorted(str(path) for path in (HERE / "java").glob("*.java"))
    run(
        [
            "javac",
            "-Xlint:all,-processing,-path",
            "-Werror",
            "-cp",
            java.class_path,
            "-d",
            str(classes),
            *sources,
        ]
    )
    return classes


@pytest.fixture
def java_client(java: Java, java_classes: Path) -> Program:
    # This part of the client says aloud that it was refused, which a test asks for.
    quiet = "-Dorg.slf4j.simpleLogger.log.org.apache.kafka.clients.admin.internals.DeleteRecordsHandler=off"
    return Program(java.command(java_classes, "ClientTour", quiet))


@pytest.fixture
def java_member(java: Java, java_classes: Path) -> Program:
    return Program(java.command(java_classes, "GroupMember"))


@pytest.fixture
def talkative_java_client(java: Java, java_classes: Path) -> Program:
    """Says on standard error what each fetch session is doing."""
    verbose = "-Dorg.slf4j.simpleLogger.log.org.apache.kafka.clients.FetchSessionHandler=debug"
    return Program(java.command(java_classes, "ClientTour", verbose))


# --- Go and JavaScript --------------------------------------------------------------------------------------------


def go_program(name: str) -> Program:
    if shutil.which("go") is None:
        pytest.skip("Go is not here")
    binary = CACHE / "go" / "bin" / name
    environment = {
        "GOMODCACHE": str(CACHE / "go" / "modules"),
        "GOCACHE": str(CACHE / "go" / "build"),
        # Without it the cache is written read-only, and `rm -r` stumbles over it.
        "GOFLAGS": "-modcacherw -mod=readonly",
        "GOWORK": "off",
    }
    # Go itself knows whether there is anything to do. Two cores: one stays free for others.
    run(
        ["go", "build", "-p", "1", "-o", str(binary), f"./{name}"],
        folder=HERE / "go",
        environment=environment,
    )
    return Program([str(binary)])


@pytest.fixture(scope="session")
def franz() -> Program:
    return go_program("franz")


@pytest.fixture(scope="session")
def sarama() -> Program:
    return go_program("sarama")


@pytest.fixture(scope="session")
def kafkajs() -> Program:
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("Node.js and npm are not here")
    home = CACHE / "js"
    home.mkdir(parents=True, exist_ok=True)
    lock = (HERE / "js" / "package-lock.json").read_bytes()
    installed = home / "package-lock.json"
    if not (home / "node_modules").is_dir() or installed.read_bytes() != lock:
        shutil.rmtree(home / "node_modules", ignore_errors=True)
        shutil.copy(HERE / "js" / "package.json", home)
        shutil.copy(HERE / "js" / "package-lock.json", home)
        run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], folder=home)
    return Program(
        ["node", str(HERE / "js" / "tour.js")],
        # The client greets those who update from its first version with a notice about partitioners.
        environment={"NODE_PATH": str(home / "node_modules"), "KAFKAJS_NO_PARTITIONER_WARNING": "1"},
    )
