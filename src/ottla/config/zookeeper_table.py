"""Settings of the connection to ZooKeeper: Kafka's names, and ottla's own.

Keystore and truststore are PEM files: Python reads neither JKS nor PKCS#12. Without `zookeeper.connect` the
broker is a single node, which stores its metadata in its own directory.
"""

from __future__ import annotations

from ottla.config.definition import Definition, Value

CLUSTER = "Cluster"

_CONNECT_FORM = "HOST:PORT items separated by commas, and optionally a /path after the last one"


def is_connect(value: Value) -> bool:
    """HOST:PORT[,HOST:PORT…][/path]"""
    hosts, slash, path = str(value).partition("/")
    if slash and (not path.strip("/") or "//" in f"/{path}"):
        return False
    for item in hosts.split(","):
        host, colon, port = item.strip().rpartition(":")
        if not (host and colon and port.isascii() and port.isdigit() and 0 < int(port[:6]) < 65_536):
            return False
    return True


def is_digest(value: Value) -> bool:
    user, colon, password = str(value).partition(":")
    return bool(user and colon and password)


def _row(name: str, kind: str, default: str | None, doc: str, **more: object) -> Definition:
    return Definition(name, kind, default, doc, section=CLUSTER, **more)  # type: ignore[arg-type]  # as given below


ZOOKEEPER = (
    _row(
        "zookeeper.connect",
        "string",
        None,
        "ZooKeeper servers of the cluster, as `host:port,host:port/path`. Not set: a single node without "
        "ZooKeeper.",
        check=is_connect,
        form=_CONNECT_FORM,
    ),
    _row(
        "zookeeper.session.timeout.ms",
        "int",
        "18000",
        "The cluster declares a broker dead after this time without contact to ZooKeeper. A killed process "
        "is detected sooner.",
        unit="ms",
        minimum=1000,
    ),
    _row(
        "zookeeper.connection.timeout.ms",
        "int",
        None,
        "How long the start waits for ZooKeeper. Not set: `zookeeper.session.timeout.ms`.",
        unit="ms",
        minimum=1,
    ),
    _row(
        "zookeeper.digest",
        "password",
        None,
        "`user:password` for ZooKeeper's digest authentication. ottla's own.",
        check=is_digest,
        form="user:password",
    ),
    _row(
        "zookeeper.set.acl",
        "boolean",
        "false",
        "Restrict the znodes of this broker to the user of `zookeeper.digest`.",
    ),
    _row("zookeeper.ssl.client.enable", "boolean", "false", "Connect to ZooKeeper with TLS."),
    _row(
        "zookeeper.ssl.truststore.location",
        "string",
        None,
        "PEM file of trusted certificates. Not set: those of the system.",
    ),
    _row(
        "zookeeper.ssl.keystore.location",
        "string",
        None,
        "PEM file with this broker's certificate and private key, for TLS client authentication.",
    ),
    _row("zookeeper.ssl.keystore.password", "password", None, "Password of the private key."),
    _row("zookeeper.ssl.truststore.type", "string", "PEM", "Format of the truststore.", allowed=("PEM",)),
    _row("zookeeper.ssl.keystore.type", "string", "PEM", "Format of the keystore.", allowed=("PEM",)),
    _row(
        "zookeeper.ssl.endpoint.identification.algorithm",
        "string",
        "HTTPS",
        "`HTTPS`: verify the host name in the server's certificate. Empty: do not.",
        allowed=("HTTPS", ""),
    ),
)
