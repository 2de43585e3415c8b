"""The limit: what this machine can do at all with this network and these batches.

Two independent processes do nothing but train, each on its half of the clients, in the fastest way
we know: one thread, batches laid out beforehand channels-last, memory that is freed stays with the
process and is used again, gradients without an optimizer, steps in place. No client begins from a
shared model, nothing is averaged, written or sent. No simulator can be faster than that.
"""

import ctypes
import sys
import time
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier

import plain
import torch
import workload
from torch import Tensor, nn

PROCESSES = 2
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's mallopt


def keep_memory() -> None:
    """Let glibc keep freed memory: a step asks for the same blocks again."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(M_TRIM_THRESHOLD, 1 << 30)
        mallopt(M_MMAP_THRESHOLD, 1 << 30)


def batches_of(client: int, images: int) -> list[tuple[Tensor, Tensor]]:
    """Return a client's batches, each laid out as the network wants it."""
    x, y = workload.client_data(client, images)
    starts = range(0, images, workload.BATCH)
    pairs = [(x[i : i + workload.BATCH], y[i : i + workload.BATCH]) for i in starts]
    return [(a.contiguous(memory_format=torch.channels_last), b) for a, b in pairs]


def train(model: nn.Module, weights: list[Tensor], batches: list[tuple[Tensor, Tensor]]) -> None:
    """Take one step for each batch, in place."""
    here = [w.detach() for w in weights]
    for x, y in batches:
        loss = nn.functional.cross_entropy(model(x), y)
        gradient = list(torch.autograd.grad(loss, weights))
        torch._foreach_add_(here, gradient, alpha=-workload.LEARNING_RATE)


def run_part(
    part: int, procs: int, work: workload.Workload, barrier: Barrier, answer: Connection
) -> None:
    """Be one of several processes: train on every `procs`-th client and send the timing back."""
    torch.set_num_threads(1)
    keep_memory()
    model = workload.build_model().to(memory_format=torch.channels_last)
    weights: list[Tensor] = list(model.parameters())
    clients = range(part, work.clients, procs)
    batches = [pair for client in clients for pair in batches_of(client, work.images)]
    barrier.wait()
    started, round_s = time.time(), []
    for _ in range(work.rounds):
        begun = time.perf_counter()
        train(model, weights, batches)
        round_s.append(time.perf_counter() - begun)
    answer.send(workload.Timing(started, round_s))


def main() -> None:
    """Run the benchmark and print its line."""
    parser = workload.make_parser(__doc__)
    work = workload.read_workload(parser, parser.parse_args())
    if work.clients < PROCESSES:
        parser.error("more processes than clients")
    timing, memory, rate = plain.run_processes(PROCESSES, work, run_part)
    workload.print_report("limit", work, timing, memory, rate)


if __name__ == "__main__":
    main()
