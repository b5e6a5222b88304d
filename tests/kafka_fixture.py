"""Small data directories that Apache Kafka itself wrote, for the tests that run without Java.

`python -m tests.interop.kafka_directory SERIES tests/kafka_directories/SERIES.tar.gz` makes them anew. Each holds the
topics `orders` (compacted, two partitions: five records with zstd, three of an idempotent producer) and `trimmed` (ten
records, those before offset 4 deleted), and a topic that was deleted.
"""

import tarfile
from pathlib import Path

SERIES = ("4", "3.9")


def kafka_directory(series: str, into: Path) -> Path:
    archive = Path(__file__).parent / "kafka_directories" / f"{series}.tar.gz"
    with tarfile.open(archive) as tar:
        tar.extractall(into, filter="data")
    return into / "data"


def contents(directory: Path) -> dict[str, bytes]:
    """Every file below a directory, but for those that a start makes without harm."""
    made = {".lock", "metadata.journal"}
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name not in made
    }
