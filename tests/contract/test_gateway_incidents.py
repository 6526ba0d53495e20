"""What has broken other servers in public does not break this one: each test is an attack, and what must come of it."""

from __future__ import annotations

import http.server
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.contract.conftest import Gateway

HOSTS = ["a/?x", "evil.example", "127.0.0.1:1@evil.example", "a/v1/models?", "x" * 500, "[::1", "a\\b", ""]
HELLO = {"prompt": "1,", "max_tokens": 1, "temperature": 0}
BLOCKED = 0.5
"""Seconds that everybody else may be kept from an answer, on a busy machine."""


@pytest.fixture(autouse=True)
def others_are_served(gateway: Gateway) -> Iterator[None]:
    """Whatever a test does, a live gateway answers others meanwhile, and afterwards generates."""
    waits: list[float] = []
    over = threading.Event()

    def look() -> None:
        with httpx.Client(base_url=gateway.url, timeout=30, trust_env=False) as http:
            while not over.wait(0.05):
                started = time.monotonic()
                assert http.get("/health/live").status_code == 200
                waits.append(time.monotonic() - started)

    other = threading.Thread(target=look)
    other.start()
    while not waits and other.is_alive():  # it must be looking before there is something to see
        time.sleep(0.01)
    yield
    over.set()
    other.join(10)
    assert max(waits) < BLOCKED
    assert gateway.ok("completions", **HELLO)


@pytest.mark.conforms("ADM-6")
def test_a_forged_host_changes_no_answer_of_any_route(gateway: Gateway) -> None:
    paths = gateway.http.get("/openapi.json").json()["paths"]
    routes = [(method.upper(), path) for path, methods in paths.items() for method in methods]
    routes += [("GET", "/metrics"), ("GET", "/openapi.json"), ("GET", "/nowhere"), ("GET", "/v1/models/none")]
    for method, path in routes:
        path = path.replace("{name}", "none").replace("{response_id}", "resp_none")
        honest = gateway.http.request(method, path, content=b"{")
        for host in HOSTS:
            forged = gateway.http.request(method, path, content=b"{", headers={"host": host})
            assert forged.status_code == honest.status_code, (method, path, host)
            if honest.status_code >= 400:
                assert forged.json() == honest.json(), (method, path, host)
    assert "localhost" not in gateway.http.get("/openapi.json", headers={"host": "evil.example"}).text


@pytest.mark.conforms("REQ-9")
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("completions", {"prompt": "x", "n": 1_000_000}),
        ("completions", {"prompt": "x", "best_of": 1_000_000}),
        ("completions", {"prompt": ["x"] * 1_000, "max_tokens": 1}),
        ("completions", {"prompt": "x", "max_tokens": 2**31}),
        ("completions", {"prompt": "x", "max_tokens": 10**400}),
        ("completions", {"prompt": "x", "logprobs": 1_000_000}),
        ("completions", {"prompt": "x", "stop": ["a"] * 10_000}),
        ("completions", {"prompt": "x", "stop": "a" * 100_000}),
        ("completions", {"prompt": [1] * 1_000_000}),
        ("completions", {"prompt": "x", "guided_regex": "(a|b)" * 10_000}),
        ("completions", {"prompt": "x", "guided_json": {"pattern": "(a?){9}" * 10_000}}),
        ("completions", {"prompt": "x", "metadata": {str(number): "x" for number in range(17)}}),
        ("completions", {"prompt": "x", "user": "x" * 100_000}),
        ("completions", {"prompt": "x", "model": "x" * 1_000_000}),
        ("completions", {"prompt": "x", "y" * 1_000_000: 1}),
        ("chat/completions", {"messages": [{"role": "user", "content": "x"}] * 100_000}),
        ("chat/completions", {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}] * 100_000}]}),
    ],
)
def test_too_much_is_refused_with_few_words_and_blocks_nobody(gateway: Gateway, path: str, body: Any) -> None:
    error = gateway.refused(path, **body)
    assert len(json.dumps(error)) < 2000


@pytest.mark.conforms("REQ-9")
@pytest.mark.parametrize("depth", [65, 900, 100_000])
def test_a_body_that_is_nested_too_deeply_is_refused(gateway: Gateway, depth: int) -> None:
    for opening, closing in (('{"a":', "}"), ("[", "]")):
        schema = opening * depth + "1" + closing * depth
        raw = f'{{"messages": [{{"role": "user", "content": "x"}}], "tools": [{schema}]}}'
        headers = {"content-type": "application/json"}
        response = gateway.http.post("/v1/chat/completions", content=raw, headers=headers)
        assert response.status_code == 400
        assert response.json()["error"]["code"] in ("too_deep", "invalid_json")


@pytest.mark.parametrize(
    "tool",
    [
        {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": 1}}}},
        {"type": "function", "function": {"name": "f", "parameters": {"type": 7, "properties": {"a": {}}}}},
        {"type": "function", "function": {"name": "f", "parameters": {"$ref": "#/$defs/none"}}},
        {"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {"pattern": "("}}}}},
        {"type": "function", "function": {"name": "../f"}},
        {"type": "function"},
        {},
    ],
)
def test_a_malformed_tool_is_the_callers_mistake(gateway: Gateway, tool: Any) -> None:
    messages = [{"role": "user", "content": "x"}]
    gateway.refused("chat/completions", messages=messages, tools=[tool], tool_choice="required", max_tokens=50)


def test_variables_of_the_template_are_those_it_has(gateway: Gateway) -> None:
    messages = [{"role": "user", "content": "x"}]
    for name in ("messages", "tools", "chat_template", "tokenize", "__class__", "range"):
        gateway.refused("chat/completions", messages=messages, chat_template_kwargs={name: "{{ 1 }}"})


def test_nothing_is_fetched_however_it_is_asked_for(gateway: Gateway) -> None:
    asked: list[str] = []

    class Listener(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_error(404)

    with http.server.HTTPServer(("127.0.0.1", 0), Listener) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for url in (f"http://127.0.0.1:{server.server_port}/a", f"http://x\\@127.0.0.1:{server.server_port}/a"):
            for part in (
                {"type": "image_url", "image_url": {"url": url}},
                {"type": "input_audio", "input_audio": {"data": url, "format": "wav"}},
                {"type": "file", "file": {"file_data": url}},
            ):
                gateway.refused("chat/completions", messages=[{"role": "user", "content": [part]}])
            gateway.refused("completions", prompt="x", guided_json={"$ref": url}, max_tokens=20)
        server.shutdown()
    assert not asked


def test_no_request_names_a_file(gateway: Gateway) -> None:
    for name in ("../../etc/passwd", "/etc/passwd", "smollm2/../../engine", "..%2f..", "a\x00b"):
        status, answer = gateway.post("completions", {**HELLO, "model": name})
        assert (status, answer["error"]["code"]) == (404, "model_not_found")
        response = gateway.http.post("/v1/load_lora_adapter", json={"lora_name": name})
        assert response.status_code == 404
    response = gateway.http.post("/v1/load_lora_adapter", json={"lora_name": "a", "lora_path": "/tmp/a"})
    assert response.status_code == 400
    for path in ("/v1/models/..%2f..%2fetc%2fpasswd", "/dashboard/..%2f..%2fetc%2fpasswd", "/v1/files/..%2f..%2fa"):
        assert gateway.http.get(path).status_code == 404


@pytest.mark.conforms("REQ-1")
def test_a_body_in_ten_thousand_tiny_chunks_is_a_body(gateway: Gateway) -> None:
    raw = json.dumps({**HELLO, "user": "x" * 500}).encode()
    raw += b" " * (10_000 - len(raw))
    status, body = in_chunks(gateway, [raw[at : at + 1] for at in range(len(raw))])
    assert status == 200
    assert json.loads(body)["choices"]


@pytest.mark.conforms("REQ-1")
def test_a_chunked_body_without_an_end_is_cut_at_the_limit(gateway: Gateway) -> None:
    status, body = in_chunks(gateway, [b" " * 65536] * 200)
    assert status == 413
    assert json.loads(body)["error"]["code"] == "body_too_large"


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe\x00",
        b'{"prompt": "\xc3\x28"}',
        b'{"prompt": "\\ud800"}',
        b'{"prompt": NaN}',
        b'{"prompt": "x", "temperature": 1e999}',
        b'{"prompt": "x", "seed": ' + b"9" * 5000 + b"}",
        b'{"prompt": "x"} {"prompt": "y"}',
        b'\xef\xbb\xbf{"prompt": "x"}',
        b"\x00" * 1000,
    ],
)
def test_what_is_no_json_or_no_text_is_refused(gateway: Gateway, raw: bytes) -> None:
    for path in ("completions", "chat/completions", "responses"):
        headers = {"content-type": "application/json"}
        response = gateway.http.post(f"/v1/{path}", content=raw, headers=headers)
        assert response.status_code == 400
        assert response.json()["error"].keys() == {"message", "type", "param", "code"}


@pytest.mark.parametrize("encoding", ["gzip", "br", "gzip, identity"])
def test_a_body_that_is_packed_is_refused_by_name(gateway: Gateway, encoding: str) -> None:
    headers = {"content-type": "application/json", "content-encoding": encoding}
    response = gateway.http.post("/v1/completions", content=b'{"prompt": "x"}', headers=headers)
    assert response.status_code == 415
    assert f"content-encoding is {encoding}" in response.json()["error"]["message"]


@pytest.mark.conforms("ADM-5")
def test_a_giant_header_is_refused(gateway: Gateway) -> None:
    for headers in ({"x": "y" * 100_000}, {f"x-{number}": "y" for number in range(500)}):
        assert gateway.http.get("/health/live", headers=headers).status_code == 431


def in_chunks(gateway: Gateway, chunks: list[bytes]) -> tuple[int, bytes]:
    """POST a body in these chunks, each sent by itself; (status, body) of the answer."""
    host, port = gateway.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        sock.sendall(f"{head}connection: close\r\ntransfer-encoding: chunked\r\n\r\n".encode())
        try:
            for chunk in chunks:
                sock.sendall(b"%x\r\n%s\r\n" % (len(chunk), chunk))
            sock.sendall(b"0\r\n\r\n")
        except OSError:
            pass  # refused before its end
        answer = b""
        while data := sock.recv(65536):
            answer += data
    head_of_it, _, body = answer.partition(b"\r\n\r\n")
    return int(head_of_it.split()[1]), body
