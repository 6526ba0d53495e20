"""All files with which a cluster serves a plan: manifests, the chart, and what its images are made of."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import yaml

from conch_build.deploy.artifacts import Built, check_gateway, check_triton, gateway_extras, triton_image
from conch_build.deploy.images import dockerfiles, ready_script, sources
from conch_build.deploy.kubernetes.chart import Document, Value, manifest, template
from conch_build.deploy.kubernetes.network import network
from conch_build.deploy.kubernetes.operation import operation
from conch_build.deploy.kubernetes.parts import USER, metadata, name_of
from conch_build.deploy.kubernetes.values import Settings, defaults, schema, settings_of, values_yaml
from conch_build.deploy.kubernetes.workloads import workloads
from conch_build.launch import arrangement_of
from conch_build.plan import Plan
from conch_build.recipe import TextFile


def kubernetes_files(plan: Plan, text: str, built: Built, folder: str) -> tuple[TextFile, ...]:
    """`manifests/`, `chart/` and the Dockerfiles in `folder`. `text`: the plan's own, which the gateways read.

    Raises PlanError for a plan that needs no Triton, or files that no pod would have.
    """
    check_triton(plan, "`conch deploy k8s`")
    check_gateway(plan)
    shared = (plan.serving.gateway.database.url or "").startswith("postgresql://")
    settings = settings_of(plan, shared)
    documents = list(_documents(plan, text, built, shared))
    gpus = plan.engine.backend != "openvino"
    packages = ("openssh-server",) if arrangement_of(plan).nodes > 1 else ()
    return (
        *_manifests(documents, settings, folder),
        *_chart(plan, documents, settings, folder),
        TextFile("the artifacts as an image", f"{folder}/models.Dockerfile", _models(plan, built)),
        *dockerfiles(triton_image(plan) if gpus else None, folder, gateway_extras(plan), packages),
        ready_script(folder),
        *sources(folder),
    )


def _documents(plan: Plan, text: str, built: Built, shared: bool) -> Iterator[Document]:
    about = metadata(plan, "gateway", suffix="plan")
    yield Document(
        "plan.yaml", {"apiVersion": "v1", "kind": "ConfigMap", "metadata": about, "data": {"conch.yaml": text}}
    )
    yield Document("state.yaml", _state(plan))
    yield from workloads(plan, built, shared)
    yield from network(plan)
    yield from operation(plan, shared)


def _state(plan: Plan) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": metadata(plan, "gateway", suffix="state"),
        "spec": {
            "accessModes": Value("state.accessModes"),
            "storageClassName": Value("state.storageClass"),
            "resources": {"requests": {"storage": Value("state.size")}},
        },
    }


def _manifests(documents: list[Document], settings: Settings, folder: str) -> Iterator[TextFile]:
    values = defaults(settings)
    written = {document.file: manifest(document, values) for document in documents}
    for name, text in written.items():
        if text is not None:
            yield TextFile("a manifest", f"{folder}/manifests/{name}", text)
    listed = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [name for name, text in written.items() if text is not None],
    }
    yield TextFile("all of them", f"{folder}/manifests/kustomization.yaml", yaml.safe_dump(listed, sort_keys=False))


def _chart(plan: Plan, documents: list[Document], settings: Settings, folder: str) -> Iterator[TextFile]:
    about = {
        "apiVersion": "v2",
        "name": name_of(plan),
        "description": f"{plan.name}, served by Conch",
        "type": "application",
        "version": "0.1.0",
        "appVersion": version("conch"),
        "kubeVersion": ">=1.30.0-0",
    }
    root = f"{folder}/chart"
    yield TextFile("the chart", f"{root}/Chart.yaml", yaml.safe_dump(about, sort_keys=False))
    yield TextFile("its values", f"{root}/values.yaml", values_yaml(settings))
    described = {"$schema": "http://json-schema.org/draft-07/schema#", **schema({**settings})}
    described["properties"]["global"] = {"type": "object"}  # Helm's own
    yield TextFile("their schema", f"{root}/values.schema.json", json.dumps(described, indent=2) + "\n")
    for document in documents:
        yield TextFile("a template", f"{root}/templates/{document.file}", template(document))


def _models(plan: Plan, built: Built) -> str:
    """The folders at their own paths, for the pods' user."""
    mounts = built.mounts(plan)
    contexts = " ".join(f"--build-context m{number}={path}" for number, path in enumerate(mounts))
    copies = "".join(f"COPY --from=m{number} --chown={USER}:{USER} . {path}\n" for number, path in enumerate(mounts))
    return f"# docker build {contexts} -f models.Dockerfile -t models .\nFROM scratch\n{copies}"
