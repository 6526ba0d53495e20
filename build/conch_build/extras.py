"""The extras of Conch's install: which libraries each one brings, and how a person gets them. Imports none of them."""

from __future__ import annotations

from importlib.util import find_spec

from conch_build.errors import SetupError

EXTRAS = {
    "batch": ("httpx", "jinja2", "pyarrow"),
    "build": (
        "torch",
        "transformers",
        "modelopt",
        "accelerate",
        "safetensors",
        "huggingface_hub",
        "gguf",
        "sentencepiece",
        "openvino",
    ),
    "cpu": ("openvino", "pytriton", "transformers", "psutil"),
    "eval": ("sacrebleu", "rouge_score", "jsonschema", "httpx", "transformers"),
    "bench": ("httptools", "uvloop", "tokenizers", "httpx", "optuna"),
    "gateway": (
        "aiohttp",
        "fastapi",
        "starlette",
        "python_multipart",
        "sqlalchemy",
        "uvicorn",
        "uvloop",
        "httptools",
        "httpx",
        "prometheus_client",
        "transformers",
        "jinja2",
    ),
    "postgres": ("psycopg",),
    "redis": ("redis",),
    "tracing": ("opentelemetry",),
}
"""Extra -> the modules that it brings."""


def pip_install(extra: str) -> str:
    """What a person runs to have an extra: Conch is installed from its checkout."""
    return f"pip install '.[{extra}]' in Conch's checkout"


def require(purpose: str, extra: str, *modules: str) -> None:
    """Raises SetupError when one of `modules`, which `extra` brings, is not installed."""
    missing = [module for module in modules if find_spec(module) is None]
    if missing:
        raise SetupError(f"{purpose} needs {', '.join(missing)}", fix=pip_install(extra))


def lacking(error: ImportError) -> SetupError | None:
    """The error that a failed import (or look-up of a version) of an extra's library stands for, if it is one."""
    module = (error.name or "").partition(".")[0].removeprefix("nvidia-").replace("-", "_")
    extra = next((extra for extra, modules in EXTRAS.items() if module in modules), None)
    if extra is None:
        return None
    what = "is missing" if isinstance(error, ModuleNotFoundError) else f"cannot be imported: {error}"
    return SetupError(f"`{error.name}` {what}", fix=pip_install(extra))
