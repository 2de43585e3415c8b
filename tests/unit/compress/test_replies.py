"""Replies of methods that know nothing of compression."""

import pytest
import torch

from tacit.codec import pack, same, unpack
from tacit.compress import Compressor
from tacit.compress.replies import restore, shrink
from tacit.core import Params
from tacit.methods import fedavg, scaffold
from tacit.methods.local import Done

X = Params(a=torch.arange(200.0).view(10, 20), b=torch.ones(7))


def there_and_back(word, sent, args):
    c = Compressor.of(word)
    blob = pack(shrink(c, sent, args))
    return restore(c, unpack(blob), args), len(blob)


@pytest.mark.parametrize("word", ["binary:0.3", "binary:dynamic", "gaussian:0.3"])
def test_an_update_travels_small_and_arrives_whole(word):
    dx = (X * 0.5).as_released()
    got, size = there_and_back(word, fedavg.Update(dx, 9), {"x": X, "sgd": None})
    c = Compressor.of(word)
    rates = c.rates(X)
    assert same(got.dx, c.expand(c.compress(dx, rates), X, rates))
    assert got.n == 9
    assert got.dx.released
    assert size < len(pack(fedavg.Update(dx, 9)))


def test_several_updates_in_one_reply():
    got, _ = there_and_back("binary:0.5", scaffold.Update(dy=X, dc=2.0 * X), {"x": X, "c": X})
    assert same(got.dc, 2.0 * got.dy)
    assert not same(got.dy, X)


@pytest.mark.parametrize(
    ("word", "sent", "args"),
    [
        ("none", fedavg.Update(X, 1), {"x": X}),
        ("binary:1", fedavg.Update(X, 1), {"x": X}),
        ("gaussian:1", fedavg.Update(X, 1), {"x": X}),
        # not of the model's shape
        ("binary:0.3", fedavg.Update(Params(a=torch.ones(3)), 1), {"x": X}),
        ("binary:0.3", fedavg.Update(X, 1), {"n": 3}),  # the server sent no parameters
        ("binary:0.3", Done(), {"x": X}),
    ],
)
def test_what_is_left_as_it_is(word, sent, args):
    assert same(there_and_back(word, sent, args)[0], sent)
