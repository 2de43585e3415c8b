"""The viewer answers to this machine alone, reads runs alone, and changes nothing."""

from __future__ import annotations

import http.client
import json
import re
import threading
from urllib.parse import quote

import pytest
from rundirs import add_round, write_run

from tacit.core import BadInput
from tacit.report.page import write_report
from tacit.report.review import write_review
from tacit.report.viewer import Viewer


@pytest.fixture
def root(tmp_path):
    (tmp_path / "secret.txt").write_text("secret")
    write_run(tmp_path / "outside", method="secret")
    root = tmp_path / "runs"
    write_run(root / "one", rounds=9, done=2)
    write_run(root / "study" / "a", method="scaffold")
    (root / "study" / "comparison.json").write_text("{}")
    return root


@pytest.fixture
def server(root):
    with Viewer(root) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def ask(server):
    def ask(path, method="GET", **headers):
        line = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
        line.putrequest(method, path, skip_host="Host" in headers)
        for name, value in headers.items():
            line.putheader(name.replace("_", "-"), value)
        line.endheaders()
        reply = line.getresponse()
        text = reply.read().decode()
        line.close()
        return reply.status, text

    return ask


def test_it_lists_the_runs_and_shows_each(ask):
    status, text = ask("/")
    assert status == 200
    assert "study/a" in text
    assert "2 of 9" in text
    status, text = ask("/report?run=one&run=study/a")
    assert status == 200
    assert "scaffold" in text


@pytest.mark.parametrize(
    "name",
    ["../outside", "one/../../outside", "/etc", "study/../one", "",
     "one/checkpoint", "study", "one\0", "..", "study/a/."],
)  # fmt: skip
def test_nothing_but_the_runs_can_be_asked_for(ask, name):
    assert ask(f"/report?run={quote(name)}")[0] == 404
    assert "secret" not in ask(f"/news?run={quote(name)}")[1]


@pytest.mark.parametrize(
    "path",
    ["/secret.txt", "/../secret.txt", "/one/config.toml", "//etc/passwd",
     "/%2e%2e/secret.txt", "/report", "/news/", "/report?" + "run=one&" * 300],
)  # fmt: skip
def test_other_addresses_are_none(ask, path):
    status, text = ask(path)
    assert status == 404
    assert "secret" not in text


@pytest.mark.parametrize(
    "name", ["audit.json", "certificate.json", "sheet.png", "sites.json", "synthetic.npz"]
)
def test_no_file_that_a_report_shows_is_read_through_a_link_out_of_the_folder(root, ask, name):
    (root / "one" / name).symlink_to(root.parent / "secret.txt")
    assert ask("/report?run=one")[0] == 404


def test_links_that_lead_out_of_the_folder_are_not_followed(root, ask):
    (root / "linked").symlink_to(root.parent / "outside")
    write_run(root / "trick")
    (root / "trick" / "metrics.jsonl").unlink()
    (root / "trick" / "metrics.jsonl").symlink_to(root.parent / "secret.txt")
    text = ask("/")[1]
    assert "linked" not in text
    assert "trick" not in text
    assert ask("/report?run=linked")[0] == ask("/report?run=trick")[0] == 404


def test_other_names_and_other_sites_are_refused(ask, server):
    right = f"127.0.0.1:{server.server_port}"
    assert ask("/", Host=right)[0] == 200
    assert ask("/", Host=f"localhost:{server.server_port}")[0] == 200
    for wrong in ("evil.example", f"evil.example:{server.server_port}", "127.0.0.1", ""):
        assert ask("/", Host=wrong)[0] == 403
    assert ask("/", Origin=f"http://{right}")[0] == 200
    for origin in ("http://evil.example", "null", "http://127.0.0.1:1"):
        assert ask("/", Origin=origin)[0] == 403
    assert ask("/", Sec_Fetch_Site="cross-site")[0] == 403
    assert ask("/", Sec_Fetch_Site="same-origin")[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "HEAD"])
def test_it_only_lets_look(ask, method):
    assert ask("/", method)[0] == 501


def test_news_come_once(root, ask):
    first = json.loads(ask("/news?run=one&stamp=")[1])
    again = json.loads(ask(f"/news?run=one&stamp={first['stamp']}")[1])
    assert set(again) == {"stamp"}
    add_round(root / "one", 3)
    later = json.loads(ask(f"/news?run=one&stamp={first['stamp']}")[1])
    (before,), (after,) = (
        [figure["rows"] for figure in news["figures"] if figure["name"] == "accuracy"]
        for news in (first, later)
    )
    assert (len(before), len(after)) == (2, 3)


@pytest.mark.parametrize(
    ("page", "news"), [("/", "/news?all=1"), ("/report?run=one", "/news?run=one")]
)
def test_a_page_knows_what_it_shows_and_asks_only_for_what_came_since(root, ask, page, news):
    (stamp,) = re.findall(r'data-stamp="(\w+)"', ask(page)[1])
    assert json.loads(ask(f"{news}&stamp={stamp}")[1]) == {"stamp": stamp}
    add_round(root / "one", 3)
    assert json.loads(ask(f"{news}&stamp={stamp}")[1])["stamp"] != stamp


def test_it_writes_nothing(root, ask):
    with (root / "one" / "ledger.jsonl").open("a") as f:
        f.write('{"cut sh')
    before = {f: f.read_bytes() for f in root.rglob("*") if f.is_file()}
    ask("/")
    ask("/report?run=one")
    assert {f: f.read_bytes() for f in root.rglob("*") if f.is_file()} == before


def test_it_is_on_this_machine_alone_and_says_what_it_cannot_do(root, server):
    assert server.server_address[0] == "127.0.0.1"
    with pytest.raises(BadInput, match=f"port = {server.server_port}: cannot be used"):
        Viewer(root, server.server_port)
    with pytest.raises(BadInput, match="port = 70000: cannot be used"):
        Viewer(root, 70000)
    with pytest.raises(BadInput, match="no such folder"):
        Viewer(root / "nowhere")


def test_a_name_that_is_not_utf_8_hides_no_run(root, ask):
    try:
        (root / "one").rename(root / "b\udcff")
    except OSError:
        pytest.skip("this file system has no such names")
    status, text = ask("/")
    assert status == 200
    assert "study/a" in text
    assert "/report?run=b%FF" in text
    assert ask("/report?run=b%FF")[0] == 200
    assert write_report([root / "b\udcff"]).exists()
    (root / "b\udcff" / "c\udcff").touch()
    assert write_review(root / "b\udcff").exists()
