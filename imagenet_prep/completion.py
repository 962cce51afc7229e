"""Print the shell script that completes verbs, flags and their values.

Examples:
  source <(imagenet-prep completion bash)        # in ~/.bashrc
  source <(imagenet-prep completion zsh)         # in ~/.zshrc, after compinit
  imagenet-prep completion fish | source         # in ~/.config/fish/config.fish
"""

from __future__ import annotations

import importlib
import itertools
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

from imagenet_prep.__main__ import VERBS, module_of
from imagenet_prep.core import program
from imagenet_prep.core.flags import EveryVerb, FlagHelp, Settings, entries, flag

# zsh uses the same function through bashcompinit. Bash splits --flag=value into three words.
_BEGIN = """\
[[ -z ${ZSH_VERSION-} ]] || { autoload -U +X bashcompinit && bashcompinit; }
_imagenet_prep() {
  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} verb= last= offer= i
  if [[ $prev == "=" ]]; then prev=${COMP_WORDS[COMP_CWORD-2]}; fi
  if [[ $cur == "=" ]]; then cur=; fi
  for ((i = 1; i < COMP_CWORD; i++)); do
    if [[ -z $verb || $last == -- ]]; then verb=${COMP_WORDS[i]}; fi; last=${COMP_WORDS[i]}
  done
  case "$verb $prev" in"""
_END = """\
    esac;;
  esac
  COMPREPLY=($(compgen -W "$offer" -- "$cur"))
}
complete -o bashdefault -o default -F _imagenet_prep imagenet-prep"""


@dataclass(frozen=True)
class CompletionConfig(Settings):
    """Settings of the command: the shell that will run the script."""

    shell: str = flag(choices=("bash", "zsh", "fish"), help="shell", positional=True)


def config_of(verb: str) -> type[Settings]:
    """Returns the class with the flags of a verb, such as BenchReadConfig for bench-read."""
    class_name = f"{verb.replace('-', '')}config"
    members = vars(importlib.import_module(module_of(verb)))
    (config,) = [member for name, member in members.items() if name.lower() == class_name]
    return cast(type[Settings], config)


def script(shell: str) -> str:
    """Returns the script that completes all verbs and their flags in a shell."""
    configs = {verb: config_of(verb) for verb in VERBS}
    verbs = {verb: entries(config) + entries(EveryVerb) for verb, config in configs.items()}
    return "\n".join((_fish if shell == "fish" else _bash)(verbs))


def _bash(verbs: dict[str, list[FlagHelp]]) -> Iterator[str]:
    yield _BEGIN
    for verb, flags in verbs.items():
        for each in flags:
            if each.choices:
                names = "|".join(f'"{verb} {name}"' for name in each.names or [verb])
                yield f'  {names}) offer="{" ".join(each.choices)}";;'
    yield f'  *) [[ -n $verb ]] || offer="{" ".join(verbs)}"'
    yield '    case "$verb $cur" in'
    for verb, flags in verbs.items():
        words = [*itertools.chain.from_iterable(each.names for each in flags)]
        yield f'    "{verb} -"*) offer="{" ".join([*words, "--help", "--help-all"])}";;'
    yield _END


def _fish(verbs: dict[str, list[FlagHelp]]) -> Iterator[str]:
    begin = "complete -c imagenet-prep -n"
    for verb, summary in VERBS.items():
        yield f"{begin} __fish_use_subcommand -f -a {verb} -d {shlex.quote(summary)}"
    for verb, flags in verbs.items():
        seen = f"{begin} '__fish_seen_subcommand_from {verb}'"
        yield f"{seen} -l help -l help-all -d 'show the common flags, or all flags'"
        for each in flags:
            kinds = [("-l" if name[1] == "-" else "-o", name.lstrip("-")) for name in each.names]
            names = " ".join(f"{kind} {name}" for kind, name in kinds)
            value = (
                f" -x -a '{' '.join(each.choices)}'" if each.choices else " -r" * bool(each.value)
            )
            text = each.text(brief=True).replace("\\", "\\\\").replace("'", "\\'")
            yield f"{seen} {names}{value} -d '{text}'"


@program.verb("imagenet_prep.completion", CompletionConfig, __doc__, resumes=False)
def run(config: CompletionConfig) -> None:
    print(script(config.shell))
