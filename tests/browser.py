"""A real browser without a window, driven over its DevTools pipe: enough to open a page, run script in it and take its picture."""

from __future__ import annotations

import itertools
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "microsoft-edge")
PATIENCE = 60.0  # seconds for one answer: a first start on a busy machine takes some


def find_browser() -> str | None:
    """What RL_TRAINING_BROWSER says, or the first that is installed."""
    return os.environ.get("RL_TRAINING_BROWSER") or next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One page. `problems` collects exceptions and console errors, `requests` every address the page asked for."""

    def __init__(self, program: str) -> None:
        self._profile = tempfile.mkdtemp(prefix="browser-")
        down_read, self._down = os.pipe()
        self._up, up_write = os.pipe()

        def connect() -> None:
            # copied out of the way first: one of them may be 3 or 4 itself
            read, write = os.dup(down_read), os.dup(up_write)
            os.dup2(read, 3)
            os.dup2(write, 4)

        options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--remote-debugging-pipe"]
        command = [program, *options, f"--user-data-dir={self._profile}", "about:blank"]
        self._process = subprocess.Popen(
            command, preexec_fn=connect, close_fds=False, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(down_read)
        os.close(up_write)
        self._numbers, self._heard = itertools.count(1), b""
        self.problems: list[str] = []
        self.requests: list[str] = []
        self._session: str | None = None

    def __enter__(self) -> Browser:
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self._ask(f"{domain}.enable")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._down)
        os.close(self._up)
        shutil.rmtree(self._profile, ignore_errors=True)

    def open(self, page: Path) -> None:
        self._ask("Page.navigate", url=page.resolve().as_uri())
        while self.run("document.readyState") != "complete":
            time.sleep(0.05)

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        answer = self._ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def show(self, *, width: int, height: int, scheme: str = "light") -> None:
        """The size of the window, and whether the reader likes it light or dark."""
        self._ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self._ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def picture(self, width: int, height: int) -> str:
        """PNG, in base64."""
        self._ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        data: str = self._ask("Page.captureScreenshot", format="png")["data"]
        return data

    def _ask(self, method: str, **params: Any) -> Any:
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params, **({"sessionId": self._session} if self._session else {})}
        os.write(self._down, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._hear()
            if answer.get("id") == number:
                assert "error" not in answer, answer["error"]
                return answer["result"]
            self._note(answer)

    def _note(self, event: dict[str, Any]) -> None:
        method, params = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(params["exceptionDetails"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.problems.append(params["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])

    def _hear(self) -> dict[str, Any]:
        end = time.monotonic() + PATIENCE
        while b"\0" not in self._heard:
            ready, _, _ = select.select([self._up], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                raise TimeoutError("the browser does not answer")
            chunk = os.read(self._up, 1 << 16)
            if not chunk:
                raise RuntimeError(f"the browser ended with exit code {self._process.wait()}")
            self._heard += chunk
        message, _, self._heard = self._heard.partition(b"\0")
        decoded: dict[str, Any] = json.loads(message)
        return decoded
