"""The tour of the admin client against Apache Kafka; `tests/client/admin/test_tour.py` makes the same against ottla."""

import pytest

import ottla
from tests.admin_tour import TOURS, Tour


@pytest.mark.parametrize("tour", TOURS, ids=lambda tour: tour.__name__)
def test_tour(kafka: str, topic: str, tour: Tour) -> None:
    with ottla.Admin(kafka) as admin:
        tour(admin, kafka, topic)
