"""Broker epochs: each registration's is higher than those before, fits the protocol, and cannot be guessed from them."""

from ottla.controller.broker_epoch import TOKEN_BYTES, proposed_epoch, registered_epoch

INT64_MAX = 2**63 - 1
CZXID = 0x1_0000_0045


def test_epochs_grow_with_each_registration_whatever_is_random_in_them() -> None:
    known = -1
    for number in range(1, 200):
        token = (b"\xff" if number % 2 else b"\0") * TOKEN_BYTES
        epoch = registered_epoch(proposed_epoch(known, token), number)
        assert known < epoch <= INT64_MAX
        known = epoch


def test_an_epoch_of_a_registration_that_is_not_in_the_image_yet_is_exceeded_too() -> None:
    proposed = proposed_epoch(-1, b"\0" * TOKEN_BYTES)
    present = registered_epoch(proposed_epoch(-1, b"\xff" * TOKEN_BYTES), 3)
    assert registered_epoch(proposed, 3, present) > present


def test_epochs_follow_those_that_were_czxids() -> None:
    for czxid in (CZXID, 200 << 32, 1 << 50):
        assert registered_epoch(proposed_epoch(czxid, bytes(TOKEN_BYTES)), 1) > czxid


def test_what_is_random_stays_in_it() -> None:
    """A broker's own, which nobody else knows: two that register alike differ in 39 bits."""
    one, other = (
        registered_epoch(proposed_epoch(7, token), 5) for token in (b"\1\2\3\4\5", b"\6\7\x08\x09\x0a")
    )
    assert one >> 39 == other >> 39
    assert one & 0xFFFFFFFF == 0x02030405 and other & 0xFFFFFFFF == 0x0708090A


def test_the_last_registration_that_can_be_counted_fits() -> None:
    assert registered_epoch(proposed_epoch(-1, b"\xff" * TOKEN_BYTES), 2**24 - 1) <= INT64_MAX
