"""What messages carry goes to the site that it is for, whole or not at all, whatever gets lost."""

import contextlib
import io
import threading
import time
from types import SimpleNamespace

import httpx
import pytest
import torch
from flwr.app import Metadata, RecordDict
from gates import NAME, Door
from hospitals import wait_for
from hypothesis import given
from hypothesis import strategies as st

from tacit.apps import gateway, keys, sending
from tacit.apps import post as posts
from tacit.apps.connection import Carrier, Session
from tacit.apps.flower_internals import (
    ActivateNodeResponse,
    Node,
    PullMessagesResponse,
    make_message,
    message_from_proto,
)
from tacit.apps.letters import sealed, unsealed
from tacit.apps.listener import Denied
from tacit.apps.message_heads import head, telling
from tacit.apps.post import Parcel, Post
from tacit.apps.sending import PostGrid
from tacit.apps.signing import Signer
from tacit.codec import Stored, pack, same, unpack
from tacit.core import BadInput
from tacit.engines.flower import TYPE, letter, opened, opened_anywhere, packed

ACTIVATE, PULL, PUSH = (
    f"/v1/fleet/{word}" for word in ("activate-node", "pull-messages", "push-messages")
)
LEAVE = "/v1/fleet/deactivate-node"
ID, OTHER = "a" * 64, "b" * 64
NODE = 7


@pytest.fixture
def post(tmp_path):
    made = Post(tmp_path / "post", 1 << 20)
    yield made
    made.close()


@pytest.fixture
def door(tmp_path, post):
    """A gate where one site, hospital-a, is active as node 7, and hospital-b as node 8."""
    made = Door(tmp_path, post=post)
    made.inside.usual = b""
    made.second = keys.make_site_key(tmp_path, "hospital-b")
    keys.register(tmp_path / "keys", "hospital-b", made.second.with_suffix(".pub"))
    mine = made.signer
    for signer, node in ((mine, NODE), (other(made), NODE + 1)):
        made.signer = signer
        made.inside.prepared[ACTIVATE] = [
            (200, ActivateNodeResponse(node_id=node).SerializeToString())
        ]
        assert made.call(b"", ACTIVATE).status_code == 200
    made.signer = mine
    made.inside.got.clear()
    yield made
    made.close()


def other(door):
    return Signer(keys.read_private(door.second), door.signer.authority)


def content(body=b"numbers"):
    return letter("ask", {"what": "is this?"}, packed(body))


def send(door, post, seconds=60.0):
    """Send a message to the site; return its id and how the site is told of it."""
    about = Metadata(
        run_id=1,
        message_id="",
        src_node_id=1,
        dst_node_id=NODE,
        reply_to_message_id="",
        group_id="",
        created_at=time.time(),
        ttl=60.0,
        message_type=TYPE,
    )
    made = head(make_message(metadata=about, content=RecordDict()))
    id, told = made.metadata.message_id, telling(made).SerializeToString()
    post.prepare(id, NODE, content(), seconds)
    post.notify(id, told)
    wait_for(lambda: id in door.gate.boxes[NAME]._mail, 5, "the message")
    return id, told


class Waiting(threading.Thread):
    """A site that waits for a message."""

    def __init__(self, door):
        super().__init__(daemon=True)
        self.door, self.answer = door, None
        self.client = door.client()
        self.start()

    def run(self):
        try:
            self.answer = self.door.call(b"", PULL, client=self.client)
        except httpx.HTTPError as e:
            self.answer = e
        finally:
            self.client.close()

    def result(self):
        self.join(timeout=5)
        assert not self.is_alive()
        return self.answer


def waits(door):
    box = door.gate.boxes[NAME]
    wait_for(lambda: box._waiter is not None and not box._waiter.done(), 5, "waiting")


def test_a_site_waits_for_a_message_and_nobody_asks_flower_meanwhile(door, post):
    site = Waiting(door)
    waits(door)
    _, told = send(door, post)
    assert site.result().content == told
    assert door.inside.got == []


def test_a_message_that_was_there_before_is_told_at_once(door, post):
    _, told = send(door, post)
    assert door.call(b"", PULL).content == told


def test_a_wait_has_an_end(door, monkeypatch):
    monkeypatch.setattr(gateway, "HOLD", 0.1)
    answer = door.call(b"", PULL)
    assert (answer.status_code, answer.content) == (200, b"")


def test_a_message_is_told_again_until_it_is_fetched(door, post):
    """Its connection may have been lost."""
    id, told = send(door, post)
    assert [door.call(b"", PULL).content for _ in range(3)] == [told] * 3
    assert door.call(b"", f"/v1/fetch/{id}/0/0").status_code == 200
    site = Waiting(door)
    waits(door)
    _, more = send(door, post)
    assert site.result().content == more


def test_messages_come_in_their_order_and_not_when_they_are_late(door, post, monkeypatch):
    late, _ = send(door, post)
    (first, told), (_, then) = send(door, post), send(door, post)
    post._parcels[late].until = 0.0
    assert door.call(b"", PULL).content == told
    assert door.call(b"", f"/v1/fetch/{first}/0/0").status_code == 200
    assert door.call(b"", PULL).content == then


def test_a_later_call_takes_the_place_of_an_earlier_one(door, post):
    first = Waiting(door)
    waits(door)
    second = Waiting(door)
    assert first.result().status_code == 409
    waits(door)
    _, told = send(door, post)
    assert second.result().content == told


def test_a_site_that_went_away_while_it_waited_loses_no_message(door, post):
    gone = door.raw()
    gone.sendall(door.head(b"", PULL))
    waits(door)
    gone.close()
    _, told = send(door, post)
    wait_for(lambda: door.gate.boxes[NAME]._waiter is None, 5, "the end of the wait")
    assert door.call(b"", PULL).content == told


def test_a_site_that_is_not_active_is_left_to_flower(door):
    """A coordinator started anew knows of nobody; Flower says so, and the site connects."""
    door.gate.boxes.clear()
    door.inside.prepared[PULL] = [(401, b"who is this?")]
    assert door.call(b"", PULL).status_code == 401


def test_whoever_says_goodbye_no_longer_waits(door):
    site = Waiting(door)
    waits(door)
    assert door.call(b"", LEAVE).status_code == 200
    assert site.result().status_code == 409


def test_a_gate_that_closes_sends_everybody_away(door):
    site = Waiting(door)
    waits(door)
    begun = time.monotonic()
    door.gate.close()
    answer = site.result()
    assert isinstance(answer, httpx.HTTPError) or answer.status_code == 503
    assert time.monotonic() - begun < 5


def test_a_key_that_is_revoked_while_its_owner_waits_is_of_no_use(door, post):
    site = Waiting(door)
    waits(door)
    keys.revoke(door.folder / "keys", NAME)
    send(door, post)
    assert site.result().status_code == 403
    assert door.inside.got == []


def test_what_a_message_carries_is_for_its_site_alone(door, post):
    id, _ = send(door, post)
    whole = b"".join(sealed(content()))
    path = f"/v1/fetch/{id}/0/0"
    answer = door.call(b"", path)
    assert (answer.content, answer.headers["tacit-size"]) == (whole, str(len(whole)))
    with door.client() as stranger:
        assert stranger.post(path).status_code == 403
    assert door.call(b"", f"/v1/fetch/{OTHER}/0/0").status_code == 404
    door.signer = other(door)
    assert door.call(b"", path).status_code == 404
    assert door.call(b"lie", f"/v1/bring/{id}/0/3").status_code == 404
    assert post._parcels[id].answer is None
    assert door.inside.got == []


@pytest.mark.parametrize(
    "path",
    [
        f"/v1/fetch/{ID}/-1/0",
        f"/v1/fetch/{ID[1:]}/0/0",
        f"/v1/fetch/{ID}/0",
        f"/v1/bring/../{ID}/0/0",
        f"/v1/fetch/{ID}/0/{'9' * 16}",
        "/v1/fleet/pull-object",
    ],
)
def test_other_paths_are_not_there(door, path):
    assert door.call(b"", path).status_code == 404
    assert door.inside.got == []


def bring(post, whole, id=ID, size=3, total=None):
    for at in range(0, len(whole), size):
        post.receive(id, NODE, at, len(whole) if total is None else total, whole[at : at + size])


def test_an_answer_comes_in_pieces_through_the_gate(door, post):
    id, _ = send(door, post)
    whole = b"".join(sealed(content(b"answer")))
    for at in range(0, len(whole), 5):
        path = f"/v1/bring/{id}/{at}/{len(whole)}"
        assert door.call(whole[at : at + 5], path).status_code == 200
        assert door.call(whole[at : at + 5], path).status_code == 200  # its sender was not sure
    assert not post._news.is_set()
    assert door.call(b"", PUSH).status_code == 200
    assert post._news.is_set()
    assert opened(post.take(id), 1 << 20)[2] == b"answer"
    assert door.call(whole[:5], f"/v1/bring/{id}/0/{len(whole)}").status_code == 404


def test_pieces_out_of_place_are_refused(post):
    post.prepare(ID, NODE, content(), 60.0)
    whole = b"".join(sealed(content(b"answer")))
    bring(post, whole[:6], total=len(whole))
    for offset, total, piece in [
        (9, len(whole), b"later"),
        (3, len(whole), b"between"),
        (6, len(whole) + 1, b"of another"),
        (6, len(whole), whole[6:] + b"more"),
    ]:
        with pytest.raises(Denied) as e:
            post.receive(ID, NODE, offset, total, piece)
        assert e.value.answer.status == 409
    post.receive(ID, NODE, 6, len(whole), whole[6:])
    assert opened(post.take(ID), 1 << 20)[2] == b"answer"


def test_an_answer_can_begin_anew(post):
    """A refusal, say, where the answer itself was too much."""
    post.prepare(ID, NODE, content(), 60.0)
    post.receive(ID, NODE, 0, 3 << 19, b"much")
    whole = b"".join(sealed(content(b"less")))
    bring(post, whole)
    assert opened(post.take(ID), 1 << 20)[2] == b"less"
    assert list(post.folder.iterdir()) == []


def test_an_answer_is_not_lost_with_flower_s_word_of_it(post, monkeypatch):
    """Flower says once that there is an answer; killed while it does, it never says so again."""
    silent = SimpleNamespace(PullMessages=lambda asked: SimpleNamespace(messages_list=[]))
    monkeypatch.setattr(PostGrid, "_runtime_client", silent, raising=False)
    monkeypatch.setattr(PostGrid, "close", lambda self: None)
    grid = object.__new__(PostGrid)
    grid.post = post
    monkeypatch.setattr(sending, "LOOK", 0.0)
    for id in (ID, OTHER):
        post.prepare(id, NODE, content(), 60.0)
    whole = b"".join(sealed(content(b"answer")))
    bring(post, whole)
    post.receive(OTHER, NODE, 0, len(whole), whole[:5])
    assert grid.pull_messages([ID, OTHER]) == []  # it may still say so
    monkeypatch.setattr(posts, "OVERDUE", 0.0)
    (answer,) = grid.pull_messages([ID, OTHER])
    assert answer.metadata.reply_to_message_id == ID
    assert opened(answer.content, 1 << 20)[2] == b"answer"
    assert grid.pull_messages([ID, OTHER]) == []  # and once only


def test_an_answer_that_is_not_whole_is_none(post):
    for got in (None, b"", b"only a par"):
        post.prepare(ID, NODE, content(), 60.0)
        if got is not None:
            post.receive(ID, NODE, 0, 100, got)
        with pytest.raises(BadInput, match="did not arrive in full"):
            post.take(ID)
        assert post._parcels == {}


def test_too_large_and_too_late_is_refused(post):
    post.prepare(ID, NODE, content(), 60.0)
    with pytest.raises(Denied) as e:
        post.receive(ID, NODE, 0, 3 << 20, b"x")
    assert e.value.answer.status == 413
    post.prepare(OTHER, NODE, content(), -1.0)
    for late in (lambda: post.receive(OTHER, NODE, 0, 9, b"x"), lambda: post.piece(OTHER, NODE, 0)):
        with pytest.raises(Denied) as e:
            late()
        assert e.value.answer.status == 404
    post.prepare(ID, NODE, content(), 60.0)
    assert set(post._parcels) == {ID}, "what nobody waits for is forgotten"


def test_a_site_says_so_in_words_when_its_answer_is_too_large(door, post):
    """The coordinator would wait for it until the deadline."""
    id, told = send(door, post)
    message = message_from_proto(PullMessagesResponse.FromString(told).messages_list[0])
    fleet = SimpleNamespace(pushed=[], close=lambda: None)
    fleet.PushMessages = fleet.pushed.append
    site = SimpleNamespace(limit=1 << 20, reply=lambda asked: content(bytes(3 << 20)))
    with door.client() as client:
        carrier = Carrier(client, door.signer.headers)
        session = Session(fleet, carrier, b"", False, threading.Event())
        session.node = Node(node_id=NODE)
        session._answer(site, message)
    assert len(fleet.pushed) == 1, "Flower hears of one answer"
    kind, about, body = opened(post.take(id), 1 << 20)
    assert (kind, body) == ("refused", b"")
    assert "larger than the coordinator takes" in about["why"]


def test_large_answers_lie_in_files_until_they_are_taken(post):
    post.prepare(ID, NODE, content(), 60.0)
    sent = {"w": torch.arange(150_000), "v": torch.rand(3, 5)}
    body = pack(sent)
    bring(post, b"".join(sealed(content(body))), size=1 << 18)
    (file,) = post.folder.iterdir()
    assert post.folder.stat().st_mode & 0o077 == 0
    got = opened_anywhere(post.take(ID), 4 << 20)[2]
    assert isinstance(got, Stored)
    assert len(got) == len(body)
    assert same(unpack(got), sent)
    assert not file.exists()
    assert list(post.folder.iterdir()) == [], "what is taken has no name, and goes by itself"
    post.prepare(ID, NODE, content(), 60.0)
    post.receive(ID, NODE, 0, 2 << 20, b"begun")
    post.close()
    assert list(post.folder.iterdir()) == []


@given(st.text("a\u00fc\n\x1b", max_size=9), st.binary(max_size=99), st.integers(1, 30))
def test_a_letter_arrives_as_it_was_sent_in_pieces_of_any_size(word, body, size):
    sent = letter("ask", {"word": word}, packed(body))
    parcel = Parcel(NODE, 0.0, *sealed(sent))
    total = len(parcel.head) + len(parcel.body)
    was, posts.PIECE = posts.PIECE, size
    try:
        whole = b"".join(parcel.piece(at) for at in range(0, total, size))
    finally:
        posts.PIECE = was
    assert len(whole) == total
    assert opened(unsealed(io.BytesIO(whole)), 99) == ("ask", {"word": word}, body)


@given(st.binary(max_size=60))
def test_whatever_comes_it_is_a_letter_or_refused(blob):
    with contextlib.suppress(BadInput):
        assert set(unsealed(io.BytesIO(blob)).config_records) == {"head"}
