"""TLS and SASL settings: their checks, the `SSLContext`, and explanations of failed TLS handshakes.

`check_security` runs whenever settings are built, so that a missing password fails early. `Cluster` creates
the context once per client. Certificates, keys and CAs are PEM files. TLS is 1.2 or newer. The broker's
certificate must come from a known CA and match the host name; only `ssl_check_hostname=False` or an
`ssl_context` relaxes that.
"""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Final, Literal, get_args

from ottla.client.errors import BrokerUnreachable, KafkaError, SettingError, TlsFailed

if TYPE_CHECKING:
    from ottla.client.settings import ClientConfig

SecurityProtocol = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
Mechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]

_SSL_FIELDS: Final = ("ssl_cafile", "ssl_certfile", "ssl_keyfile", "ssl_password", "ssl_context")
_SASL_FIELDS: Final = ("sasl_mechanism", "sasl_username", "sasl_password", "sasl_oauth_token_provider")

#: OpenSSL's reasons for refusing a certificate.
_EXPIRED, _NOT_YET_VALID = 10, 9
_UNKNOWN_AUTHORITY: Final = frozenset((2, 18, 19, 20, 21))
_WRONG_HOST: Final = frozenset((62, 64))


def check_security(settings: ClientConfig) -> None:
    """Raise `SettingError` if the TLS and SASL settings do not fit together."""
    protocol, mechanism = settings.security_protocol, settings.sasl_mechanism
    if protocol not in get_args(SecurityProtocol):
        raise SettingError(
            f"security_protocol must be one of {', '.join(get_args(SecurityProtocol))}, not {protocol!r}"
        )
    for name in (
        "ssl_cafile",
        "ssl_certfile",
        "ssl_keyfile",
        "ssl_password",
        "sasl_username",
        "sasl_password",
    ):
        # Name only the type: the value may be a secret.
        value = getattr(settings, name)
        if value is not None and not isinstance(value, str):
            raise SettingError(f"{name} must be a string, not {type(value).__name__}")
    _check_tls(settings)
    if not protocol.startswith("SASL"):
        _refuse_unused(settings, _SASL_FIELDS, "SASL_SSL")
        return
    if mechanism not in get_args(Mechanism):
        raise SettingError(
            f"security_protocol {protocol} needs sasl_mechanism, "
            f"one of {', '.join(get_args(Mechanism))}; it is {mechanism!r}"
        )
    if mechanism == "OAUTHBEARER":
        if not callable(settings.sasl_oauth_token_provider):
            raise SettingError(
                "sasl_mechanism OAUTHBEARER needs sasl_oauth_token_provider, a function that returns a token"
            )
        return
    for name in ("sasl_username", "sasl_password"):
        value = getattr(settings, name)
        if not value:
            raise SettingError(f"sasl_mechanism {mechanism} needs {name}")
        if "\0" in value:
            raise SettingError(f"{name} contains a NUL character, which {mechanism} cannot carry")


def _check_tls(settings: ClientConfig) -> None:
    if not settings.security_protocol.endswith("SSL"):
        _refuse_unused(settings, _SSL_FIELDS, "SSL")
    if settings.ssl_context is not None:
        if not isinstance(settings.ssl_context, ssl.SSLContext):
            raise SettingError(
                f"ssl_context must be an ssl.SSLContext, not {type(settings.ssl_context).__name__}"
            )
        for name in ("ssl_cafile", "ssl_certfile", "ssl_keyfile", "ssl_password"):
            if getattr(settings, name) is not None:
                raise SettingError(f"{name} cannot be combined with ssl_context: load it into the context")
    if settings.ssl_keyfile is not None and settings.ssl_certfile is None:
        raise SettingError("ssl_keyfile needs ssl_certfile")


def _refuse_unused(settings: ClientConfig, names: tuple[str, ...], protocol: str) -> None:
    """Refuse a password that is not sent, or a certificate that is not used: a mistake that would go
    unnoticed.
    """
    for name in names:
        if getattr(settings, name) is not None:
            raise SettingError(
                f"{name} is set, but security_protocol {settings.security_protocol} does not use it; "
                f"did you mean security_protocol={protocol!r}?"
            )


def tls_context(settings: ClientConfig) -> ssl.SSLContext | None:
    """The `SSLContext` of the settings; None without TLS."""
    if not settings.security_protocol.endswith("SSL"):
        return None
    if settings.ssl_context is not None:
        return settings.ssl_context
    try:
        context = ssl.create_default_context(cafile=settings.ssl_cafile)
    except (OSError, ssl.SSLError) as error:
        raise SettingError(f"ssl_cafile {settings.ssl_cafile}: {_file_trouble(error)}") from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = settings.ssl_check_hostname
    if settings.ssl_certfile is not None:
        # Without a password OpenSSL would ask on the terminal.
        password = settings.ssl_password or ""
        try:
            context.load_cert_chain(settings.ssl_certfile, settings.ssl_keyfile, lambda: password)
        except (OSError, ssl.SSLError) as error:
            files = " and ".join(filter(None, (settings.ssl_certfile, settings.ssl_keyfile)))
            raise SettingError(f"ssl_certfile and ssl_keyfile, {files}: {_file_trouble(error)}") from error
    return context


def _file_trouble(error: OSError) -> str:
    if not isinstance(error, ssl.SSLError):
        return (error.strerror or str(error)).lower()
    if error.reason == "KEY_VALUES_MISMATCH":
        return "the key does not belong to the certificate"
    if "PASSWORD" in (error.reason or "") or "BAD_DECRYPT" in (error.reason or ""):
        return "the key cannot be decrypted; check ssl_password"
    return (
        f"no PEM file, or its key is encrypted and ssl_password is missing or wrong ({error.reason or error})"
    )


def tls_failure(address: str, error: OSError, *, has_certificate: bool) -> KafkaError:
    """The error for a failed TLS handshake, or a failure right after it, with advice."""
    if isinstance(error, ssl.SSLCertVerificationError):
        reason, advice = _distrust(address, error)
        return TlsFailed(f"the certificate of {address} {reason}", broker=address, advice=advice)
    if isinstance(error, ssl.SSLError):
        name = error.reason or ""
        if name in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNKNOWN_PROTOCOL", "RECORD_LAYER_FAILURE"):
            return TlsFailed(
                f"{address} does not speak TLS", broker=address,
                advice="Use the port of its TLS listener, or security_protocol without SSL",
            )  # fmt: skip
        if "EOF" not in name:
            return TlsFailed(
                f"{address} refused the TLS handshake ({name.lower().replace('_', ' ') or error})",
                broker=address, advice=_alert_advice(name, has_certificate=has_certificate),
            )  # fmt: skip
    return BrokerUnreachable(
        f"{address} accepted the connection and closed it during the TLS handshake", broker=address,
        advice="If the listener has no TLS, use security_protocol PLAINTEXT or SASL_PLAINTEXT",
    )  # fmt: skip


def _distrust(address: str, error: ssl.SSLCertVerificationError) -> tuple[str, str]:
    if error.verify_code in _WRONG_HOST:
        host = address.rpartition(":")[0]
        return (
            f"is not for {host}",
            "Use a name from the certificate and advertise it, or set ssl_check_hostname=False",
        )
    if error.verify_code in _UNKNOWN_AUTHORITY:
        return (
            f"is of an authority that is not known here ({error.verify_message})",
            "Give the authority's certificate as ssl_cafile",
        )
    if error.verify_code in (_EXPIRED, _NOT_YET_VALID):
        return (
            f"is not valid now ({error.verify_message})",
            "Renew it on the broker, or set the clock of this machine",
        )
    return f"was not accepted ({error.verify_message})", "Inspect it with `openssl s_client -connect`"


def _alert_advice(name: str, *, has_certificate: bool) -> str:
    if "CERTIFICATE" in name or "UNKNOWN_CA" in name or ("HANDSHAKE_FAILURE" in name and not has_certificate):
        if has_certificate:
            return "The broker does not accept the client's certificate: check that its truststore has the CA"
        return "The broker demands a client's certificate: give ssl_certfile and ssl_keyfile"
    if "VERSION" in name or "HANDSHAKE_FAILURE" in name:
        return "There is no common TLS version or cipher; this client speaks TLS 1.2 and 1.3"
    return "See the broker's log"
