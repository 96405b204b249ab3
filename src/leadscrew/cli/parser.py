"""What can be typed: every command, its arguments, and the function that carries it out."""

from __future__ import annotations

import argparse
from collections.abc import Callable

_RUN = "the run folder, or the folder or file of the configuration that made it"


def build_parser() -> argparse.ArgumentParser:
    """Return the parser. `handler` of the parsed arguments is `module:function` below `leadscrew.cli`."""
    parser = argparse.ArgumentParser(
        prog="leadscrew",
        description="Evolve a program on your own scored examples, in a sandbox, under a budget, with a sealed test.",
        epilog="`leadscrew demo` shows the whole of it in a minute, with no key and no set-up.",
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and leave")
    parser.set_defaults(handler=None)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for group in (_start, _steer, _look, _ship, _models):
        group(commands)
    return parser


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version

        print(f"leadscrew {version('leadscrew')}")
        parser.exit()


_Commands = argparse._SubParsersAction  # argparse gives its type no public name


def _command(
    commands: _Commands[argparse.ArgumentParser], name: str, handler: str, help: str, *, json: bool = True
) -> Callable[..., argparse.Action]:
    parser = commands.add_parser(name, help=help, description=help[0].upper() + help[1:] + ".")
    parser.set_defaults(handler=handler, command=name)
    if json:
        parser.add_argument("--json", action="store_true", help="print one JSON value on standard output")
    return parser.add_argument


def _start(commands: _Commands[argparse.ArgumentParser]) -> None:
    add = _command(commands, "demo", "start:demo", "evolve the built-in example to a certificate, without a key")
    add("--out", metavar="FOLDER", help="where the run goes (default: leadscrew-demo, numbered if it exists)")
    add("--seed", type=int, default=7, help="seed of the split and of the search (default: 7)")

    add = _command(commands, "init", "start:init", "write a small task that runs at once and can be made your own")
    add("folder", metavar="FOLDER", help="the folder to make")
    add("--from-git", metavar="REPO", help="take the tracked files of this repository folder as the program")

    add = _command(commands, "run", "start:run", "run a configuration")
    add("config", metavar="CONFIG", help="a TOML file, or a folder that holds leadscrew.toml")
    add("--out", metavar="FOLDER", help="the run folder (default: run.out of the configuration)")
    add("--seed", type=int, help="another seed than the configuration's")
    _settings(add)
    add("--finalize", action="store_true", help="open the test split and write the certificate when the search is done")
    add("--estimate", action="store_true", help="print what the run would take and leave")

    add = _command(commands, "resume", "start:resume", "go on with a run that stopped, with raised caps if given")
    add("run", metavar="RUN", help=_RUN)
    add("--trials", type=int, metavar="N", help="new cap on trials, over the whole run")
    add("--seconds", type=float, metavar="S", help="new cap on the engine's running time, over the whole run")
    add("--calls", type=int, metavar="N", help="new cap on model calls")
    add("--tokens", type=int, metavar="N", help="new cap on tokens")
    add("--usd", type=float, metavar="X", help="new cap on money")
    add("--role", metavar="ROLE", help="the new caps on calls, tokens and money are those of this role's model alone")
    add("--finalize", action="store_true", help="open the test split and write the certificate when the search is done")

    add = _command(commands, "finalize", "start:finalize", "open the test split once, test the champion, close the run")
    add("run", metavar="RUN", help=_RUN)
    add("--calls", type=int, metavar="N", help="new cap on the model calls of the final test")
    add("--tokens", type=int, metavar="N", help="new cap on its tokens")
    add("--usd", type=float, metavar="X", help="new cap on its money")

    add = _command(commands, "fork", "start:fork", "begin a new run with a changed copy of a run's configuration")
    add("run", metavar="RUN", help=_RUN)
    _settings(add)
    add("--out", metavar="FOLDER", required=True, help="the new run folder")


def _steer(commands: _Commands[argparse.ArgumentParser]) -> None:
    add = _command(commands, "stop", "steer:stop", "ask a running search to stop where it can go on later")
    add("run", metavar="RUN", help=_RUN)

    add = _command(commands, "note", "steer:note", "leave a word for the proposers")
    add("run", metavar="RUN", help=_RUN)
    add("text", metavar="TEXT", help="the note")

    add = _command(commands, "approve", "steer:approve", "let a held candidate be evaluated, or turn it down")
    add("run", metavar="RUN", help=_RUN)
    add("candidate", metavar="CANDIDATE", help="a candidate id such as 12.0")
    add("--reject", action="store_true", help="turn it down instead")
    add("--reason", default="", help="why, for the record")

    add = _command(commands, "propose", "steer:propose", "lay out a bench to edit by hand or with any agent")
    add("run", metavar="RUN", help=_RUN)

    add = _command(commands, "submit", "steer:submit", "hand in an edited bench or a program folder")
    add("run", metavar="RUN", help=_RUN)
    add("folder", metavar="FOLDER", help="the edited bench, or a folder that is the whole new program")
    add("--base", metavar="CANDIDATE", help="the candidate that the program was made from")
    add("--name", default="", help="a label for people")
    add("--hypothesis", default="", help="what the change should bring about, and why")


def _look(commands: _Commands[argparse.ArgumentParser]) -> None:
    add = _command(
        commands, "status", "look:status", "how a run stands: progress, best so far, spend, what it waits for"
    )
    add("run", metavar="RUN", help=_RUN)

    add = _command(commands, "show", "look:show", "one candidate: scores, failures, claim, links, files")
    add("run", metavar="RUN", help=_RUN)
    add("candidate", metavar="CANDIDATE", nargs="?", default="", help="a candidate id (default: the champion)")
    add("--file", metavar="PATH", help="print this file of its program")

    add = _command(commands, "tree", "look:tree", "the lineage: who came from whom")
    add("run", metavar="RUN", help=_RUN)

    add = _command(commands, "diff", "look:diff", "what changed between two candidates, as a unified diff")
    add("run", metavar="RUN", help=_RUN)
    add("old", metavar="OLD", help="a candidate id")
    add("new", metavar="NEW", nargs="?", default="", help="a candidate id (default: the champion)")

    add = _command(commands, "trace", "look:trace", "a candidate on one instance: answer, score, output, logged calls")
    add("run", metavar="RUN", help=_RUN)
    add("candidate", metavar="CANDIDATE", help="a candidate id")
    add("instance", metavar="INSTANCE", nargs="?", default="", help="an instance id (default: list the trials)")

    add = _command(commands, "calls", "calls:calls", "the recorded model calls: who asked, what it took, what failed")
    add("run", metavar="RUN", help=_RUN)
    add("candidate", metavar="CANDIDATE", nargs="?", default="", help="only those of this candidate's program")
    add("--failed", action="store_true", help="only those without a usable reply")
    add("--number", type=int, metavar="N", help="one call with its whole request and reply")

    add = _command(commands, "why", "look:why", "how a candidate came about, and why it was kept or not")
    add("run", metavar="RUN", help=_RUN)
    add("candidate", metavar="CANDIDATE", nargs="?", default="", help="a candidate id (default: the champion)")

    add = _command(commands, "frontier", "look:frontier", "the candidates that no other beats in every objective")
    add("run", metavar="RUN", help=_RUN)


def _ship(commands: _Commands[argparse.ArgumentParser]) -> None:
    add = _command(commands, "export", "ship:export", "take a program out: a folder, a git branch or a patch")
    add("run", metavar="RUN", help=_RUN)
    add("folder", metavar="FOLDER", nargs="?", help="write the files here (it must be absent or empty)")
    add("--candidate", metavar="CANDIDATE", default="", help="a candidate id (default: the champion)")
    add("--git", metavar="REPO", help="commit the program to a new branch of this repository; no checkout is touched")
    add("--branch", metavar="NAME", default="", help="name of that branch (default: leadscrew/<run>-<candidate>)")
    add("--patch", action="store_true", help="print a patch for `git apply`")
    add(
        "--against", metavar="FOLDER", help="make the patch for this checkout instead of the program the run began with"
    )

    add = _command(commands, "verify", "ship:verify", "re-check every link and digest of a run")
    add("run", metavar="RUN", help=_RUN)

    _command(commands, "doctor", "ship:doctor", "what works here: sandbox, limits, optional parts")

    add = _command(commands, "redteam", "ship:redteam", "attack the sandbox with hostile programs, each with a control")
    add("--only", metavar="NAME", action="append", default=[], help="run only this attack or family (may be repeated)")
    add("--user", metavar="NAME", default="", help="as root: attack as this ordinary user, such as nobody")


def _models(commands: _Commands[argparse.ArgumentParser]) -> None:
    add = _command(commands, "models", "models:models", "which models can be used now, and why not the others")
    add("what", metavar="CONFIG | get", nargs="?", default="", help="a configuration, for its roles; or get, to fetch")
    add("model", metavar="NAME", nargs="?", default="", help="with get: the local model to fetch (default: smollm2)")


def _settings(add: Callable[..., argparse.Action]) -> None:
    add(
        "--set",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        dest="settings",
        help="change one key of the configuration, such as run.seed=3 (may be repeated)",
    )
