#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Opens report pages in headless Chromium, at 1,280 and 390 pixels, light and dark.

pages.py MADE_PAGES TRAIN_MOE WORK_FOLDER [--screenshots]

MADE_PAGES writes pages of made samples, TRAIN_MOE those of real runs. Fails on errors of the console, on boxes outside
of their picture, on horizontal scrolling, on empty pictures, on labels that overlap, and on anything that is loaded from
elsewhere. Returns 77, which skips the test, where there is no Chromium."""

import base64
import json
import pathlib
import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.request

MODEL = {"model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "vocab_size": 256, "hidden_size": 16,
         "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
         "num_local_experts": 4, "num_experts_per_tok": 2, "max_position_embeddings": 16}

LOOK = r"""
const wrong = [];
const near = 1.5;  // pixels
const say = (what, node) => wrong.push(what + ": " + (node.getAttribute("aria-label") || node.textContent).slice(0, 80));
const page = document.documentElement;
if (page.scrollWidth > innerWidth) wrong.push("the page is " + page.scrollWidth + " pixels wide");
const pictures = document.querySelectorAll("svg");
for (const svg of pictures) {
  const view = svg.viewBox.baseVal, size = svg.getBoundingClientRect();
  if (size.width < 100 || size.height < 8) say("a picture of " + size.width + " x " + size.height + " pixels", svg);
  let drawn = 0;
  for (const path of svg.querySelectorAll("path")) {
    const box = path.getBBox();
    if (box.x < -0.1 || box.y < -0.1 || box.x + box.width > view.width + 0.1 || box.y + box.height > view.height + 0.1)
      say("a box outside of its picture, " + [box.x, box.y, box.width, box.height].join(" "), svg);
    if (!["grid", "lane"].includes(path.classList[0]) && path.getAttribute("d").length > 3) ++drawn;
  }
  if (drawn === 0) say("an empty picture", svg);
}
const visible = node => node.getClientRects().length > 0;
for (const axis of document.querySelectorAll(".x, .y")) {
  const figure = axis.closest("figure").getBoundingClientRect();
  const boxes = [...axis.children].filter(visible).map(node => [node, node.getBoundingClientRect()]);
  for (const [node, box] of boxes)
    if (box.left < figure.left - near || box.right > figure.right + near || box.top < figure.top - near ||
        box.bottom > figure.bottom + near)
      say("a label outside of its figure", node);
  for (const [a, first] of boxes)
    for (const [b, second] of boxes)
      if (a !== b && first.left + near < second.right && second.left + near < first.right && first.top + 4 < second.bottom &&
          second.top + 4 < first.bottom)
        say("labels that overlap", a);
}
for (const node of document.querySelectorAll("main *")) {
  const box = node.getBoundingClientRect();
  if (visible(node) && !node.closest("svg") && (box.left < -near || box.right > innerWidth + near))
    say("a box beside the page", node);
}
if (performance.getEntriesByType("resource").length > 0) wrong.push("something was loaded from elsewhere");
return {pictures: pictures.length, wrong: [...new Set(wrong)].slice(0, 20)};
"""


class Browser:
    """A session of chromedriver's, over its HTTP interface."""

    def __init__(self, driver, chromium, folder):
        self.process = subprocess.Popen([driver, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.url = None
        for line in self.process.stdout:
            found = re.search(r"started successfully on port (\d+)", line)
            if found:
                self.url = f"http://127.0.0.1:{found.group(1)}"
                break
        if self.url is None:
            raise SystemExit("chromedriver did not start")
        arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
                     f"--user-data-dir={folder}"]
        answer = self.call("POST", "/session", {"capabilities": {"alwaysMatch": {
            "goog:loggingPrefs": {"browser": "ALL"},
            "goog:chromeOptions": {"binary": chromium, "args": arguments}}}})
        self.session = f"/session/{answer['sessionId']}"

    def call(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise SystemExit(f"chromedriver: {error.read().decode()[:2000]}") from error

    def do(self, command, body):
        return self.call("POST", self.session + command, body)

    def devtools(self, command, **parameters):
        return self.do("/goog/cdp/execute", {"cmd": command, "params": parameters})

    def close(self):
        try:
            self.call("DELETE", self.session)
        finally:
            self.process.terminate()
            self.process.wait()


def train(program, folder, name, *flags):
    """The page of a run of 200 steps of a small model."""
    out = folder / name
    command = [program, "--model", folder / "model.json", "--data", folder / "text", "--sequence", "16",
               "--micro-batches", "4", "--micro-batch-size", "4", "--steps", "200", "--lr", "0.003", "--report", out,
               *flags]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{name}: train_moe returned {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return out


def look(browser, page, screenshots):
    """What is wrong with a page, at both widths, light and dark."""
    wrong = []
    for width, height in ((1280, 900), (390, 844)):
        for scheme in ("light", "dark"):
            browser.devtools("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1,
                             mobile=width < 600)
            browser.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
            browser.do("/url", {"url": (page / "index.html").resolve().as_uri()})
            seen = browser.do("/execute/sync", {"script": LOOK, "args": []})
            where = f"{page.name}, {width} pixels, {scheme}"
            wrong += [f"{where}: {what}" for what in seen["wrong"]]
            if seen["pictures"] < 5:
                wrong.append(f"{where}: {seen['pictures']} pictures")
            for line in browser.do("/se/log", {"type": "browser"}):
                wrong.append(f"{where}: console: {line['message'][:200]}")
            if screenshots:
                whole = browser.devtools("Page.captureScreenshot", format="png", captureBeyondViewport=True)
                (page / f"{page.name}_{width}_{scheme}.png").write_bytes(base64.b64decode(whole["data"]))
    return wrong


def main():
    made_pages, train_moe, work = sys.argv[1:4]
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        print("skipped: there is no chromium with its chromedriver")
        return 77
    work = pathlib.Path(work)
    shutil.rmtree(work, ignore_errors=True)
    (work / "pages").mkdir(parents=True)
    (work / "model.json").write_text(json.dumps(MODEL))
    (work / "text").write_text("".join(f"line {i * i % 97} of a text that repeats itself\n" for i in range(400)))
    subprocess.run([made_pages, work / "pages"], check=True)
    pages = [work / "pages" / name for name in ("one_step", "two_steps", "ten_thousand_steps", "failed")]
    pages.append(train(train_moe, work, "pipelines", "--mesh", "pp=2,ep=2", "--phases", "train=20,eval=1,rollout=1",
                       "--checkpoint", work / "saved", "--checkpoint-every", "50"))
    pages.append(train(train_moe, work, "replayed", "--mesh", "dp=2,ep=2", "--expert-capacity", "1"))
    wrong = []
    if "replay" not in (pages[-1] / "index.html").read_text():
        wrong.append("the run with little room for experts has replayed no step")
    browser = Browser(driver, chromium, work / "profile")
    try:
        for page in pages:
            wrong += look(browser, page, "--screenshots" in sys.argv)
    finally:
        browser.close()
    for line in wrong:
        print(line)
    print(f"{len(pages)} pages at two widths, light and dark: {len(wrong)} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
