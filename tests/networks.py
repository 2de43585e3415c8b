"""Networks that must not train privately, each for one reason, and networks that may."""

import random
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

SHAPE = (4, 6)  # of one input: four patches (or moments in time) of six numbers
CLASSES = 3


class Base(nn.Module):
    """Two layers; what is wrong comes in between."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(24, 8), nn.Linear(8, CLASSES)

    def forward(self, x):
        return self.last(self.between(torch.tanh(self.first(x.flatten(1)))))

    def between(self, h):
        return h


# ---- rows that are not examples


class Folded(nn.Module):
    """Patches are folded into the batch."""

    def __init__(self):
        super().__init__()
        self.patch, self.last = nn.Linear(6, 5), nn.Linear(5, CLASSES)

    def forward(self, x):
        h = torch.tanh(self.patch(x.reshape(-1, 6)))
        return self.last(h.reshape(len(x), -1, 5).mean(1))


class TimeFirst(nn.Module):
    """Time comes before the batch."""

    def __init__(self):
        super().__init__()
        self.step, self.last = nn.Linear(6, 5), nn.Linear(5, CLASSES)

    def forward(self, x):
        return self.last(torch.tanh(self.step(x.transpose(0, 1))).mean(0))


class Scrambled(Base):
    """As many rows as examples, but not theirs."""

    def between(self, h):
        return h.t().reshape(h.shape)


class ForEachPatch(nn.Module):
    """A score for each patch, not for each example."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(6, CLASSES)

    def forward(self, x):
        return self.last(x).flatten(0, 1)


class Unsplit(Base):
    """One score for all examples together."""

    def forward(self, x):
        return super().forward(x).mean(0, keepdim=True)


# ---- examples that meet


class OwnBatchNorm(Base):
    """Takes the mean of the batch, in train mode only."""

    def between(self, h):
        return h - h.mean(0) if self.training else h


class OnlyInEval(Base):
    """Takes the mean of the batch when it does not train: prototypes are made so."""

    def between(self, h):
        return h if self.training else h - h.mean(0)


class Attention(Base):
    """Every example looks at all others."""

    def between(self, h):
        return (h @ h.t()).softmax(1) @ h


class Hooked(Base):
    """A hook does it."""

    def __init__(self):
        super().__init__()
        self.first.register_forward_hook(lambda module, given, out: out - out.mean(0))


class OnlyBackward(Base):
    """In train mode the gradients of all examples are scaled together."""

    def between(self, h):
        if self.training and h.requires_grad:
            h.register_hook(lambda g: g / g.norm())
        return h


class Numbered(Base):
    """What an example's place in the batch adds to it."""

    def __init__(self):
        super().__init__()
        self.register_buffer("place", torch.arange(1000.0))

    def between(self, h):
        return h * (1 + self.place[: len(h), None])


# ---- what one batch leaves to the next


class Running(Base):
    """A running mean, in a buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(8))

    def between(self, h):
        if self.training:
            self.mean.mul_(0.99).add_(0.01 * h.detach().mean(0))
        return h - self.mean


class Remembering(Base):
    """A running mean, in an attribute that no list of buffers has."""

    past = 0.0

    def between(self, h):
        h, self.past = h - self.past, 0.9 * self.past + 0.1 * h.detach().mean(0)
        return h


class Underscored(Base):
    """Counts its batches, in an attribute that its author calls private."""

    def __init__(self):
        super().__init__()
        self._batches = 0

    def between(self, h):
        self._batches += 1
        return h if self._batches < 1000 else h - h.mean(0)


class LongMemory(Base):
    """A running mean that moves by too little to be seen, in the middle of a long tensor."""

    def __init__(self):
        super().__init__()
        self.past = torch.zeros(3000)

    def between(self, h):
        out = h - self.past[1000:1008]
        self.past[1000:1008] += 1e-8 * h.detach().mean(0)
        return out


class Box:
    """An object like any other."""

    def __init__(self):
        self.past = {"means": [torch.zeros(8)]}


class Boxed(Base):
    """A running mean in a list in a dictionary in an object."""

    def __init__(self):
        super().__init__()
        self.box = Box()

    def between(self, h):
        out = h - self.box.past["means"][0]
        self.box.past["means"][0] += 1e-8 * h.detach().mean(0)
        return out


class OfTheClass(Base):
    """What it remembers belongs to the class, not to one network."""

    means: ClassVar = [torch.zeros(8)]

    def between(self, h):
        out = h - self.means[0]
        self.means[0] = self.means[0] + 1e-8 * h.detach().mean(0)
        return out


class MinMax(Base):
    """Scales inputs by the smallest and the largest of the batch."""

    def forward(self, x):
        return super().forward((x - x.min()) / (x.max() - x.min()))


class ManyOnly(Base):
    """Takes the mean of the batch away, if there are at least eight."""

    def between(self, h):
        return h - h.mean(0) if len(h) >= 8 else h


class FullOnly(Base):
    """Takes the mean of the batch away, if there are at least thirty-two."""

    def between(self, h):
        return h - h.mean(0) if len(h) >= 32 else h


class Outliers(Base):
    """Cuts what is far from the rest of the batch."""

    def forward(self, x):
        return super().forward(x.clamp(max=float(x.mean() + 4 * x.std())))


class Gated(Base):
    """A gate that is closed at first lets the mean of the batch in."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(8, 8)
        nn.init.constant_(self.gate.bias, -30.0)

    def between(self, h):
        return h + torch.sigmoid(self.gate(h)) * h.mean(0)


PASSES = [0]


class Elsewhere(Base):
    """Remembers where nobody looks."""

    def between(self, h):
        PASSES[0] += 1
        return h + PASSES[0]


class Shrinking(Base):
    """Weights that change in the forward pass."""

    def between(self, h):
        self.last.weight.data.mul_(0.999)
        return h


# ---- parameters beside their layers


class Functional(Base):
    """A layer's weight is used, but not the layer."""

    def forward(self, x):
        return F.linear(torch.tanh(self.first(x.flatten(1))), self.last.weight, self.last.bias)


class Beside(Base):
    """A layer and, besides, its weight."""

    def forward(self, x):
        return super().forward(x) + F.linear(x.flatten(1), self.first.weight).sum(1, keepdim=True)


class Tied(Base):
    """Two layers with one weight."""

    def __init__(self):
        super().__init__()
        self.back = nn.Linear(8, 8)
        self.again = nn.Linear(8, 8)
        self.again.weight = self.back.weight

    def between(self, h):
        return self.again(torch.tanh(self.back(h)))


class Twice(Base):
    """A layer that is used twice."""

    def __init__(self):
        super().__init__()
        self.again = nn.Linear(8, 8)

    def between(self, h):
        return self.again(torch.tanh(self.again(h)))


class Bare(Base):
    """A parameter without a layer."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(8))

    def between(self, h):
        return h * self.scale


class Patched(Base):
    """A known layer that computes something else."""

    def __init__(self):
        super().__init__()
        self.first.forward = lambda x: F.linear(x - x.mean(0), self.first.weight)


class Idle(Base):
    """A layer that nothing depends on."""

    def __init__(self):
        super().__init__()
        self.idle = nn.Linear(8, 8)


# ---- chance


class Dropping(Base):
    """Dropout as a layer."""

    def __init__(self, p=0.5):
        super().__init__()
        self.drop = nn.Dropout(p)

    def between(self, h):
        return self.drop(h)


class DroppingFunctional(Base):
    """Dropout as a function."""

    def between(self, h):
        return F.dropout(h, 0.5, self.training)


class AlwaysDropping(Base):
    """Dropout outside of training, too."""

    def between(self, h):
        return F.dropout(h, 0.5, not self.training)


class Leaky(Base):
    """A random slope."""

    def __init__(self):
        super().__init__()
        self.leak = nn.RReLU()

    def between(self, h):
        return self.leak(h)


class Own(Base):
    """A generator of its own."""

    seed = 0

    def between(self, h):
        self.seed += 1
        rng = torch.Generator().manual_seed(self.seed)
        return h + torch.randn(h.shape, generator=rng)


class Seldom(Base):
    """Leaves a layer out now and then, by Python's own chance."""

    def between(self, h):
        return 2 * h if random.random() < 1e-6 else h


class SeldomByNumpy(Base):
    """Leaves an example out now and then, by numpy's chance."""

    def between(self, h):
        return h * torch.from_numpy(np.random.rand(len(h), 1) > 1e-6)  # noqa: NPY002


class SeldomByItsOwn(Base):
    """Leaves an example out now and then, by generators of its own."""

    def __init__(self, rng):
        super().__init__()
        self.rng = rng

    def between(self, h):
        return h if self.rng.random() < 1 - 1e-6 else 2 * h


class Jittered(Base):
    """Noise that hardly changes anything, but draws."""

    def between(self, h):
        return h + 1e-12 * torch.randn_like(h)


# ---- other


class Pair(Base):
    """Gives more than scores."""

    def forward(self, x):
        h = super().forward(x)
        return h, h


class Half(Base):
    """Has half precision inside."""

    def __init__(self):
        super().__init__()
        self.last = self.last.to(torch.bfloat16)

    def forward(self, x):
        return self.last(torch.tanh(self.first(x.flatten(1))).to(torch.bfloat16)).float()


class Nameless(nn.Flatten):
    """Has nothing to train."""


class Failing(Base):
    """Takes one example at a time only."""

    def between(self, h):
        assert len(h) == 1, "one at a time"
        return h


# why each is refused, in words that its message has
BAD = {
    Folded: ["layer 'patch'", "(12, 6) for 3 examples", "first dimension"],
    TimeFirst: ["layer 'step'", "(4, 3, 6) for 3 examples", "first dimension"],
    Scrambled: ["depends on the others"],
    ForEachPatch: ["shape", "for 3 inputs"],
    Unsplit: ["shape", "for 3 inputs"],
    OwnBatchNorm: ["depends on the others"],
    OnlyInEval: ["in eval mode", "depends on the others"],
    Attention: ["depends on the others"],
    Hooked: ["depends on the others"],
    OnlyBackward: ["gradient", "depends on the others"],
    Numbered: ["depends on the others"],
    Running: ["buffer 'mean'", "changes"],
    Remembering: ["attribute past", "changes"],
    Underscored: ["attribute _batches", "changes"],
    LongMemory: ["attribute past", "changes"],
    Boxed: ["attribute box", "changes"],
    OfTheClass: ["attribute means", "changes"],
    MinMax: ["depends on the others"],
    ManyOnly: ["depends on the others"],
    FullOnly: ["depends on the others"],
    Outliers: ["depends on the others"],
    Gated: ["depends on the others"],
    Elsewhere: ["same inputs", "differ"],
    Shrinking: ["parameter 'last.weight'", "changes"],
    Functional: ["parameter 'last.weight'", "outside of its layer"],
    Beside: ["parameter 'first.weight'", "outside of its layer"],
    Tied: ["more than once"],
    Twice: ["more than once"],
    Bare: ["'scale'", "Bare", "per-example gradients are not known"],
    Patched: ["layer 'first'", "forward"],
    Idle: ["parameter 'idle.weight'", "no effect"],
    Dropping: ["layer 'drop'", "Dropout", "p = 0"],
    DroppingFunctional: ["random", "dropout"],
    AlwaysDropping: ["random"],
    Leaky: ["layer 'leak'", "RReLU"],
    Own: ["attribute seed", "changes"],
    Jittered: ["random"],
    Seldom: ["random"],
    SeldomByNumpy: ["random"],
    Pair: ["tuple"],
    Half: ["parameter 'last.weight'", "bfloat16", "float32"],
    Nameless: ["no trainable parameters"],
    Failing: ["AssertionError: one at a time"],
}


class Tokens(nn.Module):
    """Inputs are the numbers of words."""

    def __init__(self):
        super().__init__()
        self.words, self.last = nn.Embedding(2, 5), nn.Linear(5, CLASSES)

    def forward(self, x):
        return self.last(self.words(x.flatten(1).long()).mean(1))


class Zero(Base):
    """A last layer that begins at zero, as many do."""

    def __init__(self):
        super().__init__()
        nn.init.zeros_(self.last.weight)
        nn.init.zeros_(self.last.bias)


class FrozenMixture(Base):
    """Batch norm that stays in eval mode, with statistics from elsewhere."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(8).requires_grad_(False)

    def train(self, mode=True):
        super().train(mode)
        self.norm.eval()
        return self

    def between(self, h):
        return self.norm(h)


class Together(Base):
    """Layers that see several positions of an example at once."""

    def __init__(self):
        super().__init__()
        self.step = nn.Linear(6, 6)
        self.norm = nn.LayerNorm(6)
        self.conv = nn.Conv1d(4, 4, 3, padding=1)

    def forward(self, x):
        return super().forward(self.conv(self.norm(self.step(x))))


GOOD = {
    "plain": Base,
    "tokens": Tokens,
    "zero": Zero,
    "frozen batch norm": FrozenMixture,
    "positions": Together,
    "dropout with p = 0": lambda: Dropping(0.0),
}
