"""A headless Chromium, spoken to by the DevTools protocol: what it shows, asks for and complains about."""

from __future__ import annotations

import base64
import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from websockets.sync.client import ClientConnection, connect

from tests.kit.tools import find_tool

ANSWER_MAX_S = 30.0
FLAGS = (
    "--headless=new",
    # CI runs as root, where Chromium's own sandbox does not work; it sees nothing but our pages.
    "--no-sandbox",
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--remote-debugging-port=0",
)


class Page:
    """One tab. Keeps every event that the browser tells."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._last_id = 0
        self._session: dict[str, str] = {}
        self.events: list[dict[str, Any]] = []

    @classmethod
    def open(cls, socket: ClientConnection) -> Self:
        page = cls(socket)
        target = page.call("Target.createTarget", url="about:blank")["targetId"]
        session = page.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page._session = {"sessionId": session}
        for domain in ("Page", "Network", "Log", "Runtime"):
            page.call(f"{domain}.enable")
        page.call("Emulation.setScrollbarsHidden", hidden=True)
        return page

    def call(self, method: str, **params: Any) -> Any:
        """The method's result; raises AssertionError with the browser's reason."""
        self._last_id += 1
        self._socket.send(json.dumps({"id": self._last_id, "method": method, "params": params, **self._session}))
        while (answer := self._receive()).get("id") != self._last_id:
            pass
        assert "error" not in answer, f"{method}: {answer.get('error')}"
        return answer["result"]

    def _receive(self) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(self._socket.recv(ANSWER_MAX_S))
        if "method" in message:
            self.events.append(message)
        return message

    def params(self, *methods: str) -> list[dict[str, Any]]:
        """What the events of these methods said so far."""
        return [event["params"] for event in self.events if event["method"] in methods]

    def visit(self, url: str) -> None:
        self.wait_for_load(lambda: self.call("Page.navigate", url=url))

    def wait_for_load(self, act: Any) -> None:
        """Do what leads to another page, and come back when that one is there."""
        before = len(self.params("Page.loadEventFired"))
        act()
        self.wait_for("Page.loadEventFired", after=before)

    def wait_for(self, method: str, *, after: int = 0) -> dict[str, Any]:
        """What the first event of `method` said that came after so many others of it."""
        while len(self.params(method)) <= after:
            self._receive()
        return self.params(method)[after]

    def ask(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page; works where the page itself may not run any."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def text(self) -> str:
        return str(self.ask("document.body.innerText"))

    def resize(self, width: int, height: int = 800, *, scale: float = 1, mobile: bool = False) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": mobile}
        self.call("Emulation.setDeviceMetricsOverride", **metrics)

    def prefer(self, scheme: str) -> None:
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.call("Emulation.setEmulatedMedia", features=[feature])

    def screenshot(self) -> bytes:
        """What the window shows, as PNG."""
        return base64.b64decode(self.call("Page.captureScreenshot")["data"])


@contextmanager
def chromium(profile: Path) -> Iterator[ClientConnection]:
    """A browser for as long as the block lasts. Skips or fails the test where there is none."""
    program = find_tool("chromium", package="chromium")
    process = subprocess.Popen(
        [program, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    told = profile / "DevToolsActivePort"
    try:
        end_s = time.monotonic() + ANSWER_MAX_S
        while not (told.exists() and told.read_text().count("\n") == 1):
            assert process.poll() is None and time.monotonic() < end_s, "Chromium did not start"
            time.sleep(0.05)
        port, path = told.read_text().splitlines()
        with connect(f"ws://127.0.0.1:{port}{path}", max_size=None) as socket:
            yield socket
            socket.send('{"id": 0, "method": "Browser.close"}')
            process.wait(10)
    finally:
        process.kill()
        process.wait()
