"""A public encoder as a file: a network that was trained on public data, up to its last layer.

Its numbers are safetensors, its card is JSON in the same file. The file is not trusted: it names a
network of this package and never code, and it is checked and tried before it is used.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import re
import stat
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from tacit.core import BadInput
from tacit.core.files import write_atomically
from tacit.core.schema import check_value
from tacit.data.examples import Examples
from tacit.models import skeleton

ENDING = ".safetensors"
KEY = "tacit-encoder"  # of the card in the header of the file
FORMAT = 2
MOST = 1 << 30  # bytes of a file
# encoder.safetensors as a user writes it, and with what was found in it once it was read
WORD = re.compile(r"(?P<file>.+\.safetensors)(?:@(?P<data>[\w-]+)\.(?P<digest>[0-9a-f]{64}))?")


@dataclass(frozen=True)
class Card:
    """What an encoder is and where it comes from: public facts."""

    network: str  # of this package, with its arguments
    shape: tuple[int, ...]  # of one input
    classes: int  # that the network was trained to tell apart
    width: int  # features of one input
    mean: tuple[float, ...]  # of the inputs, by channel, as they were scaled for it
    std: tuple[float, ...]
    data: str  # which it was trained on
    rows: int  # of them
    sha256: str  # of the training rows and their labels
    accuracy: float  # of the whole network on rows that were held out
    held_out: int  # such rows
    command: str  # that made it
    tacit: str  # the version that made it
    checksum: str = ""  # of the numbers in the file and of all else that the card says
    format: int = FORMAT


class Network(nn.Module):
    """An encoder: inputs as in the data, images in 0..1, to features."""

    def __init__(self, card: Card, layers: nn.Module) -> None:
        super().__init__()
        self.card = card
        self.layers = layers
        self.image = len(card.shape) == 3
        self.mean = torch.tensor(card.mean).view(-1, 1, 1)
        self.std = torch.tensor(card.std).view(-1, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return (n, width)."""
        made: Tensor = self.layers((x - self.mean) / self.std if self.image else x)
        return made


def is_file(word: str) -> bool:
    """Tell whether a word names an encoder's file.

    >>> is_file("hog"), is_file("some/encoder.safetensors"), is_file("mine.py:encode")
    (False, True, False)
    """
    return WORD.fullmatch(word) is not None


def pinned(word: str) -> str:
    """Return a word that holds in every folder, and for what is in the file now and nothing else.

    One that says what is in the file stays as it is.
    """
    found = _parts(word)
    if found["digest"]:
        return word
    file = _place(found["file"]).resolve()
    card, blob = read(file)
    return f"{file}@{card.data}.{hashlib.sha256(blob).hexdigest()}"


def named(word: str) -> str:
    """Return a pinned word without the folder, which is nobody else's affair.

    >>> named("/home/me/encoder.safetensors@cifar100." + 64 * "0")[:35]
    'encoder.safetensors@cifar100.000000'
    """
    return Path(word).name if is_file(word) else word


def same(word: str, other: str) -> bool:
    """Tell whether two pinned words say that the same is in their files."""
    return digest_of(word) != "" and digest_of(word) == digest_of(other)


def digest_of(word: str) -> str:
    """Return what a pinned word says is in the file, for whoever compares; others say nothing."""
    found = WORD.fullmatch(word)
    return (found and found["digest"]) or ""


def path_of(word: str) -> str:
    """Return where a file is."""
    return str(_parts(word)["file"])


def said_of(word: str) -> str:
    """Return how tables name an encoder.

    >>> said_of("/home/me/encoder.safetensors@cifar100." + 64 * "0")
    'public encoder trained on cifar100'
    """
    found = _parts(word)
    return f"public encoder trained on {found['data']}" if found["data"] else found["file"]


def _parts(word: str) -> re.Match[str]:
    found = WORD.fullmatch(word)
    assert found is not None
    return found


def head_off(model: nn.Module) -> nn.Sequential:
    """Return a network up to its last linear layer."""
    layers = list(model.children())
    if not isinstance(model, nn.Sequential) or not isinstance(layers[-1], nn.Linear):
        raise BadInput("model: must be layers in a row, of which the last is linear")
    return nn.Sequential(*layers[:-1])


def write(file: Path, card: Card, layers: nn.Module) -> Card:
    """Write an encoder; return its card, with the checksum."""
    numbers = {k: v.detach().contiguous() for k, v in layers.state_dict().items()}
    card = replace(card, checksum=_checksum(card, numbers))
    text = json.dumps(asdict(card), indent=1, ensure_ascii=False)
    write_atomically(file, save_tensors(numbers, {KEY: text}))
    return card


def read(file: Path) -> tuple[Card, bytes]:
    """Return the card of an encoder and the whole file."""
    try:
        if not stat.S_ISREG(file.stat().st_mode):  # a pipe or a device would be waited for
            raise OSError(errno.EINVAL, "not a file")
        with file.open("rb") as opened:
            blob = opened.read(MOST + 1)
    except (OSError, ValueError) as e:
        why = e.strerror if isinstance(e, OSError) and e.strerror else e
        raise BadInput(f"features = '{file}': cannot be read ({why})") from None
    if len(blob) > MOST:
        raise BadInput(f"features = '{file}': larger than {MOST >> 30} GB: not an encoder")
    try:
        load_tensors(blob)  # whatever is wrong with the header or the sizes
        head = json.loads(blob[8 : 8 + int.from_bytes(blob[:8], "little")])
    except (SafetensorError, ValueError, TypeError, KeyError, RuntimeError) as e:
        why = " ".join(str(e).split())[:200]
        raise BadInput(f"features = '{file}': not a whole safetensors file ({why})") from None
    said = head.get("__metadata__", {}).get(KEY)
    if said is None:
        raise BadInput(f"features = '{file}': has no card; must be a file that tacit encode wrote")
    try:
        return _card(said), blob
    except BadInput as e:
        raise BadInput(f"features = '{file}': card: {e}") from None


def _card(text: str) -> Card:
    """Return a card from JSON, or refuse it."""
    try:
        raw = json.loads(text)
        lists = {k: tuple(v) for k, v in raw.items() if isinstance(v, list)}
        card = Card(**{**raw, **lists})
    except (ValueError, TypeError, AttributeError, RecursionError) as e:
        raise BadInput(f"does not say what it must ({' '.join(str(e).split())[:200]})") from None
    check_value(card, Card, "card")
    if card.format != FORMAT:
        raise BadInput(f"format = {card.format}: this version reads {FORMAT}")
    if not re.fullmatch(r"[\w-]{1,60}", card.data):
        raise BadInput(f"data = {card.data[:80]!r}: must be letters, digits and dashes")
    if not card.shape or min(*card.shape, card.classes, card.width) < 1:
        sizes = f"shape = {card.shape}, width = {card.width}, classes = {card.classes}"
        raise BadInput(f"{sizes}: must be at least 1")
    channels = card.shape[0] if len(card.shape) == 3 else 1
    for name, values in {"mean": card.mean, "std": card.std}.items():
        good = all(math.isfinite(v) and (name == "mean" or v > 0) for v in values)
        if len(values) not in (1, channels) or not good:
            raise BadInput(f"{name} = {str(values)[:80]}: must be a number for each channel")
    return card


def load(word: str, shape: tuple[int, ...]) -> Network:
    """Return the encoder of a file for inputs of a shape, or refuse it."""
    wanted = _parts(word)
    file = _place(wanted["file"])
    card, blob = read(file)
    if wanted["digest"] and wanted["digest"] != hashlib.sha256(blob).hexdigest():
        raise BadInput(
            f"features = '{file}': its checksum is {hashlib.sha256(blob).hexdigest()[:16]}, and "
            f"must be {wanted['digest'][:16]}: not the file that was meant"
        )
    if card.shape != shape:
        takes, these = ("x".join(map(str, s)) for s in (card.shape, shape))
        raise BadInput(f"features = '{file}': takes inputs of {takes}; these are {these}")
    try:
        return Network(card, _layers(card, load_tensors(blob))).eval()
    except BadInput as e:
        raise BadInput(f"features = '{file}': {e}") from None


def fingerprint(rows: Examples) -> str:
    """Return a checksum of examples and their labels."""
    digest = hashlib.sha256()
    for part in (rows.x, rows.y):
        digest.update(f"{tuple(part.shape)} {part.dtype}".encode())
        digest.update(part.contiguous().numpy().data)
    return digest.hexdigest()


def refuse_own(word: str, rows: Examples) -> None:
    """Refuse an encoder that was trained on these very records, which are not public then."""
    file = _place(_parts(word)["file"])
    card, _ = read(file)
    if card.rows == len(rows) and card.sha256 == fingerprint(rows):
        raise BadInput(
            f"features = '{file}': was trained on the records of this run ({card.data}), so what "
            "it says of them is no public function, and no eps would cover it; must be other data"
        )


def _place(file: str) -> Path:
    try:
        return Path(file).expanduser()
    except RuntimeError as e:  # nobody of that name has a home
        raise BadInput(f"features = {file!r}: {e}") from None


def _layers(card: Card, numbers: dict[str, Tensor]) -> nn.Module:
    """Return the layers that a card names, with these numbers."""
    for name, values in numbers.items():
        if values.dtype != torch.float32:
            raise BadInput(f"{name}: is {values.dtype}; must be torch.float32")
    if card.checksum != (found := _checksum(card, numbers)):
        raise BadInput(
            f"checksum = {card.checksum[:16]!r}: its card and numbers have {found[:16]!r}; "
            "they are not those that it was written with"
        )
    layers = head_off(skeleton(card.network, card.shape, card.classes))
    sizes = {k: tuple(v.shape) for k, v in layers.state_dict().items()}
    for name in sorted(sizes.keys() | numbers.keys()):
        got = tuple(numbers[name].shape) if name in numbers else "missing"
        if got != (must := sizes.get(name, "missing")):
            raise BadInput(f"{name}: is {got}; in the network {card.network!r} it is {must}")
        if not numbers[name].isfinite().all():
            raise BadInput(f"{name}: has numbers that are not finite")
    layers.load_state_dict(numbers, assign=True)
    for p in layers.parameters():
        p.requires_grad_(False)
    width = tuple(layers(torch.zeros(1, *card.shape)).shape)
    if width != (1, card.width):
        raise BadInput(f"width = {card.width}: the network gives {width} for one input")
    return layers


def _checksum(card: Card, numbers: dict[str, Tensor]) -> str:
    said = asdict(replace(card, checksum=""))
    digest = hashlib.sha256(json.dumps(said, sort_keys=True).encode())
    for name in sorted(numbers):
        digest.update(f"{name} {tuple(numbers[name].shape)} {numbers[name].dtype}".encode())
        digest.update(numbers[name].contiguous().numpy().data)
    return digest.hexdigest()
