"""Mini-batch SGD on one client's data; with a clip and noise it is DP-SGD."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import ClassVar, Literal, Self

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from tacit.core import (
    Accounted,
    BadInput,
    Client,
    ClientId,
    Known,
    Method,
    NotPrivate,
    Params,
    Predictor,
    PublicFloat,
    PublicInt,
    Release,
    Sizes,
    Times,
    check,
    load_params,
    params_of,
)
from tacit.core.data import GOALS, Goal, LocalData
from tacit.core.method import S
from tacit.local import optimizers, schedules
from tacit.local.linear import Turns, chosen
from tacit.privacy import checks
from tacit.privacy.calibrate import noise_for, spend
from tacit.privacy.clipping import clipped_gradients
from tacit.privacy.insides import Memory
from tacit.privacy.losses import LOSSES
from tacit.privacy.perexample import linear_alone
from tacit.privacy.rules import NoisySteps

Loss = Callable[[nn.Module, Tensor, Tensor], Tensor]
# (gradient, where we are) -> the direction a method goes instead
Correction = Callable[[Params, Params], Params]
Steps = Callable[[list[nn.Parameter]], Iterator[list[Tensor]]]  # the gradient of each step


def cross_entropy(model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross-entropy of a batch."""
    return F.cross_entropy(model(inputs), labels)


def mean_loss(goal: Goal) -> Loss:
    """Return the mean loss of a batch, for what is predicted."""
    if goal == "classes":
        return cross_entropy
    return lambda model, inputs, labels: LOSSES[goal](model, inputs, labels).mean()


USUAL_LR, USUAL_EPOCHS, USUAL_BATCH = 0.05, 1, 32
NOT_A_SUM = "must be 0; the method's loss is not a sum over examples, so it cannot train privately"
WITHOUT = "updates are sent without noise; sgd.clip = 1, say, is DP-SGD"
FOR_CLIENTS = (
    "must be 0; the method's noise is for whole clients, and DP-SGD would release more "
    "(fedavg takes a clip)"
)


@dataclass(frozen=True)
class SGD:
    """Local training: ``epochs`` passes over the client's data in mini-batches.

    With ``clip`` it is DP-SGD: Poisson samples of ``batch`` examples on average, gradients clipped
    one by one, noise of ``z * clip`` on their sum. What is trained so may leave the client; the
    ledger says at what cost.
    """

    # step size; auto: by the method's rule, or 0.05 where it has none
    lr: float | Literal["auto"] = USUAL_LR
    # how a step uses its gradient; adam: step sizes that follow each weight's gradients
    optimizer: optimizers.Name = field(default="sgd", kw_only=True)
    # passes over the client's data in one round; auto: by the method's rule, or 1
    epochs: int | Literal["auto"] = 1
    # examples per step; the last one may be smaller; auto: by the method's rule, or 32
    batch: int | Literal["auto"] = 32
    momentum: float = 0.0  # heavy-ball, reset at every round
    weight_decay: float = 0.0  # L2 penalty on every parameter
    steps: int = 0  # steps in one round, in place of epochs; 0: as many as the epochs take
    decay: float = 1.0  # factor on the step size for each round that has passed
    # step size by round: constant, cosine:N, linear:N, warmup:N, step:N:FACTOR; + joins several
    schedule: str = field(default="constant", kw_only=True)
    clip: float = 0.0  # bound on each example's gradient; 0: not private
    z: float = 0.0  # noise multiplier, with clip
    # with clip: solve z so that all rounds cost this much for an example against the server
    epsilon: float = 0.0

    def __post_init__(self) -> None:
        check.number("sgd.lr", self.usual_lr, above=0)
        check.number("sgd.epochs", self.usual_epochs, at_least=1, whole=True)
        check.number("sgd.batch", self.usual_batch, at_least=1, whole=True)
        check.choice("sgd.optimizer", self.optimizer, ("sgd", "adam"))
        check.number("sgd.momentum", self.momentum, at_least=0, below=1)
        if self.momentum and self.optimizer != "sgd":
            raise BadInput(
                f"sgd.momentum = {self.momentum:g}: must be 0 with adam, which has its own"
            )
        check.number("sgd.weight_decay", self.weight_decay, at_least=0)
        check.number("sgd.steps", self.steps, at_least=0, whole=True)
        check.number("sgd.decay", self.decay, above=0, at_most=1)
        schedules.check_word("sgd.schedule", self.schedule)
        check.number("sgd.clip", self.clip, at_least=0)
        if self.clip:
            check.clip("sgd.clip", self.clip)
        check.number("sgd.z", self.z, at_least=0)
        check.number("sgd.epsilon", self.epsilon, at_least=0)
        if (self.z or self.epsilon) and not self.clip:
            raise BadInput(f"sgd.clip = {self.clip}: noise needs a clip above 0")

    def refuse_clip(self, why: str = FOR_CLIENTS, field: str = "sgd") -> None:
        """Refuse DP-SGD in a method that cannot take it, or whose guarantee it is no part of.

        Without a reason: in one whose noise is for whole clients.
        """
        if self.clip:
            raise BadInput(f"{field}.clip = {self.clip:g}: {why}")

    def need_clip(self, why: str) -> None:
        """Refuse training without DP-SGD where something asks for it."""
        if not self.clip:
            raise BadInput(f"{why}: needs sgd.clip above 0, and sgd.z or sgd.epsilon")

    def check_epsilon(self, epsilon: float, without: str = WITHOUT) -> None:
        """Refuse an epsilon of the whole method that this training cannot keep.

        Args:
            epsilon: of the method; 0: none was given
            without: what it is without a clip
        """
        check.number("epsilon", epsilon, at_least=0)
        if epsilon and not self.clip:
            raise NotPrivate(f"epsilon = {epsilon:g}: {without}")
        if epsilon and self.epsilon not in (0, epsilon):
            raise BadInput(f"sgd.epsilon = {self.epsilon:g}: epsilon = {epsilon:g} says it already")

    def refuse_adam(self, why: str) -> None:
        """Refuse steps that are not along the gradient, in a method that counts on it."""
        if self.optimizer != "sgd":
            raise BadInput(f"sgd.optimizer = {self.optimizer!r}: must be 'sgd'; {why}")

    def fit(
        self,
        me: Client,
        x: Params,
        *,
        grad: Correction | None = None,
        loss: Loss | None = None,
        bound: float = 0.0,
        gradients: Steps | None = None,
    ) -> tuple[Params, PublicInt]:
        """Minimise the local loss from ``x``; return where it ended and the number of steps.

        Args:
            me: the client, with its data and network
            x: the first point
            grad: ``grad(g, y)`` lets a method correct each gradient ``g`` at the present point
                ``y``; both are live tensors
            loss: of a batch; None: the mean over its examples, for what is predicted
            bound: clip each example's gradient to it, on batches as usual and without noise, as
                some papers do; above 0 it proves nothing, and what is trained stays private
            gradients: yields the gradient of each step for the network's weights, where it is not
                that of a loss
        """
        weights = load_params(me.model.train(), x)
        here = [w.detach() for w in weights]
        free = (self.clip > 0 or me.data.public) and x.released
        moves = optimizers.optimizer(self.optimizer, self.momentum)
        steps = 0
        lr = self.lr_in(me.round)
        given = gradients(weights) if gradients else self._gradients(me, weights, loss, bound)
        for g in given:
            if self.weight_decay:
                torch._foreach_add_(g, here, alpha=self.weight_decay)
            if grad is not None:
                at = Params(zip(x, here, strict=True)).as_released(free)
                direction = grad(Params(zip(x, g, strict=True)).as_released(free), at)
                # what it is made of decides, and that nothing was written to the network
                free = free and direction.released and at.released
                g = list(direction.values())
            moves.step(here, g, lr)
            steps += 1
        _check_in_place(weights, here)
        # as many steps as the size says
        return params_of(me.model).as_released(free), PublicInt(steps)

    def fit_for(self, me: Client, x: Params, epochs: float) -> Params:
        """Minimise for so many epochs instead; a fraction of one sees that fraction of the data."""
        whole, part = divmod(epochs, 1)
        if whole:
            x, _ = replace(self, epochs=int(whole), steps=0).fit(me, x)
        if some := round(part * len(me.data)):
            rows = me.data.rows[me.rng.permutation(len(me.data))[:some]]
            x, _ = replace(self, epochs=1, steps=0).fit(replace(me, data=me.data.only(rows)), x)
        return x

    @property
    def usual_lr(self) -> float:
        """The step size of the first round; the usual one where no rule has chosen another."""
        return USUAL_LR if self.lr == "auto" else self.lr

    @property
    def usual_epochs(self) -> int:
        """The passes over the data; the usual one where no rule has chosen others."""
        return USUAL_EPOCHS if self.epochs == "auto" else self.epochs

    @property
    def usual_batch(self) -> int:
        """The examples per step; the usual ones where no rule has chosen others."""
        return USUAL_BATCH if self.batch == "auto" else self.batch

    def as_usual(self) -> SGD:
        """Return this with the usual numbers where nothing was said and no rule has chosen any."""
        return replace(self, lr=self.usual_lr, epochs=self.usual_epochs, batch=self.usual_batch)

    def solves(self, epsilon: float) -> bool:
        """Tell whether noise is solved, from an epsilon of the whole method or of this training."""
        return self.clip > 0 and (epsilon or self.epsilon) > 0

    def tuned(
        self,
        known: Known,
        rounds: int,
        epsilon: float,
        *,
        per_round: int = 0,
        alone: bool = False,
        pull: float = 0.0,
        by_size: bool = False,
    ) -> SGD:
        """Return this with all that nobody has said, by rules where noise is solved.

        With another network than a linear model of features, or with noise that was given, it is
        as usual: steps on more examples would cost more than whoever gave the noise expects.

        Args:
            known: what is public
            rounds: how many there are
            epsilon: of the whole method; 0: this training has its own, or none
            per_round: clients that take part in a round; 0: all
            alone: nobody takes a mean of what clients train
            pull: how strongly a step draws a client's model to another one
            by_size: the mean of what clients train counts each by its examples
        """
        if not (known.linear and self.solves(epsilon)):
            return self.as_usual()
        k = per_round or len(known.sizes)
        times = rounds * k / len(known.sizes)
        averaged, weighted = (1, False) if alone else (k, by_size)
        cost = epsilon or self.epsilon
        only = alone or len(known.sizes) == 1
        turns = Turns(rounds, averaged, times, cost, pull, weighted, alone=only)
        return chosen(self, known, turns)

    def lr_in(self, round: int) -> PublicFloat:
        """Return the step size in a round."""
        factor = schedules.factor(self.schedule, round)
        return PublicFloat(self.usual_lr * self.decay**round * factor)

    def _gradients(
        self, me: Client, weights: list[nn.Parameter], loss: Loss | None, bound: float
    ) -> Iterator[list[Tensor]]:
        """Yield the gradient of each step."""
        if self.clip:
            return self._private(me, weights, loss)
        if bound:
            return self._bounded(me, weights, bound)
        return self._plain(me, weights, loss or mean_loss(me.goal))

    def _bounded(
        self, me: Client, weights: list[nn.Parameter], bound: float
    ) -> Iterator[list[Tensor]]:
        """Yield means of gradients that are clipped example by example."""
        check.clip("bound", bound)
        check_once(me)
        for rows in self.batches(len(me.data), me.rng):
            inputs, labels = me.data.batch(rows)
            sums = clipped_gradients(me.model, me.goal, inputs, labels, bound)
            yield list(torch._foreach_div([sums[w] for w in weights], float(len(rows))))

    def _plain(self, me: Client, weights: list[nn.Parameter], loss: Loss) -> Iterator[list[Tensor]]:
        for inputs, labels in me.data.batches(self.batches(len(me.data), me.rng)):
            yield list(torch.autograd.grad(loss(me.model, inputs, labels), weights))

    def _private(
        self, me: Client, weights: list[nn.Parameter], loss: Loss | None
    ) -> Iterator[list[Tensor]]:
        if loss is not None:
            raise BadInput(f"sgd.clip = {self.clip:g}: {NOT_A_SUM}")
        check_once(me)
        memory = Memory.of(me.model)
        release = self.noisy_steps(len(me.data)).begin(me)
        # a sample of everybody is in order, and a linear model writes to none of it: no copy
        whole = release.q == 1 and linear_alone(me.model) is not None
        for rows in release.samples(len(me.data)):
            inputs, labels = me.data.batch(slice(None) if whole else rows)
            sums = clipped_gradients(me.model, me.goal, inputs, labels, self.clip)
            noised = release.noised([sums[w] for w in weights])
            yield list(torch._foreach_div(noised, float(min(self.usual_batch, len(me.data)))))
        memory.check(me.model)

    def rate(self, n: int) -> float:
        """Return the share of ``n`` examples that a step of DP-SGD looks at."""
        return min(1.0, self.usual_batch / n)

    def lines(self, client: ClientId, n: int, times: int) -> list[Release]:
        """Return the ledger lines of a client with ``n`` examples after ``times`` rounds."""
        return self.noisy_steps(n).lines(client, n, times) if self.clip else []

    def noisy_steps(self, n: int) -> NoisySteps:
        """Return the rule of a round of DP-SGD on ``n`` examples."""
        return NoisySteps(self.rate(n), self.clip, self.z, self.private_steps(n))

    def costing(self, epsilon: float, *, clip: float, n: int, times: int, delta: float) -> SGD:
        """Return this as DP-SGD whose ``times`` rounds on ``n`` examples cost ``epsilon``."""
        steps = times * self.private_steps(n)
        return replace(self, clip=clip, z=noise_for(epsilon, steps, self.rate(n), delta=delta))

    def solved(
        self, sizes: Sizes, times: Times, delta: float, *, usual: float = 0.0, epsilon: float = 0.0
    ) -> SGD:
        """Return this with the noise for which the client that pays most spends ``epsilon``.

        Args:
            sizes: of the clients
            times: how often each takes part
            delta: of that epsilon
            usual: the noise multiplier that stands there if nobody has given one
            epsilon: of the whole method; 0: this training has its own, or none
        """
        if epsilon:
            return replace(self, epsilon=epsilon).solved(sizes, times, delta, usual=usual)
        if not self.epsilon:
            return self
        bills = {
            (self.private_steps(n) * times[c], self.rate(n)) for c, n in sizes.items() if times[c]
        }
        z = 0.0 if self.z == usual else self.z
        if z:  # one that was solved before, as in the config.toml of a run, or one that contradicts
            spent = max(spend(z, steps, q, delta=delta) for steps, q in bills)
            _check_noise(z, spent, self.epsilon)
        for steps, q in sorted(bills, key=lambda b: -b[1] * math.sqrt(b[0])):
            if z == 0 or spend(z, steps, q, delta=delta) > self.epsilon:
                z = noise_for(self.epsilon, steps, q, delta=delta)
        return replace(self, z=z)

    def steps_on(self, n: int) -> int:
        """Return the number of steps in one round on ``n`` examples."""
        if self.clip:
            return self.private_steps(n)
        return self.steps or self.usual_epochs * math.ceil(n / self.usual_batch)

    def private_steps(self, n: int) -> int:
        """Return the number of steps of DP-SGD in one round on ``n`` examples."""
        return self.steps or self.usual_epochs * max(1, round(n / self.usual_batch))

    def batches(self, n: int, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
        """Yield the rows of each mini-batch: every example once in each epoch."""
        if self.steps:
            epochs = -(-self.steps * self.usual_batch // n)
            yield from islice(replace(self, epochs=epochs, steps=0).batches(n, rng), self.steps)
            return
        B = self.usual_batch
        for _ in range(self.usual_epochs):
            order = rng.permutation(n)
            for start in range(0, n, B):
                yield order[start : start + B]

    def reach(self, steps: int) -> PublicFloat:
        """Return the sum of the weights of ``steps`` gradients in the final point, over ``lr``.

        FedNova's ``||a||_1``: the number of steps without momentum, more with it (a gradient acts
        again later).
        """
        m = self.momentum
        if m == 0.0:
            return PublicFloat(steps)
        return PublicFloat((steps - m * (1 - m**steps) / (1 - m)) / (1 - m))


def _check_in_place(weights: list[nn.Parameter], here: list[Tensor]) -> None:
    """Refuse a network that has put its weights elsewhere: what was trained is no longer in it."""
    if any(w.data_ptr() != h.data_ptr() for w, h in zip(weights, here, strict=True)):
        raise BadInput(
            "model: its forward pass gives a weight other memory (w.data = ...), so that training "
            "does not reach it; write in place (w.data.copy_(...) under torch.no_grad())"
        )


def _check_noise(z: float, spent: float, epsilon: float) -> None:
    """Refuse a noise multiplier that is not the one which an epsilon beside it asks for."""
    if not 0.98 * epsilon < spent < 1.001 * epsilon:
        raise BadInput(
            f"sgd.z = {z:g}: costs eps {spent:.3g}, not sgd.epsilon = {epsilon:g}; "
            "give one of them, the other 0"
        )


@dataclass(frozen=True)
class Trains(Method[S]):
    """What methods share whose clients train by SGD in every round, or by DP-SGD with a clip."""

    rounds: int = 20  # communication rounds
    per_round: int = 0  # clients sampled in each round; 0: everyone
    # local training; auto is chosen by rules with a clip, an epsilon and a linear model of features
    sgd: SGD = field(default_factory=lambda: SGD(lr="auto", epochs="auto", batch="auto"))
    # with sgd.clip: what every client spends over all rounds; 0: as sgd.z or sgd.epsilon say
    epsilon: float = field(default=0.0, kw_only=True)

    def __post_init__(self) -> None:
        check.rounds(self.rounds, self.per_round)
        self.sgd.check_epsilon(self.epsilon, self.without_clip)

    goals: ClassVar[tuple[Goal, ...]] = GOALS
    without_clip: ClassVar[str] = WITHOUT
    by_size: ClassVar[bool] = False  # whether its mean counts a client by its examples

    @property
    def per_example(self) -> bool:
        return self.sgd.clip > 0

    @property
    def prefers_features(self) -> bool:
        return self.sgd.solves(self.epsilon)

    @property
    def pull(self) -> float:
        """How strongly a step draws a client's model to another one: it bounds the step size."""
        return 0.0

    def tuned(self, known: Known) -> Self:
        """Choose what nobody has said of training."""
        sgd = self.sgd.tuned(
            known,
            self.rounds,
            self.epsilon,
            per_round=self.per_round,
            alone=not self.shares,
            pull=self.pull,
            by_size=self.by_size,
        )
        return replace(self, sgd=sgd)

    def solved(self, sizes: Sizes, times: Times, delta: float) -> Self:
        """Return it with the noise multiplier that its epsilon asks for."""
        usual = type(self)().sgd.z
        sgd = self.sgd.solved(sizes, times, delta, usual=usual, epsilon=self.epsilon)
        return replace(self, sgd=sgd)

    def rule(self, client: ClientId, n: int, K: int, delta: float) -> Accounted:
        """Return DP-SGD, whose steps are released, or that updates are sent as they are."""
        return self.sgd if self.sgd.clip else super().rule(client, n, K, delta)


def check_once(me: Client) -> None:
    """Refuse a network that cannot train privately, the first time it is asked to.

    Runs are refused before they start; this is for whoever calls a task in another way.
    """
    checks.check_once(me.model, tuple(me.data.source.x.shape[1:]), me.classes or None, me.goal)


def clipped_gradient(me: Client, x: Params, clip: float) -> Params:
    """Return the sum of the gradients of a client's examples at ``x``, each clipped by itself."""
    check.clip("clip", clip)
    check_once(me)
    weights = load_params(me.model.train(), x)
    inputs, labels = me.data.batch(slice(None))
    memory = Memory.of(me.model)
    sums = clipped_gradients(me.model, me.goal, inputs, labels, clip)
    memory.check(me.model)
    return Params(zip(x, (sums[w] for w in weights), strict=True))


def scores(predict: Predictor, data: LocalData) -> Tensor:
    """Return the scores of all of a client's examples."""
    with torch.no_grad():
        return torch.cat(
            [predict(data.batch(slice(i, i + 500))[0]) for i in range(0, len(data), 500)]
        ).cpu()


def answers(me: Client, x: Params, data: LocalData) -> Tensor:
    """Return the scores that the network with the parameters ``x`` gives to examples."""
    return scores(network(me, x), data)


def network(me: Client, x: Params) -> Predictor:
    """Return the network with the parameters ``x``, as a function from inputs to scores."""
    load_params(me.model.eval(), x)
    return me.model
