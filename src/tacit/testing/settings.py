"""Can a method's settings be written down and read back, and are they explained?"""

from __future__ import annotations

import inspect
import tomllib
from collections.abc import Callable
from dataclasses import fields

from tyro import _docstrings

from tacit.core import Method
from tacit.experiment.config import Experiment, experiment_from, to_toml
from tacit.methods.spec import method_from_spec, spec_of


def settings_survive(method: Method) -> list[str]:
    """Check that config.toml and the word of a method give the same method again."""
    if "<locals>" in type(method).__qualname__:
        return ["is defined inside a function: must be at the top of a module, to be found again"]
    ways = {"config.toml": _through_toml, "its word": _through_word}
    return [line for name, way in ways.items() for line in _changed(method, name, way)]


def _through_toml(method: Method) -> Method:
    return experiment_from(tomllib.loads(to_toml(Experiment(method)))).method


def _through_word(method: Method) -> Method:
    return method_from_spec(spec_of(method))


def _changed(method: Method, name: str, way: Callable[[Method], Method]) -> list[str]:
    try:
        back = way(method)
    except Exception as e:  # a type that nothing here has heard of
        return [f"its settings do not survive {name}: {' '.join(str(e).split())}"]
    names = [f.name for f in fields(method) if getattr(method, f.name) != getattr(back, f.name)]
    return [
        f"{n} = {getattr(method, n)!r}: comes back from {name} as {getattr(back, n)!r}"
        for n in names
    ]


def unexplained(method: Method) -> list[str]:
    """Return the settings that ``--help`` says nothing about."""
    try:
        inspect.getsource(type(method))
    except (OSError, TypeError):  # typed into a session: there is no telling
        return []
    return [
        f"setting `{f.name}` has no help: write a comment behind it"
        for f in fields(method)
        if not _docstrings.get_field_docstring(type(method), f.name, ())
    ]
