"""`kubectl-qwen`, which kubectl runs as `kubectl qwen`: reads the words and calls the command."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence

from qwen_operator import __version__, names
from qwen_operator.cli import chat_command, explain_command, status_command, top_command
from qwen_operator.cli.explain_command import InputError
from qwen_operator.cli.kubectl import Kubectl, KubectlError, cluster_flags, scope

_DESCRIPTION = "Plans, status, live blocks, logs and a chat for QwenDeployments."
_EPILOG = """\
exit codes: 0 yes; 1 no, and the output says why; 2 wrong usage; 3 the cluster cannot be asked
`kubectl qwen COMMAND --help` lists a command's flags. The cluster is asked through kubectl: its
kubeconfig, contexts and ways to log in apply.
"""
_LOGS_EPILOG = """\
examples:
  kubectl qwen logs chat -f
  kubectl qwen logs chat --previous --tail=50

Further flags are kubectl's own: see kubectl logs --help. The exit code is kubectl's.
"""
_EVERY_LINE = "-1"
Command = Callable[[argparse.Namespace, Kubectl], int]


def main() -> None:
    """Run the plugin; exit with its code."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    try:
        sys.exit(run(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # `| head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)


def run(words: Sequence[str]) -> int:
    """Run one command; return the exit code. Raises SystemExit on wrong usage."""
    parser = _parser()
    arguments, rest = parser.parse_known_args(words)
    if rest and arguments.command != "logs":
        parser.error(f"unknown: {' '.join(rest)}")
    arguments.rest = rest
    kubectl = Kubectl(cluster_flags(context=arguments.context, kubeconfig=arguments.kubeconfig))
    try:
        code: int = arguments.run(arguments, kubectl)
        return code
    except InputError as error:
        return _fail(error, 2)
    except KubectlError as error:
        return _fail(error, 1 if error.is_missing else 3)


def _fail(error: Exception, code: int) -> int:
    print(f"kubectl qwen: {error}", file=sys.stderr)
    return code


def _logs(arguments: argparse.Namespace, kubectl: Kubectl) -> int:
    status_command.fetch(arguments, kubectl)  # a wrong name would select nothing, silently
    words = ["logs", "-l", f"{names.OWNER_LABEL}={arguments.name}", "-c", "engine", "--prefix"]
    words += ["--max-log-requests=50", *scope(arguments.namespace)]
    if not any(word.startswith("--tail") for word in arguments.rest):
        words.append(f"--tail={_EVERY_LINE}")  # with a selector kubectl's own default is 10
    return kubectl.hand_over(*words, *arguments.rest)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="kubectl qwen",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"kubectl-qwen {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    def add(
        name: str, text: str, command: Command, *, epilog: str, forms: Sequence[str] = ("json",)
    ) -> argparse.ArgumentParser:
        made = commands.add_parser(
            name, help=text, description=f"{text[0].upper()}{text[1:]}.", epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )  # fmt: skip
        made.set_defaults(run=command)
        _add_common(made, forms)
        return made

    explain = add("explain", "say what would be planned for a manifest, before it is applied",
                  explain_command.run, epilog=explain_command.EPILOG,
                  forms=("json", "yaml"))  # fmt: skip
    explain_command.add_flags(explain)
    plan = add("plan", "show the plan in force: every byte and every flag with its reason",
               status_command.run_plan, epilog=status_command.PLAN_EPILOG,
               forms=("json", "yaml", "flags"))  # fmt: skip
    status = add("status", "show conditions, blocks, planned against measured, and advice",
                 status_command.run_status, epilog=status_command.STATUS_EPILOG,
                 forms=("json", "yaml"))  # fmt: skip
    top = add("top", "show the free blocks of all engines at this moment", top_command.run,
              epilog=top_command.EPILOG)  # fmt: skip
    top_command.add_flags(top)
    logs = add("logs", "show the engines' logs", _logs, epilog=_LOGS_EPILOG, forms=())
    chat = add("chat", "talk to the model", chat_command.run, epilog=chat_command.EPILOG)
    for named in (plan, status, logs, chat):
        named.add_argument("name", help="the QwenDeployment")
    chat_command.add_flags(chat)
    return parser


def _add_common(parser: argparse.ArgumentParser, forms: Sequence[str]) -> None:
    add = parser.add_argument
    if forms:
        add("-o", "--output", choices=("table", *forms), default="table",
            help="form of the answer (default: table)")  # fmt: skip
    add("-n", "--namespace", metavar="NAMESPACE", help="namespace (default: kubectl's)")
    add("--context", metavar="CONTEXT", help="context of the kubeconfig")
    add("--kubeconfig", metavar="FILE", help="kubeconfig file")


if __name__ == "__main__":
    main()
