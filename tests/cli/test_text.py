from datetime import datetime

import pytest

from ottla.cli.outcome import CommandError
from ottla.cli.text import duration_ms, duration_text, shown, time_ms, time_text, typed

NOW_MS = 1_700_000_000_000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("123", 123),
        ("-5m", NOW_MS - 300_000),
        ("-1.5h", NOW_MS - 5_400_000),
        ("-2d", NOW_MS - 172_800_000),
        ("-10ms", NOW_MS - 10),
        ("2023-11-14T22:13:20Z", NOW_MS),
        ("2023-11-14T23:13:20+01:00", NOW_MS),
    ],
)
def test_points_in_time(text: str, expected: int) -> None:
    assert time_ms(text, NOW_MS) == expected


def test_a_date_without_a_zone_is_local_time() -> None:
    local = datetime(2024, 5, 6, 7, 8).astimezone()
    assert time_ms("2024-05-06T07:08", NOW_MS) == round(local.timestamp() * 1000)


@pytest.mark.parametrize("text", ["", "soon", "-5", "-5y", "2023-99-99"])
def test_an_invalid_time_is_refused_with_examples(text: str) -> None:
    with pytest.raises(CommandError, match="-5m") as caught:
        time_ms(text, NOW_MS)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("form", ["text", "hex", "base64"])
def test_bytes_come_back(form: str) -> None:
    data = "grüße\n".encode()
    text = shown(data, form)  # type: ignore[arg-type]
    assert text is not None
    assert typed(text, form) == data  # type: ignore[arg-type]


def test_times_for_people() -> None:
    assert time_text(NOW_MS) == "2023-11-14T22:13:20.000Z"
    assert time_text(-1) == "-"
    assert time_text(1 << 62) == str(1 << 62)


@pytest.mark.parametrize(
    ("text", "milliseconds", "told"),
    [("500ms", 500, "500ms"), ("90s", 90_000, "1.5m"), ("15m", 900_000, "15m"), ("2h", 7_200_000, "2h"), ("1.5d", 129_600_000, "1.5d")],
)  # fmt: skip
def test_lengths_of_time(text: str, milliseconds: int, told: str) -> None:
    assert duration_ms(text, "--x") == milliseconds
    assert duration_text(milliseconds) == told


@pytest.mark.parametrize("text", ["", "5", "soon", "-5m", "5y"])
def test_an_invalid_duration_is_refused_with_examples(text: str) -> None:
    with pytest.raises(CommandError, match="--x takes a duration such as") as caught:
        duration_ms(text, "--x")
    assert caught.value.exit_code == 2


def test_a_clock_that_is_behind_makes_no_negative_time() -> None:
    assert duration_text(-5) == "0ms"
