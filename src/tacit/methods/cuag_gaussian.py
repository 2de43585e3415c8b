"""CUAG-PFL with Gaussians of public features: what clients release once, and what comes of it.

Two releases of moments (synthesis/moments.py) by every client: of all its records together, from
which follow a centre and the directions along which features vary; then, seen from there, the
count and mean of every class, and its covariance along the first directions. The personal
classifier (synthesis/personal.py) is fitted to a client's own records and never leaves it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tacit.core import Client, ClientId, Cohort, Everyone, Params, Release, Reply, check, task
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


def shared(cohort: Cohort, how: Gaussian) -> Params:
    """Ask everybody, and return what they know of the classes together."""
    S = cohort.sample(Everyone(), 0)
    view = combining.View.of([r.moments for r in cohort.ask(features(how=how), S)], how.first)
    seen = view.params()
    replies = cohort.ask(means(how=how, view=seen), S)
    q = {i: r.moments["q"] for i, r in zip(replies.clients, replies, strict=True)}
    m = combining.Means.of(list(q.values()), how.second).m
    back = cohort.ask(covariances(how=how, view=seen, m=m), S)
    M = {i: r.moments["M"] for i, r in zip(back.clients, back, strict=True) if i in q}
    of_class = combining.Means.of([q[i] for i in M], how.second)  # of whoever has sent both
    kept = combining.directions(len(view.centre), len(m), how.rate)
    return combining.prior(view, of_class, list(M.values()), how.second, kept)


@task
def features(me: Client, how: Gaussian) -> Reply[Sent]:
    """Release the moments of all records, without their classes."""
    F, y = personal.own_features(me)
    return Reply(Sent(moments.release(me, F, torch.zeros_like(y), 1, how.first)))


def _viewed(me: Client, view: Params) -> tuple[Tensor, Tensor]:
    """Return a client's records in coordinates that are public, cut at norm 1."""
    F, y = personal.own_features(me)
    return moments.usable(combining.View.from_params(view)(F), y)


@task
def means(me: Client, how: Gaussian, view: Params) -> Reply[Sent]:
    """Release the count and the mean of every class."""
    q = moments.sums(me, *_viewed(me, view), me.classes, how.second)
    return Reply(Sent(Params(q=q).as_released()))


@task
def covariances(me: Client, how: Gaussian, view: Params, m: Tensor) -> Reply[Sent]:
    """Release the covariance of every class along the first directions, about public means."""
    z, y = _viewed(me, view)
    k = combining.directions(z.shape[1], me.classes, how.rate)
    R = combining.View.from_params(view).radius(k)
    check.clip("view", R)  # it comes from the server
    terms = replace(how.second, R=R)
    M = moments.scatters(me, z[:, :k], y, m[:, :k], terms)
    return Reply(Sent(Params(M=M).as_released()))
