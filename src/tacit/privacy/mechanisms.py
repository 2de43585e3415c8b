"""The only place where noise is drawn.

Each mechanism owns its clip, weights, denominator and noise, and writes its ledger line before it
draws. Its docstring says what the guarantee rests on.
"""

from __future__ import annotations

import hashlib
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Literal, TypeVar

import numpy as np
import torch
from torch import Tensor

from tacit.core import (
    FEDERATION,
    Array,
    Client,
    ClientId,
    Cohort,
    Event,
    Fixed,
    Gaussian,
    Keywords,
    Laplace,
    Law,
    NonPrivate,
    Params,
    Poisson,
    Pure,
    Relation,
    Release,
    Released,
    Replies,
    Sample,
    Sampling,
    Stated,
    Unit,
    ask_id,
    check,
    in_clip_range,
    weighted_sum,
)
from tacit.privacy import exact
from tacit.privacy.noise import Source, laplace_noised, noised, source

T = TypeVar("T")


def line_of(
    what: str, event: Event, unit: Unit = "example", relation: Stated = "zero-out"
) -> Release:
    """Return the ledger line of something that a client releases, without owner and rounds.

    Whoever writes it and whoever predicts it fill these in, and nothing else: see
    :mod:`tacit.privacy.rules`.
    """
    return Release(what, unit, "", "server", event, (), relation=relation)


def gaussian_line(
    what: str, z: float, unit: Unit = "example", relation: Stated = "zero-out"
) -> Release:
    """Return the line of :func:`gaussian`."""
    return line_of(what, Gaussian(float(z)), unit, relation)


def claimed_line(what: str, why: str) -> Release:
    """Return the line of :func:`claimed_gaussian` and :func:`without_guarantee`."""
    return line_of(what, NonPrivate(why))


def update_line(what: str, z: float) -> Release:
    """Return the line of :func:`gaussian_update`."""
    return gaussian_line(what, z / 2, "client", "either")


def steps_line(
    what: str, q: float, z: float, steps: int, law: Literal["poisson", "fixed"] = "poisson"
) -> Release:
    """Return the line of :class:`PrivateSteps`."""
    return replace(gaussian_line(what, z), steps=steps, sampling=Sampling.at(q, law))


def _now(me: Client, line: Release) -> Release:
    """Return a line about this client, in the present round."""
    return replace(line, owner=me.id, rounds=((me.round, me.round),), noise=me.noise)


def gaussian(
    me: Client,
    what: str,
    value: Params,
    *,
    sensitivity: float,
    z: float,
    unit: Unit = "example",
    relation: Stated = "zero-out",
) -> Params:
    """Release a point with Gaussian noise of standard deviation ``z * sensitivity``.

    Guarantee: between neighbours, which differ in one unit by ``relation``, ``value`` moves by at
    most ``sensitivity``; the caller has seen to that.
    """
    check.number("sensitivity", sensitivity, above=0)
    check.number("z", z, at_least=0)
    me.release(_now(me, gaussian_line(what, z, unit, relation)))
    return _noisy(source(me.noise, me.rng), value, z * sensitivity).as_released()


def _noisy(draw: Source, x: Params, sd: float) -> Params:
    """Return a point with Gaussian noise, on a grid that depends on the noise alone."""
    return Params(zip(x, noised(draw, list(x.values()), sd), strict=True))


def claimed_gaussian(me: Client, what: str, value: Params, *, sd: float, why: str) -> Params:
    """Add the noise of a published formula that proves nothing; the ledger says why."""
    me.release(_now(me, claimed_line(what, why)))
    return _noisy(source(me.noise, me.rng), value, sd).as_released()


class ClaimedSteps:
    """The noise of a published formula on every step of a client's training; it proves nothing.

    One ledger line for all steps of a round, written before the first; it says why.
    """

    def __init__(self, me: Client, what: str, why: str) -> None:
        me.release(_now(me, claimed_line(what, why)))
        self.draw = source(me.noise, me.rng)

    def noised(self, values: Sequence[Tensor], sds: Sequence[float]) -> list[Tensor]:
        """Return tensors with noise, each of its own standard deviation; 0 adds none."""
        each = zip(values, sds, strict=True)
        return [noised(self.draw, [v], sd)[0] if sd else v for v, sd in each]


def without_guarantee(me: Client, what: str, why: str) -> None:
    """Write that what follows uses the data without a mechanism: infinity, and why."""
    me.release(_now(me, claimed_line(what, why)))


def gaussian_update(me: Client, what: str, dx: Params, *, clip: float, z: float) -> Params:
    """Release a client's whole update, clipped to ``clip``, with noise ``z * clip``.

    Protects the client.

    Guarantee: whatever this client's data are, the release is a point of norm at most ``clip`` plus
    noise, and two such points are at most ``2 * clip`` apart. That covers other data in place of
    all or some of it, and any fixed point of the ball that stands for a client which is away. (One
    that is away sends nothing at all: it has no nearer neighbour for which less would be enough.)
    """
    check.clip("clip", clip)
    whole: Keywords = {"unit": "client", "relation": "either"}
    return gaussian(me, what, dx.clipped(clip), sensitivity=2 * clip, z=z / 2, **whole)


def update_z(mu: float) -> float:
    """Return the noise multiplier with which :func:`gaussian_update` is mu-GDP."""
    return 2 / mu


@dataclass
class PrivateSteps:
    """Noisy sums over samples of a client's examples: the releases of DP-SGD (Abadi et al. 2016).

    Guarantee: each example is in each sample independently with probability ``q`` (``law =
    "poisson"``), or a sample is a share ``q`` of all examples without replacement (``"fixed"``); an
    example moves the sum by at most ``clip``, and the noise on the sum is ``z * clip``; divisions
    afterwards are by constants. All ``steps`` releases are one ledger line, written before the
    first; drawing more often than was written is refused.
    """

    me: Client
    q: float
    clip: float
    z: float
    steps: int
    law: Literal["poisson", "fixed"] = "poisson"
    what: str = "dp-sgd"  # as the ledger names it, behind the task
    draw: Source = field(init=False)
    left: int = field(init=False)

    def __post_init__(self) -> None:
        check.clip("clip", self.clip)
        check.number("z", self.z, at_least=0)
        check.number("q", self.q, above=0, at_most=1)
        what = f"{self.me.task} {self.what}".strip()
        self.me.release(_now(self.me, steps_line(what, self.q, self.z, self.steps, self.law)))
        self.draw = source(self.me.noise, self.me.rng)
        self.left = self.steps

    def samples(self, n: int) -> Iterator[Array]:
        """Yield the rows of each step's sample; a Poisson one may be empty."""
        for _ in range(self.steps):
            if self.q == 1:
                yield np.arange(n)
            elif self.law == "fixed":
                yield np.sort(self.draw.bits(n).argsort()[: round(self.q * n)])
            else:
                # a 64-bit word is below q 2^64 with probability q or, by rounding, a little less
                yield np.flatnonzero(self.draw.bits(n) < np.uint64(int(self.q * 2.0**64)))

    def noised(self, sums: Sequence[Tensor]) -> list[Tensor]:
        """Return a step's clipped sums with noise."""
        self.left -= 1
        if self.left < 0:
            raise RuntimeError("more releases than the ledger was told of")
        return noised(self.draw, sums, self.z * self.clip)


def mean_line(task: str, law: Law, n: int, z: float) -> Release:
    """Return the line of a noisy mean over a sample of ``n`` clients by a law, without rounds."""
    event = Gaussian(float(z))
    line = Release(f"{task} (mean)", "client", FEDERATION, "clients", event, (), covers=task)
    return replace(line, sampling=_sampling(law, n))


def _sampling(law: Law, n: int) -> Sampling:
    """Return how a law samples ``n`` clients, for the ledger."""
    if isinstance(law, Poisson):
        return Sampling.at(law.q)
    if isinstance(law, Fixed):
        return Sampling.at(law.k / n, "fixed")
    return Sampling()


def _mean_lines(cohort: Cohort, task: str, sample: Sample, z: float, secret: bool) -> list[Release]:
    """Return the lines of a noisy mean: the federation's or, if who is in it is known, everybody's.

    Then each pays for itself.
    """
    line = mean_line(task, sample.law, len(cohort.everyone), z)
    line = replace(line, rounds=((sample.round, sample.round),), noise=cohort.noise)
    if secret:
        return [line]
    return [replace(line, owner=client, sampling=Sampling()) for client in sample.ids]


def afford_mean(
    cohort: Cohort, task: str, sample: Sample, z: float, *, secret: bool = True
) -> None:
    """Refuse a noisy mean that would pass the budget, before any client works for it."""
    for line in _mean_lines(cohort, task, sample, z, secret):
        cohort.afford(line)


def digest(contents: Iterable[Tensor]) -> str:
    """Return a short name for what is about to get noise: another one for anything else."""
    made = hashlib.blake2b(digest_size=16)
    for v in contents:
        made.update(v.detach().cpu().contiguous().numpy().tobytes())
    return made.hexdigest()


def again(turn: int) -> tuple[int, ...]:
    """Return what a path of randomness ends with, where there was another draw of that name."""
    return (turn,) if turn else ()


def gaussian_mean(
    cohort: Cohort,
    replies: Replies[T],
    take: Callable[[T], Params],
    *,
    like: Params,
    clip: float,
    z: float,
    out_of: float,
    noise_z: float | None = None,
    secret: bool = True,
) -> Params:
    """Return the mean of the clients' points, clipped, with noise.

    Protects clients from everybody but the server.

    Guarantee: each point has norm at most ``clip``, and a client that is away adds nothing to the
    *sum*, so zeroing one out moves it by at most ``clip``; the noise on the sum is ``z * clip``;
    dividing by the constant ``out_of`` is post-processing. ``out_of`` must not depend on who
    replied, and points are never weighted. The law of the sample goes into the ledger, unless the
    sample is not ``secret``: then everybody in it pays, whether they replied or not, and nothing is
    amplified. ``noise_z`` above ``z``: the rest of the guarantee goes to the bits of an
    :class:`AdaptiveClip`.
    """
    check.clip("clip", clip)
    check.number("z", z, at_least=0)
    task = replies.id.partition("@")[0]
    t = replies.sample.round
    lines = _mean_lines(cohort, task, replies.sample, z, secret)
    parts = [take(r).clipped(clip) for r in replies]
    turn = cohort.turn(ask_id(task, t), digest(v for part in parts for v in part.values()))
    for line in lines:
        cohort.release(replace(line, attempt=turn))
    draw = source(cohort.noise, cohort.rng("noise", task, t, *again(turn)))
    mean = _noisy(draw, _exact_sum(parts, like), (noise_z or z) * clip) / out_of
    return Params({k: v.to(like[k].dtype) for k, v in mean.items()}).as_released()


def _exact_sum(points: Iterable[Params], like: Params) -> Params:
    """Return the sum of points in float64.

    In float32 a point would move the roundings of all that are added after it, too.
    """
    zero = Params({k: torch.zeros_like(v, dtype=torch.float64) for k, v in like.items()})
    return weighted_sum([(zero, 1.0), *((point, 1.0) for point in points)])


def claimed_mean(
    cohort: Cohort,
    replies: Replies[T],
    take: Callable[[T], Params],
    *,
    clip: float,
    sd: float,
    why: str,
) -> Params:
    """Return a published mean whose noise proves nothing.

    The ledger says infinity for everybody, and why.
    """
    task = replies.id.partition("@")[0]
    t = replies.sample.round
    cohort.release(replace(claimed_mean_line(task, why), rounds=((t, t),)))
    total = weighted_sum((take(r).clipped(clip), 1.0) for r in replies)
    return public_noise(cohort, total, sd=sd, t=t) / len(replies)


def claimed_mean_line(task: str, why: str) -> Release:
    """Return the line of :func:`claimed_mean`, without rounds."""
    return Release(f"{task} (mean)", "client", FEDERATION, "clients", NonPrivate(why), ())


def public_noise(cohort: Cohort, x: Params, *, sd: float, t: int) -> Params:
    """Add noise for which nothing is claimed, such as a published server's on the way down."""
    turn = cohort.turn(ask_id("public noise", t), digest(x.values()))
    draw = source(cohort.noise, cohort.rng("public noise", t, *again(turn)))
    return _noisy(draw, x, sd)


def discrete_laplace(
    me: Client, what: str, counts: Array, *, epsilon: float, sensitivity: int = 1
) -> Released[Array]:
    """Release whole numbers with two-sided geometric noise, drawn exactly.

    Guarantee: P(noise = k) is proportional to exp(-epsilon |k| / sensitivity), for every k; an
    example changes one count by one.
    """
    check.number("epsilon", epsilon, above=0)
    me.release(_now(me, line_of(what, Pure(float(epsilon)))))
    random = exact.words(source(me.noise, me.rng))
    rate = Fraction(float(epsilon)) / sensitivity
    noisy = [operator.index(n) + exact.discrete_laplace(random, rate) for n in counts.flat]
    # a number that 64 bits do not hold counts as the nearest that they do: post-processing
    held = [min(max(n, -(2**63)), 2**63 - 1) for n in noisy]
    return Released(np.array(held, np.int64).reshape(counts.shape))


def exponential(
    me: Client, what: str, utility: Array, *, sensitivity: float, epsilon: float, relation: Relation
) -> Released[int]:
    """Choose an index by the exponential mechanism (McSherry and Talwar 2007), drawn exactly.

    Guarantee: P(index) is proportional to exp(epsilon utility / (2 sensitivity)), of the numbers as
    they are given; one unit changes each utility by at most ``sensitivity``.
    """
    check.number("epsilon", epsilon, above=0)
    me.release(_now(me, line_of(what, Pure(float(epsilon)), relation=relation)))
    rate = Fraction(float(epsilon)) / (2 * Fraction(sensitivity))
    scores = [rate * Fraction(u) for u in utility.tolist()]
    return Released(exact.choice(exact.words(source(me.noise, me.rng)), scores))


def exponentials(
    me: Client,
    what: str,
    utilities: Sequence[Array],
    *,
    sensitivity: float,
    epsilon: float,
    relation: Relation,
) -> Released[Array]:
    """Choose an index for each of several utilities, each by :func:`exponential`.

    Guarantee: each choice costs ``epsilon``, with a ledger line of its own.
    """
    how: Keywords = {"sensitivity": sensitivity, "epsilon": epsilon, "relation": relation}
    chosen = [exponential(me, what, utility, **how).value for utility in utilities]
    return Released(np.array(chosen, np.int64))


def noisy_max(draw: Source, counts: Array, *, scale: float, kind: str = "gaussian") -> Array:
    """Return, for each row of votes, the class with the most after noise.

    The caller writes the ledger line.

    One voter changes its vote: two counts change by one, so the L1 sensitivity is 2 and the L2
    sensitivity sqrt 2. A tie goes to the first class; noisy counts that were equal before are equal
    again once in a thousand times, as they lie on a grid.
    """
    best: Array = _noisy_votes(draw, counts, scale, kind).argmax(1)
    return best


def _noisy_votes(draw: Source, counts: Array, scale: float, kind: str) -> Array:
    """Return counts of votes with noise, as float64."""
    add = noised if kind == "gaussian" else laplace_noised
    (noisy,) = add(draw, [torch.from_numpy(counts.astype(np.float64))], scale)
    values: Array = noisy.numpy()
    return values


def vote_event(scale: float, kind: str) -> Event:
    """Return what noise on vote counts is, when one vote moves from a class to another."""
    return Gaussian(scale / math.sqrt(2)) if kind == "gaussian" else Laplace(scale / 2)


def vote_line(voter: ClientId, how: str, queries: int, *, scale: float, kind: str) -> Release:
    """Return the ledger line of a client's votes.

    Its own vote, which the server counts, or its sub-teachers'.
    """
    event = vote_event(scale, kind)
    when = ((0, 0),)
    if how == "vote":
        return Release("votes", "client", voter, "clients", event, when, queries, relation="either")
    return Release("votes", "example", voter, "server", event, when, queries)


def winners_line(task: str, queries: int, *, scale: float, kind: str) -> Release:
    """Return the line of :func:`noisy_votes` about one voter, without owner and rounds."""
    line = vote_line("", "vote", queries, scale=scale, kind=kind)
    return replace(line, what=f"{task} (noisy max)", rounds=(), covers=task)


def noisy_votes(
    cohort: Cohort, replies: Replies[T], counts: Array, *, scale: float, kind: str
) -> Array:
    """Return the winners (PATE's noisy max) of votes that the server has counted.

    Hides each voter from all others.

    Guarantee: a voter has one vote on each of the queries, which are public and the same whoever
    votes; whatever its data are, or if it stays away, at most two counts of a query change, by one.
    That covers removal and replacement of all of a client's data. The server has seen the votes:
    nothing is hidden from it.
    """
    check.number("scale", scale, at_least=0)
    task = replies.id.partition("@")[0]
    t = replies.sample.round
    turn = cohort.turn(ask_id(f"votes of {task}", t), digest([torch.from_numpy(counts)]))
    line = winners_line(task, len(counts), scale=scale, kind=kind)
    line = replace(line, rounds=((t, t),), noise=cohort.noise, attempt=turn)
    for client in replies.clients:
        cohort.release(replace(line, owner=client))
    draw = source(cohort.noise, cohort.rng("votes", task, t, *again(turn)))
    return noisy_max(draw, counts, scale=scale, kind=kind)


def noisy_counts(
    me: Client, what: str, counts: Array, *, scale: float, kind: str
) -> Released[Array]:
    """Release how many of a client's sub-teachers are for each class, query by query, with noise.

    Guarantee: which sub-teacher learns from an example depends on that example alone, so zeroing
    one out changes one sub-teacher, and with it at most two counts of each query, by one. Replacing
    one may change two.
    """
    check.number("scale", scale, at_least=0)
    line = vote_line(me.id, "sub-teachers", len(counts), scale=scale, kind=kind)
    me.release(replace(line, what=what, rounds=((me.round, me.round),), noise=me.noise))
    return Released(_noisy_votes(source(me.noise, me.rng), counts, scale, kind))


@dataclass(frozen=True)
class AdaptiveClip:
    """Geometric updates of a clip towards a quantile of the norms (Andrew et al.

    2021, Algorithm 1).

    Each client sends one bit, whether its norm is below the clip. Bits are centred, so one client
    moves their sum by one half, and the sum gets noise sigma_b, a twentieth of the expected clients
    but at least ``z``. Bits and update are one joint release: the update's noise multiplier is
    raised to (z^-2 - (2 sigma_b)^-2)^(-1/2), so that both together cost what ``z`` alone would.
    """

    z: float
    out_of: float
    quantile: float = 0.5
    lr: float = 0.2

    @property
    def bit_noise(self) -> float:
        """The standard deviation of the noise on the sum of bits."""
        return max(0.05 * self.out_of, self.z)

    @property
    def update_z(self) -> float:
        """The noise multiplier that is left for the update."""
        return float((self.z**-2 - (2 * self.bit_noise) ** -2) ** -0.5) if self.z else 0.0

    def next(self, cohort: Cohort, clip: float, below: Sequence[bool], t: int) -> float:
        """Return the next clip, within the range of clips; :attr:`update_z` pays for its noise."""
        turn = cohort.turn(
            ask_id("clip", t), digest([torch.tensor(list(below)), torch.tensor(clip)])
        )
        draw = source(cohort.noise, cohort.rng("clip", t, *again(turn)))
        bits = torch.tensor(sum(float(b) - 0.5 for b in below), dtype=torch.float64)
        (noisy,) = noised(draw, [bits], self.bit_noise)
        share = float(noisy) / self.out_of + 0.5
        return in_clip_range(clip * math.exp(-self.lr * (share - self.quantile)))


def clip_rows(rows: Tensor, bound: float) -> Tensor:
    """Return rows with Euclidean norm at most ``bound``.

    A row that is not finite, or whose norm is not, counts for nothing.
    """
    # in double precision, where the square of any single number has its place
    norms = torch.linalg.vector_norm(rows.flatten(1).double(), dim=1)
    # a little less than the bound, so that rounding cannot pass it
    scale = (bound * (1 - 1e-6) / norms).clamp(max=1.0)
    scale = torch.where(norms.isfinite(), scale, 0.0).view(-1, *(1,) * (rows.dim() - 1))
    return (torch.nan_to_num(rows, posinf=0.0, neginf=0.0) * scale).to(rows.dtype)
