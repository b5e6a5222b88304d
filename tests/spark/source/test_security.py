"""TLS and SASL by source options."""

import ssl
from pathlib import Path

import trustme

import ottla
from tests.client.gate import Gate, Sasl, gated
from tests.spark.source.conftest import batch_reader, values_of


def test_tls_and_sasl_by_options(tmp_path: Path, topic_name: str) -> None:
    authority = trustme.CA()
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(tls)
    ca_file = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(ca_file)
    with gated(Gate(tls=tls, sasl=Sasl("SCRAM-SHA-256", {"spark": "secret"}))) as gate:
        settings = {
            "security_protocol": "SASL_SSL",
            "ssl_cafile": str(ca_file),
            "sasl_mechanism": "SCRAM-SHA-256",
            "sasl_username": "spark",
            "sasl_password": "secret",
        }
        with ottla.Producer(gate.address, **settings) as producer:  # type: ignore[arg-type]
            producer.send(topic_name, b"behind the gate").result()
        reader = batch_reader(
            gate.address,
            subscribe=topic_name,
            kafka__security__protocol="SASL_SSL",
            kafka__ssl__truststore__type="PEM",
            kafka__ssl__truststore__location=ca_file,
            kafka__sasl__mechanism="SCRAM-SHA-256",
            kafka__sasl__jaas__config='org.apache.kafka.common.security.scram.ScramLoginModule required username="spark" password="secret";',
        )
        assert values_of(reader, reader.partitions()) == [b"behind the gate"]
