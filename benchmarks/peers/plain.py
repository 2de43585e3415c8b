"""A plain PyTorch loop over the clients.

What a person writes first, and with `--procs 2` what two processes make of it.

Without flags: one process, one client after another, torch's own settings. `--threads 1
--channels-last` is the same loop with two settings changed. `--procs P` starts P single-threaded
channels-last processes that train 1/P of the clients each and never exchange anything: no simulator
on P cores can be faster with this training loop (a faster loop: limit.py).
"""

import copy
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterable
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier

import torch
import workload
from torch import Tensor, nn


def set_up(threads: int | None, channels_last: bool) -> nn.Sequential:
    """Apply the settings to this process and return the global model."""
    if threads is not None:
        torch.set_num_threads(threads)
    model = workload.build_model()
    return model.to(memory_format=torch.channels_last) if channels_last else model


def run_round(model: nn.Sequential, data: list[tuple[Tensor, Tensor]]) -> float:
    """Train every client from the global model, average them into it.

    Return when the first batch went in.
    """
    starts = []
    total = sum(len(labels) for _, labels in data)
    average = {name: torch.zeros_like(tensor) for name, tensor in model.state_dict().items()}
    for inputs, labels in data:
        local = copy.deepcopy(model)
        starts.append(workload.train_one_epoch(local, inputs, labels))
        for name, tensor in local.state_dict().items():
            average[name] += tensor * (len(labels) / total)
    model.load_state_dict(average)
    return starts[0]


def run_clients(
    clients: Iterable[int],
    work: workload.Workload,
    threads: int | None,
    channels_last: bool,
    wait: Callable[[], object] = lambda: None,
) -> workload.Timing:
    """Run all rounds for the given clients in this process; `wait` is called before the first."""
    model = set_up(threads, channels_last)
    data = [workload.client_data(client, work.images) for client in clients]
    if channels_last:
        data = [(inputs.to(memory_format=torch.channels_last), labels) for inputs, labels in data]
    starts, round_s = [], []
    wait()
    for _ in range(work.rounds):
        begun = time.perf_counter()
        starts.append(run_round(model, data))
        round_s.append(time.perf_counter() - begun)
    print(f"weight norm {workload.weight_norm(model.state_dict()):.6f}", file=sys.stderr)
    return workload.Timing(starts[0], round_s)


def run_part(
    part: int, procs: int, work: workload.Workload, barrier: Barrier, answer: Connection
) -> None:
    """Be one of several processes: run every `procs`-th client and send the timing back."""
    answer.send(run_clients(range(part, work.clients, procs), work, 1, True, barrier.wait))


# one of several processes: its number, how many there are, the work, a barrier, where to answer
Part = Callable[[int, int, workload.Workload, Barrier, Connection], None]


def run_processes(
    procs: int, work: workload.Workload, run_part: Part = run_part
) -> tuple[workload.Timing, workload.PeakMemory, float]:
    """Run the clients in independent processes.

    Return the slowest process's rounds and the summed images/s.
    """
    # Forked before torch has started any thread of its own and before the memory thread: safe, and
    # the quickest start.
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(procs)
    pipes = [context.Pipe(duplex=False) for _ in range(procs)]
    workers = [
        context.Process(target=run_part, args=(part, procs, work, barrier, sender), daemon=True)
        for part, (_, sender) in enumerate(pipes)
    ]
    for worker, (_, sender) in zip(workers, pipes, strict=True):
        worker.start()
        sender.close()
    with workload.PeakMemory() as memory:
        timings: list[workload.Timing] = [receiver.recv() for receiver, _ in pipes]
    for worker in workers:
        worker.join()
    rate = sum(
        workload.steady_rate(len(range(part, work.clients, procs)) * work.images, timing.round_s)
        for part, timing in enumerate(timings)
    )
    slowest = [max(times) for times in zip(*(timing.round_s for timing in timings), strict=True)]
    return workload.Timing(min(timing.first_start for timing in timings), slowest), memory, rate


def name_peer(threads: int | None, channels_last: bool, procs: int) -> str:
    """Return the name of this variant in the results."""
    if procs > 1:
        return f"plain-procs{procs}"
    return (
        "plain"
        + (f"-threads{threads}" if threads else "")
        + ("-channels-last" if channels_last else "")
    )


def main() -> None:
    """Run the benchmark and print its line."""
    parser = workload.make_parser(__doc__)
    parser.add_argument(
        "--threads", type=int, default=None, help="torch threads (torch's default if not given)"
    )
    parser.add_argument("--channels-last", action="store_true", help="channels-last memory layout")
    parser.add_argument(
        "--procs", type=int, default=1, help="independent single-threaded processes"
    )
    arguments = parser.parse_args()
    work = workload.read_workload(parser, arguments)
    peer = name_peer(arguments.threads, arguments.channels_last, arguments.procs)
    if arguments.procs > work.clients:
        parser.error("more processes than clients")
    # first_round_s: until the first batch of the first client goes in.
    if arguments.procs > 1:
        timing, memory, rate = run_processes(arguments.procs, work)
        workload.print_report(peer, work, timing, memory, rate)
        return
    with workload.PeakMemory() as memory:
        timing = run_clients(range(work.clients), work, arguments.threads, arguments.channels_last)
    workload.print_report(peer, work, timing, memory)


if __name__ == "__main__":
    main()
