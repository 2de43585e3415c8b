import gc
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from _pytest.doctest import DoctestModule
from hypothesis import HealthCheck, settings
from sandbox import Sandbox

from tacit.core import own_code
from tacit.engines import client_host

# how long an example takes says how busy the machine is, not whether the code is right
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

# Thousands of small files are written atomically. In memory that takes a tenth of the time.
MEMORY = Path("/dev/shm")
if "TMPDIR" not in os.environ and MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > 4e9:
    os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)


gc.disable()  # imports make a million objects and no garbage


def pytest_collection_finish(session):
    """The modules stay: nobody has to look through all they have made for garbage again."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path, parent):
    """Examples in docstrings are for the package; to look for some in the tests takes its time."""
    found = yield
    return [each for each in found if not isinstance(each, DoctestModule)]


@pytest.fixture
def sandbox(tmp_path):
    sandbox = Sandbox(tmp_path / "sandbox")
    yield sandbox
    sandbox.close()


@pytest.fixture
def offline(monkeypatch, tmp_path):
    """A folder to join from; fail on any attempt to reach a coordinator."""
    from tacit.apps import connection  # Flower takes a second to import
    from tacit.experiment.rundir import RunDir

    def connect(*args):
        raise AssertionError("the site tried to connect")

    monkeypatch.setattr(connection, "Fleet", connect)
    monkeypatch.setattr(RunDir, "lock", lambda self: None)  # nobody would release it
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def one_thread():
    """As in a worker.

    Many threads make steps as small as these a hundred times slower on a busy machine.
    """
    with client_host.one_thread():
        yield


@pytest.fixture(autouse=True, scope="session")
def _no_power_failures():
    """Nobody pulls the plug during the tests, so nothing has to be waited for."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda number: None)
        yield


@pytest.fixture(autouse=True, scope="module")
def _own_code():
    """Code that tests have named is forgotten with their file: what they wrote is gone by then."""
    before = set(own_code._files)
    yield
    for name in set(own_code._files) - before:
        del own_code._files[name]


@pytest.fixture(autouse=True, scope="session")
def _account(tmp_path_factory):
    """The account of the tests has a home of its own: nothing is written to the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield
