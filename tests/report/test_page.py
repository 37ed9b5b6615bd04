"""The report of real runs, opened in a browser that has no network.

What is checked is what a reader sees: which sections are there, that nothing is wider than the
screen, that what models wrote is text and nothing of it acts.
"""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

from tests.support import BASE, Endpoint, Request, Run, fenced, run
from tests.support import scripted as scripted_by
from verifiers.v1.cli.gepa_report import main as gepa_report
from verifiers.v1.gepa.report.page import SECTIONS
from verifiers_gepa.scripted import scripted

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")

pytestmark = [
    pytest.mark.xdist_group("browser"),  # so that it starts once
    pytest.mark.skipif(
        not (CHROMIUM and DRIVER) and not os.environ.get("CI"), reason="chromium is not installed"
    ),
]

SWITCHES = [
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
    *("--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--host-resolver-rules=MAP * ~NOTFOUND"),
]


class Browser:
    """Chromium, offline, with what it logged and asked for."""

    def __init__(self, profile: Path) -> None:
        assert CHROMIUM, "chromium is not installed"
        assert DRIVER, "chromedriver is not installed"
        options = webdriver.ChromeOptions()
        options.binary_location = CHROMIUM
        for switch in [*SWITCHES, f"--user-data-dir={profile}"]:
            options.add_argument(switch)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=Service(DRIVER))
        self.driver.execute_cdp_cmd("Network.enable", {})
        offline = {"offline": True, "latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
        self.driver.execute_cdp_cmd("Network.emulateNetworkConditions", offline)

    def open(self, page: Path, width: int, scheme: str = "light") -> None:
        """Open a page on a screen of this width, all logs emptied."""
        screen = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        self.driver.get_log("browser")
        self.driver.get_log("performance")
        self.driver.get(page.as_uri())

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector: str) -> WebElement:
        (found,) = self.all(selector)
        return found

    def eval(self, script: str) -> Any:
        return self.driver.execute_script(f"return {script}")

    def unfold(self) -> None:
        self.eval("document.querySelectorAll('details').forEach(it => it.open = true)")

    @property
    def overflow(self) -> int:
        """By how many pixels the page is wider than the screen."""
        return int(self.eval("document.documentElement.scrollWidth - innerWidth"))

    def requested(self) -> set[str]:
        """The URLs that were asked for, the page's own among them."""
        events = [json.loads(e["message"])["message"] for e in self.driver.get_log("performance")]
        sent = [e["params"] for e in events if e["method"] == "Network.requestWillBeSent"]
        return {params["request"]["url"] for params in sent}


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    opened = Browser(tmp_path_factory.mktemp("profile"))
    yield opened
    opened.driver.quit()


SIZES = ["--num-train", "20", "--num-val", "10", "--num-test", "12", "--max-total-rollouts", "90"]


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run on the bundled taskset."""
    base = ["support-intent-v1", "-m", "student", *SIZES]
    with Endpoint(scripted()) as endpoint:
        done = run(endpoint, tmp_path_factory.mktemp("shown"), base=base)
    assert done.status == 0
    assert done.result["improved"]
    assert done.result["artifacts"]["report"] == str(done.folder / "report.html")
    return done


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_a_reader_sees_every_section(browser: Browser, shown: Run, width: int, scheme: str) -> None:
    page = shown.folder / "report.html"
    browser.open(page, width, scheme)
    assert [it.get_attribute("id") for it in browser.all("main > section")] == [*SECTIONS]
    for section in browser.all("main > section"):
        assert section.is_displayed()
        assert section.find_element(By.TAG_NAME, "h2").text
    assert browser.overflow <= 0
    background = browser.eval("getComputedStyle(document.body).backgroundColor")
    channels = [int(part) for part in background[4:-1].split(",")]
    assert all((channel > 128) == (scheme == "light") for channel in channels)

    assert browser.one("#verdict h2").text == "Improved"
    low, high = shown.result["ci95"]
    assert f"95 % interval {low:+.1f} to {high:+.1f}" in browser.one("#verdict .sentence").text
    plots = [plot for plot in browser.all("#scores svg") if plot.is_displayed()]
    assert len(plots) == 1
    assert "rollouts charged" in plots[0].text
    nodes = [node.text for node in browser.all("#tree .node") if node.is_displayed()]
    assert len(nodes) == len(shown.candidates) >= 3
    assert nodes[0].startswith("seed prompt")
    added = [line for line in browser.all("#diff ins") if line.is_displayed()]
    new = set(shown.prompt.decode().split("\n")) - set(shown.candidates[0].split("\n"))
    assert {line.text for line in added} == new
    assert len(browser.all("#frontier tbody tr")) == 10

    browser.unfold()
    assert browser.overflow <= 0
    for index in range(1, len(shown.candidates)):
        assert browser.one(f"#candidate-{index} > .diff ins").is_displayed()
    sides = [side.text for side in browser.all("#test .sides > div")]
    assert len(sides) >= 2
    assert sides[0].startswith("Seed prompt: ")
    assert "[assistant]" in sides[0]
    assert sides[1].startswith("Deployed prompt: ")
    assert browser.driver.get_log("browser") == []
    assert browser.requested() <= {page.as_uri(), "data:,"}


MARKUP = "</script><img src=x onerror=1>"
TURNED = "\u202e\u05e9\u05dc\u05d5\u05dd\u202c \u200fright\u2066 to left"
NAMED = ["\u2039U+202E\u203a", "\u2039U+202C\u203a", "\u2039U+200F\u203a", "\u2039U+2066\u203a"]
SIGN_OFF = "<b onmouseover=alert(1)>the end</b>"


def hostile_teacher() -> Any:
    """Proposes prompts that would act on the page, turn it around or fill it."""
    texts = iter(
        [
            f"GOOD 1\n{MARKUP}\n{TURNED}",
            f"GOOD 2 {{{{ 7 * 7 }}}} {MARKUP}\n" + "very long indeed " * 6_000 + SIGN_OFF,
        ]
    )
    return lambda _: fenced(next(texts, f"GOOD 3 {MARKUP}"))


def hostile_student(request: Request) -> str:
    right = "GOOD 2" in request.system or ("GOOD" in request.system and request.user[-1] in "02468")
    return "right" if right else f"wrong {MARKUP} {TURNED}\0\x1b[31m"


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("hostile")
    flags = ["--phase", "all", "--num-test", "5", "--max-total-rollouts", "40"]
    flags += ["--taskset.size", "16"]
    with scripted_by(hostile_student, hostile_teacher()) as endpoint:
        done = run(endpoint, folder, *flags, base=BASE)
    assert done.status == 0
    assert len(done.candidates) >= 3
    # What a provider can send and UTF-8 can't hold.
    result = done.json("result.json")
    result["warnings"].append("\ud83d half a face")
    (done.folder / "result.json").write_text(json.dumps(result))
    assert gepa_report([str(done.folder)]) == 0
    return done


@pytest.mark.parametrize("width", [1280, 390])
def test_what_models_wrote_is_shown_and_does_nothing(
    browser: Browser, hostile: Run, width: int
) -> None:
    page = hostile.folder / "report.html"
    browser.open(page, width)
    assert browser.overflow <= 0
    long = browser.one("#candidate-2 > details")
    assert not long.is_displayed()
    browser.unfold()
    assert browser.overflow <= 0
    assert browser.eval("document.images.length + document.scripts.length") == 0
    acting = "[...document.querySelectorAll('*')].filter(it => it.getAttributeNames().some("
    assert browser.eval(f"{acting}name => name.startsWith('on'))).length") == 0
    assert browser.requested() <= {page.as_uri(), "data:,"}
    assert browser.driver.get_log("browser") == []

    lines = [line.text for line in browser.all("#candidate-1 > .diff ins")]
    assert MARKUP in lines
    assert all(name in lines[-1] for name in NAMED)
    whole = str(browser.one("#candidate-2 > details .text").get_attribute("textContent"))
    assert whole == hostile.candidates[2]
    assert len(whole) > 100_000
    assert "{{ 7 * 7 }}" in whole
    replies = browser.all("#test .sides > div")[0].text
    assert f"wrong {MARKUP} {NAMED[0]}" in replies
    assert "\u2039U+0000\u203a\u2039U+001B\u203a[31m" in replies
    assert "\u2039U+D83D\u203a half a face" in browser.one("#warnings").text
