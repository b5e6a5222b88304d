import itertools
import sys
from pathlib import Path

import pytest

from ottla.runtime.local_zookeeper import LocalZookeeper
from tests.zookeeper_fixture import program, shared_zookeeper, zookeeper

__all__ = ["program", "shared_zookeeper", "zookeeper"]

sys.path.insert(0, str(Path(__file__).parent))

_CHROOTS = itertools.count()


@pytest.fixture
def cluster(shared_zookeeper: LocalZookeeper) -> str:
    """The zookeeper.connect of an empty cluster."""
    return f"{shared_zookeeper.address}/clusters/{next(_CHROOTS)}"
