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
from conch_build.deploy import kubernetes_files
from conch_build.errors import PlanError
from conch_build.plan import parse_plan
from tests.golden.deployed import BUILT, PLANS, files_of

VERSION = "1.37"
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
    "LeaderWorkerSet": _needing(
        replicas={"type": ["integer", "null"]},  # it has a default, which takes the place of null
        leaderWorkerTemplate={
            "required": ["workerTemplate"],
            "properties": {
                "size": {"type": "integer", "minimum": 1},
                "restartPolicy": {"enum": ["RecreateGroupOnPodRestart", "RecreateGroupAfterStart", "None"]},
                "leaderTemplate": _OBJECT,
                "workerTemplate": _OBJECT,
            },
            "additionalProperties": False,
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
        if scaled := re.fullmatch(r"toJson \(ternary nil \.Values\.([\w.]+) \(or ([\w. ]+)\)\)", expression):
            switches = [looked_up(values, switch.removeprefix(".Values.")) for switch in scaled[2].split()]
            return json.dumps(None if any(switches) else looked_up(values, scaled[1]))
        plain = re.fullmatch(r"toJson \.Values\.([\w.]+)", expression)
        assert plain, expression
        return json.dumps(looked_up(values, plain[1]))

    return re.sub(r"\{\{ (\"(?:[^\"\\]|\\.)*\"|.*?) \}\}", evaluated, template)


def looked_up(values: Any, path: str) -> Any:
    for part in path.split("."):
        values = values[part]
    return values


def pod_templates(document: dict[str, Any]) -> list[dict[str, Any]]:
    """The core API's part of a LeaderWorkerSet, or a set's own."""
    spec = document["spec"]
    if document["kind"] == "LeaderWorkerSet":
        return [spec["leaderWorkerTemplate"][part] for part in ("leaderTemplate", "workerTemplate")]
    return [spec["template"]] if document["kind"] in ("Deployment", "StatefulSet") else []


def check(document: dict[str, Any]) -> None:
    if document["kind"] in CUSTOM:
        jsonschema.validate(document, CUSTOM[document["kind"]])
        assert re.fullmatch(r"[a-z0-9-]{1,63}", document["metadata"]["name"])
        for pod in pod_templates(document):
            kubernetes_validate.validate({"apiVersion": "v1", "kind": "Pod", **pod}, VERSION, strict=True)
    else:
        kubernetes_validate.validate(document, VERSION, strict=True)


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
    """By their pods' component and their own name."""
    return {
        f"{pod['metadata']['labels']['app.kubernetes.io/component']}/{container['name']}": container
        for text in under(files, "manifests/").values()
        if "spec" in (document := yaml.safe_load(text))
        for pod in pod_templates(document)
        for container in pod["spec"]["containers"]
    }


def test_the_programs_take_what_the_pods_give_them(files: dict[str, str]) -> None:
    from conch.gateway.__main__ import main as gateway
    from conch.triton.__main__ import main as triton

    found = containers(files)
    command = found["gateway/gateway"]["command"]
    assert command[:3] == ["python3", "-m", "conch.gateway"]
    told = gateway.make_context("gateway", command[3:]).params
    assert told["host"] == "0.0.0.0" and told["require_key"]
    beside = found.get("gateway/triton")
    assert told["every_address"] == (beside is None)
    if beside is not None:
        assert beside["command"][:3] == ["python3", "-m", "conch.triton"]
        assert triton.make_context("triton", beside["command"][3:]).params["repository"] == BUILT.repository


def test_pods_may_do_little_and_write_to_nothing_but_their_volumes(files: dict[str, str]) -> None:
    for name, container in containers(files).items():
        security = container["securityContext"]
        assert security["readOnlyRootFilesystem"] and not security["allowPrivilegeEscalation"]
        assert security["capabilities"] == {"drop": ["ALL"]}
        probes = {"startupProbe", "readinessProbe", "livenessProbe"} & container.keys()
        assert len(probes) == (1 if name == "triton-worker/triton" else 3)
        mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
        assert mounts["/srv/engine/e-1"]["readOnly"] and mounts["/srv/engine/e-1"]["subPath"] == "srv/engine/e-1"


def test_on_gpus_each_triton_is_found_by_one_name_and_only_gateways_reach_it() -> None:
    files = files_of(PLANS["engine"])
    triton = containers(files)["triton/triton"]
    assert triton["resources"]["limits"]["nvidia.com/gpu"] == "2"
    assert triton["command"][0] == "mpirun"
    assert "$(ADMIN_KEY)" in " ".join(triton["command"])
    service = yaml.safe_load(files["manifests/triton-service.yaml"])
    assert service["spec"]["clusterIP"] == "None"
    assert f"{service['metadata']['name']}:8001" in containers(files)["gateway/gateway"]["command"]
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


def test_an_engine_over_several_nodes_is_a_group_of_pods_that_live_and_die_together() -> None:
    files = files_of(PLANS["nodes"])
    nodes = yaml.safe_load(files["manifests/nodes.yaml"])
    assert nodes["spec"]["leaderWorkerTemplate"]["size"] == 2
    assert nodes["spec"]["leaderWorkerTemplate"]["restartPolicy"] == "RecreateGroupOnPodRestart"
    scripts = yaml.safe_load(files["manifests/nodes-scripts.yaml"])["data"]
    found = containers(files)
    for component, script in (("triton", "leader.sh"), ("triton-worker", "worker.sh")):
        container = found[f"{component}/triton"]
        assert container["command"] == ["sh", f"/etc/conch-nodes/{script}"] and script in scripts
        assert container["resources"]["limits"]["nvidia.com/gpu"] == "2"
    assert "openssh-server" in files["triton.Dockerfile"]
    assert "openssh-server" not in files_of(PLANS["engine"])["triton.Dockerfile"]
    # The gateway finds leaders alone: a worker answers nobody.
    service = yaml.safe_load(files["manifests/triton-service.yaml"])
    assert service["spec"]["selector"]["app.kubernetes.io/component"] == "triton"
    assert service["metadata"]["name"] != nodes["metadata"]["name"]  # whose controller makes one of that name
    template = files["chart/templates/autoscaler.yaml"]
    assert "kind: LeaderWorkerSet" in template and nodes["metadata"]["name"] in template


def test_engines_go_to_nodes_whose_gpus_they_are_compiled_for() -> None:
    pod = yaml.safe_load(files_of(PLANS["engine"])["manifests/triton.yaml"])["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {"nvidia.com/gpu.compute.major": "9", "nvidia.com/gpu.compute.minor": "0"}


@pytest.mark.parametrize(("name", "waits", "ends"), [("llm-api", 5, 90), ("engine", 80, 90)])
def test_a_pod_ends_its_answers_within_the_plans_drain_timeout(name: str, waits: int, ends: int) -> None:
    """MPI ends its processes at a signal, so that the wait comes before it; Triton alone drains after it."""
    text = PLANS[name].replace("serving: {gateway: {", "serving: {gateway: {limits: {drain_timeout: 75s}, ")
    files = files_of(text)
    (triton,) = pod_templates(yaml.safe_load(files["manifests/triton.yaml"]))
    (container,) = triton["spec"]["containers"]
    assert container["lifecycle"]["preStop"]["exec"]["command"] == ["sleep", str(waits)]
    assert "--exit-timeout-secs=75" in container["command"]
    assert triton["spec"]["terminationGracePeriodSeconds"] == ends


def test_helm_itself_makes_the_manifests_of_the_chart(files: dict[str, str], tmp_path: Path) -> None:
    helm = pytest.importorskip("helm_python")
    for path, text in under(files, "chart/").items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    assert helm.lint(str(tmp_path))["errors"] == []
    with helm.Chart.load(str(tmp_path)) as chart:
        made = {Path(path).name: yaml.safe_load(text) for path, text in chart.render({}, name="a").items()}
        on = {key: {"enabled": True} for key, part in chart.values.items() if "enabled" in part}
        for document in map(yaml.safe_load, chart.render(on, name="a").values()):
            check(document)
            autoscaled = document["kind"] in ("StatefulSet", "LeaderWorkerSet")
            assert not autoscaled or document["spec"]["replicas"] is None  # or each upgrade would take them back
        with pytest.raises(helm.errors.HelmValuesError, match="volume"):
            chart.render({"models": {"volume": {"image": {"reference": "m:1"}}}}, name="a")
        instead = {"models": {"volume": {"image": {"reference": "m:1"}, "persistentVolumeClaim": None}}}
        assert "persistentVolumeClaim" not in json.dumps(
            [volume for volume in volumes_of(chart.render(instead, name="a")) if volume["name"] == "models"]
        )
    manifests = {name: yaml.safe_load(text) for name, text in under(files, "manifests/").items()}
    assert {name: document for name, document in made.items() if document} == {
        name: document for name, document in manifests.items() if name != "kustomization.yaml"
    }


def volumes_of(rendered: dict[str, str]) -> list[dict[str, Any]]:
    documents = [yaml.safe_load(text) or {"kind": None, "spec": {}} for text in rendered.values()]
    workloads = (document for document in documents if "spec" in document)
    return [volume for document in workloads for pod in pod_templates(document) for volume in pod["spec"]["volumes"]]


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
