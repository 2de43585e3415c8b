"""What every method's clients really send is what a coordinator takes from a site that said so."""

from dataclasses import replace

import pytest
from conformance.test_clips import variants
from sandbox import small

from tacit.engines.client_host import World
from tacit.engines.facts import Facts
from tacit.engines.messages import Answer
from tacit.engines.replies import Known, check_sent
from tacit.experiment.drive import drive
from tacit.methods import METHODS
from tacit.synthesis.source import Source

WEIGHTED = [("ldp_fl", {"mode": "gradient", "weights": how}) for how in ("alike", "size")]


def facts_of(world, client):
    d, n = world.federation.dataset, len(world.federation.train(client))
    return Facts(
        client, "0", d.shape, d.classes, d.mean, d.std, n, len(world.federation.test(client))
    )


@pytest.mark.parametrize(
    ("name", "kind"), [*((n, k) for n in METHODS for k in variants(n)), *WEIGHTED]
)
def test_a_coordinator_takes_what_an_honest_site_sends(name, kind, sandbox, monkeypatch):
    real, checked = World.handle, []

    def handled(world, head, call, packed):
        answer = real(world, head, call, packed)
        assert isinstance(answer, Answer), answer
        had = len(
            world.client(
                call.task, head.client, head.round, world.store(head.client).kept(head.accepted)
            ).data
        )
        check_sent(answer, head, call, Known(facts_of(world, head.client), (had,)))
        checked.append(head.client)
        return answer

    monkeypatch.setattr(World, "handle", handled)
    if kind.get("mode") == "paper":
        monkeypatch.setattr(Source, "kind", "moments")  # the papers' GAN needs images
    method = replace(small(name, rounds=1), **kind)
    drive(method, sandbox.serial(method), method.init(sandbox.x0))
    assert checked or name == "centralised"
