"""pfl (apple/pfl-research) with PyTorch, FederatedAveraging and SimulatedBackend, in one process.

One process is what pfl uses on one machine unless it is started by Horovod; torch's threads are
left as they are.
"""

import sys
import time

import numpy as np
import torch
import workload
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn


class Classifier(nn.Module):
    """The CNN with the two methods pfl asks of a module."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = workload.build_model()
        self.first_start = 0.0

    def loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Return the training loss of a batch."""
        self.first_start = self.first_start or time.time()
        return nn.functional.cross_entropy(self.layers(inputs), labels)

    def metrics(self, inputs: Tensor, labels: Tensor) -> dict[str, object]:
        """Return nothing.

        Pfl always evaluates around the first round, and this workload has no evaluation.
        """
        return {}


class RoundTimes(TrainingProcessCallback):
    """Records how long each central iteration took."""

    def __init__(self) -> None:
        self.round_s: list[float] = []
        self._last = 0.0

    def on_train_begin(self, *, model: PyTorchModel) -> Metrics:
        self._last = time.perf_counter()
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        now = time.perf_counter()
        self.round_s.append(now - self._last)
        self._last = now
        return False, Metrics()


def make_dataset(work: workload.Workload) -> FederatedDataset:
    """Return the federated dataset.

    Every client's tensors, taken in turn so that each round has every client.
    """
    users = {
        str(client): workload.client_data(client, work.images) for client in range(work.clients)
    }

    def load_user(user: str) -> PyTorchTensorDataset:
        return PyTorchTensorDataset(users[user], user_id=user)

    return FederatedDataset(load_user, get_user_sampler("minimize_reuse", list(users)))


def run(work: workload.Workload) -> workload.Timing:
    """Train with pfl and return the times."""
    np.random.seed(workload.SEED)  # noqa: NPY002 (pfl draws from numpy's global state)
    times = RoundTimes()
    dataset = make_dataset(work)
    classifier = Classifier()
    # The averaged update counts as a gradient: a step of length 1 is FedAvg.
    server_step = torch.optim.SGD(classifier.parameters(), lr=1.0)
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=work.rounds,
            evaluation_frequency=work.rounds + 1,
            train_cohort_size=work.clients,
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(
            training_data=dataset, val_data=dataset, postprocessors=[WeightByDatapoints()]
        ),
        model=PyTorchModel(
            classifier, local_optimizer_create=torch.optim.SGD, central_optimizer=server_step
        ),
        model_train_params=NNTrainHyperParams(
            local_num_epochs=1,
            local_learning_rate=workload.LEARNING_RATE,
            local_batch_size=workload.BATCH,
        ),
        callbacks=[times],
    )
    print(f"weight norm {workload.weight_norm(classifier.state_dict()):.6f}", file=sys.stderr)
    return workload.Timing(classifier.first_start, times.round_s)


def main() -> None:
    """Run the benchmark and print its line."""
    parser = workload.make_parser(__doc__)
    work = workload.read_workload(parser, parser.parse_args())
    # first_round_s: until the first batch of the first client goes in.
    with workload.PeakMemory() as memory:
        timing = run(work)
    workload.print_report("pfl", work, timing, memory)


if __name__ == "__main__":
    main()
