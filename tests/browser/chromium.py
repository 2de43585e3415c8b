"""A real Chromium, driven over its own protocol: what a page says, asks for and looks like."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from websockets.sync.client import connect

FOUND = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-sync", "--disable-background-networking", "--disable-component-update",
    "--disable-dev-shm-usage", "--remote-debugging-port=0", "--hide-scrollbars", "about:blank",
]  # fmt: skip
PATIENCE = 60.0  # seconds until something that must happen has happened


class Chromium:
    """One browser; each page is a new tab."""

    def __init__(self, profile: Path) -> None:
        assert FOUND
        log = (profile / "log").open("wb")
        self.process = subprocess.Popen(
            [FOUND, *FLAGS, f"--user-data-dir={profile}"], stdout=log, stderr=log
        )
        log.close()
        port, path = _ready(profile / "DevToolsActivePort", self.process)
        self.held = ExitStack()
        address = f"ws://127.0.0.1:{port}{path}"
        self.socket = self.held.enter_context(connect(address, max_size=2**27, proxy=None))
        self.number = 0
        self.events: list[dict[str, Any]] = []

    def close(self) -> None:
        self.held.close()
        self.process.terminate()
        self.process.wait(timeout=PATIENCE)

    def call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """Ask the browser, and keep what it tells meanwhile."""
        self.number += 1
        ask: dict[str, Any] = {"id": self.number, "method": method, "params": params}
        self.socket.send(json.dumps(ask | ({"sessionId": session} if session else {})))
        while True:
            said = json.loads(self.socket.recv(timeout=PATIENCE))
            if said.get("id") != self.number:
                self.events.append(said)
                continue
            assert "error" not in said, said["error"]
            return dict(said["result"])

    def open(
        self, address: str, *, width: int = 1200, height: int = 900, dark: bool = False
    ) -> Page:
        """Open a page in a new tab, and wait until it is loaded."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session, target)
        for room in ("Runtime", "Log", "Network", "Page"):
            page.call(f"{room}.enable")
        page.resize(width, height)
        page.media(dark=dark)
        page.call("Page.navigate", url=address)
        page.until("document.readyState === 'complete' && location.href !== 'about:blank'")
        return page


def _ready(file: Path, process: subprocess.Popen[bytes]) -> tuple[int, str]:
    """Return where the browser listens, once it has said so."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end and process.poll() is None:
        if file.exists() and len(lines := file.read_text().splitlines()) == 2:
            return int(lines[0]), lines[1]
        time.sleep(0.05)
    raise AssertionError("chromium did not start")


class Page:
    """One tab."""

    def __init__(self, browser: Chromium, session: str, target: str) -> None:
        self.browser, self.session, self.target = browser, session, target

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        return self.browser.call(method, self.session, **params)

    def js(self, expression: str) -> Any:
        """Return what an expression is in the page."""
        done = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    def until(self, expression: str) -> None:
        """Wait until an expression holds."""
        end = time.monotonic() + PATIENCE
        while not self._holds(expression):
            assert time.monotonic() < end, f"never true: {expression}"
            time.sleep(0.05)

    def _holds(self, expression: str) -> bool:
        try:
            return bool(self.js(expression))
        except AssertionError:  # the page is just being replaced by the next one
            return False

    def resize(self, width: int, height: int = 900) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=width < 500,
        )  # fmt: skip

    def media(self, *, dark: bool = False, kind: str = "") -> None:
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", media=kind, features=scheme)

    def screenshot(self, file: Path, *, whole: bool = True) -> None:
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        file.write_bytes(base64.b64decode(shot["data"]))

    def pdf(self) -> bytes:
        made = self.call("Page.printToPDF", preferCSSPageSize=True, printBackground=True)
        return base64.b64decode(made["data"])

    def _events(self, *methods: str) -> list[dict[str, Any]]:
        self.js("1")  # whatever was said before has arrived by then
        mine = [e for e in self.browser.events if e.get("sessionId") == self.session]
        return [e["params"] for e in mine if e["method"] in methods]

    def errors(self) -> list[Any]:
        """Return what the console shows in red."""
        logged = [
            e["entry"] for e in self._events("Log.entryAdded") if e["entry"]["level"] == "error"
        ]
        called = [e for e in self._events("Runtime.consoleAPICalled") if e["type"] == "error"]
        return [*self._events("Runtime.exceptionThrown"), *logged, *called]

    def requests(self) -> list[str]:
        """Return what was asked for, apart from what is inside of the page itself."""
        asked = [e["request"]["url"] for e in self._events("Network.requestWillBeSent")]
        return [url for url in asked if not url.startswith(("data:", "blob:"))]

    def close(self) -> None:
        self.browser.call("Target.closeTarget", targetId=self.target)
