import pytest
from lab import Lab, small

from tacit.methods import METHODS


@pytest.fixture
def lab(tmp_path):
    lab = Lab(tmp_path / "lab")
    yield lab
    lab.close()


@pytest.fixture(params=list(METHODS))
def method(request):
    return small(request.param)
