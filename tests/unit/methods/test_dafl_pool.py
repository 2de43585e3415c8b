"""DA-FL's main phase trains on others' samples too, and that may be a step more than without."""

from dataclasses import replace

import pytest

from tacit import privacy
from tacit.core import Ledger
from tacit.local.sgd import SGD
from tacit.methods.spec import method_from_spec
from tacit.synthesis.shares import Facts, grown

DELTA = 1e-5
SIZES = {str(i): 47 for i in range(6)}
TIMES = dict.fromkeys(SIZES, 2)


def cost(lines):
    return privacy.epsilon(
        Ledger(lines), unit="example", observer="server", delta=DELTA, quick=True
    )


def test_the_first_size_with_a_step_more_is_looked_at_where_the_pool_reaches_it():
    known, sgd = Facts(SIZES, TIMES, DELTA), SGD(clip=1.0, z=1.0, batch=32)
    assert grown(sgd, 0.05, known) == dict.fromkeys(SIZES, 48)
    assert grown(sgd, 0.05, replace(known, times=TIMES | {"0": 0})).keys() == SIZES.keys() - {"0"}
    fewer = replace(known, sizes=dict.fromkeys(SIZES, 20))  # 30 with the pool, or 48 from much more
    assert grown(sgd, 0.05, fewer) == {}
    assert grown(sgd, 0.5, fewer) == dict.fromkeys(SIZES, 48)
    assert grown(replace(sgd, steps=3), 0.05, known) == {}
    assert grown(SGD(), 0.05, known) == {}


@pytest.mark.slow
def test_an_epsilon_is_kept_whatever_part_of_the_pool_a_client_gets():
    """With batches of 32, 47 examples are one step and 48 two; five others give ten samples."""
    word = "dafl:main=dp-sgd,sgd.clip=1,gamma=0.05,rounds=2,epsilon=3"
    method = method_from_spec(word).solved(SIZES, TIMES, DELTA)
    samples = method.sharing.pool_rule(DELTA).lines("0", 47, 1)
    alone, dearest, whole = (cost(samples + method.sgd.lines("0", n, 2)) for n in (47, 48, 57))
    assert 2.9 < dearest <= 3.0 * (1 + 1e-3)  # by a coarse grid
    assert max(alone, whole) < dearest
    assert abs(cost(method.releases(SIZES, TIMES, DELTA)) / dearest - 1) < 1e-6
