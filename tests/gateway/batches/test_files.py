"""/v1/files: what callers leave, how much of it, and who finds it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from conch.gateway.batches.upload import safe_name
from tests.gateway.apps import client, new_key, running_app

if TYPE_CHECKING:
    from conch_build.pipeline import BuildResult

HALF = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\nhal'


@pytest.fixture
async def http(sample_build: BuildResult, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    plan = {"batches": {"file_bytes": "4KiB", "stored_bytes": "8KiB"}}
    async with running_app(sample_build, tmp_path, **plan) as app, client(app) as http:
        yield http


async def uploaded(http: httpx.AsyncClient, content: bytes = b"x\n", name: str = "in.jsonl", **data: str) -> Any:
    data = {"purpose": "batch", **data}
    return await http.post("/v1/files", files={"file": (name, content)}, data=data)


def left_behind(folder: Path) -> list[str]:
    return [path.name for path in (folder / "files").iterdir()]


@pytest.mark.conforms("FILE-1")
async def test_a_file_comes_back_as_it_was_left(http: httpx.AsyncClient) -> None:
    content = bytes(range(256)) * 4
    file = (await uploaded(http, content)).json()
    assert file["id"].startswith("file-")
    assert (file["object"], file["bytes"], file["purpose"], file["status"]) == ("file", 1024, "batch", "processed")
    assert file["expires_at"] - file["created_at"] == 30 * 24 * 3600
    assert (await http.get(f"/v1/files/{file['id']}")).json() == file
    answer = await http.get(f"/v1/files/{file['id']}/content")
    assert answer.content == content
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"].startswith("attachment")


@pytest.mark.conforms("FILE-1")
async def test_a_deleted_file_is_gone_from_the_disk_too(http: httpx.AsyncClient, tmp_path: Path) -> None:
    file = (await uploaded(http)).json()
    assert (await http.delete(f"/v1/files/{file['id']}")).json() == {
        "id": file["id"],
        "object": "file",
        "deleted": True,
    }
    for path in (f"/v1/files/{file['id']}", f"/v1/files/{file['id']}/content"):
        assert (await http.get(path)).status_code == 404
    assert left_behind(tmp_path) == []


@pytest.mark.conforms("FILE-2")
async def test_files_are_listed_page_by_page(http: httpx.AsyncClient) -> None:
    ids = [(await uploaded(http, name=f"{number}.jsonl")).json()["id"] for number in range(5)]
    assert [file["id"] for file in (await http.get("/v1/files")).json()["data"]] == ids[::-1]
    page = (await http.get("/v1/files", params={"limit": 2, "order": "asc"})).json()
    assert ([file["id"] for file in page["data"]], page["has_more"]) == (ids[:2], True)
    assert (page["first_id"], page["last_id"]) == (ids[0], ids[1])
    rest = (await http.get("/v1/files", params={"after": ids[1], "order": "asc"})).json()
    assert ([file["id"] for file in rest["data"]], rest["has_more"]) == (ids[2:], False)
    assert (await http.get("/v1/files", params={"purpose": "batch_output"})).json()["data"] == []


@pytest.mark.conforms("FILE-2")
@pytest.mark.parametrize("query", ["limit=0", "limit=x", "order=up", "after=file-none", "colour=red"])
async def test_a_wrong_query_is_named(http: httpx.AsyncClient, query: str) -> None:
    answer = await http.get(f"/v1/files?{query}")
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == query.partition("=")[0]


@pytest.mark.conforms("FILE-3")
async def test_a_file_over_the_limit_is_refused_and_nothing_of_it_stays(
    http: httpx.AsyncClient, tmp_path: Path
) -> None:
    answer = await uploaded(http, b"x" * 4097)
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "file_too_large")
    assert (await uploaded(http, b"x" * (1 << 20))).json()["error"]["code"] == "body_too_large"
    assert left_behind(tmp_path) == []


@pytest.mark.conforms("FILE-3")
async def test_what_a_caller_may_keep_is_limited(http: httpx.AsyncClient) -> None:
    first = (await uploaded(http, b"x" * 4096)).json()["id"]
    assert (await uploaded(http, b"x" * 4096)).status_code == 200
    assert (await uploaded(http)).json()["error"]["code"] == "storage_limit"
    await http.delete(f"/v1/files/{first}")
    assert (await uploaded(http)).status_code == 200


@pytest.mark.conforms("FILE-4")
@pytest.mark.parametrize(
    ("form", "param"),
    [
        ({"data": {"purpose": "batch"}, "files": {"other": ("a", b"x")}}, "file"),
        ({"files": {"file": ("a", b"x")}}, "purpose"),
        ({"files": {"file": ("a", b"x")}, "data": {"purpose": "fine-tune"}}, "purpose"),
        ({"files": {"file": ("a", b"x")}, "data": {"purpose": "batch", "colour": "red"}}, "colour"),
        ({"files": [("file", ("a", b"x")), ("file", ("b", b"x"))], "data": {"purpose": "batch"}}, "file"),
        ({"files": {"file": ("a", b"x")}, "data": {"purpose": "batch", "expires_after[seconds]": "9"}}, "expires"),
    ],
)
async def test_a_wrong_form_is_refused_by_name(
    http: httpx.AsyncClient, tmp_path: Path, form: dict[str, Any], param: str
) -> None:
    answer = await http.post("/v1/files", **form)
    assert answer.status_code == 400, answer.text
    assert (answer.json()["error"]["param"] or "file").startswith(param)
    assert left_behind(tmp_path) == []


@pytest.mark.conforms("FILE-4")
@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("application/json", b"{}"),
        ("multipart/form-data", b"--x--"),
        ("multipart/form-data; boundary=x", b"no form at all"),
        ("multipart/form-data; boundary=x", HALF),
    ],
)
async def test_what_is_no_form_is_refused(http: httpx.AsyncClient, tmp_path: Path, kind: str, body: bytes) -> None:
    answer = await http.post("/v1/files", content=body, headers={"content-type": kind})
    assert answer.status_code in (400, 415), answer.text
    assert left_behind(tmp_path) == []


@pytest.mark.conforms("FILE-5")
@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("../../etc/passwd", "passwd"),
        ("C:\\temp\\a.jsonl", "a.jsonl"),
        ("a\x00b\n.jsonl", "ab.jsonl"),
        ("..", "file"),
        ("\u202egpj.exe", "gpj.exe"),
        ("x" * 500, "x" * 200),
    ],
)
def test_a_files_name_leads_nowhere(given: str, kept: str) -> None:
    assert safe_name(given) == kept


@pytest.mark.conforms("FILE-5")
@pytest.mark.parametrize("name", ["..%2fgateway.db", "../gateway.db", "%2e%2e", "gateway.db"])
async def test_a_path_in_the_place_of_an_id_finds_nothing(http: httpx.AsyncClient, name: str) -> None:
    assert (await http.get(f"/v1/files/{name}/content")).status_code == 404


@pytest.mark.conforms("FILE-6")
async def test_another_key_does_not_find_a_file(sample_build: BuildResult, tmp_path: Path) -> None:
    ada, bob = new_key(tmp_path, "ada"), new_key(tmp_path, "bob")
    chatter = new_key(tmp_path, "chatter", scopes=("inference",))
    async with (
        running_app(sample_build, tmp_path) as app,
        client(app, ada) as hers,
        client(app, bob) as his,
        client(app, chatter) as third,
    ):
        file = (await uploaded(hers)).json()["id"]
        for path in (f"/v1/files/{file}", f"/v1/files/{file}/content"):
            assert (await his.get(path)).status_code == 404
            assert (await hers.get(path)).status_code == 200
        assert (await his.delete(f"/v1/files/{file}")).status_code == 404
        assert (await his.get("/v1/files")).json()["data"] == []
        body = {"input_file_id": file, "endpoint": "/v1/completions", "completion_window": "24h"}
        assert (await his.post("/v1/batches", json=body)).status_code == 404
        assert (await uploaded(third)).status_code == 403


@pytest.mark.conforms("FILE-1")
async def test_a_file_is_kept_as_long_as_its_caller_says(http: httpx.AsyncClient, tmp_path: Path) -> None:
    kept = {"expires_after[anchor]": "created_at", "expires_after[seconds]": "3600"}
    file = (await uploaded(http, **kept)).json()
    assert file["expires_at"] - file["created_at"] == 3600


@pytest.mark.conforms("FILE-1")
async def test_a_file_whose_time_is_over_is_gone(
    sample_build: BuildResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_app(sample_build, tmp_path) as app, client(app) as http:
        file = (await uploaded(http)).json()["id"]
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 31 * 24 * 3600)
    async with running_app(sample_build, tmp_path) as app, client(app) as http:
        assert (await http.get(f"/v1/files/{file}")).status_code == 404
        for _ in range(100):
            if not left_behind(tmp_path):
                break
            await asyncio.sleep(0.05)
    assert left_behind(tmp_path) == []
