"""Whatever is killed, whenever: it goes on, to the same model where that is promised."""

import pytest
from liars import PRIVATE, run, venue

from tacit import codec
from tacit.experiment.loop import conduct
from tacit.experiment.rundir import RunDir
from tacit.experiment.watch import Nobody

LETTERS = 16  # two rounds of four sites that train and report


class Killed(BaseException):
    """No code expects it."""


def killed_after(count):
    """Return what the fourth site does, so that the coordinator ends after so many letters."""
    seen = []

    def lie(content, said):
        seen.append(content)
        if len(seen) > count:
            raise Killed
        return said

    return lie


@pytest.mark.parametrize("letters", range(LETTERS // 4))
def test_a_coordinator_that_ends_between_two_answers_goes_on(letters, tmp_path):
    """Sites have been through rounds that it asks for again, and have lines of them."""
    whole, _ = run(tmp_path / "whole", PRIVATE, metrics=0.5)
    with pytest.raises(Killed):
        run(tmp_path, PRIVATE, killed_after(letters), metrics=0.5)
    place, _ = venue(tmp_path, PRIVATE, metrics=0.5)
    directory = RunDir.open(tmp_path / "run")
    conduct(place, directory, Nobody())
    assert [line.get("failed") for line in directory.metrics()] == [None, None]
    assert codec.same(directory.checkpoint()[0], whole.checkpoint()[0])
    assert directory.ledger() == whole.ledger()
