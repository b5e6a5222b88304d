from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from kio.schema.index import api_key_map

from ottla.broker.api.shared.api_table import APIS
from ottla.broker.api.shared.compatibility_page import render
from ottla.broker.api.shared.not_served import NOT_SERVED
from ottla.model.features import FEATURES

PAGE = Path(__file__).parents[4] / "docs" / "compatibility.md"


def test_the_manual_page_is_the_table() -> None:
    assert PAGE.read_text(encoding="utf-8") == render(), "`make docs` writes it anew"


def test_every_api_is_either_served_or_not_with_a_reason() -> None:
    assert APIS.keys() & NOT_SERVED.keys() == set()
    assert APIS.keys() | NOT_SERVED.keys() == api_key_map.keys()


def test_the_page_has_one_row_for_every_api() -> None:
    served, rest = render().split("## Features")
    features, not_served = rest.split("## Not served")
    assert all(f"| `{name}` | {feature.level} |" in features for name, feature in FEATURES.items())
    for page, keys in ((served, APIS), (not_served, NOT_SERVED)):
        rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| ")]
        assert sorted(int(row[1]) for row in rows if row[1].isdigit()) == sorted(keys)


def test_the_module_prints_the_page() -> None:
    done = subprocess.run(
        [sys.executable, "-X", "utf8", "-m", "ottla.broker.api.shared.compatibility_page"],
        capture_output=True,
        check=True,
    )
    assert done.stdout.decode("utf-8") == render()
