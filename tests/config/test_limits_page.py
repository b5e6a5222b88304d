"""docs/limits.md is rendered from the table of limits."""

from pathlib import Path

from ottla.config.limits_page import LIMIT_SETTINGS, render
from ottla.model.limits import LIMITS, SECTIONS

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_is_rendered_from_the_table() -> None:
    assert (ROOT / "docs" / "limits.md").read_text() == render(), "run `make docs`"


def test_each_limit_says_why_and_what_a_client_gets() -> None:
    assert all(
        limit.section in SECTIONS and limit.what and limit.reason and limit.outcome for limit in LIMITS
    )
    assert len({limit.what for limit in LIMITS}) == len(LIMITS)
    assert len(set(LIMIT_SETTINGS)) == len(LIMIT_SETTINGS)
