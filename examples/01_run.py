"""Run methods from Python: accuracy, and what an example pays for it.

    python 01_run.py

Ten clients hold two classes of handwritten digits each. FedAvg sends plain updates, so its epsilon
is infinite. With DP-SGD at the clients it is what was asked for, but a client's 144 examples are
too few to hide among; `moments`, which makes one release in all, still learns from them.
"""

from __future__ import annotations

import tacit

METHODS = ["fedavg:rounds=5", "fedavg:rounds=5,sgd.clip=1,sgd.epsilon=8", "moments:epsilon=8"]


def main(methods: list[str] = METHODS, **setting: object) -> None:
    for method in methods:
        run = tacit.run(method, split="label:2", **setting)
        print(
            f"{method}: accuracy {100 * run.accuracy:.1f}%, eps "
            f"{tacit.privacy.show_epsilon(run.spent)}"
        )
        print(f"  because: {run.why}")


if __name__ == "__main__":
    main()
