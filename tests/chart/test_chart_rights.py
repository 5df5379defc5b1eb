"""What the chart lets the operator, the activator and others do."""

from __future__ import annotations

from tests.chart.test_chart import CHART, env_of, one, render


def test_named_namespaces_narrow_the_rights_to_them() -> None:
    documents = render("--set", "watchNamespaces={team-a,team-b}")
    own = [d for d in documents if d["metadata"].get("namespace", "").startswith("team-")]
    kinds = [(d["kind"], d["metadata"]["namespace"]) for d in own]
    assert sorted(kinds) == [
        (kind, place) for kind in ("Role", "RoleBinding") for place in ("team-a", "team-b")
    ]
    everywhere = one(render(), "ClusterRole", "place-op-qwen-operator")["rules"]
    assert all(role["rules"] == everywhere for role in own if role["kind"] == "Role")
    wide = [d for d in documents if d["kind"] == "ClusterRoleBinding"]
    suffixes = [b["metadata"]["name"].removeprefix("place-op-qwen-operator-") for b in wide]
    assert suffixes == ["metrics", "nodes", "crd"]
    assert env_of(documents)["QWEN_NAMESPACES"] == "team-a,team-b"


def test_the_rights_are_the_least_that_do() -> None:
    role = one(render(), "ClusterRole", "place-op-qwen-operator")
    rights = {
        f"{group}/{resource}": set(rule["verbs"])
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    made_and_deleted = (
        "autoscaling/horizontalpodautoscalers",
        "policy/poddisruptionbudgets",
        "networking.k8s.io/networkpolicies",
    )
    assert rights == {
        "qwenoperator.io/qwendeployments": {"get", "list", "watch"},
        "qwenoperator.io/qwendeployments/status": {"patch"},
        "qwenoperator.io/qwendeployments/finalizers": {"update"},
        "apps/deployments": {"get", "list", "watch", "create", "patch"},
        "/services": {"get", "list", "watch", "create", "patch"},
        "/serviceaccounts": {"get", "list", "watch", "create", "patch"},
        "keda.sh/scaledobjects": {"get", "create", "patch", "delete"},
        "inference.networking.k8s.io/inferencepools": {"get", "create", "patch", "delete"},
        "qwenoperator.io/qwendeployments/scale": {"patch"},
        "external.metrics.k8s.io/qwen_replicas_needed": {"list"},
        "discovery.k8s.io/endpointslices": {"get", "list", "watch"},
        "/pods": {"list", "watch", "patch"},
        "/events": {"get", "create", "patch"},
        **{key: {"get", "list", "watch", "create", "patch", "delete"} for key in made_and_deleted},
    }


def test_the_metrics_api_may_register_itself_and_nothing_else_and_can_be_left_out() -> None:
    documents = render()
    name = "place-op-qwen-operator-metrics"
    rules = one(documents, "ClusterRole", name)["rules"]
    named = {rule["resources"][0]: rule["resourceNames"] for rule in rules}
    assert named == {"apiservices": ["v1beta1.external.metrics.k8s.io"], "clusterroles": [name]}
    binding = one(documents, "RoleBinding", name)
    assert binding["metadata"]["namespace"] == "kube-system"
    assert binding["roleRef"]["name"] == "extension-apiserver-authentication-reader"
    container = one(documents, "Deployment")["spec"]["template"]["spec"]["containers"][0]
    env = env_of(documents)
    assert env["QWEN_METRICS_SERVICE"] == "place/op-qwen-operator-metrics"
    assert env["QWEN_METRICS_OWNER"] == name
    service = one(documents, "Service", "-metrics")
    assert service["metadata"]["name"] == "op-qwen-operator-metrics"
    assert service["spec"]["ports"][0]["targetPort"] in {p["name"] for p in container["ports"]}

    off = render("--set", "metricsApi.enabled=false")
    assert "op-qwen-operator-metrics" not in {d["metadata"]["name"] for d in off}
    assert "RoleBinding" not in {d["kind"] for d in off}
    assert "QWEN_METRICS" not in str(off)


def test_keda_finds_the_figures_where_the_operator_serves_them() -> None:
    documents = render()
    service = one(documents, "Service", "-figures")
    deployment = one(documents, "Deployment")
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    env = {item["name"]: item["value"] for item in container["env"]}
    assert env["QWEN_FIGURES_SERVICE"] == f"place/{service['metadata']['name']}"
    [port] = service["spec"]["ports"]
    ports = {p["name"]: p["containerPort"] for p in container["ports"]}
    assert str(ports[port["targetPort"]]) == env["QWEN_FIGURES_PORT"]
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    off = render("--set", "figures.enabled=false")
    assert "FIGURES" not in str(off)
    assert "op-qwen-operator-figures" not in str(off)


def test_the_activator_is_switched_has_its_own_rights_and_is_no_endpoint_of_the_operator() -> None:
    documents = render("--set", "activator.enabled=true")
    activator, operator = (one(documents, "Deployment", s) for s in ("-activator", "-operator"))
    containers = [d["spec"]["template"]["spec"]["containers"][0] for d in (activator, operator)]
    assert containers[0]["image"] == containers[1]["image"]
    assert containers[0]["args"] == ["activator"]
    assert {"name": "QWEN_ACTIVATOR", "value": "true"} in containers[1]["env"]
    labels = activator["spec"]["template"]["metadata"]["labels"]
    assert activator["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert not operator["spec"]["selector"]["matchLabels"].items() <= labels.items()
    for service in (d for d in documents if d["kind"] == "Service"):
        assert not service["spec"]["selector"].items() <= labels.items()
    rules = one(documents, "ClusterRole", "-activator")["rules"]
    assert [(r["resources"], r["verbs"]) for r in rules] == [
        (["qwendeployments"], ["get", "list", "watch"]),
        (["endpointslices"], ["list", "watch", "create", "patch", "delete"]),
    ]
    one(documents, "ClusterRoleBinding", "-activator")
    narrow = render("-f", str(CHART / "ci" / "to-zero-values.yaml"))
    bindings = [d["metadata"] for d in narrow if d["kind"] == "RoleBinding"]
    bound = [b["namespace"] for b in bindings if b["name"].endswith("-activator")]
    assert bound == ["team-a", "team-b"]
    assert {"name": "QWEN_ACTIVATOR", "value": "false"} in one(render(), "Deployment")["spec"][
        "template"
    ]["spec"]["containers"][0]["env"]
