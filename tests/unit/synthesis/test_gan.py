"""The GAN: what it clips, what its generator sees, when it stops, what the ledger says of it."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from tacit.codec import pack, unpack
from tacit.core import BadInput, Client, Gaussian, Ledger, NonPrivate, Sampling
from tacit.data.examples import Examples
from tacit.data.federated import LocalData
from tacit.engines.client_host import one_thread
from tacit.experiment.config import validated
from tacit.privacy.accounting import epsilon as certified
from tacit.privacy.calibrate import rdp_spend, spend
from tacit.privacy.mechanisms import PrivateSteps
from tacit.privacy.perexample import clipped_sum
from tacit.synthesis import gan as module
from tacit.synthesis.augment import Augment
from tacit.synthesis.budget import permitted
from tacit.synthesis.gan import GAN, Game
from tacit.synthesis.networks import Generator, as_drawn, enlarged, networks

DELTA = 1e-5
TINY = GAN(batch=4, epochs=2, width=2)


@pytest.fixture(autouse=True)
def single():
    with one_thread():
        yield


def client(n=8, shape=(1, 8, 8), classes=3, seed=0, labels=None, x=None):
    rng = np.random.default_rng(1)
    x = torch.from_numpy(rng.integers(0, 256, (n, *shape), np.uint8)) if x is None else x
    y = (
        torch.from_numpy(rng.integers(0, classes, len(x)))
        if labels is None
        else torch.tensor(labels)
    )
    data = LocalData(Examples(x, y), np.arange(len(x)), (0.3,) * shape[0], (0.2,) * shape[0])
    return Client(
        "0",
        0,
        data,
        None,
        nn.Identity(),
        {},
        np.random.default_rng(seed),
        "seeded",
        Ledger(),
        task="t",
    )


def fit(gan, me, counts=None, epsilon=math.inf, **more):
    counts = np.array([4, 3, 1]) if counts is None else np.array(counts)
    return gan.fit(me, classes=len(counts), counts=counts, epsilon=epsilon, delta=DELTA, **more)


def spent(me, relation="zero-out"):
    return certified(me.spent, unit="example", observer="server", delta=DELTA, relation=relation)


@pytest.fixture
def sums(monkeypatch):
    """What goes into the noise, step by step."""
    seen = []

    def noised(self, given):
        seen.append(torch.cat([s.flatten() for s in given]))
        return original(self, given)

    original = PrivateSteps.noised
    monkeypatch.setattr(PrivateSteps, "noised", noised)
    return seen


@pytest.fixture
def asked(monkeypatch):
    """The labels that the generator is asked for."""
    seen = []

    def forward(self, z, y):
        seen.append(y.tolist())
        return original(self, z, y)

    original = Generator.forward
    monkeypatch.setattr(Generator, "forward", forward)
    return seen


# What is clipped


def one_by_one(model, weights, losses, clip):
    """Each example's gradient through autograd, clipped over all parameters, added up."""
    total = [torch.zeros_like(w) for w in weights]
    for loss in losses:
        grads = torch.autograd.grad(loss, weights)
        norm = math.sqrt(sum(float(g.square().sum()) for g in grads))
        for t, g in zip(total, grads, strict=True):
            t += g * min(1.0, clip / norm)
    return total


@pytest.mark.parametrize("loss", ["standard", "wgan"])
@pytest.mark.parametrize(("channels", "conditional"), [(1, True), (1, False), (3, True)])
def test_a_pair_of_real_and_fake_is_clipped_as_one_example(channels, conditional, loss):
    gan = GAN(width=4, conditional=conditional, loss=loss)
    game = Game(gan, (channels, 32, 32), 3, np.random.default_rng(0))
    game.D.double()  # rounding is not what this is about
    pairs = torch.rand(5, 2, channels, 32, 32, dtype=torch.float64) * 2 - 1
    y = torch.tensor([0, 1, 2, 1, 0])
    weights = list(game.D.parameters())
    each = [
        (
            game.real_loss(game.D, real[None], label[None])
            + game.fake_loss(game.D, fake[None], label[None])
        ).sum()
        for (real, fake), label in zip(pairs, y, strict=True)
    ]
    _, norms = clipped_sum(game.D, game.pair_loss, pairs, y, math.inf, rows=2)
    clip = float(norms.median())  # some are clipped, some are not
    want = one_by_one(game.D, weights, each, clip)
    for micro in (2, None):
        got, _ = clipped_sum(game.D, game.pair_loss, pairs, y, clip, micro, rows=2)
        for w, g in zip(weights, want, strict=True):
            torch.testing.assert_close(got[w], g, rtol=1e-4, atol=5e-5 * clip)


def test_rows_are_clipped_together_in_every_kind_of_layer():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(4, 4, 3, groups=2), nn.GroupNorm(2, 4), nn.Tanh(), nn.ConvTranspose2d(4, 2, 3, 2),
        nn.InstanceNorm2d(2, affine=True), nn.Flatten(),
        nn.Linear(2 * 9 * 9, 6), nn.LayerNorm(6), nn.Linear(6, 1),
    )  # fmt: skip

    def loss(m, x, y):
        return (m(x.flatten(0, 1)).view(-1, 3).tanh() * y).sum(1)

    x, y = torch.randn(4, 3, 4, 6, 6), torch.randn(4, 3)
    weights = list(model.parameters())
    clip = float(clipped_sum(model, loss, x, y, math.inf, rows=3)[1].median())
    want = one_by_one(
        model, weights, [loss(model, x[i : i + 1], y[i : i + 1]).sum() for i in range(4)], clip
    )
    got, _ = clipped_sum(model, loss, x, y, clip, rows=3)
    for w, g in zip(weights, want, strict=True):
        torch.testing.assert_close(got[w], g, rtol=2e-4, atol=1e-4 * clip)


def test_one_more_record_moves_the_sum_by_at_most_the_clip(sums):
    few, gan = client(5), replace(TINY, batch=50, epochs=1, clip=0.3)
    more = client(
        x=torch.cat([few.data.examples.x, torch.full((1, 1, 8, 8), 255, dtype=torch.uint8)]), seed=0
    )
    for me in (few, more):
        fit(gan, me, counts=[2, 2, 1])
    a, b = sums
    assert 0 < float((a - b).norm()) <= 0.3 * (1 + 1e-4)


def test_only_the_real_images_go_into_the_noise(sums):
    """Without any, the sum is zero, though there are fakes."""
    fit(TINY, client(0), counts=[2, 2, 2])
    assert sums
    assert all(float(s.norm()) == 0.0 for s in sums)


def test_certified_examples_are_clipped_one_by_one(sums):
    me, gan = client(3), replace(TINY, batch=9, epochs=1, clip=0.1)
    fit(gan, me, counts=[1, 1, 1])
    assert float(sums[0].norm()) <= 3 * 0.1 * (1 + 1e-4)


@pytest.mark.parametrize("classes", [0, 3])
def test_neither_network_mixes_examples(classes):
    D, G = networks(1, classes, 4, 5, seed=1)
    z, y = torch.randn(4, 5), torch.tensor([0, 1, 2, 0])
    images = G(z, y)
    torch.testing.assert_close(images[1:2], G(z[1:2], y[1:2]), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(D(images, y)[1:2], D(images[1:2], y[1:2]), rtol=1e-4, atol=1e-4)
    assert not list(D.buffers())  # no running statistics
    assert not list(G.buffers())


# What the generator sees


def test_the_certified_generator_never_sees_a_private_label(asked):
    """Other private labels, the same released counts.

    It is asked for the same labels, and for those counts' only.
    """
    seen = []
    for labels in ([0, 0, 0, 0, 1, 1, 1, 2], [2, 2, 2, 2, 2, 2, 2, 2]):
        asked.clear()
        fit(replace(TINY, z=1.0), client(labels=labels), counts=[3, 5, -2])
        seen.append([list(y) for y in asked])
    assert seen[0] == seen[1]
    assert {y for labels in seen[0] for y in labels} == {0, 1}


def test_in_paper_mode_it_sees_those_of_the_batch(asked):
    fit(replace(TINY, mode="paper"), client(labels=[2] * 8), counts=[8, 0, 0])
    assert {y for labels in asked for y in labels} == {2}


def test_an_unconditional_gan_looks_at_no_label():
    gan = replace(TINY, conditional=False)
    one = fit(gan, client(labels=[0] * 8), counts=[8, 0, 0])
    other = fit(gan, client(labels=[2] * 8), counts=[8, 0, 0])
    assert one.generator.label is None
    y, rng = torch.arange(3), np.random.default_rng
    assert torch.equal(one.draw(y, rng(0)), other.draw(y * 0, rng(0)))


# When it stops, and how much noise there is


def test_the_noise_is_solved_from_the_budget():
    plan = GAN().plan(6000, 1.0, DELTA)
    assert plan.z == pytest.approx(5.55, abs=0.01)
    assert (plan.steps, plan.q) == (1172, 256 / 6000)
    assert spend(plan.z, plan.steps, plan.q, delta=DELTA) <= 1.0


def test_the_published_budget_ends_after_epoch_32_by_the_papers_accountant():
    """By the certificate it would last until epoch 42."""
    plan = GAN(mode="paper").plan(6000, 50.0, DELTA)
    assert plan.z == 0.5
    assert plan.steps == 750 == 32 * 6000 / 256
    assert rdp_spend(0.5, 750, plan.q, delta=DELTA) == pytest.approx(49.5, rel=1e-3)
    assert rdp_spend(0.5, round(33 * 6000 / 256), plan.q, delta=DELTA) > 50.0


SLOW = pytest.mark.slow
OTHERS = [pytest.param(epsilon, marks=SLOW) for epsilon in (0.01, 0.1, 5.0)]


@pytest.mark.parametrize("epsilon", [1.0, 20.0, *OTHERS])
def test_smaller_budgets_of_the_papers_have_their_noise_solved(epsilon):
    """By the papers' accountant, for all epochs; the certificate is below."""
    plan = GAN(mode="paper").plan(6000, epsilon, DELTA)
    assert plan.steps == 1172
    assert plan.z > 0.5
    cost = rdp_spend(plan.z, plan.steps, plan.q, delta=DELTA)
    assert 0.99 * epsilon <= cost <= epsilon
    assert spend(plan.z, plan.steps, plan.q, delta=DELTA) < epsilon


def test_in_paper_mode_no_noise_can_be_chosen():
    plan = GAN(mode="paper", z=0.0).plan(6000, 50.0, DELTA)
    assert (plan.z, plan.steps) == (0.0, 1172)
    me = client()
    fit(replace(TINY, mode="paper", z=0.0), me, epsilon=50.0)
    assert spent(me) == math.inf


@pytest.mark.parametrize("mode", ["certified", "paper"])
def test_training_stops_before_the_step_that_would_pass_the_budget(mode):
    cost = {"certified": spend, "paper": rdp_spend}[mode]
    budget = cost(2.0, 3, delta=DELTA) + 0.01  # three steps on everybody
    gan, done = GAN(mode=mode, z=2.0, epochs=10, batch=9, width=2, conditional=False), []
    me = client(8)
    fit(gan, me, counts=[4, 3, 1], epsilon=budget, watch=lambda t, of: done.append((t, of)))
    assert done == [(1, 3), (2, 3), (3, 3)]
    assert spent(me) == pytest.approx(spend(2.0, 3, delta=DELTA))


def test_no_budget_no_noise_and_the_ledger_says_so():
    assert GAN().plan(6000, math.inf, DELTA).z == 0.0
    me = client()
    fit(TINY, me)
    assert spent(me) == math.inf


def test_a_budget_for_not_even_one_step_is_refused():
    with pytest.raises(
        BadInput, match=r"gan\.z = 0\.5: one step alone costs more than epsilon 0\.1"
    ):
        permitted("certified", 10, 0.5, 1.0, 0.1, DELTA)
    with pytest.raises(BadInput, match=r"gan\.z = 0"):
        permitted("certified", 10, 0.0, 0.5, 5.0, DELTA)


# What the ledger says


def test_a_certified_training_costs_its_budget_and_hides_the_number_of_records():
    gan, seen = replace(TINY, epochs=1), []
    for n in (8, 11):
        me = client(n)
        fit(gan, me, counts=[4, 3, 1], epsilon=2.0)
        (line,) = me.drawn
        seen.append((line.event, line.sampling, line.steps))
        assert 1.9 < spent(me) <= 2.0
    assert seen[0] == seen[1]  # all of it follows from the released counts
    assert seen[0][1:] == (Sampling("poisson", 0.5), 2)


def test_the_ledger_of_paper_mode_says_what_ran():
    me = client(8)
    fit(replace(TINY, mode="paper", z=1.5), me)
    labels, steps = me.drawn
    assert isinstance(labels.event, NonPrivate)
    assert "labels" in labels.event.why
    assert (steps.event, steps.sampling, steps.steps) == (Gaussian(1.5), Sampling("fixed", 0.5), 4)
    assert spent(me) == math.inf
    alone = client(8)
    fit(replace(TINY, mode="paper", z=1.5, conditional=False), alone)
    assert spent(alone) == pytest.approx(spend(1.5, 4, 0.5, delta=DELTA, law="fixed"))


def test_batches_of_paper_mode_have_a_fixed_size_and_no_record_twice(monkeypatch):
    sizes = []

    def pictures(me, rows):
        sizes.append((len(rows), len(set(rows.tolist()))))
        return original(me, rows)

    original = module.pictures
    monkeypatch.setattr(module, "pictures", pictures)
    fit(replace(TINY, mode="paper"), client(9))
    assert sizes == [(4, 4)] * len(sizes)


def test_every_record_is_as_likely_in_a_batch_of_fixed_size():
    steps = PrivateSteps(client(), 3 / 7, 1.0, 1.0, 3000, law="fixed")
    times = np.bincount(np.concatenate(list(steps.samples(7))), minlength=7)
    assert np.abs(times - 3000 * 3 / 7).max() < 5 * math.sqrt(3000 * 3 / 7 * 4 / 7)


def test_claims_are_the_reference_values():
    said = Augment(mode="paper").claims({"a": 6000, "b": 9000}, DELTA)
    assert [name for name, _, _ in said] == [
        "published",
        "moments",
        *("PLD", "PLD", "PLD"),
        "certified",
    ]
    published, moments, poisson, replaced, fixed, end_to_end = (eps for _, eps, _ in said)
    assert published == 50
    assert moments == pytest.approx(49.5, abs=0.05)
    assert poisson == pytest.approx(55.70, abs=0.01)
    assert replaced == pytest.approx(71.5, abs=0.1)
    assert fixed > 420
    assert end_to_end == math.inf
    assert "epoch 32" in said[1][2]


# Images


@pytest.mark.parametrize("shape", [(1, 28, 28), (1, 8, 8), (3, 32, 32), (3, 12, 20), (1, 48, 48)])
@pytest.mark.parametrize("mode", ["certified", "paper"])
def test_images_come_back_in_the_shape_of_the_data(shape, mode):
    fitted = fit(replace(TINY, epochs=1, mode=mode), client(4, shape), counts=[2, 1, 1])
    images = fitted.draw(torch.tensor([0, 1, 2, 2, 1]), np.random.default_rng(0))
    assert images.shape == (5, *shape)
    assert images.dtype == torch.uint8
    assert fitted.draw(torch.zeros(0, dtype=torch.int64), np.random.default_rng(0)).shape == (
        0,
        *shape,
    )


def test_to_the_networks_and_back_changes_nothing_but_sharpness():
    flat = torch.full((2, 1, 28, 28), 0.6)
    assert enlarged(flat).shape == (2, 1, 32, 32)
    torch.testing.assert_close(enlarged(flat), torch.full((2, 1, 32, 32), 0.2))
    assert set(as_drawn(enlarged(flat), 28, 28).flatten().tolist()) == {153}
    sharp = torch.rand(2, 3, 32, 32)
    assert torch.equal(as_drawn(enlarged(sharp), 32, 32), (sharp * 255).round().to(torch.uint8))
    assert as_drawn(torch.tensor([[[[-1.0, 1.0]]]]), 1, 2).tolist() == [[[[0, 255]]]]


def test_pixels_are_what_the_client_holds_whatever_the_scaling():
    me = client(3, (3, 32, 32))
    x, y = module.pictures(me, np.array([2, 0]))
    torch.testing.assert_close(x, me.data.examples.x[[2, 0]] / 127.5 - 1, rtol=0, atol=1e-5)
    assert torch.equal(y, me.data.examples.y[[2, 0]])


@pytest.mark.parametrize(
    "x", [torch.rand(4, 1, 8, 8), torch.rand(4, 7), torch.zeros(4, 7, dtype=torch.uint8)]
)
def test_what_is_not_an_image_of_bytes_is_refused(x):
    with pytest.raises(BadInput, match="generator = 'gan': needs images of bytes"):
        fit(TINY, client(x=x))


# Training


@pytest.mark.parametrize("mode", ["certified", pytest.param("paper", marks=SLOW)])
def test_it_learns_how_bright_the_images_are(mode):
    white = torch.full((16, 1, 8, 8), 255, dtype=torch.uint8)
    gan = GAN(mode=mode, batch=8, epochs=15, width=2, lr=1e-2, discriminator_steps=1, ema=0.5)
    me, y = client(x=white, labels=[1] * 16), torch.ones(20, dtype=torch.int64)
    before = (
        replace(gan, epochs=1, lr=1e-9)
        .fit(client(x=white, labels=[1] * 16), **ones())
        .draw(y, np.random.default_rng(0))
    )
    after = gan.fit(me, **ones()).draw(y, np.random.default_rng(0))
    assert after.float().mean() > before.float().mean() + 40


def ones():
    return {"classes": 3, "counts": np.array([0, 16, 0]), "epsilon": math.inf, "delta": DELTA}


@pytest.mark.parametrize(
    ("mode", "loss"),
    [
        ("certified", "standard"),
        ("paper", "wgan"),
        pytest.param("certified", "saturating", marks=SLOW),
        pytest.param("certified", "wgan", marks=SLOW),
        pytest.param("paper", "standard", marks=SLOW),
        pytest.param("paper", "saturating", marks=SLOW),
    ],
)
def test_a_run_can_be_repeated_and_leaves_torch_alone(mode, loss):
    drawn = []
    for other in (1, 2):
        torch.manual_seed(other)
        state = torch.get_rng_state()
        fitted = fit(replace(TINY, mode=mode, loss=loss, epochs=1), client(seed=5), epsilon=50.0)
        drawn.append(fitted.draw(torch.arange(3), np.random.default_rng(9)))
        assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(*drawn)
    elsewhere = fit(replace(TINY, mode=mode, loss=loss, epochs=1), client(seed=6), epsilon=50.0)
    assert not torch.equal(drawn[0], elsewhere.draw(torch.arange(3), np.random.default_rng(9)))


def test_a_wgan_clamps_the_discriminator():
    game = Game(replace(TINY, loss="wgan"), (1, 8, 8), 3, np.random.default_rng(0))
    game.improve_D([torch.ones_like(w) for w in game.D.parameters()])
    assert max(w.detach().abs().max() for w in game.D.parameters()) <= module.CLAMP


def test_the_generator_has_one_turn_for_several_of_the_discriminator(monkeypatch):
    turns = []
    monkeypatch.setattr(Game, "improve_G", lambda self, images, y: turns.append(len(turns)))
    # 8 steps: after 3, 6 and the last
    fit(replace(TINY, epochs=4, discriminator_steps=3), client())
    assert len(turns) == 3


def test_without_an_average_the_last_generator_draws():
    game = Game(replace(TINY, ema=0.0), (1, 8, 8), 3, np.random.default_rng(0))
    averaged = Game(replace(TINY, ema=0.9), (1, 8, 8), 3, np.random.default_rng(0))
    start = [w.clone() for w in game.G.parameters()]
    y = torch.tensor([0, 1])
    for g in (game, averaged):
        for _ in range(2):
            g.improve_G(g.fakes(y), y)
    for w, slow in zip(game.G.parameters(), game.average.parameters(), strict=True):
        assert torch.equal(w, slow)
    behind = [
        (w - slow).norm() <= (w - first).norm() and not torch.equal(w, slow)
        for w, slow, first in zip(
            averaged.G.parameters(), averaged.average.parameters(), start, strict=True
        )
        if w.dim() > 2
    ]
    assert behind
    assert all(behind)


@pytest.mark.parametrize("mode", ["certified", "paper"])
def test_one_record_is_enough(mode):
    me = client(1)
    images = fit(replace(TINY, mode=mode), me, counts=[0, 1, 0], epsilon=20.0).draw(
        torch.tensor([1]), me.rng
    )
    assert images.shape == (1, 1, 8, 8)


def test_a_client_without_records():
    me = client(0)
    fit(TINY, me, counts=[0, 1, -4], epsilon=2.0)  # nobody can tell
    assert spent(me) <= 2.0
    with pytest.raises(BadInput, match="client 0: has no examples"):
        fit(replace(TINY, mode="paper"), me)


@pytest.mark.parametrize("mode", ["certified", "paper"])
def test_a_batch_larger_than_the_data_takes_everybody(mode):
    me = client(5)
    fit(replace(TINY, mode=mode, batch=64, conditional=False, z=3.0), me, counts=[2, 2, 1])
    (line,) = me.drawn
    assert (line.sampling, line.steps) == (Sampling(), 2)


# Settings


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("mode", "papr"), ("epochs", 0), ("epochs", 1.5), ("batch", 0), ("z", -1.0),
        ("clip", 0.0), ("lr", 0.0), ("beta1", 1.0), ("beta2", -0.1), ("discriminator_steps", 0),
        ("ema", 1.0), ("loss", "hinge"), ("latent", 0),
        ("width", 0), ("z", math.nan),
    ],
)  # fmt: skip
def test_bad_settings_are_refused_by_name(field, value):
    with pytest.raises(BadInput, match=rf"gan\.{field} = "):
        GAN(**{field: value})


def test_settings_travel_and_are_read_from_files():
    gan = GAN(mode="paper", z=0.7, discriminator_steps=2)
    assert unpack(pack(gan)) == gan
    assert validated(GAN, {"mode": "paper", "z": 0.7, "discriminator_steps": 2}) == gan
    assert validated(GAN, {"z": "auto", "clip": 1}) == GAN(clip=1.0)
