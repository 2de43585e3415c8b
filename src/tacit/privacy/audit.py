"""Repeated-release canary test: run a mechanism with and without one canary.

How well can the outputs be told apart?

A *trial* is one run; it is scored by one number or by several. From the scores of many runs follow
lower bounds on epsilon that hold with a stated confidence, whatever the mechanism claims. Runs must
be independent of each other; the two arms may share their noise run by run, since every bound is a
union over the two arms. A high bound refutes a certificate. A low one proves nothing: another
canary, or another score, may see more.

One half of the runs (even numbers) chooses which score, which side of which threshold and which
role of the arms to look at; the other half (odd numbers) is used once, for that single event. The
choice therefore costs no confidence, however many scores are offered.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special

from tacit.core import check
from tacit.core.errors import BadInput
from tacit.privacy.gdp import gdp_epsilon
from tacit.privacy.rounding import rounded_down, show_epsilon

Array = npt.NDArray[np.float64]
# (canary present, run) -> its score, or several scores
Trial = Callable[[bool, int], float | Sequence[float]]
# (canary present, run, round) -> what was released in that round
Mechanism = Callable[[bool, int, int], Array]
Score = Callable[[Sequence[Array]], float]  # the outputs of all rounds of one run -> one number
# (hits, of, false alarms, of) -> bound, for each event
Bound = Callable[[Array, int, Array, int], Array]

MIN_RUNS = 100
_RANKS = 24  # thresholds tried from each end of each arm, denser in the tails


# ------------------------------------------------------------------------------------------------
# the bounds


def clopper_pearson_bound(
    with_scores: npt.ArrayLike,
    without_scores: npt.ArrayLike,
    delta: float,
    confidence: float = 0.999,
) -> float:
    """Return a lower bound on epsilon, with ``confidence``, at ``delta`` and for any mechanism.

    It is log((P[E] - delta) / P'[E]) with a Clopper-Pearson limit at (1 - confidence) / 2 for each
    probability. E is {score >= t} or {score <= t}, and P the arm with or without the canary: all
    chosen on the even runs and bounded on the odd ones, so there is no selection effect. Scores are
    one per run, or a table of runs by scores. Never negative, and at most about log(runs / (2 log(2
    / (1 - confidence)))): a large epsilon needs many runs to be refuted.

    >>> clopper_pearson_bound(np.zeros(100), np.zeros(100), 1e-5)
    0.0
    """
    check.number("delta", delta, at_least=0, below=1)
    tail = _tail(confidence)

    def bound(hits: Array, n: int, alarms: Array, m: int) -> Array:
        with np.errstate(divide="ignore"):
            gain = np.log(np.maximum(_low(hits, n, tail) - delta, 0.0))
        return np.asarray(gain - np.log(_high(alarms, m, tail)))

    return max(
        0.0,
        _held_out(
            _table("with_scores", with_scores), _table("without_scores", without_scores), bound
        ),
    )


def gdp_bound(
    with_scores: npt.ArrayLike,
    without_scores: npt.ArrayLike,
    delta: float,
    confidence: float = 0.999,
) -> float:
    """Return a lower bound on epsilon, with ``confidence``, for any release that is mu-GDP.

    mu >= -Phi^-1(false alarms) - Phi^-1(misses) at any threshold; with upper Clopper-Pearson limits
    at (1 - confidence) / 2 for both rates, at a threshold chosen on the even runs and bounded on
    the odd ones. The mu is turned into epsilon exactly. Much tighter than ``clopper_pearson_bound``
    for Gaussian releases, and wrong (too high) for releases whose certificate is not a GDP one:
    Laplace noise, votes, few subsampled steps. Never negative.
    """
    tail = _tail(confidence)

    def bound(hits: Array, n: int, alarms: Array, m: int) -> Array:
        return np.asarray(
            -special.ndtri(_high(alarms, m, tail)) - special.ndtri(_high(n - hits, n, tail))
        )

    mu = _held_out(
        _table("with_scores", with_scores), _table("without_scores", without_scores), bound
    )
    return gdp_epsilon(mu, delta)


def _tail(confidence: float) -> float:
    """Return the error allowed to each of the two limits that make a bound."""
    check.number("confidence", confidence, above=0, below=1)
    return (1 - confidence) / 2


def _low(k: Array, n: int, tail: float) -> Array:
    """Return the Clopper-Pearson lower limit of a probability seen ``k`` times in ``n``."""
    return np.where(k > 0, special.betaincinv(np.maximum(k, 1), n - k + 1, tail), 0.0)


def _high(k: Array, n: int, tail: float) -> Array:
    """Return the Clopper-Pearson upper limit of a probability seen ``k`` times in ``n``."""
    return np.where(k < n, special.betainccinv(k + 1, np.maximum(n - k, 1), tail), 1.0)


def _table(field: str, scores: npt.ArrayLike) -> Array:
    """Return scores as a table of runs by scores, all finite, or refuse them."""
    table = np.asarray(scores, dtype=np.float64)
    if table.ndim not in (1, 2) or table.size == 0:
        raise BadInput(
            f"{field} has shape {table.shape}: must be one score, or a row of scores, for each run"
        )
    check.number(f"runs in {field}", len(table), at_least=MIN_RUNS)
    bad = np.flatnonzero(~np.isfinite(table).reshape(len(table), -1).all(axis=1))
    if len(bad):
        raise BadInput(f"{field}[{bad[0]}] = {table[bad[0]]}: must be finite")
    return table.reshape(len(table), -1)


# ------------------------------------------------------------------------------- choose on one
# half, bound on the other


@dataclass(frozen=True)
class _Event:
    """What to look at.

    Sign * score >= threshold, with the canary's arm in the numerator unless ``swap``.
    """

    column: int
    sign: int
    swap: bool
    threshold: float = 0.0

    def arms(self, with_: Array, without: Array) -> tuple[Array, Array]:
        """Return the sorted scores of the arm that should show the event, and of the other one."""
        a, b = (without, with_) if self.swap else (with_, without)
        return np.sort(self.sign * a[:, self.column]), np.sort(self.sign * b[:, self.column])


def _held_out(with_: Array, without: Array, bound: Bound) -> float:
    """Return the bound at one event, chosen on the even runs and counted on the odd ones."""
    if with_.shape[1] != without.shape[1]:
        raise BadInput(
            f"{with_.shape[1]} scores with the canary, {without.shape[1]} without: must be as many"
        )
    event = _choose(with_[::2], without[::2], bound)
    hit, alarm = event.arms(with_[1::2], without[1::2])
    return float(_at(np.array([event.threshold]), hit, alarm, bound)[0])


def _choose(with_: Array, without: Array, bound: Bound) -> _Event:
    """Return the event with the highest bound on these runs."""
    best = -math.inf
    chosen = _Event(0, 1, False)
    for column, sign, swap in itertools.product(range(with_.shape[1]), (1, -1), (False, True)):
        hit, alarm = _Event(column, sign, swap).arms(with_, without)
        thresholds = np.concatenate([_spaced(hit), _spaced(alarm)])
        values = _at(thresholds, hit, alarm, bound)
        i = int(np.argmax(values))
        if values[i] > best:
            best = float(values[i])
            chosen = _Event(column, sign, swap, float(thresholds[i]))
    return chosen


def _at(thresholds: Array, hit: Array, alarm: Array, bound: Bound) -> Array:
    """Return the bound for each event {score >= threshold}; both arms are sorted."""
    hits, alarms = (
        len(arm) - np.searchsorted(arm, thresholds, side="left") for arm in (hit, alarm)
    )
    return bound(hits.astype(np.float64), len(hit), alarms.astype(np.float64), len(alarm))


def _spaced(ordered: Array) -> Array:
    """Return order statistics at ranks that grow geometrically from both ends to the middle."""
    ranks = np.unique(np.geomspace(1, len(ordered) / 2 + 1, _RANKS).astype(np.int64)) - 1
    return np.concatenate([ordered[ranks], ordered[-1 - ranks]])


# ------------------------------------------------------------------------------------------------
# the verdict


@dataclass(frozen=True)
class Verdict:
    """What was seen against what was certified; both bounds hold together with ``confidence``."""

    certified: float
    delta: float
    confidence: float
    runs: int  # of each arm
    clopper_pearson: float  # epsilon is at least this, whatever the mechanism
    gdp: float  # epsilon is at least this if the release is mu-GDP; 0 where that was not assumed
    estimate: float  # the epsilon of a Gaussian release with the effect that was seen; no guarantee
    upper: float  # the same, two standard errors higher

    @property
    def bound(self) -> float:
        """The best lower bound."""
        return max(self.clopper_pearson, self.gdp)

    @property
    def broken(self) -> bool:
        """Whether the certificate is refuted.

        A correct one is with probability at most 1 - confidence.
        """
        return self.bound > self.certified

    @property
    def wasteful(self) -> bool:
        """Whether all that was seen is clearly below a quarter of the certified epsilon.

        Much noise, or a weak canary.

        A certificate of infinity promises nothing and wastes nothing.
        """
        return math.isfinite(self.certified) and max(self.upper, self.bound) < self.certified / 4

    def line(self) -> str:
        """Return the verdict in one sentence."""
        word = "wasteful" if self.wasteful else "holds"
        if self.broken:
            word = "broken"
        premise = " for a Gaussian release" if self.gdp > self.clopper_pearson else ""
        certified = show_epsilon(self.certified, 4)
        return (
            f"{word}: certified epsilon {certified},"
            f" measured at least {rounded_down(self.bound, 4)}{premise}"
            f" (estimate {self.estimate:.4g}) at delta {self.delta:g},"
            f" confidence {self.confidence:g},"
            f" {self.runs} runs with the canary and {self.runs} without"
        )


def judge(
    release: Trial,
    *,
    certified: float,
    delta: float,
    runs: int,
    confidence: float = 0.999,
    gaussian: bool = True,
) -> Verdict:
    """Judge a certificate by ``runs`` runs with the canary and as many without.

    Args:
        release: makes one run, given whether the canary is there and the number of the run
        certified: the epsilon in question
        delta: that goes with it
        runs: of each arm
        confidence: with which the bounds hold together
        gaussian: whether the certificate is a GDP one

    A correct certificate is called broken with probability at most 1 - ``confidence`` (shared by
    the two bounds). ``gaussian`` says that the certificate is a GDP one (Gaussian noise, no
    amplification by sampling). Set it to False for everything else, such as Laplace noise, votes or
    subsampled steps: then only ``clopper_pearson_bound`` counts.
    """
    check.number("certified", certified, at_least=0)
    check.number("runs", runs, at_least=MIN_RUNS, whole=True)
    check.number("delta", delta, above=0, below=1)
    check.number("confidence", confidence, above=0, below=1)
    with_ = _table("with_scores", [release(True, run) for run in range(runs)])
    without = _table("without_scores", [release(False, run) for run in range(runs)])
    each = (1 + confidence) / 2 if gaussian else confidence
    general = clopper_pearson_bound(with_, without, delta, each)
    normal = gdp_bound(with_, without, delta, each) if gaussian else 0.0
    estimate, upper = _estimates(with_, without, delta)
    return Verdict(certified, delta, confidence, runs, general, normal, estimate, upper)


def _estimates(with_: Array, without: Array, delta: float) -> tuple[float, float]:
    """Return epsilon for the largest effect on any score, and that two standard errors above."""
    mu = np.array([_effect(a, b) for a, b in zip(with_.T, without.T, strict=True)])
    error = np.sqrt(1 / len(with_) + 1 / len(without) + mu**2 / (2 * (len(with_) + len(without))))
    return gdp_epsilon(float(mu.max()), delta), gdp_epsilon(float((mu + 2 * error).max()), delta)


def _effect(a: Array, b: Array) -> float:
    """Return the difference of two means in standard deviations."""
    gap = abs(float(a.mean() - b.mean()))
    deviation = math.sqrt((float(a.var()) + float(b.var())) / 2)
    if gap <= 1e-12 * max(float(np.abs(a).max()), float(np.abs(b).max())):
        return 0.0
    return gap / deviation if deviation > 0 else math.inf


# ------------------------------------------------------------------------------------------------
# many rounds


def repeated(mechanism: Mechanism, rounds: int, *scores: Score) -> Trial:
    """Return the trial of ``rounds`` rounds that takes every one of ``scores`` of the outputs.

    The mechanism gets the run and the round, so that all that a run keeps between its rounds (an
    accountant, a noise generator) is exercised as in earnest. More scores cost no confidence (see
    the module), only a little time.
    """
    check.number("rounds", rounds, at_least=1, whole=True)
    if not scores:
        raise BadInput("scores = (): must be at least one, such as projection(directions)")

    def trial(present: bool, run: int) -> list[float]:
        outputs = [mechanism(present, run, round) for round in range(rounds)]
        return [score(outputs) for score in scores]

    return trial


def projection(directions: Sequence[Array]) -> Score:
    """Return the sum of <output, direction>: ``directions[t]`` is what a canary adds in round t.

    The sufficient statistic when every round has fresh Gaussian noise of one size: no other score
    sees more. It finds too little noise, too much weight, a sensitivity too small, and rounds that
    were not charged.
    """

    def score(outputs: Sequence[Array]) -> float:
        _check_rounds(outputs, directions)
        return sum(
            _dot(output, direction) for output, direction in zip(outputs, directions, strict=True)
        )

    return score


def difference(directions: Sequence[Array], s: int, t: int) -> Score:
    """Return <output_s - output_t, e>, e along what the canary adds in round s but not in t.

    Noise used in both rounds cancels and leaves the canary bare.
    """
    gap = directions[s] - directions[t]
    size = math.sqrt(_dot(gap, gap))
    if size == 0:
        raise BadInput(
            f"directions {s} and {t} are equal: the canary must add something else in each round"
        )

    def score(outputs: Sequence[Array]) -> float:
        _check_rounds(outputs, directions)
        return _dot(outputs[s] - outputs[t], gap) / size

    return score


def differences(directions: Sequence[Array]) -> list[Score]:
    """Return ``difference`` for all pairs of rounds in which the canary adds different things.

    One score for each pair, and not their maximum, in which the noise of all good pairs would hide
    the one bad pair.
    """
    pairs = itertools.combinations(range(len(directions)), 2)
    found = [
        difference(directions, s, t) for s, t in pairs if np.any(directions[s] != directions[t])
    ]
    if not found:
        raise BadInput(
            "directions are all equal: the canary must add different things in at least two rounds"
        )
    return found


def spread(directions: Sequence[Array]) -> Score:
    """Return the log of the norm of the outputs without their part along the canary's direction.

    It sees the size of the noise and nothing of the canary itself: it finds noise that is scaled by
    the data, such as clipping at an update's own norm. Subtract what is known of the others first:
    a large constant hides the noise.
    """

    def score(outputs: Sequence[Array]) -> float:
        _check_rounds(outputs, directions)
        left = [
            _without(output, direction)
            for output, direction in zip(outputs, directions, strict=True)
        ]
        return 0.5 * math.log(
            max(sum(_dot(rest, rest) for rest in left), np.finfo(np.float64).tiny)
        )

    return score


def _without(output: Array, direction: Array) -> Array:
    """Return ``output`` less its part along ``direction``; all of it where that is zero."""
    size = _dot(direction, direction)
    return output - (_dot(output, direction) / size) * direction if size > 0 else output


def _check_rounds(outputs: Sequence[Array], directions: Sequence[Array]) -> None:
    """Refuse a score that was made for another number of rounds."""
    if len(outputs) != len(directions):
        raise BadInput(
            f"{len(directions)} directions for {len(outputs)} rounds: must be one for each round"
        )


def _dot(a: Array, b: Array) -> float:
    """Return the inner product of two arrays of any one shape."""
    return float(np.vdot(a, b))
