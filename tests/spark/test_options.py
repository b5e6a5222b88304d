"""Options: strings become values, errors are raised before any data is read or written."""

import pytest

from ottla.spark.options import Option, OptionError, boolean, one_of, read_options, text, whole_number

TABLE = (
    Option("subscribe", text, None, ""),
    Option("minPartitions", whole_number(1), None, ""),
    Option("failOnDataLoss", boolean, True, ""),
    Option("mode", one_of("Fast", "slow"), "slow", ""),
)
SERVERS = {"kafka.bootstrap.servers": "127.0.0.1:9092"}


def test_values_are_read_by_name_whatever_its_case() -> None:
    given = {
        **SERVERS,
        "SUBSCRIBE": " a,b ",
        "minpartitions": "3",
        "failondataloss": "False",
        "kafka.Client.ID": "x",
    }
    values, kafka = read_options({**given, "checkpointLocation": "/x", "mode": "FAST"}, TABLE, "the source")
    assert values == {"subscribe": "a,b", "minPartitions": 3, "failOnDataLoss": False, "mode": "Fast"}
    assert kafka == {"bootstrap.servers": "127.0.0.1:9092", "client.id": "x"}


def test_what_is_not_given_has_its_default() -> None:
    assert read_options(SERVERS, TABLE, "the source")[0]["failOnDataLoss"] is True


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "needs the option kafka.bootstrap.servers"),
        ({**SERVERS, "subscribes": "a"}, "the source has no option 'subscribes': did you mean subscribe"),
        ({**SERVERS, "bootstrap.servers": "a:1"}, "did you mean kafka.bootstrap.servers"),
        ({**SERVERS, "fetch.min.bytes": "1"}, "as in kafka.fetch.min.bytes"),
        ({**SERVERS, "zzz": "a"}, "known are subscribe, minPartitions"),
        ({**SERVERS, "subscribe": " "}, "option subscribe must not be empty"),
        ({**SERVERS, "minPartitions": "many"}, "option minPartitions must be a whole number, not 'many'"),
        ({**SERVERS, "minPartitions": "0"}, "option minPartitions must be 1 or more, not 0"),
        ({**SERVERS, "failOnDataLoss": "no"}, "option failOnDataLoss must be true or false, not 'no'"),
        ({**SERVERS, "mode": "medium"}, "option mode must be one of Fast, slow, not 'medium'"),
    ],
)  # fmt: skip
def test_mistakes_are_told(given: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        read_options(given, TABLE, "the source")
