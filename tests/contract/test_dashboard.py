"""The dashboard in a real browser, before a gateway that has something to do."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.conftest import SAMPLE_PLAN
from tests.contract.conftest import Gateway, running_gateway

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

    from conch.triton import TritonServer
    from conch_build.pipeline import BuildResult

BODY = {"prompt": "1, 2, 3,", "max_tokens": 40, "ignore_eos": True, "stream": True}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium, wherever the system has it."""
    playwright = pytest.importorskip("playwright.sync_api")
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("no Chromium")
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page that must end without an error on its console, and without having asked anybody but the gateway."""
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    complaints: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    yield page
    assert not complaints
    assert {httpx.URL(url).path for url in asked if not url.startswith("data:")} <= {"/dashboard", "/dashboard/data"}
    page.close()


@contextmanager
def load(gateway: Gateway, streams: int = 2) -> Iterator[None]:
    """Streams that begin anew as long as the block lasts."""
    over = threading.Event()

    def ask() -> None:
        with httpx.Client(base_url=gateway.url, timeout=60, trust_env=False) as http:
            while not over.is_set():
                http.post("/v1/completions", json=BODY)

    threads = [threading.Thread(target=ask, daemon=True) for _ in range(streams)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join(60)


def shows(page: Page, condition: Callable[[], bool], seconds: float = 20.0) -> None:
    """The page comes to show it."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, page.inner_text("main")
        page.wait_for_timeout(100)


def figure(page: Page, name: str) -> float:
    return float(page.inner_text(f"#{name}").replace(",", "") or 0)


@pytest.mark.slow
def test_figures_move_while_requests_run_and_come_to_rest_after_them(gateway: Gateway, page: Page) -> None:
    page.goto(f"{gateway.url}/dashboard")
    page.wait_for_selector("#figures:not([hidden])")
    assert page.inner_text("#state") == "serving"
    with load(gateway):
        shows(page, lambda: figure(page, "tokens") > 0)
        shows(page, lambda: figure(page, "running") == 2)
        shows(page, lambda: page.locator("#rows tr").count() == 1)
        row = page.inner_text("#rows tr").split("\t")
        assert row[0] == "smollm2"
        assert int(row[2]) > 0
        first_token, between = row[5].split(" / "), row[6].split(" / ")
        for times in (first_token, between):
            assert 0 < float(times[0]) <= float(times[1]) <= float(times[2]) < 60_000
        assert page.locator("#tokens-line").get_attribute("points")
    shows(page, lambda: figure(page, "running") == 0)
    assert page.inner_text("#engines tr").startswith("smollm2\t0\t")
    assert "GiB" in page.inner_text("#machine")


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_small_screen_in_both_colour_schemes(gateway: Gateway, page: Page, scheme: str) -> None:
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    page.set_viewport_size({"width": 360, "height": 700})
    page.goto(f"{gateway.url}/dashboard")
    page.wait_for_selector("#figures:not([hidden])")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    ground, ink = (page.evaluate(f"getComputedStyle(document.body).{name}") for name in ("backgroundColor", "color"))
    light = [sum(int(part) for part in colour[4:-1].split(",")) for colour in (ground, ink)]
    assert (light[0] > light[1]) == (scheme == "light")


@pytest.mark.conforms("OBS-5")
def test_nothing_runs_in_it_but_its_own_script_and_nobody_frames_it(gateway: Gateway, browser: Browser) -> None:
    response = gateway.http.get("/dashboard")
    policy = response.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy and "unsafe" not in policy
    assert response.headers["x-content-type-options"] == "nosniff"
    assert "http" not in response.text
    page = browser.new_page()
    page.goto(f"{gateway.url}/dashboard")
    blocked = """() => new Promise(done => {
        document.addEventListener("securitypolicyviolation", () => done(window.ran === undefined));
        const script = document.createElement("script");
        try { script.textContent = "window.ran = true"; document.body.append(script); } catch { done(true); }
    })"""
    assert page.evaluate(blocked)
    page.close()


def test_its_data_are_figures_alone(gateway: Gateway) -> None:
    secret = "a prompt that nobody else may read"
    gateway.ok("completions", prompt=secret, max_tokens=2, user="somebody")
    answer = gateway.http.get("/dashboard/data")
    assert answer.headers["cache-control"] == "no-store"
    assert secret not in answer.text and "somebody" not in answer.text
    data = answer.json()
    assert data["rows"][0]["model"] == "smollm2"
    later = gateway.http.get("/dashboard/data", params={"since": data["now"] + 60}).json()
    assert later["history"] == []


@pytest.mark.slow
def test_the_price_of_the_plan_is_shown(
    stack_triton: TritonServer, sample_build: BuildResult, page: Page, tmp_path_factory: pytest.TempPathFactory
) -> None:
    plan = tmp_path_factory.mktemp("plan") / "conch.yaml"
    plan.write_text(f"{SAMPLE_PLAN}\ncost: {{instance_hourly_usd: 2.5}}\n")
    with running_gateway(stack_triton, sample_build.engine.path, "--plan", str(plan)) as gateway:
        gateway.ok("completions", **BODY)
        page.goto(f"{gateway.url}/dashboard")
        shows(page, lambda: page.inner_text("#price").startswith("$"))
        assert "since the start" in page.inner_text("#usd")


@pytest.mark.slow
@pytest.mark.conforms("OBS-5")
def test_it_asks_for_a_key_where_there_are_keys_and_keeps_it_for_the_tab_alone(
    stack_triton: TritonServer, sample_build: BuildResult, browser: Browser, tmp_path: Path
) -> None:
    from conch.gateway.database import Database
    from conch.gateway.keys import grants as keys

    database = Database.at(None, tmp_path)
    made = {
        scope: database.run_now(partial(keys.create, grant=keys.Grant(scope, scopes=(scope,))))[1]
        for scope in ("metrics", "inference")
    }
    database.close_now()
    plan = tmp_path / "conch.yaml"
    plan.write_text(
        f"{SAMPLE_PLAN}\nserving: {{gateway: {{database: {{url: 'sqlite:///{tmp_path / 'gateway.db'}'}}}}}}\n"
    )
    with running_gateway(stack_triton, sample_build.engine.path, "--plan", str(plan)) as gateway:
        assert gateway.http.get("/dashboard/data").status_code == 401
        assert gateway.http.get("/metrics").status_code == 401
        page = browser.new_page()
        page.goto(f"{gateway.url}/dashboard")
        for scope, seen in (("inference", "#ask:not([hidden])"), ("metrics", "#figures:not([hidden])")):
            page.wait_for_selector("#ask:not([hidden])")
            page.fill("#key", made[scope])
            page.press("#key", "Enter")
            shows(page, lambda: page.input_value("#key") == "")
            page.wait_for_selector(seen)
        page.reload()
        page.wait_for_selector("#figures:not([hidden])")
        assert page.evaluate("localStorage.length") == 0
        assert made["metrics"] not in page.content()
        page.close()
