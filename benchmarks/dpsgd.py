"""How fast a step of DP-SGD is, against one without privacy and against Opacus, all in one run.

    pip install -e . && pip install "opacus==1.6.*"
    python benchmarks/dpsgd.py [--repeats 15] [--batch 256] [--micro N] [--alone]

Two networks: DA-FL's classifier on 1x28x28 images, and its discriminator on 1x32x32 images with a
label. One thread, one fixed batch in memory; a step is forward, backward, clipping, noise and
update. The contenders take turns, so that a slow minute of the machine hits all of them. A turn is
a few steps in a row, as training takes them, of which the first is not counted: it finds in the
processor's cache what another contender left there. Medians are shown. Without privacy and Tacit
compute in channels-last. Opacus gets the contiguous layout: its convolutions give wrong gradients
for channels-last inputs (1.6.0; this program checks), and torch's instance norm, as it knows no
other; the other two have the package's, which is faster. All run with `keep_memory`, as Tacit's
workers do; what Opacus leaves in that memory slows the others down by some percent, so `--alone`
leaves it out. At the end: how much memory a step of Tacit's takes in a process of its own. Nothing
else should run at the same time.
"""

import argparse
import copy
import importlib.util
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from peers.discriminator import SIZE, Discriminator, real_loss
from torch import Tensor, nn

from tacit.engines.workers import keep_memory
from tacit.models import build
from tacit.privacy.noise import FromOS, noised
from tacit.privacy.perexample import clipped_sum, micro_batch

CLIP, Z, RATE = 1.0, 1.0, 0.05
IN_A_ROW = 4  # steps of a turn
Step = Callable[[], object]


class Loss(nn.Module):
    """How a network's outputs are judged, with `reduction` as Opacus wants it."""

    def __init__(self, judged: bool) -> None:
        super().__init__()
        self.judged, self.reduction = judged, "mean"

    def outputs(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """Return the network's outputs; the discriminator sees the labels."""
        out: Tensor = model(x, y) if self.judged else model(x)
        return out

    def forward(self, out: Tensor, y: Tensor) -> Tensor:
        """Return the loss of each example, or their mean."""
        each = real_loss(out) if self.judged else F.cross_entropy(out, y, reduction="none")
        return each if self.reduction == "none" else each.mean()

    def each(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """Return the loss of each example, as Tacit wants it."""
        out = self.outputs(model, x, y)
        return real_loss(out) if self.judged else F.cross_entropy(out, y, reduction="none")


@dataclass
class Work:
    """A network, a batch in the same layout, and the loss."""

    model: nn.Module
    x: Tensor
    y: Tensor
    loss: Loss


def work(name: str, batch: int, layout: torch.memory_format, *, fast: bool = True) -> Work:
    """Return the same network and batch every time; ``fast``: with the package's instance norm."""
    torch.manual_seed(0)
    judged = name == "discriminator"
    model = Discriminator(layout, fast=fast) if judged else build("dafl-cnn", (1, 28, 28), 10, 0)
    x, y = (
        torch.rand(batch, 1, SIZE if judged else 28, SIZE if judged else 28),
        torch.randint(0, 10, (batch,)),
    )
    return Work(
        model.train().to(memory_format=layout), x.contiguous(memory_format=layout), y, Loss(judged)
    )


def plain(w: Work) -> Step:
    """Return the step without privacy."""
    weights = list(w.model.parameters())

    def step() -> None:
        grads = torch.autograd.grad(w.loss(w.loss.outputs(w.model, w.x, w.y), w.y), weights)
        with torch.no_grad():
            torch._foreach_add_(weights, grads, alpha=-RATE)

    return step


def ours(w: Work, micro: int | None) -> Step:
    """Return Tacit's step."""
    weights = list(w.model.parameters())

    def step() -> None:
        sums, _ = clipped_sum(w.model, w.loss.each, w.x, w.y, CLIP, micro)
        noisy = noised(FromOS(), [sums[p] for p in weights], Z * CLIP)
        with torch.no_grad():
            torch._foreach_add_(weights, noisy, alpha=-RATE / len(w.x))

    return step


def opacus(name: str, batch: int, mode: str) -> Step:
    """Return Opacus' step, set up by its privacy engine."""
    from opacus import PrivacyEngine

    w = work(name, batch, torch.contiguous_format, fast=False)
    data = torch.utils.data.TensorDataset(w.x, w.y)
    loader = torch.utils.data.DataLoader(data, batch_size=len(w.x))
    optimizer = torch.optim.SGD(w.model.parameters(), lr=RATE)
    made = PrivacyEngine().make_private(
        module=w.model,
        optimizer=optimizer,
        data_loader=loader,
        criterion=w.loss,
        noise_multiplier=Z,
        max_grad_norm=CLIP,
        poisson_sampling=False,
        grad_sample_mode=mode,
    )
    model, optimizer, criterion = made[0], made[1], made[2] if mode == "ghost" else w.loss

    def step() -> None:
        optimizer.zero_grad()
        criterion(w.loss.outputs(model, w.x, w.y), w.y).backward()
        optimizer.step()

    return step


def tried(make: Callable[[], Step]) -> Step | str:
    """Return a step that works, warmed up, or why it does not."""
    try:
        step = make()
        for _ in range(2):
            step()
    except Exception as e:  # another's code, on networks it may not know
        return f"not supported ({type(e).__name__}: {' '.join(str(e).split())[:60]})"
    return step


def opacus_is_wrong(name: str) -> bool:
    """Tell whether Opacus' norms of examples change if they are channels-last, not contiguous."""
    from opacus import GradSampleModule

    found = []
    for layout in (torch.contiguous_format, torch.channels_last):
        w = work(name, 4, layout, fast=False)
        model = GradSampleModule(copy.deepcopy(w.model), loss_reduction="sum")
        w.loss.each(model, w.x, w.y).sum().backward()
        found.append(
            torch.stack([p.grad_sample.flatten(1).norm(dim=1) for p in model.parameters()]).norm(
                dim=0
            )
        )
    return not torch.allclose(found[0], found[1], rtol=1e-3)


def in_a_row(step: Step) -> list[float]:
    """Return the seconds of the steps of a turn, but for the first."""
    taken = []
    for _ in range(IN_A_ROW):
        begun = time.perf_counter()
        step()
        taken.append(time.perf_counter() - begun)
    return taken[1:]


def measure(
    name: str, batch: int, micro: int | None, repeats: int, *, beside: bool
) -> dict[str, float | str]:
    """Return the median seconds of each contender's step, or why it has none."""
    cl = torch.channels_last
    steps: dict[str, Step | str] = {
        "no privacy": tried(lambda: plain(work(name, batch, cl))),
        "tacit": tried(lambda: ours(work(name, batch, cl), micro)),
    }
    if beside:
        for mode in ("hooks", "ghost"):
            steps[f"opacus {mode}"] = tried(partial(opacus, name, batch, mode))
    seconds: dict[str, list[float]] = {
        peer: [] for peer, step in steps.items() if not isinstance(step, str)
    }
    for turn in range(repeats):
        print(f"\r{name}: turn {turn + 1}/{repeats}", end="", file=sys.stderr, flush=True)
        for peer, taken in seconds.items():
            taken += in_a_row(steps[peer])  # type: ignore[arg-type]
    print("\r" + " " * 40 + "\r", end="", file=sys.stderr, flush=True)
    return {p: statistics.median(seconds[p]) if p in seconds else str(s) for p, s in steps.items()}


def table(results: dict[str, float | str], batch: int) -> None:
    """Print speeds, times as multiples of no privacy's, and Tacit's speed as a multiple of each."""
    free, mine = float(results["no privacy"]), float(results["tacit"])
    print(f"{'':14}{'images/s':>10}{'of no privacy':>15}{'tacit is':>10}")
    for peer, s in results.items():
        if isinstance(s, str):
            print(f"{peer:14}  {s}")
        else:
            print(f"{peer:14}{batch / s:10.0f}{s / free:14.2f}x{s / mine:9.2f}x")


def resident(field: str) -> float:
    """Return this process's memory now (VmRSS) or at its highest (VmHWM), in MB; Linux only."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return float(next(line for line in lines if line.startswith(field)).split()[1]) / 1024


def peak(name: str, batch: int, micro: int | None) -> None:
    """Print by how many MB a step of Tacit's raises this process's memory."""
    step = ours(work(name, batch, torch.channels_last), micro)
    ours(work(name, 1, torch.channels_last), micro)()  # what torch itself loads at its first step
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = resident("VmRSS")
    step()
    print(resident("VmHWM") - before)


def peaks(name: str, micro: int | None) -> str:
    """Return what a step takes at two batch sizes, each in a process of its own."""
    micro, found = micro or micro_batch(work(name, 1, torch.channels_last).model), []
    for batch in (256, 4096):
        command = [
            sys.executable,
            str(Path(__file__)),
            "--micro",
            str(micro),
            "--peak",
            name,
            "--batch",
            str(batch),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found.append(f"{float(done.stdout):.0f} MB at batch {batch}")
    return f"tacit's step takes {' and '.join(found)} (micro-batch {micro})"


def main() -> None:
    """Measure both networks."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=15, help="turns")
    parser.add_argument("--batch", type=int, default=256, help="examples per step")
    parser.add_argument(
        "--micro", type=int, help="Tacit's micro-batch, which bounds its memory; else it chooses"
    )
    parser.add_argument("--alone", action="store_true", help="leave Opacus out")
    parser.add_argument("--peak", help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    keep_memory()
    warnings.simplefilter("ignore")  # Opacus warns at each backward pass
    if given.peak:
        return peak(given.peak, given.batch, given.micro)
    there = not given.alone and importlib.util.find_spec("opacus") is not None
    if not (there or given.alone):
        print('Opacus is not installed, so it is left out: pip install "opacus==1.6.*"')
    for name in ("classifier", "discriminator"):
        print(f"\nDA-FL's {name}, batch {given.batch}, one thread")
        table(measure(name, given.batch, given.micro, given.repeats, beside=there), given.batch)
        if there and opacus_is_wrong(name):
            print("opacus in channels-last gives wrong gradients, so it is measured contiguous")
        print(peaks(name, given.micro))


if __name__ == "__main__":
    main()
