from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from ottla.config.broker import BROKER, NOT_HONOURED
from ottla.config.markdown import render
from ottla.config.topic import TOPIC

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"


def test_the_manual_page_is_the_table() -> None:
    assert PAGE.read_text(encoding="utf-8") == render(), "`make docs` writes it anew"


def test_the_page_has_one_row_for_every_setting() -> None:
    page = render()
    topics, brokers = page.split("## Broker settings")
    for name in TOPIC:
        assert topics.count(f"\n| `{name}` |") == 1
    for name in [*BROKER, *NOT_HONOURED]:
        assert brokers.count(f"\n| `{name}` |") == 1


def test_the_module_prints_the_page() -> None:
    done = subprocess.run(
        [sys.executable, "-X", "utf8", "-m", "ottla.config.markdown"], capture_output=True, check=True
    )
    assert done.stdout.decode("utf-8") == render()
