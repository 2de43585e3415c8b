"""The official files of the public data sets.

Where they lie, where they can be had, and whether they are whole.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import os
import tarfile
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

from tacit.core import Json, check
from tacit.core.errors import BadInput

Progress = Callable[[str, int, int | None], None]  # file name, bytes so far, bytes in all if known

_TIMEOUT = 30.0  # seconds without a byte before the next mirror is tried
_CHUNK = 1 << 20
_MARKER = ".verified.json"


@dataclass(frozen=True)
class OfficialFile:
    """One published file.

    Its checksum is the published one, so that a look-alike is never taken for it.
    """

    path: str  # below the data folder
    size: int | None  # bytes, where published
    algorithm: str  # of the checksum
    digest: str  # hexadecimal
    urls: tuple[str, ...] = ()
    # the official archive that holds it, if it is not offered alone
    archive: OfficialFile | None = None
    member: str = ""  # its name inside the archive

    @property
    def name(self) -> str:
        """The file's own name, for messages and progress."""
        return self.path.rsplit("/", 1)[-1]


def _idx(
    folder: str, mirrors: tuple[str, ...], rows: tuple[tuple[str, int, str], ...]
) -> tuple[OfficialFile, ...]:
    """Return the idx files of an MNIST-like set, each offered alone by every mirror."""
    return tuple(
        OfficialFile(
            f"{folder}/{name}", size, "md5", digest, tuple(mirror + name for mirror in mirrors)
        )
        for name, size, digest in rows
    )


def _members(
    archive: OfficialFile,
    folder: str,
    inside: str,
    algorithm: str,
    rows: tuple[tuple[str, int | None, str], ...],
) -> tuple[OfficialFile, ...]:
    """Return files that are offered only inside an archive."""
    return tuple(
        OfficialFile(f"{folder}/{name}", size, algorithm, digest, (), archive, f"{inside}/{name}")
        for name, size, digest in rows
    )


_MNIST = _idx(
    "MNIST/raw",
    (
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
    ),
    (
        ("train-images-idx3-ubyte.gz", 9_912_422, "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
        ("train-labels-idx1-ubyte.gz", 28_881, "d53e105ee54ea40749a09fcbcd1e9432"),
        ("t10k-images-idx3-ubyte.gz", 1_648_877, "9fb629c4189551a2d022fa330f9573f3"),
        ("t10k-labels-idx1-ubyte.gz", 4_542, "ec29112dd5afa0611ce80d1b7f02629c"),
    ),
)
_FASHION = _idx(
    "FashionMNIST/raw",
    (
        "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    ),
    (
        ("train-images-idx3-ubyte.gz", 26_421_880, "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
        ("train-labels-idx1-ubyte.gz", 29_515, "25c81989df183df01b3e8a0aad5dffbe"),
        ("t10k-images-idx3-ubyte.gz", 4_422_102, "bef4ecab320f06d8554ea6380940ec79"),
        ("t10k-labels-idx1-ubyte.gz", 5_148, "bb300cfdad3c16e7a12a480ee83cd310"),
    ),
)
_EMNIST_ARCHIVE = OfficialFile(
    "EMNIST/raw/gzip.zip",
    None,
    "md5",
    "58c8d27c78d21e728a6bc7b3cc06412e",
    (
        "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",
        "https://www.itl.nist.gov/iaui/vip/cs_links/EMNIST/gzip.zip",
    ),
)
# The md5 of each member is the one that both Deeplearning4j's EMNIST fetcher and the mnists package
# check.
_EMNIST = _members(
    _EMNIST_ARCHIVE,
    "EMNIST/raw",
    "gzip",
    "md5",
    (
        ("emnist-digits-train-images-idx3-ubyte.gz", None, "d2662ecdc47895a6bbfce25de9e9a677"),
        ("emnist-digits-train-labels-idx1-ubyte.gz", None, "2223fcfee618ac9c89ef20b6e48bcf9e"),
        ("emnist-digits-test-images-idx3-ubyte.gz", None, "a159b8b3bd6ab4ed4793c1cb71a2f5cc"),
        ("emnist-digits-test-labels-idx1-ubyte.gz", None, "8afde66ea51d865689083ba6bb779fac"),
    ),
)
_CIFAR10_ARCHIVE = OfficialFile(
    "cifar-10-binary.tar.gz",
    170_052_171,
    "md5",
    "c32a1d4ab5d03f1284b67883e8d87530",
    ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
)
# The SHA-1 of each .bin file of both CIFAR sets is the one that MXNet's gluon.data.vision checks.
_CIFAR10 = _members(
    _CIFAR10_ARCHIVE,
    "cifar-10-batches-bin",
    "cifar-10-batches-bin",
    "sha1",
    (
        ("data_batch_1.bin", 30_730_000, "aadd24acce27caa71bf4b10992e9e7b2d74c2540"),
        ("data_batch_2.bin", 30_730_000, "c0ba65cce70568cd57b4e03e9ac8d2a5367c1795"),
        ("data_batch_3.bin", 30_730_000, "1dd00a74ab1d17a6e7d73e185b69dbf31242f295"),
        ("data_batch_4.bin", 30_730_000, "aab85764eb3584312d3c7f65fd2fd016e36a258e"),
        ("data_batch_5.bin", 30_730_000, "26e2849e66a845b7f1e4614ae70f4889ae604628"),
        ("test_batch.bin", 30_730_000, "67eb016db431130d61cd03c7ad570b013799c88c"),
    ),
)
_CIFAR100_ARCHIVE = OfficialFile(
    "cifar-100-binary.tar.gz",
    168_513_733,
    "md5",
    "03b5dce01913d631647c71ecec9e9cb8",
    ("https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",),
)
_CIFAR100 = _members(
    _CIFAR100_ARCHIVE,
    "cifar-100-binary",
    "cifar-100-binary",
    "sha1",
    (
        ("train.bin", 153_700_000, "e207cd2e05b73b1393c74c7f5e7bea451d63e08e"),
        ("test.bin", 30_740_000, "8fb6623e830365ff53cf14adec797474f5478006"),
    ),
)
_SVHN = tuple(
    OfficialFile(
        f"SVHN/{name}", size, "md5", digest, (f"http://ufldl.stanford.edu/housenumbers/{name}",)
    )
    for name, size, digest in (
        ("train_32x32.mat", 182_040_794, "e26dedcc434d2e4c54c9b2d4a06d8373"),
        ("test_32x32.mat", 64_275_384, "eb5a983be6a315427106f1b164d9cef3"),
    )
)

# The files of each set: training files first, then test files; images before labels.
FILES: dict[str, tuple[OfficialFile, ...]] = {
    "mnist": _MNIST,
    "fashion-mnist": _FASHION,
    "emnist-digits": _EMNIST,
    "cifar10": _CIFAR10,
    "cifar100": _CIFAR100,
    "svhn": _SVHN,
}


def data_folder() -> Path:
    """Return the folder of official files.

    TACIT_DATA, else ``tacit`` in the user's cache directory.
    """
    chosen = os.environ.get("TACIT_DATA")
    return Path(chosen).expanduser() if chosen else cache_folder()


def cache_folder() -> Path:
    """Return this package's folder in the user's cache directory."""
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "tacit"


def locate(file: OfficialFile, folder: Path) -> Path | None:
    """Return where the file lies in the data folder, or None if it is not there."""
    path = folder / file.path
    return path if path.is_file() else None


def ensure(name: str, folder: Path, progress: Progress | None = None) -> tuple[Path, ...]:
    """Return the verified files of a set, downloading those that are not there."""
    check.choice("data", name, FILES)
    files = FILES[name]
    archives = {file.archive for file in files if file.archive}
    fetched = {archive for archive in archives if locate(archive, folder) is None}
    for file in files:
        if locate(file, folder) is None:
            fetch(file, folder, progress)
    for archive in fetched:  # the user's own copy of an archive is left alone
        with contextlib.suppress(OSError):
            (folder / archive.path).unlink()
    return tuple(verify(file, folder) for file in files)


def verify(file: OfficialFile, folder: Path) -> Path:
    """Refuse a file that is not the published one.

    A file that has not changed since is not read again.
    """
    path = folder / file.path
    try:
        before = path.stat()
        if _marks(folder).get(file.path) == _mark(file, before):
            return path
        problem = _problem(path, file)
    except FileNotFoundError:
        raise BadInput(f"{path}: no such file; {_where(file, folder)}") from None
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror})") from None
    if problem:
        raise BadInput(f"{path}: {problem}; delete it, then {_where(file, folder)}")
    _keep_mark(file, folder, before)
    return path


def fetch(file: OfficialFile, folder: Path, progress: Progress | None = None) -> Path:
    """Download one file, or take it out of its archive.

    It appears under its name only once it is whole and right.
    """
    if file.archive is not None:
        source = locate(file.archive, folder)
        if source is None:
            _download(file.archive, folder, progress, wanted=file)
        return _extract(file, verify(file.archive, folder), folder)
    return _download(file, folder, progress, wanted=file)


def _download(
    file: OfficialFile, folder: Path, progress: Progress | None, wanted: OfficialFile
) -> Path:
    """Try each mirror in turn; say of all of them why they did not serve."""
    reasons = []
    with _part(file, folder) as part:
        for url in file.urls:
            problem = _try_url(url, part, file, progress)
            if problem is None:
                return _settle(part, file, folder)
            reasons.append(f"{urlsplit(url).hostname}: {problem}")
    raise BadInput(
        f"{wanted.path} is not in {folder} and could not be downloaded ({'; '.join(reasons)}); "
        f"{_where(wanted, folder)}"
    )


def _try_url(url: str, part: Path, file: OfficialFile, progress: Progress | None) -> str | None:
    """Download one URL into ``part``; return what was wrong, or None."""
    request = urllib.request.Request(url, headers={"User-Agent": "tacit"})
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT) as reply, part.open("wb") as out:
            _copy(reply, out, file, progress)
        return _problem(part, file)
    except (OSError, http.client.HTTPException) as error:  # URLError and time-outs are OSErrors
        return " ".join(str(getattr(error, "reason", error)).split()) or type(error).__name__


def _copy(source: IO[bytes], out: IO[bytes], file: OfficialFile, progress: Progress | None) -> None:
    """Copy in pieces, stopping once there is more than the published size.

    It cannot be right any more.
    """
    done = 0
    while chunk := source.read(_CHUNK):
        out.write(chunk)
        done += len(chunk)
        if progress is not None:
            progress(file.name, done, file.size)
        if file.size is not None and done > file.size:
            return


def _extract(file: OfficialFile, archive: Path, folder: Path) -> Path:
    """Take one named member out of a verified archive.

    Only its bytes are used, never a path from the archive.
    """
    with _part(file, folder) as part:
        try:
            with _member(archive, file.member) as source, part.open("wb") as out:
                _copy(source, out, file, None)
            problem = _problem(part, file)
        except (
            OSError,
            EOFError,
            KeyError,
            zlib.error,
            tarfile.TarError,
            zipfile.BadZipFile,
        ) as error:
            problem = " ".join(str(error).split())
        if problem:
            raise BadInput(f"{archive}: {file.member} cannot be taken out of it: {problem}")
        return _settle(part, file, folder)


@contextlib.contextmanager
def _member(archive: Path, member: str) -> Iterator[IO[bytes]]:
    """Open one member of a zip or tar archive for reading."""
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive) as opened, opened.open(member) as source:
            yield source
        return
    with tarfile.open(archive) as tar:
        for entry in tar:
            found = (
                tar.extractfile(entry)
                if entry.isreg() and entry.name.removeprefix("./") == member
                else None
            )
            if found is not None:
                with found:
                    yield found
                return
    raise KeyError(f"no file {member} in the archive")


@contextlib.contextmanager
def _part(file: OfficialFile, folder: Path) -> Iterator[Path]:
    """Give a scratch file beside the final one (this process's alone), removed in any case."""
    final = folder / file.path
    part = final.with_name(f"{final.name}.{os.getpid()}.part")
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        part.touch()
    except OSError as error:
        raise BadInput(
            f"{file.path} is not in {folder}, which cannot be written ({error.strerror}); "
            f"set TACIT_DATA to a folder that has it, or {_where(file, folder)}"
        ) from None
    try:
        yield part
    finally:
        part.unlink(missing_ok=True)


def _settle(part: Path, file: OfficialFile, folder: Path) -> Path:
    """Give a checked scratch file its real name, in one step."""
    final = folder / file.path
    part.replace(final)
    _keep_mark(file, folder, final.stat())
    return final


def _problem(path: Path, file: OfficialFile) -> str | None:
    """Return how a file differs from the published one, or None."""
    size = path.stat().st_size
    if file.size is not None and size != file.size:
        cut = "cut short: " if size < file.size else ""
        return f"{cut}{size:,} bytes where the official file has {file.size:,}"
    with path.open("rb") as opened:
        found = hashlib.file_digest(
            opened, lambda: hashlib.new(file.algorithm, usedforsecurity=False)
        ).hexdigest()
    if found != file.digest:
        return f"not the official file: {file.algorithm} {found} where {file.digest} is published"
    return None


def _where(file: OfficialFile, folder: Path) -> str:
    """Say what to put where by hand, and where it can be had."""
    if file.archive is None:
        return f"put {file.name} (from {' or '.join(file.urls)}) in {(folder / file.path).parent}"
    archive = file.archive
    return (
        f"put {archive.name} (from {' or '.join(archive.urls)}) in {(folder / archive.path).parent}"
    )


def _mark(file: OfficialFile, found: os.stat_result) -> Json:
    """Return what tells that a verified file has not been touched since."""
    return {"size": found.st_size, "mtime_ns": found.st_mtime_ns, file.algorithm: file.digest}


def _marks(folder: Path) -> Json:
    """Return the marks kept in the data folder; none if they cannot be read."""
    try:
        marks = json.loads((folder / _MARKER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return marks if isinstance(marks, dict) else {}


def _keep_mark(file: OfficialFile, folder: Path, found: os.stat_result) -> None:
    """Remember a verified file.

    A folder that cannot be written only means verifying again next time.
    """
    marks = _marks(folder) | {file.path: _mark(file, found)}
    part = folder / f"{_MARKER}.{os.getpid()}.part"
    try:
        part.write_text(json.dumps(marks, indent=1, sort_keys=True), encoding="utf-8")
        part.replace(folder / _MARKER)
    except OSError:
        with contextlib.suppress(OSError):
            part.unlink()
