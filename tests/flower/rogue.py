"""A site that misbehaves: ``python rogue.py KIND join-flags``."""

import sys
import time
from dataclasses import fields, replace

import torch

from tacit.apps.site import Site
from tacit.cli.main import main
from tacit.codec import pack, unpack
from tacit.core import Params
from tacit.engines.flower import letter, opened, packed

kind, honest = "", Site.reply


def spoilt(sent):
    """The same reply with its first point made useless."""
    name = next(f.name for f in fields(sent) if isinstance(getattr(sent, f.name), Params))
    point = dict(getattr(sent, name))
    first = next(iter(point))
    point[first] = (
        torch.full_like(point[first], float("nan"))
        if kind == "nan"
        else point[first].reshape(-1)[:1]
    )
    return replace(sent, **{name: Params(point)})


def reply(self, content):
    asked, about, _ = opened(content, self.limit)
    if asked != "ask":
        return honest(self, content)
    if kind == "slow":
        time.sleep(20)
    answer = honest(self, content)
    word, said, blob = opened(answer, self.limit)
    if kind in ("nan", "shape"):
        given = unpack(blob)
        return letter(word, said, packed(pack(replace(given, sent=spoilt(given.sent)))))
    if kind == "huge":
        return letter(
            word, said, packed(torch.zeros(40 << 20, dtype=torch.uint8).random_().numpy().tobytes())
        )
    if kind == "stale":
        return letter(
            word, said | {"ask": f"{about['head']['ask'].partition('@')[0]}@99"}, packed(blob)
        )
    if kind == "garbage":
        return letter(word, said, packed(b"garbage" * 100))
    return answer


if __name__ == "__main__":
    kind, sys.argv[1] = sys.argv[1], "join"
    Site.reply = reply
    main()
