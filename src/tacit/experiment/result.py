"""A run as it is read from its directory."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tacit import privacy
from tacit.core import BudgetReached, Json, Ledger, Observer, Relation, State, check
from tacit.data.splits import clients_of
from tacit.engines.recall import was_recalled
from tacit.experiment.config import Experiment
from tacit.experiment.curves import history, html_table, over_rounds
from tacit.experiment.metrics import SQUARED, WORDS
from tacit.experiment.rundir import ABOUT_MODEL, RunDir

if TYPE_CHECKING:
    from torch import Tensor

    from tacit.data.examples import Dataset
    from tacit.experiment.model_file import Ready


def _evaluated(line: Json) -> bool:
    """Tell whether a round was evaluated, by its accuracy or, for numbers, by its errors."""
    return line["accuracy"] is not None or "mse" in line


@dataclass(frozen=True)
class Run:
    """A finished (or stopped) run, read from its directory."""

    folder: Path

    @property
    def metrics(self) -> list[Json]:
        """One line per round."""
        return RunDir.open(self.folder).metrics()

    @property
    def final(self) -> Json:
        """The last evaluated line."""
        return next((line for line in reversed(self.metrics) if _evaluated(line)), {})

    @property
    def rounds(self) -> int:
        """How many rounds are finished."""
        return max((line["round"] for line in self.metrics), default=0)

    @property
    def accuracy(self) -> float:
        """Accuracy after the last evaluated round, between 0 and 1; NaN if there is none."""
        return float(self.final.get("accuracy") or 0.0) if self._right else float("nan")

    @property
    def _right(self) -> bool:
        """Whether there is an accuracy."""
        return self.final.get("accuracy") is not None

    @property
    def gigabytes_up(self) -> float:
        """What all clients have sent, in GB (2**30 bytes, as CUAG-PFL's table 6 has it)."""
        return float(sum(line["bytes_up"] for line in self.metrics) / 2**30)

    @property
    def client_gigabytes_up(self) -> float:
        """The same of one client that took part in every round, as that table counts."""
        s = self.experiment.setting
        clients = s.clients if s.at_sites else clients_of(s.split, s.clients)
        asked = self.experiment.method.per_round or clients  # where a line of before does not say
        each = (line.get("bytes_up_each", line["bytes_up"] / asked) for line in self.metrics)
        return float(sum(each) / 2**30)

    @property
    def recalled(self) -> bool:
        """Whether some of its work was done in another run, so that its times say too little."""
        return was_recalled(RunDir(self.folder).clients)

    def reached(self, accuracy: float) -> Json | None:
        """Return the first round with an accuracy, and what was claimed and spent by then.

        As CUAG-PFL's table 1: ``claimed`` is the paper's epsilon, ``spent`` the certified one (an
        upper bound underway). None if it was never reached.
        """
        line = next((m for m in self.metrics if (m["accuracy"] or 0.0) >= accuracy), None)
        if line is None:
            return None
        claimed = self.claimed_after(line["round"])
        return {k: line[k] for k in ("round", "accuracy", "spent")} | {"claimed": claimed}

    def claimed_after(self, t: int) -> float | None:
        """Return the epsilon that the method's paper claims after round t, if it claims one."""
        from tacit.experiment.plan import Plan  # plans make runs

        plan = Plan.of(self.experiment)
        delta = self.experiment.setting.delta
        pair = plan.experiment.method.claimed(t, plan.federation.sizes(), delta)
        return pair[1] if pair else None

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, once there is a model; none before."""
        from tacit.experiment.model_file import read_description

        file = self.folder / ABOUT_MODEL
        if not file.exists():
            return ()
        return read_description(RunDir.open(self.folder).get(ABOUT_MODEL), file).classes

    @property
    def ledger(self) -> Ledger:
        """Every release so far, those of an unfinished round included."""
        return RunDir.open(self.folder).ledger()

    @property
    def epsilon(self) -> dict[str, float]:
        """Epsilon of all releases by unit and observer, such as ``example/server``.

        For one example zeroed out, or for one client replaced.
        """
        return privacy.overview(self.ledger, delta=self.experiment.setting.delta)

    @property
    def spent(self) -> float:
        """Epsilon of what the method protects, zeroed out: what its budget is compared with."""
        return self.costing()

    def costing(self, observer: Observer | None = None, relation: Relation = "zero-out") -> float:
        """Return the epsilon of what the method protects, against anybody and for any relation.

        For replacement an upper bound: it stands beside the certificate, and clients may be many.
        """
        unit, whom = self.experiment.method.protects
        return privacy.epsilon(
            self.ledger,
            unit=unit,
            observer=observer or whom,
            delta=self.experiment.setting.delta,
            relation=relation,
            quick=relation == "replace",
        )

    @property
    def groups(self) -> dict[str, dict[str, float]]:
        """Return how many clients a method's groups have and what they spent, if it has any."""
        saved = RunDir.open(self.folder).checkpoint()
        lines = self.metrics
        if saved is None or not lines or "groups" not in lines[-1]:
            return {}
        return by_group(self.experiment, saved[0], self.ledger)

    @property
    def why(self) -> str:
        """Why the epsilon of what the method protects is what it is, in one sentence."""
        unit, observer = self.experiment.method.protects
        delta = self.experiment.setting.delta
        return privacy.reason(self.ledger, unit=unit, observer=observer, delta=delta)

    @property
    def experiment(self) -> Experiment:
        """What ran."""
        return RunDir.open(self.folder).experiment()

    @property
    def history(self) -> Any:
        """Numbers by round: a pandas frame where pandas is installed, else lists by name."""
        return history(self.metrics)

    def plot(self, metric: str = "") -> Any:
        """Return a matplotlib figure of accuracy, or of another metric, over rounds."""
        chosen = metric or self.experiment.setting.metric
        check.choice("metric", chosen, WORDS)
        return over_rounds({self.folder.name: [self]}, self.folder.name, chosen)

    def model(self, *, client: str | None = None, dataset: Dataset | None = None) -> Ready:
        """Return the trained module; it takes inputs as they are in the data.

        Args:
            client: whose model, for a method where each client has its own
            dataset: the data, where the run was started with a data set of your own
        """
        from tacit.experiment import trained  # it makes plans, which make runs

        return trained.trained(self.folder, client=client, dataset=dataset)

    def predict(
        self, inputs: object, *, client: str | None = None, dataset: Dataset | None = None
    ) -> Tensor:
        """Return the class of each input, as a number; inputs are as they are in the data."""
        return self.model(client=client, dataset=dataset).predict(inputs)

    def predict_proba(
        self, inputs: object, *, client: str | None = None, dataset: Dataset | None = None
    ) -> Tensor:
        """Return the probability of each class (column) for each input (row)."""
        return self.model(client=client, dataset=dataset).predict_proba(inputs)

    def export(
        self, file: str | Path, *, client: str | None = None, dataset: Dataset | None = None
    ) -> Path:
        """Write the trained model for other programs, the scaling of its inputs included.

        The file's name says how: .onnx, .pt2 (torch.export) or .safetensors.
        """
        from tacit.experiment.exporting import cost_in_words, export, format_of

        to = format_of(Path(file))
        model = self.model(client=client, dataset=dataset)
        return export(model, Path(file), to, cost_in_words(self, client))

    def _repr_html_(self) -> str:
        """Show the run in a notebook."""
        final, method = self.final, self.experiment.method
        unit, observer = method.protects
        row = [
            self.folder.name,
            _reached(final) if final else "not evaluated",
            f"{self.rounds} of {method.rounds}",
            privacy.show_epsilon(self.spent),
            f"one {unit} against {observer}",
        ]
        head = ["run", "accuracy", "rounds", "eps", "for"]
        return html_table(head, [row], self.why)


def _reached(final: Json) -> str:
    """Return the accuracy of an evaluated line; of numbers the mean squared error."""
    if final["accuracy"] is None:
        return f"mean squared error {final[SQUARED]:.4g}"
    return f"{100 * final['accuracy']:.1f} %"


class Stopped(BudgetReached):
    """The budget has stopped a run, which can be read up to there."""

    def __init__(self, why: str, run: Run) -> None:
        super().__init__(why)
        self.run = run


def by_group(
    experiment: Experiment, s: State, ledger: Ledger, *, quick: bool = False
) -> dict[str, dict[str, float]]:
    """Return, for the groups of clients that a method tells apart, their number and spending."""
    method = experiment.method
    delta = experiment.setting.delta
    if not method.grouped(s):
        return {}
    unit, observer = method.protects
    spent = privacy.by_owner(ledger, unit=unit, observer=observer, delta=delta, quick=quick)
    groups = {
        name: [spent.get(i, math.inf) for i in ids]
        for name, ids in method.grouped(s).items()
        if ids
    }
    return {name: {"clients": len(each), "epsilon": max(each)} for name, each in groups.items()}
