"""Every setting of transactions and producers has an effect: the code reads it, or only its default is
accepted.
"""

from pathlib import Path

import pytest

import ottla
from ottla.config.broker import BROKER, BrokerConfig
from ottla.config.definition import InvalidConfig

PREFIXES = ("transaction.", "transactional.", "producer.")
SETTINGS = sorted(name for name in BROKER if name.startswith(PREFIXES))


def sources() -> str:
    root = Path(ottla.__file__).parent
    return "".join(path.read_text() for path in root.rglob("*.py") if path.parent.name != "config")


def test_those_that_cannot_be_otherwise_are_refused() -> None:
    for name, value in (
        ("transaction.two.phase.commit.enable", "true"),
        ("transaction.partition.verification.enable", "false"),
    ):
        with pytest.raises(InvalidConfig, match=name):
            BrokerConfig.from_properties({name: value})
        BrokerConfig.from_properties({name: BROKER[name].default})


def test_the_others_are_read() -> None:
    text = sources()
    assert len(SETTINGS) >= 12
    unread = [name for name in SETTINGS if f"config.{name.replace('.', '_')}" not in text]
    assert unread == ["transaction.partition.verification.enable", "transaction.two.phase.commit.enable"]
