"""A real Chromium, spoken to over two pipes (--remote-debugging-pipe): no port is opened, nothing leaves the
machine.

Just enough of the DevTools protocol to open a file, set a screen size, ask the page questions, and hear what
it logged and asked for.
"""

import base64
import fcntl
import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
PATIENCE_S = 60.0


def find() -> str | None:
    """Where Chromium is, None when it is not installed."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


def _pipe() -> tuple[int, int]:
    """A pipe whose ends are neither 3 nor 4, so that putting one there cannot close the other."""
    ends = os.pipe()
    high = tuple(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends)
    for end in ends:
        os.close(end)
    return high


class Chromium:
    """A context manager: a browser with a fresh profile folder and one page."""

    def __init__(self, dark: bool = False) -> None:
        self.events: list[dict] = []
        self._number = 0
        self._rest = b""
        self._dark = dark

    def __enter__(self) -> "Chromium":
        self._profile = tempfile.TemporaryDirectory(prefix="chromium-")
        command_read, self._write = _pipe()
        self._read, answer_write = _pipe()
        arguments = [*FLAGS, "--remote-debugging-pipe", f"--user-data-dir={self._profile.name}", "about:blank"]
        # The browser expects the pipes as descriptors 3 and 4; bash puts them there and then becomes the browser.
        shell = f'exec "$0" "$@" 3<&{command_read} 4>&{answer_write}'
        self._process = subprocess.Popen(
            ["bash", "-c", shell, find(), *arguments],
            pass_fds=(command_read, answer_write),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(command_read)
        os.close(answer_write)
        targets = self._call("Target.getTargets")["targetInfos"]
        page = next(target for target in targets if target["type"] == "page")
        attached = self._call("Target.attachToTarget", targetId=page["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        scheme = "dark" if self._dark else "light"
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        return self

    def __exit__(self, *_) -> None:
        try:
            self._call("Browser.close")
        except (OSError, EOFError):
            pass
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._write)
        os.close(self._read)
        self._profile.cleanup()

    def open(self, path: Path, width: int, height: int = 900) -> None:
        """Load a file at a screen of this size and wait until it is there."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.events.clear()
        self.call("Page.navigate", url=path.resolve().as_uri())
        self._wait_for("Page.loadEventFired")

    def ask(self, expression: str):
        """The value of a JavaScript expression in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in answer:
            raise AssertionError(answer["exceptionDetails"])
        return answer["result"].get("value")

    def screenshot(self, path: Path) -> None:
        """The whole page as a PNG."""
        data = self.call("Page.captureScreenshot", captureBeyondViewport=True, format="png")["data"]
        path.write_bytes(base64.b64decode(data))

    def pdf(self) -> bytes:
        """The page as it would be printed."""
        return base64.b64decode(self.call("Page.printToPDF", printBackground=True)["data"])

    def requested(self) -> list[str]:
        """Addresses the page asked for since it was opened."""
        sent = [event for event in self.events if event["method"] == "Network.requestWillBeSent"]
        return [event["params"]["request"]["url"] for event in sent]

    def complaints(self) -> list[str]:
        """Errors and warnings of the page since it was opened."""
        found = []
        for event in self.events:
            if event["method"] == "Runtime.exceptionThrown":
                found.append(str(event["params"]["exceptionDetails"]))
            if event["method"] == "Log.entryAdded" and event["params"]["entry"]["level"] in ("error", "warning"):
                found.append(event["params"]["entry"]["text"])
            if event["method"] == "Runtime.consoleAPICalled" and event["params"]["type"] in ("error", "warning"):
                found.append(str(event["params"]["args"]))
        return found

    def call(self, method: str, **params):
        """A command to the page."""
        return self._call(method, session=self._session, **params)

    def _call(self, method: str, session: str | None = None, **params):
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + PATIENCE_S
        while (answer := self._next(deadline)).get("id") != self._number:
            self._note(answer)
        if "error" in answer:
            raise AssertionError(f"{method}: {answer['error']}")
        return answer["result"]

    def _wait_for(self, method: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not any(event["method"] == method for event in self.events):
            self._note(self._next(deadline))

    def _note(self, message: dict) -> None:
        if "method" in message:
            self.events.append(message)

    def _next(self, deadline: float) -> dict:
        while b"\0" not in self._rest:
            if time.monotonic() > deadline:
                raise TimeoutError("the browser does not answer")
            data = os.read(self._read, 1 << 16)
            if not data:
                raise EOFError("the browser has gone")
            self._rest += data
        line, self._rest = self._rest.split(b"\0", 1)
        return json.loads(line)
