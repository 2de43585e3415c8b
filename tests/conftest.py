import pytest
from lab import Lab

from tacit.engines import node


@pytest.fixture
def lab(tmp_path):
    lab = Lab(tmp_path / "lab")
    yield lab
    lab.close()


@pytest.fixture
def one_thread():
    """As in a worker.

    Many threads make steps as small as these a hundred times slower on a busy machine.
    """
    with node.one_thread():
        yield
