"""Leadership goes back to the preferred replicas, by itself or by hand."""

import pytest

from ottla.config.broker import BrokerConfig
from ottla.controller.preferred_election import PREFERRED, UNCLEAN, balance, elect
from ottla.metadata import records as r
from ottla.model.errors import ErrorCode, Refusal
from tests.controller.making import CONFIG, PAGE_CACHE, after, cluster, only, part, state


def percent(number: int) -> BrokerConfig:
    return BrokerConfig.from_properties(
        {"log.dirs": "/x", "node.id": "1", "leader.imbalance.per.broker.percentage": str(number)}
    )


def test_a_broker_that_lacks_more_than_its_share_gets_it_back() -> None:
    """One of four that name 1 first is led by another: 25 %."""
    image = cluster(part(), part(), part(), part(leader=2), part((2, 3)))
    assert balance(image, percent(25)) == []
    [new] = balance(image, percent(24))
    assert isinstance(new, r.Partition)
    assert (new.partition, state(new)) == (3, (1, (1, 2, 3), ()))
    assert after(image.topics["t"].partitions[3], new) == (1, 1)


def test_an_election_that_cannot_help_is_not_held() -> None:
    image = cluster(
        part(isr=(2, 3)), part((4, 2), leader=2), part((3, 2), leader=2), fenced=(4,), stopping=(3,)
    )
    assert balance(image, percent(0)) == []


def test_preferred_by_hand() -> None:
    image = cluster(part(leader=3), part(), part(isr=(2, 3)))
    away, there, not_in_sync = image.topics["t"].partitions
    assert elect(image, PAGE_CACHE, away, PREFERRED).leader == 1
    for old, code in (
        (there, ErrorCode.ELECTION_NOT_NEEDED),
        (not_in_sync, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE),
    ):
        with pytest.raises(Refusal) as caught:
            elect(image, PAGE_CACHE, old, PREFERRED)
        assert caught.value.code == code


def test_unclean_by_hand() -> None:
    lost = part(isr=(), eligible=(1,), last_leader=1)
    image = cluster(lost, fenced=(1,))
    new = elect(image, PAGE_CACHE, only(image), UNCLEAN)
    assert (state(new), after(lost, new)) == ((2, (2,), ()), (1, 1))
    for image, code in (
        (cluster(part()), ErrorCode.ELECTION_NOT_NEEDED),
        (cluster(lost, fenced=(1, 2, 3)), ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE),
    ):
        with pytest.raises(Refusal) as caught:
            elect(image, PAGE_CACHE, only(image), UNCLEAN)
        assert caught.value.code == code


def test_the_default_allows_a_tenth() -> None:
    image = cluster(*[part()] * 9, part(leader=2))
    assert balance(image, CONFIG) == []
    assert balance(cluster(*[part()] * 8, part(leader=2)), CONFIG) != []
