"""Networks with layers that have no fast path, and wrong ones that mix examples."""

import torch
from torch import nn

CLASSES = 3


class Net(nn.Module):
    """A layer between inputs (n, steps, 6) and scores."""

    def __init__(self, layer, width=6):
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.layer = layer
        self.last = nn.Linear(width, CLASSES)

    def forward(self, x):
        return self.last(self.inner(torch.tanh(self.first(x))).mean(1))

    def inner(self, h):
        return self.layer(h)


class Attention(Net):
    """Every step looks at the others of its example."""

    def __init__(self, need_weights=False, **how):
        super().__init__(nn.MultiheadAttention(6, 2, batch_first=True, **how))
        self.need_weights = need_weights

    def inner(self, h):
        return self.layer(h, h, h, need_weights=self.need_weights)[0]


class Recurrent(Net):
    """A recurrent layer over the steps."""

    def __init__(self, kind=nn.LSTM, two_ways=False, layers=1):
        made = kind(6, 4, num_layers=layers, bidirectional=two_ways, batch_first=True)
        super().__init__(made, 8 if two_ways else 4)

    def inner(self, h):
        return self.layer(h)[0]


class Volume(nn.Module):
    """A convolution over three dimensions."""

    def __init__(self, kernel=2, groups=1):
        super().__init__()
        self.conv = nn.Conv3d(2, 4, kernel, padding=1, groups=groups)
        self.last = nn.Linear(4, CLASSES)

    def forward(self, x):
        return self.last(torch.tanh(self.conv(x)).mean((2, 3, 4)))


class Bag(nn.Module):
    """Bags of words."""

    def __init__(self, mode="mean"):
        super().__init__()
        self.words = nn.EmbeddingBag(7, 5, mode=mode)
        self.last = nn.Linear(5, CLASSES)

    def forward(self, x):
        return self.last(self.words(x.long().flatten(1)))


def encoder():
    return Net(nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True))


class AcrossExamples(Attention):
    """Takes the batch for the steps: examples look at each other."""

    def inner(self, h):
        return super().inner(h.transpose(0, 1)).transpose(0, 1)


class TimeFirst(Recurrent):
    """Takes the batch for the steps: an example remembers those before."""

    def inner(self, h):
        return super().inner(h.transpose(0, 1)).transpose(0, 1)


class Carrying(Recurrent):
    """Begins a batch with what it knew at the end of the last."""

    def __init__(self):
        super().__init__(nn.GRU)
        self.state = None

    def inner(self, h):
        first = None if self.state is None else self.state.mean(1, keepdim=True)
        out, state = self.layer(h, None if first is None else first.expand(-1, len(h), -1))
        self.state = state.detach()
        return out


GOOD = {
    "attention": Attention,
    "attention with weights": lambda: Attention(True),
    "lstm": Recurrent,
    "gru": lambda: Recurrent(nn.GRU),
    "rnn": lambda: Recurrent(nn.RNN),
    "lstm of two layers, two ways": lambda: Recurrent(nn.LSTM, True, 2),
    "rms norm": lambda: Net(nn.RMSNorm(6)),
    "transformer": encoder,
}
BAD = {
    AcrossExamples: "depends on the others",
    TimeFirst: "depends on the others",
    Carrying: "changes in the forward pass",
    lambda: Attention(dropout=0.5): "random numbers",
}
