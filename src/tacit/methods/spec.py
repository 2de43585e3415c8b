"""Methods from words and plain values: unknown keys and wrong types are refused in one line.

A method inside a method, such as DA-FL's main phase, is a word or a table there too; it is read
here, once, and is an object from then on.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, fields, is_dataclass, replace
from functools import cache
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError

from tacit.core import BadInput, Json, Method, check, pairs_of, plain_value
from tacit.core.own_code import is_code, trust, word_of
from tacit.methods import METHODS


def validated(cls: type, raw: Json, where: str = "") -> Any:
    """Build a dataclass from plain values, or say which field is wrong and what it takes."""
    _check_keys(cls, raw, where)
    try:
        text = json.dumps(raw, default=_plain)  # strict Python mode takes no plain dicts
        adapter = _adapter(cls)
        return adapter.validate_json(text, strict=True)
    except ValidationError as e:
        first = e.errors()[0]
        if isinstance(cause := first.get("ctx", {}).get("error"), BadInput):
            raise cause from None
        at = ".".join(
            [
                *([where] if where else []),
                *(str(part) for part in first["loc"] if part in raw or "." not in str(part)),
            ]
        )
        raise BadInput(f"{at} = {first['input']!r}: {first['msg'].lower()}") from None


@cache
def _adapter(cls: type) -> TypeAdapter[Any]:
    """Return what checks a dataclass; making it takes as long as answering a small request."""
    return TypeAdapter(cls)


def _plain(value: Any) -> object:
    """Return a number of NumPy or PyTorch as one of Python, and anything else as text."""
    return value.item() if getattr(value, "shape", None) == () else str(value)


def _check_keys(cls: type, raw: Json, where: str) -> None:
    """Refuse an unknown key and name the nearest known one."""
    known = {f.name: f for f in fields(cls)}
    for key, value in raw.items():
        check.choice(f"{where or cls.__name__.lower()} key", key, known)
        default = known[key].default_factory
        made = default() if isinstance(value, dict) and callable(default) else known[key].default
        if isinstance(value, dict) and is_dataclass(made) and not isinstance(made, type):
            _check_keys(type(made), value, f"{where}.{key}".lstrip("."))


def method_class(name: str) -> type[Method]:
    """Return the class of a method.

    Args:
        name: of a method of this package or of an installed one (entry points ``tacit.methods``),
            or where its code is: ``package.module:Name``, ``file.py:Name``
    """
    if name in METHODS:
        return METHODS[name]
    return _checked(METHODS.own(name), name)


def _checked(cls: Any, name: str) -> type[Method]:
    """Refuse what is not a method, and say what one is."""
    method = isinstance(cls, type) and issubclass(cls, Method)
    if not method or "__dataclass_params__" not in vars(cls):
        raise BadInput(
            f"method = {name!r}: must be a subclass of tacit.Method with @dataclass(frozen=True)"
        )
    try:
        cls()
    except TypeError as e:
        raise BadInput(f"method = {name!r}: every field needs a default ({e})") from None
    found: type[Method] = cls
    return found


def name_of(method: Method) -> str:
    """Return the word by which a method's class is found again, in any folder."""
    known = [name for name, cls in METHODS.items() if cls is type(method)]
    return known[0] if known else word_of(type(method))


def label_of(name: str) -> str:
    """Return a short name for tables and folders.

    >>> label_of("scaffold"), label_of("/some/where/mine.py:FedAdam")
    ('scaffold', 'FedAdam')
    """
    return name.rpartition(":")[2]


def parted(spec: str) -> tuple[str, str]:
    """Divide a word into a method's name and its settings.

    >>> parted("fedprox:mu=0.1,rounds=5"), parted("mine.py:FedAdam:lr=1"), parted("my.code:Mine")
    (('fedprox', 'mu=0.1,rounds=5'), ('mine.py:FedAdam', 'lr=1'), ('my.code:Mine', ''))
    """
    name, _, rest = spec.partition(":")
    attribute, _, settings = rest.partition(":")
    if name in METHODS or not is_code(f"{name}:{attribute}"):
        return name, rest
    return f"{name}:{attribute}", settings


def folder_of(spec: str) -> str:
    """Return a folder's name for a method word.

    >>> folder_of("fedprox:mu=0.1"), folder_of("/home/me/mine.py:FedAdam:lr=1")
    ('fedprox-mu=0.1', 'FedAdam-lr=1')
    """
    name, settings = parted(spec)
    word = f"{label_of(name)}-{settings}" if settings else label_of(name)
    return re.sub(r"[^\w.,=+-]", "_", word)


def method_from(raw: Json | str) -> Method:
    """Build a method from ``{"name": "fedavg", "rounds": 5}``, or from its name alone."""
    if not isinstance(raw, str | dict):
        raise BadInput(f"method = {raw!r}: must be a table with name = one of {', '.join(METHODS)}")
    given = {"name": raw} if isinstance(raw, str) else dict(raw)
    if "name" not in given:
        raise BadInput(f"method.name: missing; allowed: {', '.join(METHODS)}")
    if given.get("relation") == "add/remove":  # as runs of before have it in their config.toml
        given["relation"] = "zero-out"
    cls = method_class(str(given.pop("name")))
    if "features" in given and "features" not in {f.name for f in fields(cls)}:
        raise BadInput(
            f"features = {given['features']!r}: are of the experiment, not of a method: "
            f"--features {given['features']}, or features = ... beside data and split"
        )
    inner = {key: _inner(given.pop(key)) for key in inner_fields(cls) if key in given}
    method: Method = validated(cls, _completed(given, cls()), "method")
    return replace(method, **inner)


def _completed(given: Json, usual: Any) -> Json:
    """Add to tables of settings (sgd, say) what they leave out: what the method itself has there.

    Its usual training may differ from that of others: ldp_fl has batches of 64.
    """
    return {key: _completed_one(value, key, usual) for key, value in given.items()}


def _completed_one(value: object, key: str, usual: Any) -> Any:
    """Return a setting; of a table the whole of it."""
    names = {f.name for f in fields(usual)}
    if not isinstance(value, dict) or key not in names:
        return value
    own = getattr(usual, key)
    if not is_dataclass(own) or isinstance(own, type | Method):
        return value
    return {**asdict(own), **_completed(value, own)}


def inner_fields(cls: type[Method]) -> list[str]:
    """Return the settings of a method that are methods themselves."""
    hints = get_type_hints(cls)
    return [f.name for f in fields(cls) if hints[f.name] is Method]


def _inner(raw: Json | str) -> Method:
    return method_from_spec(raw) if isinstance(raw, str) else method_from(raw)


def method_from_spec(spec: str) -> Method:
    """Build a method from a word such as ``fedprox`` or ``fedprox:mu=0.1,rounds=5,sgd.lr=0.1``.

    A method inside it is a word in quotes, ``dafl:method="fedmix:lam=0.2,M=8",rounds=5``, which it
    needs only if it has more than one setting.
    """
    name, rest = parted(spec)
    raw: Json = {"name": name}
    for pair in pairs_of(rest):
        key, equals, value = pair.partition("=")
        if not equals:
            raise BadInput(f"method = {spec!r}: {pair!r} must be key=value")
        *parents, last = key.split(".")
        at = raw
        for parent in parents:
            at = at.setdefault(parent, {})
            if not isinstance(at, dict):
                raise BadInput(f"method = {spec!r}: {parent} has a value already, {at!r}")
        at[last] = plain_value(value)
    return method_from(raw)


def as_method(given: Method | str) -> Method:
    """Return a method that was given as itself or as a word."""
    if isinstance(given, str):
        return method_from_spec(given)
    if not isinstance(given, Method):
        raise BadInput(
            f"method = {given!r}: must be a word such as 'fedavg:rounds=5', "
            "or an instance of a subclass of tacit.Method"
        )
    trust(type(given))
    _checked(type(given), type(given).__name__)
    for name in inner_fields(type(given)):
        as_method(getattr(given, name))
    return given


def raw_method(method: Method) -> Json:
    """Return a method as plain values, its name and every setting; one inside it is a word."""
    words = {name: spec_of(vars(method)[name]) for name in inner_fields(type(method))}
    return {"name": name_of(method), **asdict(method), **words}


def spec_of(method: Any) -> str:
    """Return the word that :func:`method_from_spec` builds this method from.

    Its name, and what is not the default.

    >>> spec_of(method_from_spec("fedprox:rounds=5,sgd.lr=0.1"))
    'fedprox:rounds=5,sgd.lr=0.1'
    """
    changed = _changed(method, type(method)())
    pairs = [f"{key}={json.dumps(value)}" for key, value in changed]
    return ":".join([name_of(method), *filter(None, [",".join(pairs)])])


def _changed(given: Any, default: Any, prefix: str = "") -> list[tuple[str, Any]]:
    found = []
    for f in fields(given):
        value = getattr(given, f.name)
        usual = getattr(default, f.name)
        if isinstance(value, Method) and value != usual:
            found.append((prefix + f.name, spec_of(value)))
        elif is_dataclass(value) and not isinstance(value, Method):
            found += _changed(value, usual, f"{prefix}{f.name}.")
        elif value != usual:
            found.append((prefix + f.name, value))
    return found
