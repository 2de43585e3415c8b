"""Run directories written by hand, as a run leaves them: quick, and as broken as a test wants."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tacit.core import Gaussian, NonPrivate, Release
from tacit.engines.store import to_text

CONFIG = """data = {data!r}
classes = ""
split = "label:1"
clients = {clients}
model = "mlp"
seed = {seed}
eval_every = 1
delta = 1e-05
budget = inf

[method]
name = {method!r}
rounds = {rounds}

[method.sgd]
lr = {lr}
"""
KEYS = [
    f"{unit}/{who}" for unit in ("example", "client") for who in ("server", "clients", "public")
]


def line(t: int, clients: int, z: float | None, **more: Any) -> dict[str, Any]:
    """Return the line of a round: accuracy rises, epsilon is what this file says it is."""
    accuracy = 1 - 1 / (t + 1)
    spent: Any = "inf" if z is None else round(0.1 * t, 6)
    return {
        "round": t, "accuracy": accuracy, "loss": 1 / t, "personal": False,
        "per_class": [accuracy] * 10,
        "own_data": {"mean": accuracy, "std": 0.1, "worst": accuracy / 2},
        "per_client": {str(i): accuracy * (i + 1) / clients for i in range(clients)},
        "epsilon": dict.fromkeys(KEYS, spent), "spent": spent, "protects": "example/server",
        "bytes_up": 1000, "bytes_down": 2000, "seconds": 0.5, **more,
    }  # fmt: skip


def write_run(
    folder: Path, *, method: str = "fedavg", rounds: int = 3, done: int | None = None,
    clients: int = 4, seed: int = 0, z: float | None = None, data: str = "digits", lr: float = 0.1,
) -> Path:  # fmt: skip
    """Write a run with or without noise."""
    folder.mkdir(parents=True)
    config = CONFIG.format(
        data=data, clients=clients, seed=seed, method=method, rounds=rounds, lr=lr
    )
    (folder / "config.toml").write_text(config.replace("'", '"'))
    lines = [line(t, clients, z) for t in range(1, (rounds if done is None else done) + 1)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    event = NonPrivate(f"{method}.train sends dx without noise") if z is None else Gaussian(z)
    span = ((0, max(0, len(lines) - 1)),)
    releases = [
        Release(f"{method}.train", "example", str(i), "server", event, span)
        for i in range(clients if lines else 0)
    ]
    (folder / "ledger.jsonl").write_text(to_text(releases))
    started = {"started": "2026-01-02T03:04:05+00:00", "command": f"tacit run {method}"}
    (folder / "about.json").write_text(json.dumps({"starts": [started]}))
    return folder


def add_round(folder: Path, t: int, clients: int = 4) -> None:
    """Let a run go on by one round."""
    with (folder / "metrics.jsonl").open("a") as f:
        f.write(json.dumps(line(t, clients, None)) + "\n")
