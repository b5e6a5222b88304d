"""The tour of the admin client on ottla; `tests/interop/test_sdk_admin.py` runs it on Apache Kafka."""

import pytest

import ottla
from tests.admin_tour import TOURS, Tour


@pytest.mark.parametrize("tour", TOURS, ids=lambda tour: tour.__name__)
def test_tour(ottla_address: str, topic_name: str, tour: Tour) -> None:
    with ottla.Admin(ottla_address) as admin:
        tour(admin, ottla_address, topic_name)
