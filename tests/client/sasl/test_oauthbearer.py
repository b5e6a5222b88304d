import pytest

from ottla.client.sasl.exchange import ExchangeFailed
from ottla.client.sasl.oauthbearer import OAuthBearer, OAuthToken

# The token of RFC 7628, section 4.1.
TOKEN = "vF9dft4qmTc2Nvb3RlckBhbHRhdmlzdGEuY29tCg=="


def test_the_example_of_rfc_7628() -> None:
    """Section 4.1, without the authorization identity, which Kafka takes from the token."""
    token = OAuthToken(TOKEN, {"host": "server.example.com", "port": "143"})
    exchange = OAuthBearer(token)
    assert exchange.first() == (
        b"n,,\x01auth=Bearer vF9dft4qmTc2Nvb3RlckBhbHRhdmlzdGEuY29tCg==\x01host=server.example.com\x01port=143\x01\x01"
    )
    assert exchange.answer(b"") is None


def test_a_token_alone_may_be_a_string() -> None:
    assert OAuthBearer("abc").first() == b"n,,\x01auth=Bearer abc\x01\x01"


def test_a_refusal_is_confirmed_and_kept() -> None:
    """Section 4.3: the client sends a single ^A, and the server fails the exchange."""
    exchange = OAuthBearer(TOKEN)
    assert exchange.answer(b'{"status":"invalid_token","scope":"example_scope"}') == b"\x01"
    assert exchange.refusal == "invalid_token, scope example_scope"
    assert OAuthBearer(TOKEN).answer(b"no JSON") == b"\x01"


@pytest.mark.parametrize("token", ["", "a b", "secret\x01auth=Bearer other", "secret\n"])
def test_a_token_that_would_break_the_message_is_refused_without_being_told(token: str) -> None:
    with pytest.raises(ExchangeFailed) as failure:
        OAuthBearer(token)
    assert "secret" not in str(failure.value)


@pytest.mark.parametrize(
    "extension", [("auth", "x"), ("a b", "x"), ("key", "x\x01y"), ("", "x"), ("key", "")]
)
def test_an_extension_that_would_break_the_message_is_refused(extension: tuple[str, str]) -> None:
    with pytest.raises(ExchangeFailed, match="extension"):
        OAuthBearer(OAuthToken("t", dict([extension])))


def test_a_provider_that_gives_something_else_is_told() -> None:
    with pytest.raises(ExchangeFailed, match="returned a NoneType"):
        OAuthBearer(None)  # type: ignore[arg-type]


def test_a_token_is_not_shown() -> None:
    assert TOKEN not in repr(OAuthToken(TOKEN))
