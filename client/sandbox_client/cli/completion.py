"""`sandbox completion`: what a shell needs to complete our commands, made from the tree of arguments."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator

from .arguments import Subcommands

SESSIONS = "$(sandbox ls --quiet 2>/dev/null)"

BASH = """\
_sandbox() {{
    local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD - 1]}} command="" words i
    for ((i = 1; i < COMP_CWORD; i++)); do
        case ${{COMP_WORDS[i]}} in
            {commands}) command=${{COMP_WORDS[i]}}; break ;;
        esac
    done
    case $prev in
        --session) COMPREPLY=($(compgen -W "{sessions}" -- "$cur")); return ;;
        {values}) return ;;
    esac
    case $command in
{cases}
    esac
    COMPREPLY=($(compgen -W "$words" -- "$cur"))
}}
complete -o default -F _sandbox sandbox
"""
ZSH = "autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit\n"


def add(commands: Subcommands, tree: argparse.ArgumentParser) -> None:
    parser = commands.add("completion", "print a completion script", lambda args: _print(args, tree))
    parser.add_argument(
        "for_shell", metavar="SHELL", choices=("bash", "zsh", "fish"), help="bash, zsh or fish"
    )


def _print(args: argparse.Namespace, tree: argparse.ArgumentParser) -> int:
    print(SCRIPTS[args.for_shell](tree), end="")
    return 0


def bash(tree: argparse.ArgumentParser) -> str:
    parsers = _commands(tree)
    options = [option for parser in (tree, *parsers.values()) for option in _options(parser)]
    values = {flag for option in options if _has_value(option) for flag in option.option_strings}
    words = {"''": [*parsers, *_all_flags(tree)], **{name: _words(parsers[name]) for name in parsers}}
    cases = (f'        {name}) words="{" ".join(found)}" ;;' for name, found in words.items())
    return BASH.format(
        commands="|".join(parsers),
        sessions=SESSIONS,
        values="|".join(sorted(values - {"--session"})),
        cases="\n".join(cases),
    )


def zsh(tree: argparse.ArgumentParser) -> str:
    return ZSH + bash(tree)


def fish(tree: argparse.ArgumentParser) -> str:
    lines = ["complete -c sandbox -f"]
    helps = _helps(tree)
    for name, parser in _commands(tree).items():
        about = shlex.quote(helps[name])
        lines.append(f"complete -c sandbox -n __fish_use_subcommand -a {name} -d {about}")
        lines += _fish_command(name, parser)
    lines += (f"complete -c sandbox -n __fish_use_subcommand {_fish_option(one)}" for one in _options(tree))
    return "\n".join(lines) + "\n"


def _fish_command(name: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    when = f'-n "__fish_seen_subcommand_from {name}"'
    for option in _options(parser):
        yield f"complete -c sandbox {when} {_fish_option(option)}"
    for argument in _positionals(parser):
        words = "(sandbox ls --quiet 2>/dev/null)" if argument.metavar == "SESSION" else _choices(argument)
        if words:
            yield f'complete -c sandbox {when} -a "{words}"'


def _fish_option(option: argparse.Action) -> str:
    flags = " ".join(map(_fish_flag, option.option_strings))
    about = f" -d {shlex.quote(option.help)}" if option.help else ""
    value = ""
    if _has_value(option):
        value = ' -x -a "(sandbox ls --quiet 2>/dev/null)"' if option.metavar == "SESSION" else " -x"
    return flags + about + value


def _fish_flag(flag: str) -> str:
    return f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}"


def _words(parser: argparse.ArgumentParser) -> list[str]:
    """What may stand somewhere behind a command."""
    found = _all_flags(parser)
    for argument in _positionals(parser):
        found += [SESSIONS] if argument.metavar == "SESSION" else _choices(argument).split()
    return found


def _choices(argument: argparse.Action) -> str:
    return " ".join(map(str, argument.choices or ()))


def _all_flags(parser: argparse.ArgumentParser) -> list[str]:
    return [flag for option in _options(parser) for flag in option.option_strings if flag.startswith("--")]


# argparse has no public way to look into a parser; this is all that looks.


def _commands(tree: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    return dict(_subparsers(tree).choices)


def _helps(tree: argparse.ArgumentParser) -> dict[str, str]:
    return {action.dest: action.help or "" for action in _subparsers(tree)._choices_actions}


def _subparsers(tree: argparse.ArgumentParser) -> argparse._SubParsersAction[argparse.ArgumentParser]:
    return next(action for action in tree._actions if isinstance(action, argparse._SubParsersAction))


def _options(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    return [action for action in parser._actions if action.option_strings]


def _positionals(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    return [action for action in parser._actions if not action.option_strings]


def _has_value(option: argparse.Action) -> bool:
    return option.nargs != 0


SCRIPTS = {"bash": bash, "zsh": zsh, "fish": fish}
