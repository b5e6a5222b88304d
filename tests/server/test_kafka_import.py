"""Import of a Kafka data directory; a refused import changes nothing."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import ottla
from ottla.client.metadata import TopicPartition
from ottla.log.names import KAFKA_METADATA
from ottla.log.producers import Producers
from ottla.metadata.image import Image
from ottla.records.record import Record, encode_batch
from ottla.runtime.embedded_store import read_journal
from ottla.server.embedded import Broker
from ottla.server.node import CannotStart
from ottla.transactions.formats import Entry, State, encode
from ottla.transactions.formats import Record as TransactionRecord
from tests.kafka_fixture import SERIES, contents, kafka_directory
from tests.peer import METADATA, Peer

DESCRIBE_PRODUCERS = 61


def values(broker: Broker, topic: str) -> list[bytes | None]:
    """All records that a consumer reads from the start to the end of the log."""
    place = TopicPartition(topic, 0)
    found: list[bytes | None] = []
    with ottla.Consumer(broker.address, auto_offset_reset="earliest") as consumer:
        consumer.assign([place])
        end = consumer.end_offsets([place])[place]
        while consumer.position(place) < end:
            found += [record.value for records in consumer.poll(10).values() for record in records]
    return found


def journal(directory: Path) -> Image:
    return Image().apply(read_journal((directory / "metadata.journal").read_bytes())[0])


@pytest.mark.parametrize("series", SERIES)
def test_its_records_are_served_and_written_on(tmp_path: Path, series: str) -> None:
    directory = kafka_directory(series, tmp_path)
    before = contents(directory / KAFKA_METADATA)
    said: list[str] = []
    with Broker(str(directory), say=said.append) as broker, Peer(broker.address) as peer:
        assert "imported 2 topics, 3 partitions" in said[0]
        assert any("do not start Kafka" in line for line in said)
        assert len(peer.fetch("orders", 0)) == 8
        assert values(broker, "trimmed") == [
            f"value-{number} ".ljust(60, ".").encode() for number in range(4, 10)
        ]
        # The leader is new, so its epoch is one that Kafka has not used.
        [topic] = peer.ask(METADATA, topics=({"name": "trimmed"},)).topics
        assert topic.partitions[0].leader_epoch >= 1
        assert peer.produce("trimmed", b"ours") == 10
    assert contents(directory / KAFKA_METADATA) == before
    image = journal(directory)
    assert image.topic_config("orders") == {"cleanup.policy": "compact"}
    assert image.configs[4, "1"] == {"log.retention.ms": "987654321"}
    assert image.next_producer_id >= 1000

    said.clear()
    with Broker(str(directory), say=said.append) as broker, Peer(broker.address) as peer:
        assert not any("imported " in line for line in said)
        assert len(values(broker, "trimmed")) == 7


def test_the_producers_of_kafkas_snapshot_are_known(tmp_path: Path) -> None:
    directory = kafka_directory("4", tmp_path)
    with Broker(str(directory)) as broker, Peer(broker.address) as peer:
        asked = ({"name": "orders", "partition_indexes": (0,)},)
        [producer] = peer.ask(DESCRIBE_PRODUCERS, topics=asked).topics[0].partitions[0].active_producers
    assert producer.last_sequence == 2


def test_the_node_id_of_the_directory_counts_unless_another_is_named(tmp_path: Path) -> None:
    directory = kafka_directory("4", tmp_path)
    meta = directory / "meta.properties"
    meta.write_text(meta.read_text().replace("node.id=1", "node.id=7"))
    before = contents(directory)
    with pytest.raises(CannotStart, match=r"belongs to node\.id 7, this broker has 3"):
        Broker(str(directory), config={"node.id": "3"})
    with pytest.raises(CannotStart, match="no partition on broker 7"):
        Broker(str(directory))
    assert contents(directory) == before
    shutil.rmtree(directory / KAFKA_METADATA)
    with Broker(str(directory)) as broker, Peer(broker.address) as peer:
        assert [node.node_id for node in peer.ask(METADATA, topics=()).brokers] == [7]


def grow_kafkas_metadata(directory: Path) -> None:
    """As if Kafka had run again: the last batch once more, with the next offsets."""
    log = directory / KAFKA_METADATA / "00000000000000000000.log"
    from ottla.metadata import kraft_log
    from ottla.records.batch import PREFIX

    batches = list(kraft_log.batches(log.read_bytes()))
    _position, header, last = batches[-1]
    again = bytearray(last)
    PREFIX.pack_into(again, 0, header[0] + header[6] + 1, header[1], header[2])
    with log.open("ab") as file:
        file.write(again)


def test_a_directory_that_kafka_ran_on_again_is_refused_untouched(tmp_path: Path) -> None:
    directory = kafka_directory("4", tmp_path)
    with Broker(str(directory)):
        pass
    shutil.copytree(directory / "orders-0", directory / "new-0")
    grow_kafkas_metadata(directory)
    before = contents(directory)
    with pytest.raises(CannotStart, match=r"Kafka has run on .* since ottla imported it"):
        Broker(str(directory))
    assert contents(directory) == before


def test_a_folder_that_no_topic_knows_is_set_aside(tmp_path: Path) -> None:
    directory = kafka_directory("4", tmp_path)
    shutil.copytree(directory / "orders-0", directory / "unknown-0")
    data = (directory / "unknown-0" / "00000000000000000000.log").read_bytes()
    said: list[str] = []
    with Broker(str(directory), say=said.append):
        pass
    [aside] = directory.glob("unknown-0.*-stray")
    assert (aside / "00000000000000000000.log").read_bytes() == data
    assert any("no topic owns" in line for line in said)


def test_without_a_metadata_log_the_folders_are_imported(tmp_path: Path) -> None:
    directory = kafka_directory("3.9", tmp_path)
    shutil.rmtree(directory / KAFKA_METADATA)
    (directory / "cleaner-offset-checkpoint").write_text("0\n1\norders 0 8\n")
    said: list[str] = []
    with Broker(str(directory), say=said.append) as broker, Peer(broker.address) as peer:
        assert len(peer.fetch("orders", 0)) == 8
        assert len(values(broker, "trimmed")) == 6
    assert "2 topics, 3 partitions" in said[0] and "from the partition folders" in said[0]
    assert any("settings of the topics are unknown" in line for line in said)
    image = journal(directory)
    # With unknown configs nothing may be deleted.
    assert image.topic_config("trimmed") == {"retention.ms": "-1", "retention.bytes": "-1"}
    assert image.topic_config("orders") == {"cleanup.policy": "compact"}
    assert image.next_producer_id >= 1000
    assert (
        f"topic_id: {_text(image.topics['orders'].topic_id)}"
        in (directory / "orders-0" / "partition.metadata").read_text()
    )


def test_transactions_in_folders_keep_their_producer_ids_and_coordinators_their_order(tmp_path: Path) -> None:
    """Without a metadata log: an id that only a transactional id still has is given to nobody else, and a
    partition that has a marker of a later coordinator than its own log speaks of takes one of this.
    """
    directory = kafka_directory("3.9", tmp_path)
    shutil.rmtree(directory / KAFKA_METADATA)
    folder = directory / "__transaction_state-0"
    folder.mkdir()
    entry = Entry(77_000, 4, 60_000, State.COMPLETE_COMMIT, 1_700_000_000_000)
    row = Record(0, 1_700_000_000_000, *encode(TransactionRecord("teller", entry)))
    # The record after it is torn.
    (folder / "00000000000000000000.log").write_bytes(encode_batch([row]) + bytes(30))
    producers = Producers()
    producers.ended(5, 0, 41, 3, 1_700_000_000_000)
    (directory / "orders-0" / "00000000000000000008.snapshot").write_bytes(producers.render())
    with Broker(str(directory)) as broker, Peer(broker.address) as peer:
        [state] = peer.ask(65, 0, transactional_ids=["teller"]).transaction_states
        assert (state.producer_id, state.producer_epoch, state.transaction_state) == (
            77_000,
            4,
            "CompleteCommit",
        )
        [topic] = peer.ask(METADATA, topics=({"name": "__transaction_state"},)).topics
        assert topic.partitions[0].leader_epoch == 42
    assert journal(directory).next_producer_id == 79_000


def _text(topic_id: bytes) -> str:
    from ottla.log.names import id_text

    return id_text(topic_id)


@pytest.mark.parametrize("lost", ["meta.properties", "metadata.journal"])
def test_partitions_that_nothing_vouches_for_are_refused_untouched(tmp_path: Path, lost: str) -> None:
    directory = tmp_path / "data"
    with Broker(str(directory)) as broker, Peer(broker.address) as peer:
        peer.create("t")
        peer.produce("t", b"precious")
    (directory / "metadata.journal").unlink()
    (directory / lost).unlink(missing_ok=True)
    before = contents(directory)
    with pytest.raises(CannotStart, match=r"no metadata\.journal that knows them"):
        Broker(str(directory))
    assert contents(directory) == before


def test_damaged_metadata_is_refused_untouched(tmp_path: Path) -> None:
    directory = kafka_directory("4", tmp_path)
    log = directory / KAFKA_METADATA / "00000000000000000000.log"
    data = bytearray(log.read_bytes())
    data[200] ^= 0xFF
    log.write_bytes(data)
    before = contents(directory)
    with pytest.raises(CannotStart, match=r"Kafka's metadata cannot be imported.*damaged"):
        Broker(str(directory))
    assert contents(directory) == before


HOLD = """
import fcntl, sys
file = open(sys.argv[1], "a")
fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
print("held", flush=True)
sys.stdin.read()
"""


def test_a_directory_that_kafka_is_running_on_is_refused(tmp_path: Path) -> None:
    """Java's lock is an fcntl lock: ottla and Kafka must see each other's lock."""
    directory = kafka_directory("4", tmp_path)
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(directory / ".lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(CannotStart, match="another broker is running"):
            Broker(str(directory))
    finally:
        holder.communicate(b"")
    with Broker(str(directory)):
        held = subprocess.run(
            [sys.executable, "-c", HOLD, str(directory / ".lock")],
            stdin=subprocess.DEVNULL, capture_output=True, check=False,
        )  # fmt: skip
        assert b"BlockingIOError" in held.stderr or b"PermissionError" in held.stderr
