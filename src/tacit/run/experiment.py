"""An experiment as dataclasses, and as a TOML file: the same fields, the same checks, unknown keys are errors."""

from __future__ import annotations

import json
import math
import re
import tomllib
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from tacit.core import BadInput, check_choice, check_number
from tacit.methods import METHODS, name_of


@dataclass(frozen=True)
class Setting:
    """Everything about an experiment but its method."""

    data: str = "digits"  # a known data set (see `tacit data`) or a path to your own
    split: str = "iid"  # who holds what: iid, label:1, dirichlet:0.5, ... (see `tacit split --help`)
    clients: int = 10  # number of clients
    model: str = "auto"  # a known network (see `tacit methods`) or your own as module:Class
    seed: int = 0  # everything random in the run derives from it
    eval_every: int = 1  # rounds between evaluations; the last round is always evaluated
    delta: float = 1e-5  # the delta of every reported (epsilon, delta)
    budget: float = math.inf  # stop before the step that would bring the method's epsilon above this
    noise: Literal["os", "seeded"] = "os"  # where noise comes from; seeded: a simulation that can be repeated
    workers: int | Literal["auto"] = "auto"  # processes; auto: one per processor; 0: serial, for debugging
    device: Literal["auto", "cpu", "cuda"] = "auto"  # auto: a GPU where there is one

    def __post_init__(self) -> None:
        check_number("clients", self.clients, at_least=1)
        check_number("eval_every", self.eval_every, at_least=1)
        check_number("delta", self.delta, above=0, below=1)
        if self.budget != math.inf:
            check_number("budget", self.budget, above=0)
        if self.workers != "auto":
            check_number("workers", self.workers, at_least=0)


@dataclass(frozen=True)
class Experiment:
    """A method and where it runs."""

    method: Any
    setting: Setting = field(default_factory=Setting)


def validated(cls: type[Any], raw: dict[str, Any], where: str = "") -> Any:
    """Build a dataclass from plain values, or say which field is wrong and what it takes."""
    _check_keys(cls, raw, where)
    try:
        text = json.dumps(raw, default=str)  # strict Python mode takes no plain dicts
        return TypeAdapter(cls).validate_json(text, strict=True)
    except ValidationError as e:
        first = e.errors()[0]
        if isinstance(cause := first.get("ctx", {}).get("error"), BadInput):
            raise cause from None
        at = ".".join(
            [*([where] if where else []), *(str(part) for part in first["loc"] if part in raw or "." not in str(part))]
        )
        raise BadInput(f"{at} = {first['input']!r}: {first['msg'].lower()}") from None


def _check_keys(cls: type[Any], raw: dict[str, Any], where: str) -> None:
    """Refuse an unknown key and name the nearest known one."""
    known = {f.name: f for f in fields(cls)}
    for key, value in raw.items():
        check_choice(f"{where or cls.__name__.lower()} key", key, known)
        default = known[key].default_factory
        if isinstance(value, dict) and isinstance(default, type) and is_dataclass(default):
            _check_keys(default, value, f"{where}.{key}".lstrip("."))


def method_from(raw: dict[str, Any] | str) -> Any:
    """Build a method from ``{"name": "fedavg", "rounds": 5}``, or from its name alone."""
    if not isinstance(raw, str | dict):
        raise BadInput(f"method = {raw!r}: must be a table with name = one of {', '.join(METHODS)}")
    given = {"name": raw} if isinstance(raw, str) else dict(raw)
    if "name" not in given:
        raise BadInput(f"method.name: missing; allowed: {', '.join(METHODS)}")
    name = given.pop("name")
    check_choice("method", str(name), METHODS)
    return validated(METHODS[name], given, "method")


def method_from_spec(spec: str) -> Any:
    """Build a method from a word such as ``fedprox`` or ``fedprox:mu=0.1,rounds=5,sgd.lr=0.1``."""
    name, _, rest = spec.partition(":")
    raw: dict[str, Any] = {"name": name}
    for pair in filter(None, re.split(r",(?![^\[]*\])", rest)):  # not the commas of a list
        key, equals, value = pair.partition("=")
        if not equals:
            raise BadInput(f"method = {spec!r}: {pair!r} must be key=value")
        at = raw
        *parents, last = key.split(".")
        for parent in parents:
            at = at.setdefault(parent, {})
        try:
            at[last] = tomllib.loads(f"v = {value}")["v"]
        except tomllib.TOMLDecodeError:
            at[last] = value
    return method_from(raw)


def experiment_from(raw: dict[str, Any]) -> Experiment:
    """Build an experiment from plain values."""
    raw = dict(raw)
    if "method" not in raw:
        raise BadInput(f"method: missing; write a [method] table with name = one of {', '.join(METHODS)}")
    return Experiment(method_from(raw.pop("method")), validated(Setting, raw))


def read_experiment(file: Path) -> Experiment:
    """Read an experiment file."""
    try:
        return experiment_from(tomllib.loads(file.read_text(encoding="utf-8")))
    except OSError as e:
        raise BadInput(f"{file}: cannot be read ({e.strerror})") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
        raise BadInput(f"{file}: not TOML ({e})") from None
    except BadInput as e:
        raise BadInput(f"{file}: {e}") from None


def to_toml(experiment: Experiment) -> str:
    """Write an experiment file with every field, so that it says all that ran."""
    raw = asdict(experiment.setting) | {"method": {"name": name_of(experiment.method), **asdict(experiment.method)}}
    return "\n".join(_table("", raw)) + "\n"


def _table(path: str, raw: dict[str, Any]) -> list[str]:
    plain = [f"{k} = {_value(v)}" for k, v in raw.items() if not isinstance(v, dict)]
    nested = [line for k, v in raw.items() if isinstance(v, dict) for line in _table(f"{path}.{k}".lstrip("."), v)]
    return [*([f"\n[{path}]"] if path else []), *plain, *nested]


def _value(v: Any) -> str:
    if isinstance(v, bool):
        return str(v).lower()
    if isinstance(v, str):
        return json.dumps(v, ensure_ascii=False)  # its escapes are those of TOML
    if isinstance(v, list | tuple):
        return f"[{', '.join(map(_value, v))}]"
    return repr(v)
