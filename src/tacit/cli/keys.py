"""`tacit keys`: certificates for the coordinator, keys for the sites."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from tacit.cli.connecting import needs_flower
from tacit.core import BadInput, check

KEYS_HELP = """\
usage: tacit keys init DIR [HOST ...]      an authority, and a server certificate for these hosts
       tacit keys new NAME [DIR]           at a site: its key pair, NAME.key and NAME.pub, in DIR
                                           (default: here)
       tacit keys add DIR NAME FILE.pub    let the owner of this key connect as NAME
       tacit keys remove DIR NAME          and no longer, from this moment on
       tacit keys revoke DIR NAME          the same, and its key can never be registered again
       tacit keys renew DIR                a new server key and certificate, which last 90 days
       tacit keys list DIR                 who may connect

DIR is the coordinator's folder of keys. A site gets DIR/ca.crt from it, makes its own key, and
hands out NAME.pub only.
"""
KEYS_ARGUMENTS = {  # how many each command takes
    "init": (1, 99),
    "new": (1, 2),
    "add": (3, 3),
    "remove": (2, 2),
    "revoke": (2, 2),
    "renew": (1, 1),
    "list": (1, 1),
}


def keys(args: Sequence[str]) -> None:
    """Make and register keys."""
    if not args or {"-h", "--help"} & set(args):
        print(KEYS_HELP, end="")
        return
    needs_flower()
    word, *rest = args
    check.choice("keys", word, tuple(KEYS_ARGUMENTS))
    least, most = KEYS_ARGUMENTS[word]
    if not least <= len(rest) <= most:
        raise BadInput(f"keys {word}: {len(rest)} arguments; see `tacit keys --help`")
    if options := [arg for arg in rest if arg.startswith("-")]:
        raise BadInput(f"{options[0]}: unknown option; see `tacit keys --help`")
    DONE[word](*rest)


def _init(folder: str, *hosts: str) -> None:
    from tacit.apps.keys import make_authority

    place = Path(folder)
    make_authority(place, hosts)
    print(f"authority and server certificate in {place}; give {place / 'ca.crt'} to every site")


def _new(name: str, folder: str = "") -> None:
    from tacit.apps.keys import make_site_key

    private = make_site_key(Path(folder), name)
    print(f"{private} stays here; give {private.with_suffix('.pub')} to the coordinator")


def _add(folder: str, name: str, file: str) -> None:
    from tacit.apps.keys import register

    register(Path(folder), name, Path(file))
    print(f"{name} may connect")


def _remove(folder: str, name: str) -> None:
    from tacit.apps.keys import remove

    remove(Path(folder), name)
    print(f"{name} may not connect any more")


def _revoke(folder: str, name: str) -> None:
    from tacit.apps.keys import revoke

    revoke(Path(folder), name)
    print(f"{name} may not connect any more, and its key cannot be registered again")


def _renew(folder: str) -> None:
    from tacit.apps.keys import SERVER_DAYS, renew

    place = Path(folder)
    due = renew(place)
    print(f"server certificate in {place} lasts {SERVER_DAYS} days from now")
    if due:
        print(f"the authority's was made anew, too: give {place / 'ca.crt'} to every site")


def _list(folder: str) -> None:
    from tacit.apps.keys import register_of

    registered = register_of(Path(folder)).items()
    print("\n".join(f"{name}  {text}" for name, text in registered) or "nobody")


DONE: dict[str, Callable[..., None]] = {
    "init": _init,
    "new": _new,
    "add": _add,
    "remove": _remove,
    "revoke": _revoke,
    "renew": _renew,
    "list": _list,
}
