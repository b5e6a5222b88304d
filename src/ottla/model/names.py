"""Topic names: which are valid, and which are internal."""

from __future__ import annotations

import re

from ottla.model.limits import TOPIC_NAME_LENGTH_MAX

_ALLOWED = re.compile(r"[a-zA-Z0-9._-]+")

INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})


def topic_name_problem(name: str) -> str | None:
    """Why this is not a valid topic name, or None if it is."""
    if not name:
        return "the topic name is empty"
    if name in (".", ".."):
        return f"'{name}' is not a topic name"
    if len(name) > TOPIC_NAME_LENGTH_MAX:
        return f"the topic name has {len(name)} characters, at most {TOPIC_NAME_LENGTH_MAX} are allowed"
    if name == "__cluster_metadata":
        return "'__cluster_metadata' is not a topic: Kafka keeps its metadata under that name"
    if not _ALLOWED.fullmatch(name):
        return f"topic name {name!r} has characters other than ASCII letters, digits, '.', '_' and '-'"
    return None


def collides(name: str) -> str:
    """Names that differ only in '.' and '_' have the same form: metrics could not distinguish them."""
    return name.replace(".", "_")
