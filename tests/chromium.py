"""A real Chromium without a window, driven by its own protocol over a pair of pipes: no driver, no port, no profile."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-extensions",
    "--no-first-run",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
PATIENCE_S = 30.0  # a busy machine is slow; nothing waits this long otherwise
KEYS = {"ArrowRight": 39, "ArrowLeft": 37, "ArrowDown": 40, "Home": 36, "End": 35, "Tab": 9, "Enter": 13, " ": 32}


def find_chromium() -> str:
    """Where Chromium is; absent, the test is skipped, but on CI it fails."""
    for name in NAMES:
        if found := shutil.which(name):
            return found
    words = "no Chromium here: apt-get install chromium"
    if os.environ.get("CI"):
        pytest.fail(words)
    pytest.skip(words)


class Chromium:
    """The browser's process, with a profile that is gone afterwards."""

    def __init__(self) -> None:
        program = find_chromium()
        self._profile = tempfile.mkdtemp(prefix="crad-chromium-")
        command_read, self._write = _high_pipe()
        self._read, answer_write = _high_pipe()
        # Chromium reads its commands from 3 and answers on 4, which only a process of its own may rearrange.
        script = (
            f"import os, sys; os.dup2({command_read}, 3); os.dup2({answer_write}, 4); "
            "os.execv(sys.argv[1], sys.argv[1:])"
        )
        flags = (*FLAGS, f"--user-data-dir={self._profile}")
        self._process = subprocess.Popen(
            [sys.executable, "-c", script, program, *flags, "about:blank"],
            pass_fds=(command_read, answer_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(command_read)
        os.close(answer_write)
        self._rest = b""
        self._number = 0
        self.events: list[dict[str, Any]] = []

    def __enter__(self) -> Chromium:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            self.call("Browser.close")
        except (OSError, TimeoutError):
            self._process.kill()
        self._process.wait(timeout=PATIENCE_S)
        os.close(self._read)
        os.close(self._write)
        shutil.rmtree(self._profile, ignore_errors=True)

    def call(self, method: str, session: str | None = None, **params: object) -> dict[str, Any]:
        """Ask for something and wait for the answer; events that come in between are kept."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params} | ({"sessionId": session} if session else {})
        content = json.dumps(message).encode() + b"\0"
        while content:
            content = content[os.write(self._write, content) :]
        until = time.monotonic() + PATIENCE_S
        while (answer := self._next(until)).get("id") != self._number:
            self.events.append(answer)
        assert "error" not in answer, f"{method}: {answer['error']}"
        result: dict[str, Any] = answer["result"]
        return result

    def listen(self, seconds: float) -> None:
        """Take in events for a while."""
        until = time.monotonic() + seconds
        while True:
            try:
                self.events.append(self._next(until))
            except TimeoutError:
                return

    def _next(self, until: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._read], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                raise TimeoutError("Chromium does not answer")
            part = os.read(self._read, 1 << 20)
            if not part:
                raise OSError("Chromium has ended")
            self._rest += part
        line, self._rest = self._rest.split(b"\0", 1)
        message: dict[str, Any] = json.loads(line)
        return message


class Tab:
    """One page: everything it asks the network for and everything that goes wrong on it is kept."""

    def __init__(self, browser: Chromium, *, width: int = 1280, height: int = 900, is_dark: bool = False) -> None:
        self.browser = browser
        target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        self._target = target
        self.session: str = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        self.resize(width, height)
        self.prefer("dark" if is_dark else "light")

    def call(self, method: str, **params: object) -> dict[str, Any]:
        """Ask this page for something."""
        return self.browser.call(method, self.session, **params)

    def close(self) -> None:
        """Close the tab."""
        self.browser.call("Target.closeTarget", targetId=self._target)

    def open(self, path: Path, fragment: str = "") -> None:
        """Open a file from disk and wait until it is loaded."""
        self.call("Page.navigate", url=path.resolve().as_uri() + fragment)
        self.wait_for("document.readyState === 'complete' && document.getElementById('data') !== null")

    def resize(self, width: int, height: int) -> None:
        """A window of another size."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    def prefer(self, scheme: str) -> None:
        """What the reader's system says about light and dark."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def value(self, expression: str) -> Any:  # whatever the script says
        """What an expression comes to on the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, f"{expression}: {answer['exceptionDetails']}"
        return answer["result"].get("value")

    def wait_for(self, condition: str) -> None:
        """Wait until a condition holds on the page."""
        until = time.monotonic() + PATIENCE_S
        while not self.value(f"Boolean({condition})"):
            assert time.monotonic() < until, f"never came true: {condition}"
            self.browser.listen(0.05)

    def press(self, key: str) -> None:
        """A key goes down and up."""
        about = {"key": key, "code": "Space" if key == " " else key, "windowsVirtualKeyCode": KEYS[key]}
        text = {"text": {"Enter": "\r", " ": " "}[key]} if key in ("Enter", " ") else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", **about, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", **about)

    def screenshot(self, path: Path) -> None:
        """The whole page as a PNG, as long as it is."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], 16_000), "scale": 1}
        data = self.call("Page.captureScreenshot", clip=clip, captureBeyondViewport=True, optimizeForSpeed=True)["data"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(data))

    def pdf(self) -> bytes:
        """The page as it is printed."""
        return base64.b64decode(self.call("Page.printToPDF", printBackground=True)["data"])

    def complaints(self) -> list[str]:
        """Errors and warnings of this page so far, however they were raised."""
        found = []
        for event in self._own_events():
            params = event["params"]
            if event["method"] == "Runtime.exceptionThrown":
                found.append(str(params["exceptionDetails"]))
            if event["method"] == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
                found.append(str(params["args"]))
            if event["method"] == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
                found.append(str(params["entry"]))
        return found

    def requests(self) -> list[str]:
        """What this page has asked for, without what stands in the page itself."""
        asked = [event for event in self._own_events() if event["method"] == "Network.requestWillBeSent"]
        urls = [event["params"]["request"]["url"] for event in asked]
        return [url for url in urls if not url.startswith(("data:", "about:"))]

    def _own_events(self) -> list[dict[str, Any]]:
        return [event for event in self.browser.events if event.get("sessionId") == self.session]


def _high_pipe() -> tuple[int, int]:
    """A pipe whose ends are not among the numbers that Chromium expects for itself."""
    ends = os.pipe()
    high = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends]
    for end in ends:
        os.close(end)
    return high[0], high[1]
