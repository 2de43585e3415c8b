"""Flower's simulation.

ServerApp with FedAvg and ClientApp on Ray, one core per client, so as many actors as cores.
"""

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable

os.environ.update(
    FLWR_HOME=tempfile.mkdtemp(prefix="flower-bench-"),
    FLWR_TELEMETRY_ENABLED="0",
    FLWR_DISABLE_UPDATE_CHECK="1",
    FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION="1",
    RAY_USAGE_STATS_ENABLED="0",
    NO_PROXY="127.0.0.1,localhost",
)

import torch
import workload
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation


class TimedFedAvg(FedAvg):
    """FedAvg on every client, without evaluation, that records the server's time of each round."""

    def __init__(self, clients: int) -> None:
        super().__init__(
            fraction_train=1.0,
            fraction_evaluate=0.0,
            min_train_nodes=clients,
            min_available_nodes=clients,
        )
        self.clients = clients
        self.first_start = 0.0
        self.round_s: list[float] = []
        self._begun = 0.0

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        self._begun = time.perf_counter()
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        answers = list(replies)
        failed = sum(answer.has_error() for answer in answers)
        if failed or len(answers) != self.clients:
            raise RuntimeError(
                f"round {server_round}: {len(answers)} replies, {failed} failed, of {self.clients}"
            )
        averaged = super().aggregate_train(server_round, answers)
        self.round_s.append(time.perf_counter() - self._begun)
        if server_round == 1:
            self.first_start = min(
                float(answer.content["metrics"]["started"]) for answer in answers
            )
        return averaged


def make_client() -> ClientApp:
    """Return the client: load the weights, train one epoch, send the weights back."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        model = workload.build_model()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        # The data stay in the actor after their first use there: nothing is loaded in steady state.
        images = int(message.content["config"]["images"])
        inputs, labels = workload.client_data(int(context.node_config["partition-id"]), images)
        started = workload.train_one_epoch(model, inputs, labels)
        metrics = MetricRecord({"num-examples": len(labels), "started": started})
        return Message(
            RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}),
            reply_to=message,
        )

    return app


def make_server(work: workload.Workload, strategy: TimedFedAvg) -> ServerApp:
    """Return the server: FedAvg from the common initial model for all rounds."""
    app = ServerApp()

    @app.main()
    def run(grid: Grid, context: Context) -> None:
        result = strategy.start(
            grid,
            ArrayRecord(workload.build_model().state_dict()),
            num_rounds=work.rounds,
            train_config=ConfigRecord({"images": work.images}),
        )
        norm = workload.weight_norm(result.arrays.to_torch_state_dict())
        print(f"weight norm {norm:.6f}", file=sys.stderr)

    return app


def main() -> None:
    """Run the benchmark and print its line."""
    parser = workload.make_parser(__doc__)
    work = workload.read_workload(parser, parser.parse_args())
    strategy = TimedFedAvg(work.clients)
    with workload.PeakMemory() as memory:
        run_simulation(
            server_app=make_server(work, strategy),
            client_app=make_client(),
            num_supernodes=work.clients,
            backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
        )
    shutil.rmtree(os.environ["FLWR_HOME"], ignore_errors=True)
    # first_round_s: until the first batch of the first client goes in, as that client reports it
    # (same machine). The first round_s holds the start of Ray, since Flower's server starts before
    # its actors do.
    workload.print_report(
        "flower", work, workload.Timing(strategy.first_start, strategy.round_s), memory
    )


if __name__ == "__main__":
    main()
