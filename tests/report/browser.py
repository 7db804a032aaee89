# SPDX-License-Identifier: Apache-2.0
"""Drives a headless Chromium over a pipe (DevTools protocol), with the standard library alone."""
import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


def find():
    """The program to drive, or None."""
    named = os.environ.get("SLIMPACK_CHROMIUM")
    return named or next((path for path in map(shutil.which, NAMES) if path), None)


class Browser:
    """One page. Use it as a context: the process and its folder go at the end."""

    def __init__(self, program, width=1280, height=900):
        self.folder = tempfile.mkdtemp(prefix="slimpack-browser-")
        to_read, self.to_write = os.pipe()
        self.from_read, from_write = os.pipe()
        arguments = [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                     "--disable-background-networking", "--no-first-run", "--hide-scrollbars",
                     "--remote-debugging-pipe", f"--user-data-dir={self.folder}", "about:blank"]
        # The browser reads commands from descriptor 3 and answers on 4.
        words = ["/bin/sh", "-c", f'exec "$@" 3<&{to_read} 4>&{from_write}', "sh", *arguments]
        self.log = open(os.path.join(self.folder, "log"), "wb")
        self.process = subprocess.Popen(words, pass_fds=(to_read, from_write), stdout=self.log, stderr=self.log)
        os.close(to_read)
        os.close(from_write)
        self.last, self.buffer, self.session, self.events = 0, b"", None, []
        try:
            pages = self.send("Target.getTargets")["targetInfos"]
            target = next(page["targetId"] for page in pages if page["type"] == "page")
            self.session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Network", "Log"):
                self.send(f"{domain}.enable")
            self.size(width, height)
        except BaseException:
            self.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        for descriptor in (self.to_write, self.from_read):
            os.close(descriptor)
        self.log.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def receive(self, seconds=60):
        """The next message of the browser."""
        until = time.monotonic() + seconds
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.from_read], [], [], max(0, until - time.monotonic()))
            piece = os.read(self.from_read, 1 << 20) if ready else b""
            if not piece:
                raise RuntimeError("the browser does not answer" if not ready else "the browser ended")
            self.buffer += piece
        message, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(message)

    def send(self, method, **parameters):
        self.last += 1
        message = {"id": self.last, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self.to_write, data):]
        while True:
            answer = self.receive()
            if answer.get("id") == self.last:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]
            self.events.append(answer)

    # --- what tests ask for ---

    def size(self, width, height, scale=1, mobile=False):
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=mobile)

    def scheme(self, name):
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def scripts(self, on):
        self.send("Emulation.setScriptExecutionDisabled", value=not on)

    def open(self, path):
        """Opens a file; returns once its load event is over."""
        self.events = []
        self.send("Page.navigate", url="file://" + os.path.abspath(path))
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self.receive())

    def run(self, expression):
        """The value of an expression, a promise awaited."""
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            raise RuntimeError(details.get("exception", {}).get("description") or details["text"])
        return answer["result"].get("value")

    def settle(self):
        """Waits until what was asked for is on the screen."""
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))")

    def move(self, x, y):
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        self.settle()

    def click(self, x, y):
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=1, clickCount=1)
        self.settle()

    def drag(self, x, y, to_x, to_y):
        self.send("Input.dispatchMouseEvent", type="mousePressed", x=x, y=y, button="left", buttons=1, clickCount=1)
        for part in (1, 2, 3):
            self.send("Input.dispatchMouseEvent", type="mouseMoved", button="left", buttons=1,
                      x=x + (to_x - x) * part / 3, y=y + (to_y - y) * part / 3)
        self.send("Input.dispatchMouseEvent", type="mouseReleased", x=to_x, y=to_y, button="left", clickCount=1)
        self.settle()

    def wheel(self, x, y, delta, control=False):
        self.send("Input.dispatchMouseEvent", type="mouseWheel", x=x, y=y, deltaX=0, deltaY=delta,
                  modifiers=2 if control else 0)
        self.settle()

    def key(self, name):
        for kind in ("keyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=name, code=name,
                      **({"text": name} if len(name) == 1 and kind == "keyDown" else {}))
        self.settle()

    def picture(self, path, whole=False):
        data = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        with open(path, "wb") as file:
            file.write(base64.b64decode(data))

    def faults(self):
        """Whatever went wrong so far: exceptions, messages of the console and the page's own record."""
        found = []
        for event in self.events:
            if event.get("method") == "Runtime.exceptionThrown":
                found.append(event["params"]["exceptionDetails"].get("exception", {}).get("description", "exception"))
            elif event.get("method") == "Log.entryAdded" and event["params"]["entry"]["level"] in ("error", "warning"):
                found.append(event["params"]["entry"]["text"])
        own = self.run("document.documentElement.dataset.errors || ''")
        return found + ([own] if own else [])

    def requests(self):
        """Addresses that the page asked for, its own aside."""
        asked = [event["params"]["request"]["url"] for event in self.events
                 if event.get("method") == "Network.requestWillBeSent"]
        return [url for url in asked if not url.startswith(("file://", "data:", "blob:"))]
