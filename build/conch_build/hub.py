"""Checkpoints from the Hugging Face hub, through huggingface_hub and its cache; honours HF_HUB_OFFLINE."""

from __future__ import annotations

from pathlib import Path

from conch_build.errors import CheckpointError
from conch_build.extras import require
from conch_build.plan import Model

_DESCRIPTION = ["*.json", "*.jinja", "*.txt"]
_WANTED = [*_DESCRIPTION, "*.safetensors"]
_INDEX = "*.safetensors.index.json"
_UNWANTED = ["*/*", "consolidated*"]
"""Other formats in sub-folders, and Mistral's second copy of the weights."""


def hub_snapshot(model: Model) -> Path:
    """The local snapshot of a hub id, downloaded where needed. CheckpointError: offline, unknown, gated."""
    wanted = _WANTED + ["*.py"] * model.trust_remote_code + ["*.bin"] * model.allow_pickle
    return _download(model, wanted)


def hub_description(model: Model) -> Path:
    """Config and tokenizer of a hub id, no weights and no list of them."""
    return _download(model, _DESCRIPTION, _INDEX)


def hub_config(model: Model) -> Path:
    """Only `config.json` of a hub id: its facts before gigabytes are downloaded."""
    return _download(model, ["config.json"]) / "config.json"


def _download(model: Model, wanted: list[str], *unwanted: str) -> Path:
    require("a hub id", "build", "huggingface_hub")
    from huggingface_hub import errors, snapshot_download

    def refusal(what: str, fix: str) -> CheckpointError:
        return CheckpointError(what, where=model.checkpoint, fix=fix, rule="checkpoint.hub")

    try:
        return Path(
            snapshot_download(
                model.checkpoint,
                revision=model.revision,
                allow_patterns=wanted,
                ignore_patterns=[*_UNWANTED, *unwanted],
            )
        )
    except errors.GatedRepoError:
        raise refusal("is gated on the hub", "Accept its terms there, then run `hf auth login`.") from None
    except errors.RepositoryNotFoundError:
        raise refusal(
            "is neither a local directory nor a model that the hub shows you",
            "Check the spelling; for a private model run `hf auth login`.",
        ) from None
    except errors.RevisionNotFoundError:
        raise refusal(f"has no revision {model.revision!r}", "Correct `model.revision`.") from None
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled):
        raise refusal(
            "is no local directory, is not in the hub's local cache, and the hub cannot be reached",
            "Check the path; for a hub id unset HF_HUB_OFFLINE and check the network, or download it first.",
        ) from None
    except (errors.HfHubHTTPError, errors.HFValidationError, OSError) as error:
        first_line = str(error).strip().partition("\n")[0]
        raise refusal(f"could not be downloaded ({first_line})", "Try again, or download it first.") from None
