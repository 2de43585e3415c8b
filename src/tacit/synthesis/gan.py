"""DA-FL's private sample generation (PSG; Tang et al. 2023).

A conditional GAN, its discriminator by DP-SGD.

`paper`: algorithm 2. An example is a pair, a real image and a fake one of the same label; its
gradient is clipped as one. Batches have a fixed size, and the generator learns from their labels as
they are. Its loss log(1 - D) is to be had as `saturating`: within 30 steps the discriminator is so
sure that nothing more is learnt, so the usual -log D is used.
`certified`: batches are Poisson samples; only the term of the real images is clipped and noised,
for nothing else depends on them; fake labels, for both networks, are drawn from the released class
counts, whose total stands in for the number of examples; the discriminator takes several steps for
one of the generator's.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tacit.core import Array, BadInput, Client, ClientId, Diverged, Release, check
from tacit.models.precision import Precision, compute_in
from tacit.privacy.mechanisms import PrivateSteps
from tacit.privacy.perexample import clipped_sum
from tacit.privacy.rules import NoisySteps, Open, Together
from tacit.synthesis.budget import Mode, permitted, solved_noise
from tacit.synthesis.labels import public_size, shares
from tacit.synthesis.networks import Generator, as_drawn, enlarged, networks

Auto = Literal["auto"]
Shape = tuple[int, int, int]  # channels, height, width
Watch = Callable[[int, int], object]  # gets the steps done, and of how many

OWN = {
    "paper": {"clip": 2.0, "lr": 2e-4, "discriminator_steps": 1, "ema": 0.0},
    "certified": {"clip": 1.0, "lr": 1e-3, "discriminator_steps": 3, "ema": 0.99},
}
CLAMP = 0.01  # a WGAN's bound on the discriminator's weights (Arjovsky et al. 2017)
LABELS = "the generator learns from the labels of the private batches, which have no noise"


@dataclass(frozen=True)
class GANSettings:
    """How a client's generator is trained; `auto` stands for what the method's mode needs."""

    epochs: int = 50  # passes over the data, as far as the budget lasts
    batch: int = 256  # B, examples in a step
    # noise multiplier; auto: solved from epsilon; in paper mode 0.5, or solved if that is too small
    z: float | Auto = "auto"
    clip: float | Auto = "auto"  # c, bound on each example's gradient; auto: 1; in paper mode 2
    lr: float | Auto = "auto"  # Adam's step size, for both networks; auto: 1e-3; in paper mode 2e-4
    beta1: float = 0.5  # Adam's memory of gradients
    beta2: float = 0.999  # Adam's memory of their squares
    discriminator_steps: int | Auto = "auto"  # steps for one of the generator's; auto: 3; paper: 1
    # decay of the moving average of generators that draws; auto: 0.99; in paper mode 0
    ema: float | Auto = "auto"
    # what the generator minimises: -log D, log(1 - D), or minus D
    loss: Literal["standard", "saturating", "wgan"] = "standard"
    conditional: bool = True  # whether both networks see labels
    latent: int = 10  # random numbers that an image is made from
    # channels of the networks' outermost layers; fewer weights are less noise, and faster
    width: int = 16

    def __post_init__(self) -> None:
        check.choice("gan.loss", self.loss, ("standard", "saturating", "wgan"))
        for name in ("epochs", "batch", "latent", "width"):
            check.number(f"gan.{name}", getattr(self, name), at_least=1, whole=True)
        check.number("gan.beta1", self.beta1, at_least=0, below=1)
        check.number("gan.beta2", self.beta2, at_least=0, below=1)
        self._check("z", at_least=0)
        if self.clip != "auto":
            check.clip("gan.clip", self.clip)
        self._check("lr", above=0)
        self._check("discriminator_steps", at_least=1, whole=True)
        self._check("ema", at_least=0, below=1)

    def _check(self, name: str, **allowed: Any) -> None:
        if getattr(self, name) != "auto":
            check.number(f"gan.{name}", getattr(self, name), **allowed)

    def in_mode(self, mode: Mode) -> GAN:
        """Return the training that these settings are for."""
        return GAN(**vars(self), mode=mode)


@dataclass(frozen=True)
class GAN(GANSettings):
    """The training of a client's generator in one of the two modes."""

    mode: Mode = "certified"  # certified: epsilon is a theorem; paper: as published

    def __post_init__(self) -> None:
        super().__post_init__()
        check.choice("gan.mode", self.mode, OWN)

    def own(self, name: str) -> float:
        """Return a setting, or what the mode needs where it is `auto`."""
        value = getattr(self, name)
        return float(OWN[self.mode][name] if value == "auto" else value)

    def rule(self, epsilon: float, delta: float) -> Training:
        """Return the rule of a training within a budget."""
        return Training(self, epsilon, delta)

    def plan(self, n: int, epsilon: float, delta: float) -> NoisySteps:
        """Return the steps of a training on ``n`` examples, a public number.

        No more of them than the budget permits.
        """
        q = min(self.batch, n) / n
        steps = max(1, round(self.epochs / q))
        z = self.z
        if z == "auto":
            z = solved_noise(self.mode, steps, q, epsilon, delta)
        if self.z != "auto" or self.mode == "paper":
            steps = permitted(self.mode, steps, z, q, epsilon, delta)
        law: Literal["poisson", "fixed"] = "poisson" if self.mode == "certified" else "fixed"
        return NoisySteps(q, self.own("clip"), z, steps, law, "gan dp-sgd")

    def fit(
        self,
        me: Client,
        *,
        classes: int,
        counts: Array | None,
        epsilon: float,
        delta: float,
        watch: Watch | None = None,
    ) -> Fitted:
        """Train on a client's images within a budget.

        ``counts`` are its released class counts, which a certified training needs and the paper's
        does not look at. In paper mode the budget ends where the paper's accountant says so; the
        ledger has what was really spent.
        """
        shape = image_shape(me)
        known = counts if self.mode == "certified" else None
        if self.mode == "certified" and known is None:
            raise ValueError("counts: a certified training needs released ones")
        size = len(me.data) if known is None else public_size(known)
        if size == 0:
            raise BadInput(
                f"client {me.id}: has no examples, and mode = 'paper' needs at least one"
            )
        game = Game(self, shape, classes, me.rng, me.data.device, me.precision)
        B = min(self.batch, size)
        release = self.rule(epsilon, delta).begin(me, size)
        watch = watch or (lambda done, of: None)

        def train() -> dict[str, Tensor]:
            if known is None:
                self._paper(me, game, release, B, watch)
            else:
                self._certified(me, game, release, B, shares(known), watch)
            return game.average.state_dict()

        steps = (release.q, release.clip, release.z, release.steps, release.law)
        weights = None if known is None else known.tolist()
        what = repr((self, shape, classes, B, steps, weights, me.precision))
        game.average.load_state_dict(me.again(me, what, train))
        return game.fitted()

    def _certified(
        self, me: Client, game: Game, release: PrivateSteps, B: int, p: Array, watch: Watch
    ) -> None:
        # Labels and latents come from a seed that everybody may know, so how many are drawn must
        # not depend on the sample: B follows from released counts. The sample itself has a stream
        # of its own, and nothing is drawn for the real images.
        weights = list(game.D.parameters())
        for t, rows in enumerate(release.samples(len(me.data)), 1):
            real, _ = clipped_sum(game.D, game.real_loss, *pictures(me, rows), game.clip)
            noised = release.noised([real[w] for w in weights])
            y = game.labels(B, p)
            # to keep the balance
            with torch.no_grad():  # the generator learns from others
                images = game.fakes(y)
            fake, _ = clipped_sum(game.D, game.fake_loss, images, y, game.clip)
            game.improve_D([(g + fake[w]) / B for g, w in zip(noised, weights, strict=True)])
            if game.generator_is_due(t, release.steps):
                y = game.labels(B, p)
                game.improve_G(game.fakes(y), y)
            watch(t, release.steps)

    def _paper(self, me: Client, game: Game, release: PrivateSteps, B: int, watch: Watch) -> None:
        weights = list(game.D.parameters())
        # the comments count the lines of algorithm 2. Each row of a sample has its fake by its
        # place in it; all samples are of one size, so a record that is zeroed out changes its own
        # pair only
        for t, rows in enumerate(release.samples(len(me.data)), 1):
            x, y = pictures(me, rows)  # 4
            fakes = game.fakes(y)  # 3, 6
            pairs = torch.stack([x, fakes.detach()], 1)
            sums, _ = clipped_sum(game.D, game.pair_loss, pairs, y, game.clip, rows=2)  # 7 to 9
            game.improve_D([g / B for g in release.noised([sums[w] for w in weights])])  # 11, 12
            if game.generator_is_due(t, release.steps):
                game.improve_G(fakes, y)  # 14 to 18
            watch(t, release.steps)


@dataclass(frozen=True)
class Training:
    """The rule of a GAN's training: noisy steps and, as published, labels as they are."""

    gan: GAN
    epsilon: float  # budget of the steps
    delta: float

    @property
    def labels(self) -> tuple[Open, ...]:
        """What the generator learns without noise, if anything."""
        bare = self.gan.mode == "paper" and self.gan.conditional
        return (Open("gan labels", LABELS),) if bare else ()

    def steps(self, n: int) -> NoisySteps:
        """Return the rule of the steps on ``n`` examples, a public number."""
        return self.gan.plan(n, self.epsilon, self.delta)

    def begin(self, me: Client, n: int) -> PrivateSteps:
        """Write the lines; return what draws the samples and the noise of the steps."""
        for bare in self.labels:
            bare.note(me)
        return self.steps(n).begin(me)

    def lines(self, owner: ClientId, n: int, times: int) -> list[Release]:
        return Together((*self.labels, self.steps(n))).lines(owner, n, times)


def image_shape(me: Client) -> Shape:
    """Return the shape of a client's images, or refuse what is none."""
    x = me.data.examples.x
    if x.dtype != torch.uint8 or x.dim() != 4:
        dtype = str(x.dtype).removeprefix("torch.")
        what = f"{dtype} inputs of shape {'x'.join(map(str, x.shape[1:]))}"
        raise BadInput(
            f"generator = 'gan': needs images of bytes (channels, height, width), not {what}"
        )
    return x.shape[1], x.shape[2], x.shape[3]


def pictures(me: Client, rows: Array) -> tuple[Tensor, Tensor]:
    """Return some of a client's images as the networks see them, and their labels."""
    x, y = me.data.batch(rows)
    mean, std = (
        torch.tensor(v, device=x.device).view(-1, 1, 1) for v in (me.data.mean, me.data.std)
    )
    return enlarged((x * std + mean).clamp(0, 1)), y


class Game:
    """The two networks, what each of them wants, and how it gets better at that."""

    def __init__(
        self,
        gan: GAN,
        shape: Shape,
        classes: int,
        rng: np.random.Generator,
        device: str = "cpu",
        precision: Precision = "f32",
    ) -> None:
        self.gan = gan
        self.shape = shape
        self.rng = rng
        self.device = device
        self.clip = gan.own("clip")
        seed = int(rng.integers(2**63))
        known = classes if gan.conditional else 0
        self.D, self.G = networks(shape[0], known, gan.width, gan.latent, seed, device)
        # what the generator learns from; the discriminator itself learns in single precision
        self.judge = copy.copy(self.D)
        for net in (self.G, self.judge):
            compute_in(precision, net)
        self.average = copy.deepcopy(self.G)
        self.turns = 0
        lr = gan.own("lr")
        betas = (gan.beta1, gan.beta2)
        self.opt_D, self.opt_G = (
            torch.optim.Adam(net.parameters(), lr, betas) for net in (self.D, self.G)
        )

    def real_loss(self, D: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """Return -log D(x, y) of each real image; for a WGAN minus its score."""
        return self._loss(-D(x, y))

    def fake_loss(self, D: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """Return -log(1 - D(x, y)) of each fake image; for a WGAN its score."""
        return self._loss(D(x, y))

    def pair_loss(self, D: nn.Module, pairs: Tensor, y: Tensor) -> Tensor:
        """Return the sum of both for each pair of a real image and a fake one of the same label."""
        scores = D(pairs.flatten(0, 1), y.repeat_interleave(2)).view(-1, 2)
        return self._loss(-scores[:, 0]) + self._loss(scores[:, 1])

    def _loss(self, wrong: Tensor) -> Tensor:
        return wrong if self.gan.loss == "wgan" else F.softplus(wrong)

    def labels(self, n: int, p: Array) -> Tensor:
        """Return labels with the given probabilities."""
        return torch.from_numpy(self.rng.choice(len(p), n, p=p)).to(self.device)

    def fakes(self, y: Tensor) -> Tensor:
        """Return a new image for each label."""
        images: Tensor = self.G(latents(len(y), self.gan.latent, self.rng).to(self.device), y)
        return images

    def improve_D(self, gradient: Sequence[Tensor]) -> None:
        """Let the discriminator go against a gradient."""
        for w, g in zip(self.D.parameters(), gradient, strict=True):
            w.grad = g
        self.opt_D.step()
        if self.gan.loss == "wgan":
            for w in self.D.parameters():
                w.data.clamp_(-CLAMP, CLAMP)

    def generator_is_due(self, t: int, steps: int) -> bool:
        """Tell whether the generator's turn comes after the discriminator's step number ``t``."""
        return t % int(self.gan.own("discriminator_steps")) == 0 or t == steps

    def improve_G(self, images: Tensor, y: Tensor) -> None:
        """Let the generator make such images look more real, and the average follow it."""
        weights = list(self.G.parameters())
        fading = self.gan.loss == "saturating"
        D = self.judge
        loss = -self.fake_loss(D, images, y) if fading else self.real_loss(D, images, y)
        for w, g in zip(weights, torch.autograd.grad(loss.mean(), weights), strict=True):
            w.grad = g
        self.opt_G.step()
        self.turns += 1
        # the first generators are soon forgotten
        decay = min(self.gan.own("ema"), self.turns / (self.turns + 10))
        with torch.no_grad():
            for slow, w in zip(self.average.parameters(), weights, strict=True):
                slow.lerp_(w, 1 - decay)

    def fitted(self) -> Fitted:
        """Return the average generator, ready to draw."""
        if not all(w.isfinite().all() for w in self.average.parameters()):
            raise Diverged(
                "gan: training gave a number that is not finite (a smaller gan.lr may help)"
            )
        return Fitted(self.average.requires_grad_(False), self.shape, self.device)


@dataclass(frozen=True)
class Fitted:
    """A trained generator. It came out of a mechanism, so what it draws costs nothing more."""

    generator: Generator
    shape: Shape
    device: str = "cpu"

    def draw(self, labels: Tensor, rng: np.random.Generator) -> Tensor:
        """Return an image for each label: bytes, in the shape of the client's own."""
        images = [torch.zeros(0, *self.shape, dtype=torch.uint8)]
        for start in range(0, len(labels), 256):
            y = labels[start : start + 256]
            z = latents(len(y), self.generator.latent, rng)
            images.append(
                as_drawn(
                    self.generator(z.to(self.device), y.to(self.device)), *self.shape[1:]
                ).cpu()
            )
        return torch.cat(images)


def latents(n: int, size: int, rng: np.random.Generator) -> Tensor:
    """Return standard normal vectors."""
    return torch.from_numpy(rng.standard_normal((n, size), np.float32))
