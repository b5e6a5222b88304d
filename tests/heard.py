"""A reply that notes what it is told, for tests of coordinators."""

from collections.abc import Mapping
from typing import Any

from ottla.model.errors import ErrorCode


class Heard:
    """Answered or refused, once."""

    def __init__(self) -> None:
        self.response: Mapping[str, Any] | None = None
        self.code: ErrorCode | None = None

    def answer(self, response: Mapping[str, Any]) -> None:
        assert not self.is_answered, "answered twice"
        self.response = response

    def refuse(self, code: ErrorCode) -> None:
        assert not self.is_answered, "answered twice"
        self.code = code

    @property
    def is_answered(self) -> bool:
        return self.response is not None or self.code is not None

    @property
    def error(self) -> ErrorCode:
        assert self.is_answered, "not answered"
        return ErrorCode(self.code if self.response is None else self.response["error_code"])
