"""LoRA (Hu et al. 2022): small adapters on a frozen transformer, trained by DP-SGD at hospitals.

    python 05_lora.py

Texts are made here: short notes about patients. A small transformer learns from public notes which
words a note has, without labels. That is frozen, and hospitals teach it privately whether a note is
urgent: only the adapters and the last layer are trained, so there are few numbers to put noise on.
"""

from __future__ import annotations

import tempfile
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import tacit
from tacit.data import Dataset, Examples

URGENT = ("severe", "sudden", "bleeding", "unconscious", "rapid")
CALM = ("mild", "slight", "old", "slow", "routine")
FILL = (
    "patient",
    "head",
    "heart",
    "knee",
    "skin",
    "reports",
    "since",
    "today",
    "pain",
    "in",
    "the",
    "and",
    "again",
    "left",
)
WORDS = ("", *URGENT, *CALM, *FILL)
LENGTH, WIDTH, RANK = 10, 32, 2


def notes(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return notes as numbers of words, and whether each is urgent."""
    g = torch.Generator().manual_seed(seed)
    first = len(WORDS) - len(FILL)
    text = torch.randint(first, len(WORDS), (n, LENGTH), generator=g)
    urgent = torch.randint(0, 2, (n,), generator=g)
    telling = 1 + len(URGENT) * (1 - urgent)  # URGENT come first, then CALM
    for _ in range(2):
        at = torch.randint(0, LENGTH, (n,), generator=g)
        text[torch.arange(n), at] = telling + torch.randint(0, len(URGENT), (n,), generator=g)
    return text, urgent


class Block(nn.Module):
    """One layer of a transformer, with layer norm in front."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norms[0](x)
        x = x + self.out(F.scaled_dot_product_attention(self.q(h), self.k(h), self.v(h)))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


class Transformer(nn.Module):
    """From the numbers of words to one vector a note."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(len(WORDS), WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(Block(), Block())

    def forward(self, x: Tensor) -> Tensor:
        places = self.places(torch.arange(LENGTH))
        read: Tensor = self.blocks(self.words(x.long()) + places).mean(1)
        return read


@cache
def base() -> Transformer:
    """Return a transformer that was trained on public notes, the same in every process."""
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.manual_seed(0)
        text, _ = notes(2000, seed=1)
        model, last = Transformer(), nn.Linear(WIDTH, len(WORDS))
        adam = torch.optim.Adam([*model.parameters(), *last.parameters()], lr=3e-3)
        for batch in torch.split(text.repeat(5, 1), 100):
            has = torch.zeros(len(batch), len(WORDS)).scatter_(1, batch, 1.0)
            adam.zero_grad()
            F.binary_cross_entropy_with_logits(last(model(batch)), has).backward()
            adam.step()
    return model


class LoRA(nn.Module):
    """A frozen layer and, beside it, two small ones; in the beginning they change nothing."""

    def __init__(self, frozen: nn.Linear) -> None:
        super().__init__()
        self.frozen = frozen
        self.a = nn.Linear(frozen.in_features, RANK, bias=False)
        self.b = nn.Linear(RANK, frozen.out_features, bias=False)
        nn.init.zeros_(self.b.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.frozen(x) + self.b(self.a(x))


class Adapted(nn.Module):
    """The frozen transformer with adapters at queries and values, and a last layer."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.read = Transformer().requires_grad_(False)
        self.read.load_state_dict(base().state_dict())
        for block in self.read.blocks:
            block.q, block.v = LoRA(block.q), LoRA(block.v)
        self.last = nn.Linear(WIDTH, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.read(x))


def main(n: int = 4000, rounds: int = 10, epsilon: float = 4.0, noise: str = "os") -> None:
    text, urgent = notes(n, seed=2)
    cut = n * 4 // 5
    train, test = (
        Examples(text[rows].float(), urgent[rows]) for rows in (slice(cut), slice(cut, n))
    )
    data = Dataset("notes", train, test, ("calm", "urgent"))
    network = Adapted(2)
    few = sum(p.numel() for p in network.parameters() if p.requires_grad)
    print(f"{few:,} of {sum(p.numel() for p in network.parameters()):,} numbers are trained")
    method = f"fedavg:rounds={rounds},sgd.lr=1,sgd.batch=64,sgd.clip=1,sgd.epsilon={epsilon}"
    with tempfile.TemporaryDirectory() as folder:
        done = tacit.run(
            method,
            data=data,
            model=f"{__file__}:Adapted",
            clients=4,
            split="dirichlet:1",
            workers=0,
            noise=noise,
            out=f"{folder}/run",
        )
        eps = tacit.privacy.show_epsilon(done.spent)
        print(f"accuracy {100 * done.accuracy:.1f}%, eps {eps}: {done.why}")


if __name__ == "__main__":
    main()
