import pytest
from sandbox import small

from tacit.methods import METHODS


@pytest.fixture(params=list(METHODS))
def method(request):
    return small(request.param)
