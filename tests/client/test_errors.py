import pytest

import ottla.errors
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


def test_every_code_that_has_a_class_has_advice() -> None:
    assert not [code.name for code in errors.CLASSES if code not in errors.ADVICE]


def test_all_errors_can_be_caught_by_their_public_names() -> None:
    made = {
        name
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, Exception) and kind.__module__ == errors.__name__
    }
    assert set(ottla.errors.__all__) == made
    assert ottla.errors.TopicNotFound is errors.TopicNotFound


def test_many_refusals_are_counted_and_all_are_there() -> None:
    each = {f"t-{at}": errors.refused(ErrorCode.INVALID_REQUEST, f"moving t-{at}") for at in range(30)}
    error = errors.SeveralFailed(each, 40, "moving")
    assert "moving: 30 of 40 failed: moving t-0" in str(error) and "and 20 more" in str(error)
    assert error.errors.keys() == each.keys()
    assert error.code is ErrorCode.INVALID_REQUEST and not error.retriable
