"""A headless Chromium, spoken to over a pipe in its own DevTools protocol."""

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import tempfile
import time

from needed import need

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)


def found():
    """Chromium by whichever name it is installed, or None."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Browser:
    """One page of one browser; what it logs, asks for and throws is written down."""

    def __init__(self, timeout_s=60):
        self._timeout_s, self._number, self._buffer = timeout_s, 0, b""
        self.events = []

    def __enter__(self):
        self._profile = tempfile.TemporaryDirectory(prefix="layermark-chromium-", ignore_cleanup_errors=True)
        need(found(), "Chromium: apt-get install chromium")
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        # Chromium reads commands from 3 and answers on 4. Far away first, so that neither overwrites the other.
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (theirs_in, theirs_out)]
        quiet = os.open(os.devnull, os.O_RDWR)
        actions = [
            *((os.POSIX_SPAWN_DUP2, quiet, end) for end in (0, 1, 2)),
            *((os.POSIX_SPAWN_DUP2, end, place) for end, place in zip(ends, (3, 4), strict=True)),
        ]
        program, flags = found(), [*FLAGS, f"--user-data-dir={self._profile.name}", "about:blank"]
        self._pid = os.posix_spawn(program, [program, *flags], os.environ, file_actions=actions, setpgroup=0)
        for end in (theirs_in, theirs_out, quiet, *ends):
            os.close(end)
        self._session = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        return self

    def __exit__(self, *_):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        for end in (self._in, self._out):
            os.close(end)
        self._profile.cleanup()

    def call(self, method, **parameters):
        """Do one thing and return what the browser says to it."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        self._send(json.dumps(message).encode() + b"\0")
        while True:
            received = self._receive()
            if received.get("id") == self._number:
                assert "error" not in received, received["error"]
                return received["result"]
            self.events.append(received)

    def open(self, address):
        """Load a page afresh and wait until it has; what was logged before is forgotten."""
        self.call("Page.navigate", url="about:blank")
        self.events.clear()
        self.call("Page.navigate", url=address)
        self.wait("document.readyState === 'complete'")

    def wait(self, expression):
        """Until an expression is true: what keys and links do comes a moment later."""
        until = time.monotonic() + self._timeout_s
        while not self.evaluate(expression):
            assert time.monotonic() < until, f"never came: {expression}"
            time.sleep(0.02)

    def evaluate(self, expression):
        """The value of a JavaScript expression; one that throws fails."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def size(self, width, height, scale=1):
        """The size of the window in CSS pixels."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=False
        )

    def media(self, kind="", scheme="light"):
        """Look as on paper (`print`) or on a screen, in a light or a dark scheme."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", media=kind, features=features)

    def screenshot(self, whole=False, clip=None):
        """What is seen, or the whole page, as PNG."""
        more = {"clip": {**clip, "scale": 1}} if clip else {}
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=bool(whole or clip), **more)
        return base64.b64decode(shot["data"])

    def key(self, name):
        """Press a key."""
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=name, code=name, windowsVirtualKeyCode=_KEYS[name])

    def point(self, x, y):
        """Move the mouse to a place in the window."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def complaints(self):
        """Errors and warnings of the console, and what was thrown."""
        self.evaluate("1")
        return [
            each["params"]
            for each in self.events
            if each.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded")
            or (each.get("method") == "Runtime.consoleAPICalled" and each["params"]["type"] in ("error", "warning"))
        ]

    def requests(self):
        """The addresses that the page asked for."""
        self.evaluate("1")
        sent = (each for each in self.events if each.get("method") == "Network.requestWillBeSent")
        return [each["params"]["request"]["url"] for each in sent]

    def _send(self, data):
        while data:
            data = data[os.write(self._out, data) :]

    def _receive(self):
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], self._timeout_s)
            assert ready, f"the browser said nothing for {self._timeout_s} s"
            data = os.read(self._in, 1 << 20)
            assert data, "the browser went away"
            self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)


_KEYS = {"Tab": 9, "Enter": 13, "Escape": 27, "ArrowRight": 39, "ArrowLeft": 37}
