import pytest
from sandbox import Sandbox

from tacit.engines import client_host


@pytest.fixture
def sandbox(tmp_path):
    sandbox = Sandbox(tmp_path / "sandbox")
    yield sandbox
    sandbox.close()


@pytest.fixture
def one_thread():
    """As in a worker.

    Many threads make steps as small as these a hundred times slower on a busy machine.
    """
    with client_host.one_thread():
        yield
