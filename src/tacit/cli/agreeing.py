"""What a site's owner agrees to: an experiment file, a policy, or what is asked at the terminal."""

from __future__ import annotations

import math
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tacit.core import BadInput, Json

if TYPE_CHECKING:
    from tacit.apps.policy import Policy
    from tacit.cli.join import JoinFlags
    from tacit.core import Params
    from tacit.data.examples import Dataset
    from tacit.experiment.config import Experiment


def agreed(given: JoinFlags, dataset: Dataset, size: int) -> Policy | None:
    """Return the policy that flags state; None: the owner is to be asked at this terminal."""
    from tacit.apps.policy import ANYTHING, read_policy
    from tacit.experiment.config import read_experiment

    if given.accept and given.policy:
        raise BadInput("--accept: contradicts --policy; leave one of them out")
    if given.policy:
        return read_policy(given.policy, _first_parameters("auto", dataset))
    if given.accept == "anything":
        return ANYTHING
    if given.accept:
        return _accepted(read_experiment(Path(given.accept)), given, dataset, size)
    if not sys.stdin.isatty():
        raise BadInput(
            "--accept: needed where there is no terminal to ask at: the experiment file that you "
            "agree to, or --policy FILE"
        )
    return None


def _accepted(experiment: Experiment, given: JoinFlags, dataset: Dataset, size: int) -> Policy:
    from tacit.apps.policy import from_experiment
    from tacit.experiment.encoding import NONE, chosen_features, is_linear, network_for

    s = experiment.setting
    told = _own_encoder(s.features, given.features)
    features = chosen_features(told, experiment.method, dataset.shape, s.model)
    word = network_for(s.model, features, dataset.shape, experiment.method)
    x0 = _first_parameters(word, dataset, features)
    linear, featured = is_linear(word, features), features != NONE
    return from_experiment(experiment, x0, size, linear=linear, features=featured)


def _own_encoder(told: str, own: str | None) -> str:
    """Return the features of an experiment, an encoder's file as this site's owner has named it."""
    from tacit.apps.policy import Refused
    from tacit.synthesis import encoder_file

    if not encoder_file.is_file(told):
        return told
    wanted = encoder_file.digest_of(told)  # an experiment file of one's own need not say it
    if own is None or (wanted and not encoder_file.same(told, own)):
        raise Refused(f"features = {told[:80]!r}: not the encoder given with --features")
    return own


def _first_parameters(model: str, dataset: Dataset, features: str = "none") -> Params:
    """Return the parameters that a network begins with on such data, or features of them."""
    from tacit.core import params_of
    from tacit.experiment.encoding import shape_of
    from tacit.models import build, choose

    shape = shape_of(features, dataset.shape)
    return params_of(build(choose(model, shape), shape, len(dataset.classes), 0))


def ask_owner(
    given: JoinFlags, dataset: Dataset, size: int, leave: Callable[[], None], text: str
) -> Policy:
    """Show what a coordinator says that it runs; return the policy for it if the owner agrees.

    Args:
        given: the flags of `tacit join`
        dataset: the site's data
        size: how many training examples the site has
        leave: ends the connection, if the owner does not agree
        text: the experiment, as the coordinator tells it
    """
    from tacit.apps.policy import Refused

    policy = _accepted(_told(text, given), given, dataset, size)
    print(f"\nThe coordinator at {given.server} wants to run:\n\n{_printable(text)}")
    print(f"If you agree, {in_words(policy, given)}.")
    if not _yes("Do you agree? [y/N] "):
        leave()
        raise Refused("policy: this site's owner does not agree")
    return policy


def _yes(question: str) -> bool:
    """Ask at the terminal; Ctrl-C and the end of input are a no."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return input(question).strip().lower() in ("y", "yes")
    except (KeyboardInterrupt, EOFError):
        return False
    finally:
        signal.signal(signal.SIGINT, before)


def _told(text: str, given: JoinFlags) -> Experiment:
    """Return the experiment that a coordinator describes; no code of its choice is looked at."""
    import tomllib

    from tacit.apps.policy import Refused, refuse_code
    from tacit.core.registry import names_code
    from tacit.experiment.config import experiment_from

    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as e:
        raise BadInput(f"experiment: not TOML ({e})") from None
    raw = {k: v for k, v in raw.items() if k not in ("data", "split")}  # nobody's affair here
    method = raw.pop("method", {})
    method = {"name": method} if isinstance(method, str) else dict(method)
    if given.method is not None and names_code(str(method.get("name"))):
        method["name"] = given.method
    refuse_code(_words(raw), _own(given))
    for word in _words(method):
        if names_code(word) and word not in _own(given):
            raise Refused(f"method: {word[:80]!r} names code, and --method does not")
    if ":" in str(raw.get("model")) and raw["model"] != given.model:
        raise Refused(f"model = {raw['model'][:80]!r}: not the network given with --model")
    return experiment_from({**raw, "method": method})


def _words(raw: Json) -> list[str]:
    from tacit.core.schema import leaves

    return [value for _, _, value in leaves(raw) if isinstance(value, str)]


def _own(given: JoinFlags) -> set[str | None]:
    return {given.method, given.model, given.features}


def _printable(text: str) -> str:
    """Return a text from elsewhere without anything that a terminal would obey."""
    return "".join(c for c in text if c.isprintable() or c == "\n")[:10_000]


def in_words(policy: Policy, given: JoinFlags) -> str:
    """Say what a site allows, its flags included."""
    budget = "" if given.budget == math.inf else f"; --budget {given.budget:g} over all runs"
    metrics = given.metrics or policy.metrics or "exact"
    return f"{policy.words()}{budget}; metrics: {metrics}"
