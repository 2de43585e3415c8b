"""Somebody without a key can watch and cut, and nothing else: not fill, not stop, not write."""

import contextlib
import logging
import subprocess
import sys
import time

import pytest
from gates import Door, ended, files, memory
from hospitals import wait_for

from tacit.apps import keys
from tacit.apps.gateway import REQUEST
from tacit.apps.listener import Limits, Throttled
from tacit.apps.signing import Signer

CROWD = """
import resource, socket, sys
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
held = [socket.create_connection(("127.0.0.1", int(sys.argv[1]))) for _ in range(1100)]
print("there", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def door(tmp_path):
    made = Door(tmp_path)
    yield made
    made.close()


@pytest.fixture
def narrow(tmp_path):
    """A gate with little patience, so that a test need not have more."""
    few = Limits(
        strangers=20, per_address=10, per_key=3, handshake=0.5, head=0.5, pause=0.5, bodies=10_000
    )
    made = Door(tmp_path, limits=few)
    yield made
    made.close()


def test_bare_connections_take_no_files_and_lock_nobody_out(door):
    before = files()
    crowd = subprocess.Popen(
        [sys.executable, "-c", CROWD, str(door.port)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert crowd.stdout.readline() == b"there\n"
        wait_for(lambda: files() < before + 200, 5, "letting go")
        begun = time.monotonic()
        assert door.call().status_code == 200
        assert time.monotonic() - begun < 3
    finally:
        crowd.communicate()
    assert door.inside.got == [("/v1/fleet/pull-messages", b"anything")]


def test_a_handshake_has_an_end(narrow):
    with narrow.bare() as silent:
        assert ended(silent)


def test_a_connection_that_says_nothing_has_an_end(narrow):
    with narrow.raw() as silent:
        assert ended(silent)


def test_idle_connections_displace_one_another_and_no_site(narrow):
    with narrow.client() as site:
        assert narrow.call(client=site).status_code == 200
        connections = narrow.gate._listener._all
        before = set(connections)
        crowd = [narrow.raw() for _ in range(30)]
        try:
            assert narrow.call(client=site).status_code == 200
            assert before <= connections  # it is still the same
            assert narrow.call().status_code == 200  # one that comes anew
            assert len(narrow.gate._listener._strangers) <= 10
        finally:
            for one in crowd:
                one.close()


def test_headers_without_end_are_cut_off(door):
    before = memory()
    sent = 0
    with door.raw() as endless:
        endless.sendall(b"POST /v1/fleet/pull-messages HTTP/1.1\r\nhost: x\r\n")
        try:
            while sent < 64 << 20:
                endless.sendall(b"x: " + b"a" * 60_000 + b"\r\n")
                sent += 60_000
        except OSError:
            pass
    assert sent < 16 << 20
    assert memory() - before < 32 << 20
    assert door.call().status_code == 200


def test_no_body_is_read_before_its_signature_is_looked_at(door):
    """Whoever knows a site's public key is still a stranger."""
    before, size = memory(), 16_000_000
    crowd = []
    for _ in range(12):
        one = door.raw()
        crowd.append(one)
        one.sendall(door.head(size=size, **{"tacit-signature": "AAAA"}))
        with contextlib.suppress(OSError):
            one.sendall(b"x" * (size - 1))
    assert memory() - before < 48 << 20
    assert door.call().status_code == 200
    assert len(door.inside.got) == 1
    for one in crowd:
        one.close()


def test_a_body_that_stops_coming_is_given_up(narrow):
    with narrow.raw() as slow:
        slow.sendall(narrow.head(b"x" * 8_000) + b"x" * 4_000)
        wait_for(lambda: narrow.gate._listener.bodies == 8_000, 2, "the head")
        assert narrow.call(b"y" * 4_000).status_code == 503  # no memory is left for it
        assert ended(slow)
    wait_for(lambda: narrow.gate._listener.bodies == 0, 2, "letting go")
    assert narrow.call(b"y" * 4_000).status_code == 200
    assert narrow.inside.got == [("/v1/fleet/pull-messages", b"y" * 4_000)]


def test_one_site_leaves_room_for_what_others_send(door):
    """It says in all its connections that much is to come, and then sends nothing."""
    other = keys.make_site_key(door.folder, "hospital-b")
    keys.register(door.folder / "keys", "hospital-b", other.with_suffix(".pub"))
    with contextlib.ExitStack() as held:
        crowd = [held.enter_context(door.raw()) for _ in range(Limits.per_key)]
        for one in crowd:
            one.sendall(door.head(size=REQUEST))
        assert crowd[-1].recv(1 << 10).startswith(b"HTTP/1.1 503")
        assert door.gate._listener.bodies < Limits.bodies / 4
        door.signer = Signer(keys.read_private(other), keys.authority_of(door.ca.read_bytes()))
        assert door.call().status_code == 200


def test_a_site_has_few_connections(narrow):
    held = [narrow.raw() for _ in range(3)]
    for one in held:
        one.sendall(narrow.head(b"x" * 100))
    wait_for(lambda: narrow.gate._listener.bodies == 300, 2, "the heads")
    assert narrow.call().status_code == 503
    for one in held:
        one.close()
    wait_for(lambda: narrow.call().status_code == 200, 2, "room again")


@pytest.mark.parametrize(
    "length", [None, str(300 << 20), "-1", "1e3", "99999999999999999999999", "\u0663"]
)
def test_a_body_must_state_its_length(door, length):
    head = door.head().replace(b"content-length: 0\r\n", b"")
    if length is not None:
        head = head.replace(b"\r\n\r\n", f"\r\ncontent-length: {length}\r\n\r\n".encode())
    with door.raw() as odd:
        odd.sendall(head)
        assert odd.recv(1000).split()[1] in (b"400", b"411", b"413")
    assert door.inside.got == []


SPELLS = [
    b"/\x1b[2J\x1b[31mroot%20logged%20in",
    b"/%1b%5b31m%0a2026-01-01%20INFO%20all%20is%20well",
    b"/v1/fleet/%0d%0apull-messages",
    "/\u202egnp.exe".encode(),
    b"/" + b"a" * 9_000,
]


@pytest.mark.parametrize("spell", SPELLS)
def test_a_url_writes_no_lines_of_its_own(door, caplog, spell):
    with door.raw() as odd:
        odd.sendall(b"GET " + spell + b" HTTP/1.1\r\nhost: x\r\n\r\n")
        assert odd.recv(1000).split()[1] in (b"400", b"404")
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 1
    assert all(32 <= ord(c) < 127 for c in said[0])
    assert len(said[0]) < 1_000


def test_the_log_does_not_grow_with_the_number_of_refusals(door, caplog):
    with caplog.at_level(logging.WARNING):
        for _ in range(40):
            with door.client() as stranger:
                assert stranger.post("/v1/control/start-run").status_code == 404
    assert len(caplog.records) <= 12


def test_refusals_that_were_not_logged_are_counted(caplog, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("tacit.apps.listener.time.monotonic", lambda: now[0])
    told = Throttled(most=2, seconds=10.0)
    for _ in range(5):
        told.warn("refused %s", "x")
    now[0] = 10.0
    told.warn("refused %s", "y")
    assert [r.getMessage() for r in caplog.records] == [
        "refused x",
        "refused x",
        "3 more refusals were not logged",
        "refused y",
    ]
