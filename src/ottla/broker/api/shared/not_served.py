"""APIs of the protocol that are not served, each with its reason: the one place that says so.

They are not advertised either, and a request of one ends its connection. A test holds that every API is served or here.
"""

from __future__ import annotations

_KEYS_BY_REASON = {
    "share groups are not there yet": (*range(76, 80), *range(83, 88), 90, 91, 92),
    "streams groups are not there yet": (88, 89),
    "authentication is not there yet": (38, 39, 40, 41),
    "brokers register in the cluster store, and any of them may control": (62, 70),
    "a broker's log directories are its own affair": (73,),
    "the metadata is not kept by Raft": (52, 53, 54, 59, 80, 81, 82),
}

#: API key → why it is not served.
NOT_SERVED = {key: reason for reason, keys in _KEYS_BY_REASON.items() for key in keys}
