"""`conch deploy k8s`: held to Kubernetes' own schemas, the chart to the manifests, commands to the real programs."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from click.testing import CliRunner

from conch_build.cli import build_commands
from conch_build.deploy import Built, kubernetes_files
from conch_build.errors import PlanError
from conch_build.plan import parse_plan

BUILT = Built(Path("/srv/engine/e-1"), Path("/srv/repository/r-1"))
PLANS = {
    "cpu": "{name: My_Model, model: {checkpoint: sample}}",
    "cpu-shared": "{name: m, model: {checkpoint: sample}, serving: {replicas: 3, gateway: {database: {url: "
    "'postgresql://conch@db/conch'}}}}",
    "engine": "{name: m, model: {checkpoint: sample}, target: {gpu: h100}, engine: {backend: tensorrt, "
    "parallel: {tensor: 2}}, serving: {gateway: {tracing: {endpoint: 'http://otel:4318'}, models: {other: "
    "{servers: [{openai: 'http://vllm:8000/v1', key_env: VLLM_KEY}]}}}}}",
    "llm-api": "{name: m, model: {checkpoint: sample}, target: {gpu: h100}, engine: {backend: pytorch}, "
    "serving: {gateway: {database: {url: 'postgresql://conch@db/conch'}}}}",
}
_TEXT, _OBJECT = {"type": "string", "minLength": 1}, {"type": "object", "minProperties": 1}


def _needing(**spec: Any) -> dict[str, Any]:
    body = {"type": "object", "required": list(spec), "properties": spec, "additionalProperties": False}
    return {"required": ["apiVersion", "kind", "metadata", "spec"], "properties": {"spec": body}}


CUSTOM = {
    # What their documentation asks for and allows, as far as it is used.
    "ServiceMonitor": _needing(selector=_OBJECT, endpoints={"type": "array", "minItems": 1, "items": _OBJECT}),
    "PrometheusRule": _needing(groups={"type": "array", "minItems": 1, "items": {"required": ["name", "rules"]}}),
    "ScaledObject": _needing(
        scaleTargetRef={"required": ["name"]},
        minReplicaCount={"type": "integer"},
        maxReplicaCount={"type": "integer"},
        cooldownPeriod={"type": "integer"},
        triggers={
            "items": {"required": ["type", "metadata"], "properties": {"metadata": {"additionalProperties": _TEXT}}}
        },
    ),
    "InferencePool": _needing(
        selector={"required": ["matchLabels"]},
        targetPorts={"type": "array", "minItems": 1, "maxItems": 8, "items": {"required": ["number"]}},
        endpointPickerRef={"required": ["name"]},
    ),
}


@pytest.fixture(params=PLANS)
def files(request: pytest.FixtureRequest) -> dict[str, str]:
    return files_of(PLANS[request.param])


def files_of(text: str) -> dict[str, str]:
    files = kubernetes_files(parse_plan(text), text, BUILT, "/d")
    return {file.path.removeprefix("/d/"): file.text for file in files}


def under(files: dict[str, str], folder: str) -> dict[str, str]:
    return {path.removeprefix(folder): text for path, text in files.items() if path.startswith(folder)}


def rendered(template: str, values: dict[str, Any]) -> str:
    """What Helm makes of the few expressions that the templates have; another one is an error."""
    condition = re.match(r"\{\{- if \.Values\.([\w.]+) \}\}\n", template)
    if condition:
        if not looked_up(values, condition[1]):
            return ""
        template = template[condition.end() :].removesuffix("{{- end }}\n")

    def evaluated(found: re.Match[str]) -> str:
        expression = found[1]
        if expression.startswith('"'):
            return str(json.loads(expression))
        if merged := re.fullmatch(r'toJson \(merge \(dict "name" "([\w-]+)"\) \.Values\.([\w.]+)\)', expression):
            return json.dumps({"name": merged[1], **looked_up(values, merged[2])})
        plain = re.fullmatch(r"toJson \.Values\.([\w.]+)", expression)
        assert plain, expression
        return json.dumps(looked_up(values, plain[1]))

    return re.sub(r"\{\{ (\"(?:[^\"\\]|\\.)*\"|.*?) \}\}", evaluated, template)


def looked_up(values: Any, path: str) -> Any:
    for part in path.split("."):
        values = values[part]
    return values


def check(document: dict[str, Any]) -> None:
    if document["kind"] in CUSTOM:
        jsonschema.validate(document, CUSTOM[document["kind"]])
        assert re.fullmatch(r"[a-z0-9-]{1,63}", document["metadata"]["name"])
    else:
        kubernetes_validate.validate(document, "1.37", strict=True)


def test_kubernetes_takes_every_manifest(files: dict[str, str]) -> None:
    manifests = {name: yaml.safe_load(text) for name, text in under(files, "manifests/").items()}
    listed = manifests.pop("kustomization.yaml")
    assert sorted(listed["resources"]) == sorted(manifests)
    for document in manifests.values():
        check(document)


def test_the_chart_with_its_own_values_gives_the_manifests(files: dict[str, str]) -> None:
    values = yaml.safe_load(files["chart/values.yaml"])
    manifests = under(files, "manifests/")
    for name, template in under(files, "chart/templates/").items():
        document = yaml.safe_load(rendered(template, values) or "null")
        assert document == (yaml.safe_load(manifests[name]) if name in manifests else None), name


def test_all_that_can_be_switched_on_is_valid_too(files: dict[str, str]) -> None:
    values = yaml.safe_load(files["chart/values.yaml"])
    for part in values.values():
        if "enabled" in part:
            part["enabled"] = True
    kinds = []
    for template in under(files, "chart/templates/").values():
        document = yaml.safe_load(rendered(template, values))
        check(document)
        kinds.append(document["kind"])
    assert {"ServiceMonitor", "PrometheusRule", "InferencePool", "NetworkPolicy", "PodDisruptionBudget"} <= set(kinds)
    alerts = next(text for name, text in under(files, "chart/templates/").items() if name == "alerts.yaml")
    assert "{{ $labels.instance }}" in rendered(alerts, values)  # Prometheus' own, not Helm's


def test_values_are_what_their_schema_says_and_each_is_used(files: dict[str, str]) -> None:
    schema = json.loads(files["chart/values.schema.json"])
    values = yaml.safe_load(files["chart/values.yaml"])
    jsonschema.validate(values, schema)
    used = set(re.findall(r"\.Values\.([\w.]+)", "".join(under(files, "chart/templates/").values())))

    def leaves(part: dict[str, Any], schema: dict[str, Any], path: str = "") -> list[str]:
        found = []
        for key, value in part.items():
            inner = schema["properties"][key]
            found += leaves(value, inner, f"{path}{key}.") if "required" in inner else [f"{path}{key}"]
        return found

    assert used == set(leaves(values, schema))
    for wrong in ({"gatway": {}}, {"gateway": {**values["gateway"], "replicas": 0}}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**values, **wrong}, schema)


def containers(files: dict[str, str]) -> dict[str, dict[str, Any]]:
    workloads = (
        yaml.safe_load(files[f"manifests/{name}"])
        for name in ("gateway.yaml", "triton.yaml")
        if f"manifests/{name}" in files
    )
    return {
        container["name"]: container
        for workload in workloads
        for container in workload["spec"]["template"]["spec"]["containers"]
    }


def test_the_programs_take_what_the_pods_give_them(files: dict[str, str]) -> None:
    from conch.gateway.__main__ import main as gateway
    from conch.triton.__main__ import main as triton

    found = containers(files)
    command = found["gateway"]["command"]
    assert command[:3] == ["python3", "-m", "conch.gateway"]
    told = gateway.make_context("gateway", command[3:]).params
    assert told["host"] == "0.0.0.0" and told["require_key"]
    assert told["every_address"] == (found["triton"]["command"][:3] != ["python3", "-m", "conch.triton"])
    if not told["every_address"]:
        assert triton.make_context("triton", found["triton"]["command"][3:]).params["repository"] == BUILT.repository


def test_pods_may_do_little_and_write_to_nothing_but_their_volumes(files: dict[str, str]) -> None:
    for container in containers(files).values():
        security = container["securityContext"]
        assert security["readOnlyRootFilesystem"] and not security["allowPrivilegeEscalation"]
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert {"startupProbe", "readinessProbe", "livenessProbe"} <= container.keys()
        mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
        assert mounts["/srv/engine/e-1"]["readOnly"] and mounts["/srv/engine/e-1"]["subPath"] == "srv/engine/e-1"


def test_on_gpus_each_triton_is_found_by_one_name_and_only_gateways_reach_it() -> None:
    files = files_of(PLANS["engine"])
    triton = containers(files)["triton"]
    assert triton["resources"]["limits"]["nvidia.com/gpu"] == "2"
    assert triton["command"][0] == "mpirun"
    assert "$(ADMIN_KEY)" in " ".join(triton["command"])
    service = yaml.safe_load(files["manifests/triton-service.yaml"])
    assert service["spec"]["clusterIP"] == "None"
    assert f"{service['metadata']['name']}:8001" in containers(files)["gateway"]["command"]
    policy = yaml.safe_load(files["manifests/triton-network-policy.yaml"])["spec"]
    (rule,) = policy["ingress"]
    assert rule["from"][0]["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "gateway"
    assert policy["egress"] == []


def test_one_gateway_owns_its_database_and_several_share_one() -> None:
    alone, shared = files_of(PLANS["cpu"]), files_of(PLANS["cpu-shared"])
    schema = json.loads(alone["chart/values.schema.json"])
    assert schema["properties"]["gateway"]["properties"]["replicas"]["const"] == 1
    assert yaml.safe_load(alone["manifests/gateway.yaml"])["spec"]["strategy"] == {"type": "Recreate"}
    assert yaml.safe_load(shared["manifests/gateway.yaml"])["spec"]["replicas"] == 3
    assert "psycopg" in shared["gateway.Dockerfile"] and "psycopg" not in alone["gateway.Dockerfile"]


@pytest.mark.parametrize(
    ("gateway", "where"),
    [
        ("{tls: {certificate: a.pem, key: b.pem}}", "serving.gateway.tls"),
        ("{access_log: a.log}", "serving.gateway.access_log"),
        ("{database: {url: 'sqlite:///a.db'}}", "serving.gateway.database.url"),
        ("{models: {m2: {engine: /e, servers: [{grpc: 'a:1'}]}}}", "serving.gateway.models"),
    ],
)
def test_what_names_files_that_no_pod_has_is_refused(gateway: str, where: str) -> None:
    text = f"{{name: m, model: {{checkpoint: sample}}, serving: {{gateway: {gateway}}}}}"
    with pytest.raises(PlanError, match="it names a file that its container has not") as error:
        kubernetes_files(parse_plan(text), text, BUILT, "/d")
    assert error.value.where.startswith(where)


def test_an_engine_over_several_nodes_is_refused() -> None:
    text = (
        "{name: m, model: {checkpoint: sample}, target: {gpu: h100, gpus_per_node: 2}, "
        "engine: {backend: tensorrt, parallel: {tensor: 4}}}"
    )
    with pytest.raises(PlanError, match="needs 2 nodes"):
        kubernetes_files(parse_plan(text), text, BUILT, "/d")


def test_the_command_writes_what_kubectl_reads(tmp_path: Path) -> None:
    plan = tmp_path / "conch.yaml"
    plan.write_text(PLANS["cpu"])
    where = ["--engine", "/srv/e", "--repository", "/srv/r", "-o", str(tmp_path / "out")]
    done = CliRunner().invoke(build_commands, ["deploy", "k8s", str(plan), *where])
    assert done.exit_code == 0, done.output
    assert "kubectl apply -k manifests" in done.output
    assert yaml.safe_load((tmp_path / "out/manifests/plan.yaml").read_text())["data"]["conch.yaml"] == PLANS["cpu"]
    if shutil.which("kubectl"):
        run = ["kubectl", "kustomize", str(tmp_path / "out/manifests")]
        built = subprocess.run(run, capture_output=True, text=True, check=True).stdout
        assert {document["kind"] for document in yaml.safe_load_all(built)} >= {"Deployment", "Service", "ConfigMap"}
