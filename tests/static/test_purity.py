"""Pure rooms may neither read a clock nor make randomness, not even through the value types they may import."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def complaints(path: str, source: str) -> str:
    command = [sys.executable, "-m", "ruff", "check", "--select", "TID251", "--output-format", "concise"]
    command += ["--stdin-filename", path, "-"]
    return subprocess.run(command, cwd=ROOT, input=source, capture_output=True, text=True, check=False).stdout


@pytest.mark.parametrize(
    "source",
    [
        "import uuid\nuuid.uuid4()\n",
        "from uuid import uuid4\n",
        "import datetime\ndatetime.datetime.now(datetime.UTC)\n",
        "from datetime import datetime\ndatetime.now()\n",
        "import random\n",
        "from time import monotonic\n",
    ],
)
def test_a_pure_room_may_not_read_the_world(source: str) -> None:
    assert "TID251" in complaints("src/ottla/log/example.py", source)
    assert "TID251" not in complaints("src/ottla/runtime/example.py", source)


def test_value_types_are_allowed() -> None:
    source = "import uuid\nfrom datetime import timedelta\nuuid.UUID(int=1), timedelta(0)\n"
    assert "TID251" not in complaints("src/ottla/log/example.py", source)
