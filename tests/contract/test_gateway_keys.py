"""API keys before the running stack, as the official SDK meets them; and what the ledger makes of it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import openai
import pytest
from click.testing import CliRunner
from sqlalchemy import select

from conch.commands.chat import chat
from conch.gateway.database import Database
from conch.gateway.keys import grants as keys
from conch.gateway.keys.grants import Grant
from conch.gateway.ledger.usage import usage
from conch.gateway.ledger.writing import ledger
from tests.contract.conftest import Gateway, eventually, running_gateway

if TYPE_CHECKING:
    from conch.triton import TritonServer
    from conch_build.pipeline import BuildResult

HOURLY_USD = 36.0
LONG: dict[str, Any] = {"prompt": "1,", "max_tokens": 1500, "extra_body": {"ignore_eos": True}}
SHORT: dict[str, Any] = {"prompt": "1,", "max_tokens": 4}


def plan_in(folder: Path, url: str) -> str:
    """A plan whose gateway keeps its keys and its ledger there."""
    plan = {
        "name": "smollm2",
        "model": {"checkpoint": "sample"},
        "cost": {"instance_hourly_usd": HOURLY_USD},
        "serving": {"gateway": {"database": {"url": url}}},
    }
    path = folder / "conch.yaml"
    path.write_text(json.dumps(plan), encoding="utf-8")
    return str(path)


@pytest.fixture(scope="module")
def url_of_database(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"sqlite:///{tmp_path_factory.mktemp('keys')}/gateway.db"


@pytest.fixture(scope="module")
def database(url_of_database: str) -> Iterator[Database]:
    database = Database(url_of_database)
    database.run_now(lambda connection: keys.create(connection, Grant("admin", scopes=("metrics",))))
    yield database
    database.close_now()


@pytest.fixture(scope="module")
def keyed(
    stack_triton: TritonServer,
    sample_build: BuildResult,
    database: Database,
    url_of_database: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Gateway]:
    plan = plan_in(tmp_path_factory.mktemp("plan"), url_of_database)
    with running_gateway(stack_triton, sample_build.engine.path, "--plan", plan) as gateway:
        yield gateway


Sdk = Callable[..., openai.OpenAI]


@pytest.fixture
def sdk_of(keyed: Gateway, database: Database, request: pytest.FixtureRequest) -> Iterator[Sdk]:
    """An SDK with a new key; the gateway knows it already."""
    names: list[str] = []

    def make(**grant: Any) -> openai.OpenAI:
        names.append(f"key{abs(hash(request.node.name)) % 10**8}-{len(names)}")
        wanted = Grant(names[-1], **grant)
        text = database.run_now(lambda connection: keys.create(connection, wanted))[1]
        sdk = openai.OpenAI(base_url=f"{keyed.url}/v1", api_key=text, max_retries=0)
        assert eventually(lambda: _known(sdk), 3)
        return sdk

    yield make
    for name in names:
        database.run_now(lambda connection, name=name: keys.revoke(connection, name))


def _known(sdk: openai.OpenAI) -> bool:
    try:
        sdk.models.list()
    except openai.AuthenticationError:
        return False
    return True


def name_of(sdk: openai.OpenAI, database: Database) -> str:
    return database.run_now(lambda connection: keys.find(connection, str(keys.id_in(sdk.api_key)))).grant.name


def gauge(keyed: Gateway, database: Database, metric: str, **labels: str) -> float:
    """Of /metrics, which a key opens as anything else."""
    text = database.run_now(lambda connection: keys.rotate(connection, "admin"))[1]
    keyed.http.headers["authorization"] = f"Bearer {text}"
    assert eventually(lambda: keyed.http.get("/metrics").status_code == 200, 3)
    return keyed.metric(metric, **labels)


@pytest.mark.conforms("AUTH-2")
def test_the_sdk_sees_a_missing_a_wrong_and_a_revoked_key(keyed: Gateway, database: Database, sdk_of: Sdk) -> None:
    sdk = sdk_of()
    assert sdk.completions.create(model="smollm2", **SHORT).usage
    for wrong in ("none", sdk.api_key[:-1] + "~"):
        with pytest.raises(openai.AuthenticationError) as caught:
            sdk.with_options(api_key=wrong).completions.create(model="smollm2", **SHORT)
        assert (caught.value.code, caught.value.type) == ("invalid_api_key", "invalid_request_error")
    missing = httpx.post(f"{keyed.url}/v1/completions", json=SHORT, trust_env=False)
    assert (missing.status_code, missing.json()["error"]["code"]) == (401, "missing_api_key")
    name = name_of(sdk, database)
    database.run_now(lambda connection: keys.revoke(connection, name))
    revoked = time.monotonic()
    assert eventually(lambda: not _known(sdk), 3)
    assert time.monotonic() - revoked < 2


def test_conch_chat_brings_a_key(keyed: Gateway, sdk_of: Sdk) -> None:
    asking = ["-m", "Hello", "--url", keyed.url, "--max-tokens", "3", "--json"]
    key = sdk_of().api_key
    answer = CliRunner().invoke(chat, asking, env={"CONCH_API_KEY": key})
    assert json.loads(answer.output)["usage"]["completion_tokens"] == 3
    refused = CliRunner().invoke(chat, asking)
    assert (refused.exit_code, "API key" in refused.output) == (2, True)


@pytest.mark.conforms("AUTH-3")
def test_the_sdk_sees_what_a_key_does_not_open(sdk_of: Sdk) -> None:
    sdk = sdk_of(scopes=("batch",))
    with pytest.raises(openai.PermissionDeniedError) as caught:
        sdk.completions.create(model="smollm2", **SHORT)
    assert caught.value.code == "missing_scope"
    with pytest.raises(openai.PermissionDeniedError) as caught:
        sdk_of(models=("other",)).chat.completions.create(model="smollm2", messages=[{"role": "user", "content": "a"}])
    assert caught.value.code == "model_not_found"


@pytest.mark.conforms("LIMIT-1", "LIMIT-2")
def test_the_sdk_sees_a_rate_limit_and_when_to_come_back(sdk_of: Sdk) -> None:
    sdk = sdk_of(requests_per_minute=2, tokens_per_minute=1000)
    for left in ("1", "0"):
        headers = sdk.completions.with_raw_response.create(model="smollm2", **SHORT).headers
        assert headers["x-ratelimit-limit-requests"] == "2"
        assert headers["x-ratelimit-remaining-requests"] == left
        assert headers["x-ratelimit-limit-tokens"] == "1000"
        assert 900 < int(headers["x-ratelimit-remaining-tokens"]) < 1000
        assert headers["x-ratelimit-reset-requests"] and headers["x-ratelimit-reset-tokens"]
    for stream in (False, True):
        with pytest.raises(openai.RateLimitError) as caught:
            sdk.completions.create(model="smollm2", stream=stream, **SHORT)
        assert caught.value.code == "rate_limit_exceeded"
        assert 20 <= int(caught.value.response.headers["retry-after"]) <= 30
        assert caught.value.response.headers["x-ratelimit-remaining-requests"] == "0"
    with pytest.raises(openai.RateLimitError, match="tokens a minute") as caught:
        sdk_of(tokens_per_minute=100).completions.create(model="smollm2", prompt="1,", max_tokens=200)
    assert caught.value.response.headers["x-should-retry"] == "false"


@pytest.mark.conforms("LIMIT-3")
def test_a_parallel_slot_always_comes_back_and_refusals_use_up_no_requests(
    keyed: Gateway, database: Database, sdk_of: Sdk
) -> None:
    sdk = sdk_of(parallel=1, requests_per_minute=7)

    def answers() -> None:
        """The one slot is free, and a request spends one of those of the minute."""
        assert eventually(lambda: _running() == 0, 5)
        assert sdk.completions.create(model="smollm2", **SHORT).usage

    def _running() -> float:
        return gauge(keyed, database, "conch:key_running_requests", key=name_of(sdk, database))

    with sdk.completions.create(model="smollm2", stream=True, **LONG) as stream:  # 1
        next(iter(stream))
        for _ in range(10):
            with pytest.raises(openai.RateLimitError, match="Limit 1 at once") as caught:
                sdk.completions.create(model="smollm2", **SHORT)
            assert caught.value.response.headers["retry-after"] == "1"
    answers()  # 2
    with pytest.raises(openai.APIStatusError) as late:  # 3: its time is over, but the engine worked for it
        sdk.completions.create(
            model="smollm2", prompt="1,", max_tokens=1500, extra_body={"ignore_eos": True, "timeout": 0.3}
        )
    assert late.value.status_code == 504
    answers()  # 4
    for wrong in ({"prompt": []}, {"prompt": "a", "max_tokens": 10**6}, {"prompt": "a", "extra_body": {"nonsense": 1}}):
        with pytest.raises(openai.BadRequestError):
            sdk.completions.create(model="smollm2", **wrong)
    answers()  # 5
    headers = sdk.completions.with_raw_response.create(model="smollm2", **SHORT).headers  # 6
    assert headers["x-ratelimit-remaining-requests"] == "1"
    assert _running() == 0


async def test_the_async_sdk_gets_its_slot_back_after_leaving(sdk_of: Sdk, keyed: Gateway) -> None:
    key = sdk_of(parallel=1).api_key
    async with openai.AsyncOpenAI(base_url=f"{keyed.url}/v1", api_key=key, max_retries=3) as sdk:
        for _ in range(3):  # the SDK itself comes back after the second that a refusal asks for
            stream = await sdk.completions.create(model="smollm2", stream=True, **LONG)
            async for _ in stream:
                break
            await stream.close()


@pytest.mark.conforms("RESP-7")
def test_a_stored_response_is_its_keys_alone(sdk_of: Sdk) -> None:
    ada, bob = sdk_of(), sdk_of()
    made = ada.responses.create(model="smollm2", input="Hi", max_output_tokens=4)
    assert ada.responses.retrieve(made.id).id == made.id
    for use in (bob.responses.retrieve, bob.responses.delete):
        with pytest.raises(openai.NotFoundError):
            use(made.id)
    with pytest.raises(openai.NotFoundError):
        bob.responses.create(model="smollm2", input="Go on", previous_response_id=made.id, max_output_tokens=4)
    assert ada.responses.create(model="smollm2", input="Go on", previous_response_id=made.id, max_output_tokens=4).id
    ada.responses.delete(made.id)


@pytest.mark.conforms("LEDGER-1", "LEDGER-3")
def test_the_ledger_agrees_with_what_clients_were_told_and_busy_time_is_what_is_paid(
    sdk_of: Sdk, database: Database
) -> None:
    sdk, begun = sdk_of(), time.monotonic()
    told = [sdk.completions.create(model="smollm2", **SHORT) for _ in range(2)]
    chat = sdk.chat.completions.create(
        model="smollm2",
        messages=[{"role": "user", "content": "Hi"}],
        max_tokens=8,
        n=2,
        stream=True,
        stream_options={"include_usage": True},
    )
    *_, last = chat
    response = sdk.responses.create(model="smollm2", input="Hi", max_output_tokens=4)
    took = time.monotonic() - begun
    rows = database.run_now(
        lambda connection: (
            connection.execute(select(ledger).where(ledger.c.key == keys.id_in(sdk.api_key)).order_by(ledger.c.id))
            .mappings()
            .all()
        )
    )
    assert [row["answer"] for row in rows] == [told[0].id, told[1].id, last.id, response.id]
    assert [row["endpoint"] for row in rows] == ["completions", "completions", "chat.completions", "responses"]
    usages = [(part.usage.prompt_tokens, part.usage.completion_tokens) for part in (*told, last)]
    usages.append((response.usage.input_tokens, response.usage.output_tokens))
    assert [(row["prompt_tokens"], row["completion_tokens"]) for row in rows] == usages
    assert all(row["status"] == 200 and row["prefill_seconds"] > 0 and row["decode_seconds"] > 0 for row in rows)
    # Also of answers that came in one piece.
    assert all(0.2 < row["decode_seconds"] / row["prefill_seconds"] < 50 for row in rows)
    assert [row["ttft_seconds"] is not None for row in rows] == [False, False, True, False]
    (mine,) = [row for row in database.run_now(lambda c: usage(c, "key")) if row.group == name_of(sdk, database)]
    busy = mine.prefill_seconds + mine.decode_seconds
    assert 0 < busy < took
    assert mine.usd == pytest.approx(busy * HOURLY_USD / 3600)


@pytest.mark.conforms("AUTH-5")
def test_without_a_key_the_gateway_does_not_open_to_the_network(
    stack_triton: TritonServer, sample_build: BuildResult, tmp_path: Path
) -> None:
    plan = plan_in(tmp_path, f"sqlite:///{tmp_path}/gateway.db")
    command = [sys.executable, "-m", "conch.gateway", str(sample_build.engine.path), "--port", "0", "--json"]
    command += ["--grpc-url", stack_triton.grpc_url, "--plan", plan, "--host", "0.0.0.0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 4
    assert "conch keys create" in json.loads(done.stdout)["fix"]
    database = Database(f"sqlite:///{tmp_path}/gateway.db")
    text = database.run_now(lambda connection: keys.create(connection, Grant("ada")))[1]
    database.close_now()
    with running_gateway(stack_triton, sample_build.engine.path, "--plan", plan, "--host", "0.0.0.0") as gateway:
        url = gateway.url.replace("0.0.0.0", "127.0.0.1")
        assert httpx.get(f"{url}/v1/models", trust_env=False).status_code == 401
        headers = {"authorization": f"Bearer {text}"}
        assert httpx.get(f"{url}/v1/models", headers=headers, trust_env=False).status_code == 200
