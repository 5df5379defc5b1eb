"""`python -m tests.demo start | stop`, which `make demo` and `make demo-stop` run."""

import argparse
import os
import sys
import time
from collections.abc import Sequence

from tests.cluster import launch
from tests.cluster.client import Cluster, CommandError
from tests.cluster.paths import REPOSITORY, given_kubeconfig
from tests.demo import picture
from tests.demo.console import DemoError, paint, say, step
from tests.demo.conversation import QUESTION, ask
from tests.demo.model import DEFAULT, Choice, choose, choose_seeing
from tests.demo.place import NAMESPACE, Place, find_place, kubectl_hint, own_run, reach
from tests.demo.watch import follow

_RELEASE, _OPERATOR_NAMESPACE = "qwen-operator", "qwen-system"
_MADE_BY_US = "qwenoperator.io/demo=true"


def start() -> None:
    """Show the whole line from an empty machine to an answer. Raises DemoError."""
    began = time.monotonic()
    model_id = os.environ.get("MODEL") or DEFAULT
    with step(_headline()):
        place = find_place()
    with step(f"helm install {_RELEASE} charts/{_RELEASE}"):
        _install(place)
    with step(f"The model {model_id}"):
        choice = choose(model_id, place)
    with step(f"kubectl apply: QwenDeployment {choice.name}, and what becomes of it"):
        _apply(place.cluster, choice)
        follow(place.cluster, choice.name)
    with step(f"“{QUESTION}”"):
        _converse(place, choice, model_id)
    if place.is_local:
        with step(f"kubectl apply: QwenDeployment {picture.NAME}, which sees"):
            _apply(place.cluster, choose_seeing(place), shown=False)
            follow(place.cluster, picture.NAME, with_plan=False)
        with step(f"“{picture.QUESTION}”"):
            _look(place)
    _show_the_way(place, choice)
    print(paint(f"\n{time.monotonic() - began:.0f} s in all. End it with: make demo-stop", "bold"))


def _headline() -> str:
    if given_kubeconfig():
        return "The cluster that KUBECONFIG names"
    return "A one-node Kubernetes, in namespaces of its own"


def _install(place: Place) -> None:
    cluster = place.cluster
    if not cluster.exists("namespace", _OPERATOR_NAMESPACE):
        cluster.kubectl("create", "namespace", _OPERATOR_NAMESPACE)
        enforce = "pod-security.kubernetes.io/enforce=restricted"
        cluster.kubectl("label", "namespace", _OPERATOR_NAMESPACE, enforce)
    values: list[str] = []
    for key, image in (("image", place.operator_image), ("engineImage", place.engine_image)):
        repository, _, tag = image.rpartition(":")
        values += ["--set-string", f"{key}.repository={repository},{key}.tag={tag}"]
    cluster.helm(
        *("upgrade", "--install", _RELEASE, str(REPOSITORY / "charts" / _RELEASE)),
        *("--namespace", _OPERATOR_NAMESPACE, *values, "--wait", "--timeout", "3m"),
        seconds=200,
    )
    say(cluster.kubectl("get", "pods", "-n", _OPERATOR_NAMESPACE).rstrip().replace("\n", "\n  "))


def _apply(cluster: Cluster, choice: Choice, *, shown: bool = True) -> None:
    if shown:
        for line in choice.manifest.rstrip().splitlines():
            say(paint(line, "dim"))
        say()
    cluster.kubectl("apply", "-n", NAMESPACE, "-f", "-", stdin=choice.manifest)
    cluster.kubectl("label", "qwen", choice.name, "-n", NAMESPACE, "--overwrite", _MADE_BY_US)


def _converse(place: Place, choice: Choice, model_id: str) -> None:
    with reach(place, choice.name) as url:
        print("  ", end="")
        answer = ask(url, model=model_id)
    if not answer.text.strip():
        raise DemoError("the model said nothing")
    say(
        f"{answer.num_tokens} tokens, the first after {answer.first_seconds:.2f} s, "
        f"then {answer.rate:.0f} per second"
    )


def _look(place: Place) -> None:
    file, url = picture.draw()
    say(f"{file}")
    with reach(place, picture.NAME) as service:
        print("  ", end="")
        answer = ask(service, model=picture.NAME, question=picture.QUESTION, picture=url)
    if answer.text != picture.TRUTH:
        raise DemoError(f"the true answer is “{picture.TRUTH}”")
    say(f"the first token after {answer.first_seconds:.2f} s, the picture's encoding among it")


def _show_the_way(place: Place, choice: Choice) -> None:
    spec = place.cluster.get("service", choice.name, "-n", NAMESPACE)["spec"]
    address, port = spec["clusterIP"], spec["ports"][0]["port"]
    print(f"\n{paint('▸ It is yours', 'bold')}")
    say(place.cluster.kubectl("get", "qwen", "-n", NAMESPACE).rstrip().replace("\n", "\n  "))
    say()
    if place.is_local:
        say(f"chat page   http://{address}:{port}/")
        say(f"OpenAI API  http://{address}:{port}/v1")
        say(
            f"elsewhere   ssh -L {port}:{address}:{port} THIS-MACHINE, then http://localhost:{port}/"
        )
    else:
        say(f"chat page   kubectl port-forward -n {NAMESPACE} service/{choice.name} {port}:{port}")
        say(f"            then http://localhost:{port}/")
    say()
    for line in kubectl_hint(place):
        say(line)
    say(f"kubectl describe qwen {choice.name}; kubectl explain qwen.spec; kubectl get pods -A")


def stop() -> None:
    """End the demo's own cluster; on a given one, remove what the demo put there."""
    if given_kubeconfig() is None:
        print("stopped" if launch.stop(own_run()) else "not running")
        return
    cluster = find_place().cluster
    if cluster.exists("crd", "qwendeployments.qwenoperator.io"):
        cluster.kubectl("delete", "qwen", "-n", NAMESPACE, "-l", _MADE_BY_US)
    cluster.helm("uninstall", _RELEASE, "-n", _OPERATOR_NAMESPACE, "--ignore-not-found")
    print("removed the demo's QwenDeployments and the operator; the CRD stays")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.demo", description=__doc__)
    parser.add_argument("command", choices=["start", "stop"])
    command = parser.parse_args(argv).command
    try:
        (start if command == "start" else stop)()
    except (DemoError, CommandError, TimeoutError, OSError) as error:
        print(paint(f"\nerror: {error}", "red"), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted; `make demo` goes on from here, `make demo-stop` ends it")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
