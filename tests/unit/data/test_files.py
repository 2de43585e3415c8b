"""Official files: found, downloaded, checked.

A wrong or half file is never taken for the right one.
"""

import hashlib
import io
import json
import os
import tarfile
import urllib.request
import zipfile
from pathlib import Path
from urllib.error import URLError

import pytest

from tacit.core.errors import BadInput
from tacit.data import files
from tacit.data.files import FILES, OfficialFile, data_folder, ensure, fetch, locate, verify

CONTENT = b"the official bytes"


def official(
    content: bytes = CONTENT, path: str = "SET/raw/part.gz", size: int | None = None
) -> OfficialFile:
    urls = ("https://one.example/part.gz", "https://two.example/part.gz")
    return OfficialFile(
        path, len(content) if size is None else size, "md5", hashlib.md5(content).hexdigest(), urls
    )


def inside(archive_name: str, packed: bytes, member: str, content: bytes = CONTENT) -> OfficialFile:
    archive = OfficialFile(
        archive_name,
        None,
        "md5",
        hashlib.md5(packed).hexdigest(),
        (f"https://one.example/{archive_name}",),
    )
    return OfficialFile(
        "SET/part.bin", len(content), "sha1", hashlib.sha1(content).hexdigest(), (), archive, member
    )


def tar_gz(members: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


def serve(monkeypatch: pytest.MonkeyPatch, replies: dict[str, bytes | Exception]) -> list[str]:
    """Put a fake network in place: bytes or a failure by host; return the URLs asked for."""
    asked: list[str] = []

    def urlopen(request: urllib.request.Request, timeout: float) -> io.BytesIO:
        assert 0 < timeout <= 60
        asked.append(request.full_url)
        reply = replies.get(request.host, URLError("no network"))
        if isinstance(reply, Exception):
            raise reply
        return io.BytesIO(reply)

    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    return asked


def everything_below(folder: Path) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}


def test_data_folder_is_told_by_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("TACIT_DATA", str(tmp_path / "here"))
    assert data_folder() == tmp_path / "here"
    monkeypatch.delenv("TACIT_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert data_folder() == tmp_path / "cache" / "tacit"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data_folder() == tmp_path / ".cache" / "tacit"


def test_every_official_file_can_be_had_and_checked():
    for name, group in FILES.items():
        assert len(group) in (2, 4, 6), name
        for file in group:
            source = file.archive or file
            assert source.urls
            assert all(url.startswith(("https://", "http://")) for url in source.urls)
            for part in (file, source):
                assert len(part.digest) == 2 * hashlib.new(part.algorithm).digest_size
                assert not Path(part.path).is_absolute()
                assert ".." not in part.path


def test_locate(tmp_path):
    file = official()
    assert locate(file, tmp_path) is None
    (tmp_path / "SET/raw").mkdir(parents=True)
    (tmp_path / file.path).write_bytes(b"anything")
    assert locate(file, tmp_path) == tmp_path / file.path


def test_download_is_kept_under_its_name_with_progress(monkeypatch, tmp_path):
    asked, seen = serve(monkeypatch, {"one.example": CONTENT}), []
    path = fetch(official(), tmp_path, lambda *step: seen.append(step))
    assert path == tmp_path / "SET/raw/part.gz"
    assert path.read_bytes() == CONTENT
    assert asked == ["https://one.example/part.gz"]
    assert seen == [("part.gz", len(CONTENT), len(CONTENT))]
    assert everything_below(tmp_path) == {"SET/raw/part.gz", ".verified.json"}


def test_next_mirror_serves_when_the_first_is_down(monkeypatch, tmp_path):
    asked = serve(monkeypatch, {"one.example": TimeoutError("timed out"), "two.example": CONTENT})
    assert fetch(official(), tmp_path).read_bytes() == CONTENT
    assert [url.split("/")[2] for url in asked] == ["one.example", "two.example"]


@pytest.mark.parametrize("wrong", [b"another content !!", CONTENT[:-3], CONTENT + b"more"])
def test_wrong_download_is_not_kept(monkeypatch, tmp_path, wrong):
    serve(monkeypatch, {"one.example": wrong, "two.example": wrong})
    with pytest.raises(
        BadInput, match=r"SET/raw/part\.gz is not in .* could not be downloaded .*one\.example"
    ):
        fetch(official(), tmp_path)
    assert everything_below(tmp_path) == set()


def test_nothing_appears_under_the_name_before_it_is_whole(monkeypatch, tmp_path):
    class Broken(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            assert not (tmp_path / "SET/raw/part.gz").exists()
            if self.tell():
                raise ConnectionResetError("connection reset")
            return super().read(5)

    monkeypatch.setattr(urllib.request, "urlopen", lambda request, timeout: Broken(CONTENT))
    with pytest.raises(BadInput, match="connection reset"):
        fetch(official(), tmp_path)
    assert everything_below(tmp_path) == set()


def test_offline_says_which_file_to_put_where_in_one_line(monkeypatch, tmp_path):
    serve(monkeypatch, {})
    with pytest.raises(BadInput) as caught:
        ensure("mnist", tmp_path)
    line = str(caught.value)
    assert "\n" not in line
    assert "MNIST/raw/train-images-idx3-ubyte.gz is not in" in line
    assert "no network" in line
    assert f"put train-images-idx3-ubyte.gz (from {FILES['mnist'][0].urls[0]}" in line
    assert line.endswith(f"in {tmp_path / 'MNIST/raw'}")


def test_offline_names_the_archive_where_files_come_in_one(monkeypatch, tmp_path):
    serve(monkeypatch, {})
    with pytest.raises(BadInput) as caught:
        ensure("cifar10", tmp_path)
    line = str(caught.value)
    assert line.startswith("cifar-10-batches-bin/data_batch_1.bin is not in")
    assert line.endswith(
        "put cifar-10-binary.tar.gz (from "
        f"https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz) in {tmp_path}"
    )


def test_folder_that_cannot_be_made_is_told(monkeypatch, tmp_path):
    serve(monkeypatch, {"one.example": CONTENT})
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(BadInput, match=r"cannot be written .*set TACIT_DATA"):
        fetch(official(), tmp_path / "file")


def test_tar_member_is_taken_out_and_nothing_else(monkeypatch, tmp_path):
    packed = tar_gz({"../evil.bin": b"evil", "set/other.bin": b"other", "set/part.bin": CONTENT})
    file = inside("set.tar.gz", packed, "set/part.bin")
    monkeypatch.setitem(FILES, "set", (file,))
    serve(monkeypatch, {"one.example": packed})
    folder = tmp_path / "data"
    assert ensure("set", folder) == (folder / "SET/part.bin",)
    assert (folder / "SET/part.bin").read_bytes() == CONTENT
    assert everything_below(tmp_path) == {"data/SET/part.bin", "data/.verified.json"}


def test_zip_that_the_user_put_there_is_used_and_left(monkeypatch, tmp_path):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as opened:
        opened.writestr("gzip/part.bin", CONTENT)
    file = inside("set.zip", out.getvalue(), "gzip/part.bin")
    monkeypatch.setitem(FILES, "set", (file,))
    asked = serve(monkeypatch, {})
    (tmp_path / "set.zip").write_bytes(out.getvalue())
    assert ensure("set", tmp_path)[0].read_bytes() == CONTENT
    assert asked == []
    assert (tmp_path / "set.zip").exists()


def test_archive_without_the_member_or_with_a_wrong_one(monkeypatch, tmp_path):
    for members, why in (
        ({"a": b"x"}, "no file set/part.bin"),
        ({"set/part.bin": b"x" * 18}, "not the official file"),
    ):
        packed = tar_gz(members)
        serve(monkeypatch, {"one.example": packed})
        folder = tmp_path / why
        with pytest.raises(
            BadInput, match=f"set.tar.gz: set/part.bin cannot be taken out of it: .*{why}"
        ):
            fetch(inside("set.tar.gz", packed, "set/part.bin"), folder)
        assert not (folder / "SET/part.bin").exists()


def test_member_that_is_a_link_is_not_followed(monkeypatch, tmp_path):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        info = tarfile.TarInfo("set/part.bin")
        info.type, info.linkname = tarfile.SYMTYPE, "/etc/hostname"
        tar.addfile(info)
    serve(monkeypatch, {"one.example": out.getvalue()})
    with pytest.raises(BadInput, match=r"no file set/part\.bin"):
        fetch(inside("set.tar.gz", out.getvalue(), "set/part.bin"), tmp_path)


def put(folder: Path, content: bytes) -> Path:
    path = folder / "SET/raw/part.gz"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def test_verify_names_expected_and_found(tmp_path):
    path = put(tmp_path, CONTENT[:7])
    with pytest.raises(BadInput) as caught:
        verify(official(), tmp_path)
    assert f"{path}: cut short: 7 bytes where the official file has 18; delete it" in str(
        caught.value
    )
    wrong = b"x" * len(CONTENT)
    put(tmp_path, wrong)
    with pytest.raises(BadInput) as caught:
        verify(official(), tmp_path)
    assert (
        f"md5 {hashlib.md5(wrong).hexdigest()} where {hashlib.md5(CONTENT).hexdigest()} is "
        "published"
    ) in str(caught.value)
    path.unlink()
    with pytest.raises(BadInput, match=r"no such file; put part\.gz"):
        verify(official(), tmp_path)


def test_verified_file_is_not_read_again_until_it_changes(monkeypatch, tmp_path):
    path = put(tmp_path, CONTENT)
    reads = []
    real = files._problem
    monkeypatch.setattr(files, "_problem", lambda *args: reads.append(1) or real(*args))
    assert verify(official(), tmp_path) == verify(official(), tmp_path) == path
    assert len(reads) == 1
    assert json.loads((tmp_path / ".verified.json").read_text())["SET/raw/part.gz"]["size"] == len(
        CONTENT
    )
    path.write_bytes(b"x" * len(CONTENT))
    os.utime(path, ns=(1, 1))
    with pytest.raises(BadInput, match="not the official file"):
        verify(official(), tmp_path)


@pytest.mark.parametrize("marks", ["not json", "[1, 2]", "{}"])
def test_spoilt_marks_only_mean_reading_again(tmp_path, marks):
    put(tmp_path, CONTENT)
    (tmp_path / ".verified.json").write_text(marks)
    verify(official(), tmp_path)
    assert "SET/raw/part.gz" in json.loads((tmp_path / ".verified.json").read_text())


def test_folder_that_cannot_be_written_still_verifies(monkeypatch, tmp_path):
    put(tmp_path, CONTENT)

    def refuse(*args: object, **kwargs: object) -> None:
        raise PermissionError(13, "Read-only file system")

    monkeypatch.setattr(Path, "write_text", refuse)
    assert verify(official(), tmp_path).read_bytes() == CONTENT
    assert everything_below(tmp_path) == {"SET/raw/part.gz"}
