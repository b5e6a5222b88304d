"""The settings of a cluster's connection to ZooKeeper, under the names they had in Kafka, and ours.

Key and trust stores are PEM files: Python reads no JKS and no PKCS#12. Without `zookeeper.connect` a broker is alone and
keeps its metadata in its own directory.
"""

from __future__ import annotations

from ottla.config.definition import Definition, Value

CLUSTER = "Cluster"

_CONNECT_FORM = "HOST:PORT items, and after the last one a path of their own if it is not to be the root"


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
        "The ZooKeeper servers of the cluster that this broker belongs to, as `host:port,host:port/path`. "
        "Not set: a broker of its own, which needs none.",
        check=is_connect,
        form=_CONNECT_FORM,
    ),
    _row(
        "zookeeper.session.timeout.ms",
        "int",
        "18000",
        "How long a broker may be out of touch with ZooKeeper before the cluster takes it for dead. "
        "A process that was killed is noticed sooner.",
        unit="ms",
        minimum=1000,
    ),
    _row(
        "zookeeper.connection.timeout.ms",
        "int",
        None,
        "How long a start waits for ZooKeeper. Not set: `zookeeper.session.timeout.ms`.",
        unit="ms",
        minimum=1,
    ),
    _row(
        "zookeeper.digest",
        "password",
        None,
        "`user:password` to show to ZooKeeper (its digest scheme). ottla's own.",
        check=is_digest,
        form="user:password",
    ),
    _row(
        "zookeeper.set.acl",
        "boolean",
        "false",
        "Whether what this broker keeps in ZooKeeper is closed to everybody but the user of `zookeeper.digest`.",
    ),
    _row("zookeeper.ssl.client.enable", "boolean", "false", "Whether to connect with TLS."),
    _row(
        "zookeeper.ssl.truststore.location",
        "string",
        None,
        "PEM file of the certificates to believe. Not set: those of the system.",
    ),
    _row(
        "zookeeper.ssl.keystore.location",
        "string",
        None,
        "PEM file with this broker's certificate and private key, if ZooKeeper asks for one.",
    ),
    _row("zookeeper.ssl.keystore.password", "password", None, "What the private key is encrypted with."),
    _row("zookeeper.ssl.truststore.type", "string", "PEM", "What kind of file it is.", allowed=("PEM",)),
    _row("zookeeper.ssl.keystore.type", "string", "PEM", "What kind of file it is.", allowed=("PEM",)),
    _row(
        "zookeeper.ssl.endpoint.identification.algorithm",
        "string",
        "HTTPS",
        "`HTTPS` checks that the server's certificate bears its name; empty does not.",
        allowed=("HTTPS", ""),
    ),
)
