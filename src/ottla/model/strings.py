"""Sizes of stored strings in bytes of UTF-8, as in the protocol and in records."""

from __future__ import annotations

from ottla.model.limits import NAME_LENGTH_MAX, STRING_BYTES_MAX


def is_longer(text: str | None, limit: int) -> bool:
    """Whether a string has more than this many bytes in UTF-8; None has no bytes."""
    if text is None or 4 * len(text) <= limit:
        return False
    return len(text) > limit or len(text.encode("utf-8", "replace")) > limit


def is_name(text: str) -> bool:
    """Whether the length of a group id or transactional id is valid."""
    return len(text) <= NAME_LENGTH_MAX


def cut(text: str, limit: int = STRING_BYTES_MAX) -> str:
    """The string, truncated to this many bytes of UTF-8."""
    if not is_longer(text, limit):
        return text
    return text.encode("utf-8", "replace")[:limit].decode("utf-8", "ignore")
