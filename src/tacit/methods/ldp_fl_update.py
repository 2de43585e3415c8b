"""LDP-FL's mode `update`: the whole update clipped and noised, and nothing else.

A reply does not say how many examples are behind it, for that is the client's secret here.
"""

from __future__ import annotations

from tacit.core import BadInput, Client, Params, Reply, task
from tacit.local.sgd import SGD
from tacit.methods.dp_fedavg import Update
from tacit.methods.ldp_fl_settings import Settings


@task
def train(me: Client, x: Params, method: Settings, K: int, delta: float) -> Reply[Update]:
    rule = method.rule(me.id, me.size, K, delta)
    if method.how != "update" or isinstance(rule, SGD):
        raise BadInput(f"mode = {method.mode!r}: must be 'update'")
    y, _ = method.sgd.fit(me, x)
    return Reply(Update(rule.send(me, y - x)))
