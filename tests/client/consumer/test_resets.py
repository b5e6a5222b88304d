import pytest

from ottla.client.consumer.resets import reset_timestamp
from ottla.client.consumer.settings import ConsumerConfig
from ottla.client.errors import SettingError
from ottla.client.offsets import EARLIEST, LATEST

NOW_MS = 1_700_000_000_000


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("earliest", EARLIEST),
        ("latest", LATEST),
        ("none", None),
        ("by_duration:PT1H", NOW_MS - 3_600_000),
        ("by_duration:P7D", NOW_MS - 7 * 86_400_000),
        ("by_duration:P1DT2H3M4.5S", NOW_MS - ((26 * 60 + 3) * 60 + 4) * 1000 - 500),
    ],
)
def test_policies(policy: str, expected: int | None) -> None:
    assert reset_timestamp(policy, NOW_MS) == expected


@pytest.mark.parametrize(
    "policy", ["", "first", "by_duration:", "by_duration:P", "by_duration:1h", "by_duration:-PT1H", 7]
)
def test_others_are_refused_with_what_is_known(policy: str) -> None:
    with pytest.raises(SettingError, match="earliest, latest, none, or by_duration"):
        ConsumerConfig(auto_offset_reset=policy)
