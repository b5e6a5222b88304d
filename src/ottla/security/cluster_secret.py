"""The cluster secret: 32 random bytes in the cluster store that only the brokers of the cluster can read."""

from __future__ import annotations

import hmac
from typing import Final

SECRET_BYTES: Final = 32


class ClusterSecret:
    """A key that is never visible in a log, a traceback or a repr."""

    __slots__ = ("_key",)

    def __init__(self, key: bytes) -> None:
        if len(key) != SECRET_BYTES:
            raise ValueError(f"a cluster secret has {SECRET_BYTES} bytes, this one has {len(key)}")
        self._key = key

    @staticmethod
    def from_stored(text: bytes) -> ClusterSecret:
        """Raises ValueError if the text is not a secret. The error does not contain the text."""
        try:
            return ClusterSecret(bytes.fromhex(text.decode("ascii")))
        except ValueError:
            pass
        raise ValueError(f"it is not {2 * SECRET_BYTES} hexadecimal digits")

    def stored(self) -> bytes:
        """The form in the store."""
        return self._key.hex().encode()

    def mac(self, message: bytes) -> bytes:
        """HMAC-SHA-256."""
        return hmac.digest(self._key, message, "sha256")

    def __repr__(self) -> str:
        return "ClusterSecret(hidden)"

    def __reduce__(self) -> str:
        raise TypeError("a cluster secret is not pickled")
