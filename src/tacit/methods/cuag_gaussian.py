"""CUAG-PFL with Gaussians of public features: what clients release once, and what comes of it.

Two releases of moments (synthesis/moments.py) by every client: of all its records together, from
which follow a centre and the directions along which features vary; then, seen from there, the
count and mean of every class, and its covariance along the first directions. The personal
classifier (synthesis/personal.py) is fitted to a client's own records and never leaves it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from tacit.core import (
    BadInput,
    Client,
    ClientId,
    Cohort,
    Everyone,
    Params,
    Release,
    Reply,
    check,
    task,
)
from tacit.synthesis import combining, moments, personal
from tacit.synthesis.moments import Terms

FIRST = 0.17  # of mu^2, for the moments without classes
MEANS = 0.18  # of the rest, for the classes' counts and means


@dataclass(frozen=True)
class Gaussian:
    """Both releases: mu-GDP together, whatever the view is."""

    mu: float
    rate: float  # share of the uplink that all covariances would take

    @property
    def first(self) -> Terms:
        """The constants of the release without classes."""
        return Terms(self.mu * math.sqrt(FIRST))

    @property
    def second(self) -> Terms:
        """Those of the release of the classes; its R follows from the first one."""
        return Terms(self.mu * math.sqrt(1 - FIRST), share=MEANS)

    def lines(self, owner: ClientId, n: int, times: int) -> list[Release]:
        return self.first.lines(owner, n, times) + self.second.lines(owner, n, times)


@dataclass(frozen=True)
class Sent:
    """Moments of a client's records, with noise."""

    moments: Params


class Shares(Protocol):
    """A method whose clients release moments once, before all rounds."""

    def first_rule(self, client: ClientId, n: int, delta: float) -> Gaussian | None: ...


def rule_of(method: Shares, delta: float) -> Gaussian:
    """Return the rule that all clients follow."""
    rule = method.first_rule("0", 0, delta)
    if rule is None:
        raise BadInput("head: must be gaussian for moments to be released")
    return rule


def shared(cohort: Cohort, method: Shares) -> Params:
    """Ask everybody, and return what they know of the classes together."""
    how = rule_of(method, cohort.delta)
    S = cohort.sample(Everyone(), 0)
    first = cohort.ask(features(method, cohort.delta), S)
    view = combining.View.of([r.moments for r in first], how.first)
    seen = view.params()
    replies = cohort.ask(means(method, cohort.delta, seen), S)
    q = {i: r.moments["q"] for i, r in zip(replies.clients, replies, strict=True)}
    m = combining.Means.of(list(q.values()), how.second).m
    back = cohort.ask(covariances(method, cohort.delta, seen, m), S)
    M = {i: r.moments["M"] for i, r in zip(back.clients, back, strict=True) if i in q}
    of_class = combining.Means.of([q[i] for i in M], how.second)  # of whoever has sent both
    kept = combining.directions(len(view.centre), len(m), how.rate)
    return combining.prior(view, of_class, list(M.values()), how.second, kept)


@task
def features(me: Client, method: Shares, delta: float) -> Reply[Sent]:
    """Release the moments of all records, without their classes."""
    F, y = personal.own_features(me)
    terms = rule_of(method, delta).first
    return Reply(Sent(moments.release(me, F, torch.zeros_like(y), 1, terms)))


def _viewed(me: Client, view: Params) -> tuple[Tensor, Tensor]:
    """Return a client's records in coordinates that are public, cut at norm 1."""
    F, y = personal.own_features(me)
    k = F.shape[1]
    for name, shape in (("centre", (k,)), ("turn", (k, k)), ("variance", (k,))):
        if view[name].shape != shape:
            raise BadInput(f"view: {name} is {tuple(view[name].shape)}, must be {shape}")
    return moments.usable(combining.View.from_params(view)(F), y)


@task
def means(me: Client, method: Shares, delta: float, view: Params) -> Reply[Sent]:
    """Release the count and the mean of every class."""
    q = moments.sums(me, *_viewed(me, view), me.classes, rule_of(method, delta).second)
    return Reply(Sent(Params(q=q).as_released()))


@task
def covariances(me: Client, method: Shares, delta: float, view: Params, m: Tensor) -> Reply[Sent]:
    """Release the covariance of every class along the first directions, about public means."""
    how = rule_of(method, delta)
    z, y = _viewed(me, view)
    if m.shape != (me.classes, z.shape[1]):  # it would fail only for who holds some class
        raise BadInput(f"m: is {tuple(m.shape)}, must be {(me.classes, z.shape[1])}")
    k = combining.directions(z.shape[1], me.classes, how.rate)
    R = combining.View.from_params(view).radius(k)
    check.clip("view", R)  # it comes from the server
    M = moments.scatters(me, z[:, :k], y, m[:, :k], replace(how.second, R=R))
    return Reply(Sent(Params(M=M).as_released()))
