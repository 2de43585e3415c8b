"""Train on a table of one's own, with DP-SGD at every client.

    python 03_own_data.py

A CSV needs a header and a column `label`. Classes are stated, so that no single record tells them.
From the command line: tacit run fedavg --data patients.csv --sgd.clip 1 --sgd.epsilon 4
"""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

import tacit


def write_patients(file: Path, records: int) -> None:
    draw = random.Random(0)
    lines = ["pressure,sugar,label"]
    for _ in range(records):
        x, y = draw.gauss(0, 1), draw.gauss(0, 1)
        lines.append(f"{x},{y},{'ill' if x + y > 0 else 'well'}")
    file.write_text("\n".join(lines))


def main(records: int = 3000, rounds: int = 5) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "patients.csv"
        write_patients(file, records)
        data = tacit.data.load(str(file), classes="ill,well")
        method = f"fedavg:rounds={rounds},sgd.lr=0.5,sgd.clip=1,sgd.epsilon=4"
        run = tacit.run(method, data=data, clients=3, out=Path(folder) / "run")
        eps = tacit.privacy.show_epsilon(run.spent)
        print(f"accuracy {100 * run.accuracy:.1f}%, eps {eps}: {run.why}")


if __name__ == "__main__":
    main()
