"""The canary test: its bounds are sound and not idle, and it finds the errors planted for it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from tacit.core.errors import BadInput
from tacit.privacy.audit import (
    Array,
    Mechanism,
    Score,
    Trial,
    Verdict,
    clopper_pearson_bound,
    difference,
    differences,
    gdp_bound,
    gdp_epsilon,
    judge,
    projection,
    repeated,
    spread,
)

DELTA = 1e-5
BOUNDS = [clopper_pearson_bound, gdp_bound]
slow = pytest.mark.slow
both_bounds = pytest.mark.parametrize("bound", BOUNDS)


# --------------------------------------------------------------------------------------------------
# conversion


@pytest.mark.parametrize(
    ("mu", "epsilon"),
    [(0.0325, 0.1), (0.25, 0.926), (0.268, 1), (0.925, 4), (1.666, 8), (2.0, 10), (6.677, 50)],
)
def test_mu_to_epsilon_at_known_values(mu: float, epsilon: float) -> None:
    assert gdp_epsilon(mu, DELTA) == pytest.approx(epsilon, rel=2e-3)


def test_mu_to_epsilon_at_the_ends() -> None:
    assert (
        gdp_epsilon(0.0, DELTA) == gdp_epsilon(-math.inf, DELTA) == gdp_epsilon(1e-6, DELTA) == 0.0
    )
    assert gdp_epsilon(math.inf, DELTA) == gdp_epsilon(1e200, DELTA) == math.inf
    assert 1e4**2 / 2 < gdp_epsilon(1e4, DELTA) < 1e4**2 / 2 + 5e4
    with pytest.raises(BadInput, match="delta"):
        gdp_epsilon(1.0, 0.0)


# --------------------------------------------------------------------------------------------------
# soundness


@both_bounds
@pytest.mark.parametrize(
    "mu", [0.0, 1.0, *(pytest.param(m, marks=slow) for m in (0.268, 2.0, 4.0))]
)
def test_bounds_fail_no_more_often_than_allowed(bound: Callable[..., float], mu: float) -> None:
    exact, rng = gdp_epsilon(mu, DELTA), np.random.default_rng(int(1000 * mu))
    draws = ((rng.normal(mu, 1, 2000), rng.normal(0, 1, 2000)) for _ in range(300))
    assert sum(bound(a, b, DELTA, confidence=0.99) > exact for a, b in draws) <= 3


@pytest.mark.slow
def test_clopper_pearson_fails_no_more_often_than_allowed_where_it_can_be_reached() -> None:
    """Randomised response.

    One event attains epsilon exactly, so nothing but the confidence keeps the bound below.
    """
    truth, rng = math.e / (1 + math.e), np.random.default_rng(1)
    draws = ((rng.random(1000) < truth, rng.random(1000) >= truth) for _ in range(2000))
    failures = sum(clopper_pearson_bound(a, b, 0.0, confidence=0.9) > 1.0 for a, b in draws)
    assert failures <= 200


@pytest.mark.slow
@both_bounds
def test_choosing_among_many_useless_scores_is_free(bound: Callable[..., float]) -> None:
    rng = np.random.default_rng(2)
    draws = (rng.normal(size=(2, 400, 20)) for _ in range(100))
    assert sum(bound(a, b, DELTA, confidence=0.9) > 0 for a, b in draws) <= 10


def test_arms_that_share_their_noise_are_sound_too() -> None:
    rng = np.random.default_rng(3)
    noise = rng.normal(size=(200, 1000))
    assert (
        sum(gdp_bound(z + 1.0, z, DELTA, confidence=0.9) > gdp_epsilon(1.0, DELTA) for z in noise)
        <= 20
    )


def test_laplace_noise_is_not_accused_when_gdp_is_not_assumed() -> None:
    def release(present: bool, run: int) -> float:
        return float(np.random.default_rng([present, run]).laplace(float(present), 1.0))

    assert not judge(release, certified=1.0, delta=DELTA, runs=4000, gaussian=False).broken
    # Laplace noise is not GDP, as documented
    assert judge(release, certified=1.0, delta=DELTA, runs=4000).broken


def test_what_delta_allows_is_no_leak() -> None:
    """A mechanism that names the canary with probability delta and is silent otherwise is (0,
    delta).
    """
    rng = np.random.default_rng(4)
    named = rng.random(20_000) < 0.05
    assert clopper_pearson_bound(named, np.zeros(20_000), 0.05) == 0.0
    assert clopper_pearson_bound(named, np.zeros(20_000), 0.0) > 3.5


# --------------------------------------------------------------------------------------------------
# power


@pytest.mark.parametrize(("mu", "share"), [(0.268, 0.4), (1.0, 0.75), (2.0, 0.85), (4.0, 0.85)])
def test_gdp_bound_comes_near_the_exact_epsilon(mu: float, share: float) -> None:
    rng = np.random.default_rng(5)
    found = gdp_bound(rng.normal(mu, 1, 20_000), rng.normal(0, 1, 20_000), DELTA)
    assert share * gdp_epsilon(mu, DELTA) < found < gdp_epsilon(mu, DELTA)


def test_clopper_pearson_comes_near_the_epsilon_of_randomised_response() -> None:
    truth, rng = math.e / (1 + math.e), np.random.default_rng(6)
    found = clopper_pearson_bound(rng.random(20_000) < truth, rng.random(20_000) >= truth, 0.0)
    assert 0.85 < found < 1.0


@both_bounds
def test_side_and_roles_do_not_matter(bound: Callable[..., float]) -> None:
    rng = np.random.default_rng(7)
    a, b = rng.normal(2, 1, 2000), rng.normal(0, 1, 2000)
    same = bound(a, b, DELTA)
    assert same > 1
    assert bound(-a, -b, DELTA) == bound(b, a, DELTA) == pytest.approx(same, rel=0.2)


def test_roles_are_exchanged_where_only_one_has_a_leak() -> None:
    """Half of the runs without the canary end where no run with it ever does."""
    without = np.tile([0.0, 0.0, 1.0, 1.0], 1000)
    assert clopper_pearson_bound(np.zeros(4000), without, DELTA) > 4


def test_one_telling_score_among_many_is_found() -> None:
    rng = np.random.default_rng(8)
    a, b = rng.normal(size=(2, 2000, 10))
    a[:, 7] += 3
    assert gdp_bound(a, b, DELTA) > 0.6 * gdp_epsilon(3.0, DELTA)


# --------------------------------------------------------------------------------------------------
# edge cases


@both_bounds
def test_equal_constant_scores_show_nothing(bound: Callable[..., float]) -> None:
    assert bound(np.full(1000, 0.1), np.full(1000, 0.1), DELTA) == 0.0


@both_bounds
def test_separated_scores_give_a_finite_bound_that_grows_with_the_runs(
    bound: Callable[..., float],
) -> None:
    few, many = (bound(np.ones(n), np.zeros(n), DELTA) for n in (100, 10_000))
    assert 0 < few < many < math.inf
    exact = math.log((0.0005 ** (1 / 5000) - DELTA) / (1 - 0.0005 ** (1 / 5000)))
    assert clopper_pearson_bound(np.ones(10_000), np.zeros(10_000), DELTA) == pytest.approx(exact)


@both_bounds
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_scores_that_are_not_finite_are_refused(bound: Callable[..., float], bad: float) -> None:
    scores = np.zeros(200)
    scores[17] = bad
    with pytest.raises(BadInput, match=r"without_scores\[17\]"):
        bound(np.zeros(200), scores, DELTA)


@both_bounds
def test_bad_input_is_refused(bound: Callable[..., float]) -> None:
    good = np.zeros(100)
    for a, b in [
        (np.zeros(99), good),
        (good, np.zeros(99)),
        (np.zeros((100, 2)), good),
        (np.zeros((100, 0)), good),
    ]:
        with pytest.raises(BadInput):
            bound(a, b, DELTA)
    for delta, confidence in [(1.0, 0.9), (-0.1, 0.9), (math.nan, 0.9), (DELTA, 1.0), (DELTA, 0.0)]:
        with pytest.raises(BadInput):
            bound(good, good, delta, confidence)


def test_judge_refuses_too_few_runs_before_it_starts_them() -> None:
    def release(present: bool, run: int) -> float:
        raise AssertionError("was run")

    with pytest.raises(BadInput, match="runs = 99"):
        judge(release, certified=1.0, delta=DELTA, runs=99)
    with pytest.raises(BadInput, match="certified"):
        judge(release, certified=math.nan, delta=DELTA, runs=100)


def test_scores_of_rounds_are_checked() -> None:
    v = np.ones(3)
    with pytest.raises(BadInput, match="at least one"):
        repeated(lambda present, run, round: v, 2)
    with pytest.raises(BadInput, match="equal"):
        differences([v, v])
    for score in (projection([v]), spread([v]), difference([v, 0 * v], 0, 1)):
        with pytest.raises(BadInput, match="3 rounds"):
            score([v, v, v])


def test_scores_by_hand() -> None:
    x, y = np.array([1.0, 0.0]), np.array([0.0, 2.0])
    outputs = [np.array([3.0, 4.0]), np.array([5.0, 6.0])]
    assert projection([x, y])(outputs) == 3 + 12
    assert difference([x, y], 0, 1)(outputs) == pytest.approx((-2 * 1 + -2 * -2) / math.sqrt(5))
    assert spread([x, y])(outputs) == pytest.approx(math.log(math.sqrt(16 + 25)))
    assert len(differences([x, y, x])) == 2


# --------------------------------------------------------------------------------------------------
# the verdict


def test_verdicts_in_one_line() -> None:
    def verdict(certified: float, bound: float, upper: float) -> Verdict:
        return Verdict(certified, DELTA, 0.999, 1000, 0.5, bound, upper, upper)

    assert verdict(2.0, 3.0, 3.5).line() == (
        "broken: certified epsilon 2, measured at least 3 for a Gaussian release (estimate 3.5) "
        "at delta 1e-05, confidence 0.999, 1000 runs with the canary and 1000 without"
    )
    assert (
        verdict(8.0, 0.0, 1.9)
        .line()
        .startswith("wasteful: certified epsilon 8, measured at least 0.5 (")
    )
    assert verdict(8.0, 6.0, 7.9).line().startswith("holds: ")
    assert not verdict(8.0, 6.0, 1.0).wasteful  # what is proved counts as seen
    assert not verdict(math.inf, 6.0, 7.0).wasteful
    assert not verdict(math.inf, 6.0, 7.0).broken


def test_much_too_much_noise_is_wasteful() -> None:
    def release(present: bool, run: int) -> float:
        return float(np.random.default_rng([present, run]).normal(float(present), 5.0))

    assert judge(release, certified=8.0, delta=DELTA, runs=1000).wasteful


# ------------------------------------------------------------------------------------- planted
# errors are found

# One canary among PEOPLE, each clipped to norm 1; noise for the claimed mu. A case is the certified
# epsilon and what is released; RIGHT and WRONG differ in the planted error alone.

DIM, PEOPLE = 30, 10
UNIT = np.eye(DIM)[0]
OTHERS = np.random.default_rng(9).normal(size=(PEOPLE - 1, DIM))


def clip(x: Array, norm: float = 1.0) -> Array:
    return x * min(1.0, norm / float(np.linalg.norm(x)))


def noise(*seed: int) -> Array:
    return np.random.default_rng(seed).normal(size=DIM)


def total(canary: Array | None, weight: float = 1.0) -> Array:
    others = np.sum([clip(x) for x in OTHERS], axis=0)
    return others if canary is None else others + weight * clip(canary)


TOTAL = {False: total(None), True: total(5 * UNIT)}


def mean(mu: float, *, scaled_twice: bool) -> Mechanism:
    """Sum of clipped vectors and noise; the error.

    Noise for the mean, although the sum is released.
    """
    deviation = 1 / mu / (PEOPLE if scaled_twice else 1)
    return lambda present, run, round: TOTAL[present] + deviation * noise(present, run, round)


def replaced(mu: float, *, half: bool) -> Mechanism:
    """One replaced by its opposite, mean released; the error.

    The sensitivity of zero-out, 1 and not 2.
    """
    deviation, ends = (
        (1 if half else 2) / mu / PEOPLE,
        {True: total(5 * UNIT), False: total(-5 * UNIT)},
    )
    return lambda present, run, round: (
        ends[present] / PEOPLE + deviation * noise(present, run, round)
    )


def weighted(mu: float, *, by_examples: bool) -> Mechanism:
    """Mean over clients; the error: with ten times the examples goes ten times the weight."""
    ends = {False: total(None), True: total(5 * UNIT, weight=10.0 if by_examples else 1.0)}
    return lambda present, run, round: (ends[present] + noise(present, run, round) / mu) / PEOPLE


def own_norm(mu: float, *, unclipped: bool) -> Mechanism:
    """One client's update, replaced by another; the error.

    Clip at its own norm, noise in proportion to it.
    """

    def release(present: bool, run: int, round: int) -> Array:
        update = 100 * UNIT if present else -UNIT
        norm = float(np.linalg.norm(update)) if unclipped else 1.0
        return clip(update, norm) + 2 * norm / mu * noise(present, run, round)

    return release


def rounds_of(mu: float, directions: Sequence[Array], *, reused: bool = False) -> Mechanism:
    """Several rounds in which the canary adds ``directions``; the error.

    Every round has the same noise.
    """

    def release(present: bool, run: int, round: int) -> Array:
        seed = [present, run, 0 if reused else round]
        return TOTAL[False] + (directions[round] if present else 0.0) + noise(*seed) / mu

    return release


SAME, OPPOSITE, ABSENT = [UNIT] * 10, [UNIT, -UNIT], [UNIT, 0 * UNIT, UNIT, UNIT]
once, alone = (projection([UNIT]),), (projection([UNIT]), spread([UNIT]))

Make = Callable[[float], Mechanism]
# name: right, wrong, rounds, scores, by how much the certified mu exceeds that of one round (right,
# wrong)
CASES: dict[str, tuple[Make, Make, int, Sequence[Score], float, float]] = {
    "noise divided by the batch": (
        lambda mu: mean(mu, scaled_twice=False), lambda mu: mean(mu, scaled_twice=True),
        1, once, 1, 1,
    ),
    "replace-one with half the sensitivity": (
        lambda mu: replaced(mu, half=False), lambda mu: replaced(mu, half=True), 1, once, 1, 1
    ),
    "weights by examples": (
        lambda mu: weighted(mu, by_examples=False), lambda mu: weighted(mu, by_examples=True),
        1, once, 1, 1,
    ),
    "clip at the update's own norm": (
        lambda mu: own_norm(mu, unclipped=False), lambda mu: own_norm(mu, unclipped=True),
        1, alone, 1, 1,
    ),
    "a fresh accountant every round": (
        lambda mu: rounds_of(mu, SAME), lambda mu: rounds_of(mu, SAME),
        10, (projection(SAME),), math.sqrt(10), 1,
    ),
    "noise reused, opposite canary": (
        lambda mu: rounds_of(mu, OPPOSITE), lambda mu: rounds_of(mu, OPPOSITE, reused=True),
        2, (projection(OPPOSITE), *differences(OPPOSITE)), math.sqrt(2), math.sqrt(2),
    ),
    "noise reused, canary absent from one round": (
        lambda mu: rounds_of(mu, ABSENT), lambda mu: rounds_of(mu, ABSENT, reused=True),
        4, (projection(ABSENT), *differences(ABSENT)), math.sqrt(3), math.sqrt(3),
    ),
}  # fmt: skip
each_case = pytest.mark.parametrize("case", CASES)


def trial(case: str, *, wrong: bool, mu: float) -> tuple[Trial, float]:
    """Return the release with a certified ``mu`` in all, and the epsilon certified for it."""
    right, planted, rounds, scores, charged, charged_wrongly = CASES[case]
    per_round = mu / (charged_wrongly if wrong else charged)
    return repeated((planted if wrong else right)(per_round), rounds, *scores), gdp_epsilon(
        mu, DELTA
    )


@each_case
@pytest.mark.parametrize("mu", [0.5, 1.666])
def test_planted_error_is_found(case: str, mu: float) -> None:
    release, certified = trial(case, wrong=True, mu=mu)
    verdict = judge(release, certified=certified, delta=DELTA, runs=2000)
    assert verdict.broken, verdict.line()


@each_case
@pytest.mark.parametrize("mu", [0.5, 1.666])
def test_correct_version_holds_and_is_not_wasteful(case: str, mu: float) -> None:
    release, certified = trial(case, wrong=False, mu=mu)
    verdict = judge(release, certified=certified, delta=DELTA, runs=1000)
    assert not verdict.broken, verdict.line()
    assert not verdict.wasteful, verdict.line()
    assert verdict.estimate == pytest.approx(certified, rel=0.3)


# factors 2 and 3: need ``gdp``
SUBTLE = {"replace-one with half the sensitivity", "a fresh accountant every round"}


@pytest.mark.parametrize("case", sorted(set(CASES) - SUBTLE))
def test_planted_error_is_found_without_assuming_a_gaussian(case: str) -> None:
    release, certified = trial(case, wrong=True, mu=0.1)
    verdict = judge(release, certified=certified, delta=DELTA, runs=2000, gaussian=False)
    assert verdict.broken, verdict.line()
    assert verdict.gdp == 0.0


def test_clip_at_own_norm_is_found_by_the_spread_alone() -> None:
    for unclipped in (True, False):
        release = repeated(own_norm(0.5, unclipped=unclipped), 1, spread([UNIT]))
        assert (
            judge(release, certified=gdp_epsilon(0.5, DELTA), delta=DELTA, runs=1000).broken
            == unclipped
        )


def test_noise_reused_in_two_of_many_rounds_is_found() -> None:
    directions = [UNIT if t % 2 else -UNIT for t in range(8)]
    fresh = rounds_of(0.5 / math.sqrt(8), directions)

    def release(present: bool, run: int, round: int) -> Array:
        if round != 6:
            return fresh(present, run, round)
        return fresh(present, run, 3) + (directions[6] - directions[3] if present else 0.0)

    for mechanism, broken in ((fresh, False), (release, True)):
        scored = repeated(mechanism, 8, projection(directions), *differences(directions))
        assert (
            judge(scored, certified=gdp_epsilon(0.5, DELTA), delta=DELTA, runs=600).broken == broken
        )
