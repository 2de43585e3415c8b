"""Where synthetic examples come from: one mode for all of it."""

import pytest

from tacit.cli.main import call
from tacit.core import BadInput
from tacit.methods.dafl import DAFL
from tacit.methods.words import method_from_spec
from tacit.synthesis.gan import GAN, GANSettings
from tacit.synthesis.source import Source

DELTA = 1e-5


@pytest.mark.parametrize(
    ("mode", "law", "steps"), [("certified", "poisson", 12), ("paper", "fixed", 12)]
)
def test_the_gan_trains_in_the_mode_of_the_method(mode, law, steps):
    """A certified GAN draws Poisson samples, the published one batches of a fixed size.

    Both fit in this budget.
    """
    source = Source(
        mode=mode, generator="gan", pool_epsilon=50.0, gan=GANSettings(epochs=3, batch=25)
    )
    *_, line = source.lines("0", 100, DELTA)
    assert (line.sampling.law, line.sampling.q, line.steps) == (law, 0.25, steps)


@pytest.mark.parametrize("mode", ["certified", "paper"])
def test_settings_are_those_of_the_training(mode):
    settings = GANSettings(epochs=3, batch=25, z=0.7, conditional=False)
    assert settings.in_mode(mode) == GAN(epochs=3, batch=25, z=0.7, conditional=False, mode=mode)


@pytest.mark.parametrize(
    "args", ["run dafl", "run gfl --mode paper", "synth digits --generator gan"]
)
@pytest.mark.parametrize("mode", ["certified", "paper"])
def test_a_mode_for_the_gan_alone_is_no_option(args, mode, capsys):
    assert call([*args.split(), "--gan.mode", mode]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "--gan.mode: unknown option" in line


def test_a_mode_for_the_gan_alone_is_no_setting():
    with pytest.raises(BadInput, match=r"method\.gan key = 'mode'"):
        method_from_spec("gfl:gan.mode=paper")
    with pytest.raises(BadInput, match=r"gan = GAN\(\.\.\.\): must be GANSettings"):
        DAFL(gan=GAN(mode="paper"))
