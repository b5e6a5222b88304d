from ottla.client.sasl.plain import Plain


def test_the_example_of_rfc_4616() -> None:
    exchange = Plain("tim", "tanstaaftanstaaf")
    assert exchange.first() == b"\0tim\0tanstaaftanstaaf"
    assert exchange.answer(b"") is None


def test_names_and_passwords_are_utf_8() -> None:
    assert Plain("Jörg", "pässword").first() == b"\0" + "Jörg".encode() + b"\0" + "pässword".encode()
