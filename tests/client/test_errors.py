import pytest

from ottla.client import errors
from ottla.model.errors import ErrorCode


def test_an_error_says_what_where_and_what_to_try() -> None:
    error = errors.refused(
        ErrorCode.NOT_ENOUGH_REPLICAS, "producing", broker="10.0.0.1:9092", topic="orders", partition=3
    )
    text = str(error)
    for part in (
        "producing",
        "orders",
        "partition 3",
        "10.0.0.1:9092",
        "NOT_ENOUGH_REPLICAS (19)",
        "min.insync",
    ):
        assert part in text
    assert error.retriable


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, errors.TopicNotFound),
        (ErrorCode.TOPIC_ALREADY_EXISTS, errors.TopicExists),
        (ErrorCode.INVALID_CONFIG, errors.InvalidRequest),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, errors.NotAuthorized),
        (ErrorCode.MESSAGE_TOO_LARGE, errors.MessageTooLarge),
        (ErrorCode.KAFKA_STORAGE_ERROR, errors.KafkaError),
    ],
)
def test_a_code_becomes_its_class(code: ErrorCode, kind: type[errors.KafkaError]) -> None:
    error = errors.refused(code, "trying")
    assert type(error) is kind
    assert error.code is code


def test_a_code_from_the_future_is_told_and_not_retried() -> None:
    error = errors.refused(9999, "trying")
    assert "9999" in str(error)
    assert error.code is ErrorCode.UNKNOWN_SERVER_ERROR
    assert not error.retriable


def test_what_the_broker_said_is_kept() -> None:
    assert "retention.ms: no number" in str(
        errors.refused(ErrorCode.INVALID_CONFIG, "configs", message="retention.ms: no number.")
    )


def test_a_place_that_the_message_names_is_not_named_twice() -> None:
    assert str(errors.KafkaError("topic 'orders' is gone", topic="orders")) == "topic 'orders' is gone"
