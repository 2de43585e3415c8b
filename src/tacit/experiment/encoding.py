"""Public features in front of a network: a fixed function of one example stands in for its input.

Who holds what is decided before, so that a split is the same with any features.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from tacit.core import BadInput, Known, Method, PartOfTests, Sizes, check
from tacit.core.data import IntArray
from tacit.core.registry import OWN
from tacit.data.examples import Examples
from tacit.data.federated import Federation, LocalData
from tacit.engines.client_host import one_thread
from tacit.experiment.calibration import numbers_of
from tacit.experiment.feature_cache import Stored, find, keep
from tacit.methods.spec import label_of
from tacit.models import choose as choose_network
from tacit.synthesis import encoder_file
from tacit.synthesis.features import FEATURES, SCALE, Encoder, choose, encoder
from tacit.synthesis.moments import encoded

NONE = "none"
SLOW = 2.0  # seconds of work from which on one is told of it, and its result is kept
EVERY = 10.0  # seconds between two such lines


def chosen_features(name: str, method: Method, shape: tuple[int, ...], model: str = "auto") -> str:
    """Return what ``auto`` stands for, and refuse what does not fit a method or inputs.

    Args:
        name: as the experiment has it
        method: which may want features of images
        shape: of one input
        model: the network; one that was named is for inputs as they are
    """
    image = choose("auto", shape) != "raw"
    wanted = method.wants_features and image
    if name == "auto":
        linear = method.prefers_features and image and model == "auto"
        return choose("auto", shape) if wanted or linear else NONE
    name = settled(name)
    if name != NONE:
        if not (name in FEATURES or FEATURES.is_own(name) or encoder_file.is_file(name)):
            known = ["auto", NONE, *FEATURES, *FEATURES.installed()]
            check.choice("features", name, [*known, *OWN, f"file{encoder_file.ENDING}"])
        encoder(name, shape)
    elif wanted:
        raise BadInput(
            f"features = 'none': {type(method).__name__.lower()} works with features of images; "
            f"allowed: auto, {', '.join(FEATURES)}, or your own as module:function"
        )
    return name


def settled(name: str) -> str:
    """Return a name that holds in every folder; of an encoder's file, for what is in it now."""
    return encoder_file.pinned(name) if encoder_file.is_file(name) else name


def shape_of(name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of what a network gets for inputs of a shape."""
    return shape if name == NONE else tuple(encoder(name, shape)(torch.zeros(1, *shape)).shape[1:])


def network_for(model: str, features: str, shape: tuple[int, ...], method: Method) -> str:
    """Return the network that a name stands for: with features, ``auto`` is the method's own."""
    return (
        method.features_network
        if model == "auto" and features != NONE
        else choose_network(model, shape)
    )


def is_linear(network: str, features: str) -> bool:
    """Tell whether a network is a linear model of features."""
    return network == "logistic" and features != NONE


def known_of(
    network: str, features: str, model: torch.nn.Module, sizes: Sizes, delta: float
) -> Known:
    """Return what is public before a run starts, for a network of this name."""
    numbers = numbers_of(model) if is_linear(network, features) else 0
    return Known(sizes, delta, numbers, features != NONE)


def in_tables(name: str) -> str:
    """Return how tables name features; a run of before there were any is without."""
    if encoder_file.is_file(name):
        return encoder_file.said_of(name)
    return NONE if name == "auto" else label_of(name)


def as_inputs(encode: Encoder, x: Tensor) -> Tensor:
    """Return features of inputs, images in 0..1, in the size that a network takes."""
    return SCALE * encode(x)


def featured(federation: Federation, name: str, *, strict: bool = True) -> Federation:
    """Return a federation in which everybody holds features instead of inputs.

    Each client's are computed as it would do it by itself, in its own order, so that they are the
    same to the bit at a real site. Those of published data are kept for the next time.

    Args:
        federation: who holds what
        name: of the features; none: all stays as it is
        strict: refuse features that are not finite, and an encoder that was trained on these
            records; else such a record has zeros, and who asks learns nothing of it
    """
    if name == NONE:
        return federation
    if strict and encoder_file.is_file(name):
        encoder_file.refuse_own(name, federation.dataset.train)
    known = name in FEATURES or encoder_file.digest_of(name) != ""  # and not code, which changes
    published = known and not federation.dataset.own
    place = find(federation, name) if published else None
    found = place.read() if place else None
    if found is None:
        began = time.monotonic()
        found = _computed(federation, name, strict=strict)
        if place and time.monotonic() - began > SLOW:
            keep(place, found)
    d = federation.dataset
    return replace(
        federation,
        dataset=replace(
            d,
            train=Examples(found.train, d.train.y),
            test=Examples(found.test, d.test.y),
            features=name,
        ),
        split=replace(federation.split, noise=None),
        own_tests=None if found.own_tests is None else Examples(found.own_tests, d.test.y),
    )


def _computed(federation: Federation, name: str, *, strict: bool) -> Stored:
    """Compute features of every row: clients' own ones first, then those that nobody holds."""
    d, split = federation.dataset, federation.split
    encode = partial(_encode, name, encoder(name, d.shape))
    told = _Told(name, len(d.train) + len(d.test))
    with one_thread(), torch.no_grad():
        train = _rows(_training(federation), len(d.train), encode, told)
        whole = federation.test(PartOfTests(0, 1).id)
        test = _rows([(np.arange(len(d.test)), whole)], len(d.test), encode, told)
        noisy = ((split.test[int(c)], federation.test(c)) for c in federation.everyone)
        own = None if split.noise is None else _rows(noisy, len(d.test), encode, told)
    made = [x for x in (train, test, own) if x is not None]
    if not all(bool(x.isfinite().all()) for x in made):
        if strict:
            raise BadInput(f"features = {name!r}: gives numbers that are not finite for some input")
        for x in made:
            x[~x.isfinite().all(1)] = 0.0
    return Stored(train, test, own)


def _encode(name: str, encode: Encoder, x: Tensor) -> Tensor:
    """Return features; what an encoder of the user's own cannot do is refused in its name."""
    try:
        return encode(x)
    except Exception as e:  # it is the user's code: anything can happen
        if name in FEATURES:
            raise
        name = encoder_file.path_of(name) if encoder_file.is_file(name) else name
        why = " ".join(f"{type(e).__name__}: {e}".split())
        raise BadInput(f"features = {name!r}: fails on the data ({why})") from None


def _training(federation: Federation) -> Iterator[tuple[IntArray, LocalData]]:
    """Yield the rows of each client as it sees them, and at last the rows of nobody."""
    source, split = federation.dataset.train, federation.split
    nobody = np.ones(len(source), dtype=bool)
    for client, rows in zip(federation.everyone, split.train, strict=True):
        nobody[rows] = False
        yield rows, federation.train(client)
    rest = np.flatnonzero(nobody)
    yield rest, federation.without_noise(source, rest)


def _rows(
    parts: Iterator[tuple[IntArray, LocalData]] | list[tuple[IntArray, LocalData]],
    n: int,
    encode: Encoder,
    told: _Told,
) -> Tensor:
    """Return features of all ``n`` rows of a source, each computed where it is held."""
    found = torch.zeros(0, 0)
    for rows, data in parts:
        features, _ = encoded(data, lambda x: told.passing(as_inputs(encode, x)))
        if found.shape != (n, features.shape[1]):
            found = torch.zeros(n, features.shape[1])
        found[torch.from_numpy(rows)] = features
    return found


class _Told:
    """Says how far a long computation has come."""

    def __init__(self, name: str, of: int) -> None:
        self.name, self.of, self.done = name, of, 0
        self.next = time.monotonic() + SLOW

    def passing(self, features: Tensor) -> Tensor:
        """Count examples; return their features."""
        self.done += len(features)
        if time.monotonic() > self.next:
            line = f"features {in_tables(self.name)}: {self.done:,} of {self.of:,} examples"
            print(line, file=sys.stderr, flush=True)
            self.next = time.monotonic() + EVERY
        return features
