"""A signature is for one call, at one coordinator, at one time; a revoked key is for none."""

import time

import httpx
import pytest
from gates import NAME, Door
from hypothesis import given
from hypothesis import strategies as st

from tacit.apps import keys
from tacit.apps.connection import _refusal
from tacit.apps.signing import TOLERANCE, Nonces, Signer

PULL, PUSH = "/v1/fleet/pull-messages", "/v1/fleet/push-messages"


@pytest.fixture
def door(tmp_path):
    made = Door(tmp_path)
    yield made
    made.close()


def test_a_signature_serves_one_call(door):
    headers = door.signer.headers("POST", PULL, b"a")
    with door.client() as client:
        answers = [client.post(PULL, content=b"a", headers=headers) for _ in range(3)]
    assert [a.status_code for a in answers] == [200, 401, 401]
    assert len(door.inside.got) == 1


def test_a_signature_is_for_one_path_body_and_method(door):
    def tried(method="POST", path=PULL, body=b"a"):
        headers = door.signer.headers("POST", PULL, b"a")
        with door.client() as client:
            return client.request(method, path, content=body, headers=headers).status_code

    assert tried(path=PUSH) == 403
    assert tried(body=b"b") == 403
    assert tried(method="PUT") == 404
    assert tried(path=f"{PULL}?x=1") == 404
    assert door.inside.got == []
    assert tried() == 200


@pytest.mark.parametrize("header", ["tacit-time", "tacit-nonce", "tacit-digest", "tacit-key"])
def test_whatever_is_signed_cannot_be_changed(door, header):
    was = door.signer.headers("POST", PULL, b"a")[header]
    assert door.call(**{header: was[:-1] + ("1" if was[-1] != "1" else "2")}).status_code == 403
    assert door.call(**{header: ""}).status_code == 403
    assert door.inside.got == []


def test_a_signature_is_for_one_coordinator(door, tmp_path):
    """A coordinator cannot use what a site signs for it with another that knows the same key."""
    keys.make_authority(tmp_path / "other", [])
    other = keys.authority_of((tmp_path / "other" / "ca.crt").read_bytes())
    door.signer = Signer(door.signer.private, other)
    assert door.call().status_code == 403


@pytest.mark.parametrize(
    ("off", "said"), [(0.99, None), (-0.99, None), (1.1, "ahead of"), (-1.1, "behind")]
)
def test_a_clock_that_is_off_is_named(door, monkeypatch, off, said):
    now = time.time
    monkeypatch.setattr("tacit.apps.signing.time.time", lambda: now() + off * TOLERANCE)
    headers = door.signer.headers("POST", PULL, b"anything")
    monkeypatch.undo()
    answer = door.call(**headers)
    assert answer.status_code == (401 if said else 200)
    if said:
        assert f"clock: this machine's is 330 s {said} the coordinator's" in _refusal(answer)
        assert "must be within 300 s" in _refusal(answer)


def test_no_words_of_the_coordinator_get_into_a_site_log():
    lie = httpx.Response(401, headers={"tacit-clock": "7\x1b[31m"}, content=b"\x1b[2Jpay here")
    assert _refusal(lie) == "refuses this site's key; is it registered?"


def test_a_revoked_key_is_of_no_use_at_once(door):
    with door.client() as client:
        assert door.call(client=client).status_code == 200
        keys.revoke(door.folder / "keys", NAME)
        assert door.call(client=client).status_code == 403
        assert door.gate.guard.names() == frozenset()
    assert len(door.inside.got) == 1


def test_a_broken_register_lets_nobody_in(door):
    (door.folder / "keys" / "sites.json").write_text("{")
    assert door.call().status_code == 503
    assert door.inside.got == []


def test_a_renewed_certificate_is_used_at_once(door):
    def serial():
        with door.raw() as seen:
            return seen.getpeercert()["serialNumber"]

    first = serial()
    assert serial() == first
    keys.renew(door.folder / "keys")
    assert serial() != first
    assert door.call().status_code == 200


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 30)), max_size=60))
def test_no_nonce_is_taken_twice_however_little_is_remembered(calls):
    nonces = Nonces(room=4)
    taken = [(n, t) for n, t in calls if nonces.take(f"{n}-{t}", float(t))]
    assert len(taken) == len(set(taken))
    assert len(nonces._used) == len(nonces._ages) <= 4


def test_honest_calls_are_never_taken_for_old_ones():
    nonces = Nonces(room=4)
    assert all(nonces.take(str(t), float(t)) for t in range(1, 100))
