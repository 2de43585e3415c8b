"""Hospitals for a test, or for all tests of a module."""

import pytest
from hospitals import ForkedHospitals, Hospitals


@pytest.fixture
def hospitals(tmp_path):
    made = Hospitals(tmp_path)
    yield made
    made.close()


@pytest.fixture
def forked_hospitals(tmp_path):
    """For what depends neither on a process's start nor on its memory."""
    made = ForkedHospitals(tmp_path)
    yield made
    made.close()


@pytest.fixture(scope="module")
def open_hospitals(tmp_path_factory):
    """Hospitals whose sites stay for all tests of a module."""
    made = ForkedHospitals(tmp_path_factory.mktemp("hospitals"))
    made.join_all()
    yield made
    made.close()
