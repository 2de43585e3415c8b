"""What methods of synthetic samples choose themselves where these are public features.

Chosen on training data that were held out, never on test data: docs/methods/dafl.md.
"""

from __future__ import annotations

from dataclasses import replace

from tacit.local.sgd import SGD

HEAD = "mlp"  # a larger network needs no more noise: what is made of samples costs nothing
LR = 0.5  # step size
GAMMA, USUAL_GAMMA = 0.5, 0.05  # samples for each example of a client


def steps_on_features(sgd: SGD, *, alone: bool) -> SGD:
    """Return training with the step size that suits it, if nobody has said one.

    Args:
        sgd: the training
        alone: whether it sees samples of features and nothing else
    """
    return replace(sgd, lr=LR if alone else sgd.usual_lr) if sgd.lr == "auto" else sgd
