"""The command line: `branchwise <stage> [--config FILE] [--run DIR] …`.

Every stage is one function in a module of its own; this file only reads arguments, loads the
recipe, calls the stage and turns errors into exit codes (docs/troubleshooting.md).
"""

import argparse
import os
import shlex
import sys
import warnings
from collections.abc import Sequence
from importlib.metadata import version
from inspect import Parameter
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, Literal, NoReturn, get_args, get_origin

from branchwise.base import (
    LEAST,
    MOST,
    did_you_mean,
    dump_json,
    fits_int64,
    format_memory_error,
    guard_streams,
    out_of_memory_message,
    replace_surrogates,
    terminal_safe,
    terminal_safe_json,
)
from branchwise.pipelines.stages import STAGES, Stage
from branchwise.runs import set_library_environment

from .entry import raise_on_interrupt

if TYPE_CHECKING:
    from branchwise.runs import Terminal

OF_A_RUN = frozenset(
    {
        *("diagnose", "export", "export-pairs", "inspect", "relabel", "report", "show"),
        *("eval", "train-dpo", "train-rm", "train-sft", "verify"),
    }
)
"""Stages that work on an existing run; without its recipe, they would use the default one."""

NEXT = {
    "warm-start": "annotate",
    "annotate": "report, train-dpo",
    "relabel": "train-dpo",
    "train-sft": "eval",
    "train-dpo": "eval",
    "train-grpo": "eval",
}
"""Stages that usually follow a stage, for its closing line."""


class Arguments(argparse.ArgumentParser):
    """A parser with one-line error messages; that of a stage imports it at the first use."""

    stage: Stage | None = None

    def error(self, message: str) -> NoReturn:
        """Prints the message and exits with code 2."""
        super().error(terminal_safe(message))

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        if self.stage is not None:
            _add_arguments(self, self.stage)
            self.stage = None
        return super().parse_known_args(args, namespace)


def parser() -> argparse.ArgumentParser:
    """Returns the argument parser; light, so that `--help` answers at once."""
    top = Arguments(
        prog="branchwise",
        description="Grow search trees over your documents, turn them into preference pairs, and "
        "train a search-and-answer policy.",
    )
    top.add_argument("--version", action="version", version=f"branchwise {version('branchwise')}")
    stages = top.add_subparsers(dest="stage", metavar="STAGE")
    for name, stage in STAGES.items():
        stages.add_parser(name, help=stage.help, description=stage.help).stage = stage
    return top


def _add_arguments(parser: argparse.ArgumentParser, stage: Stage) -> None:
    add = parser.add_argument
    add(
        "--config",
        type=Path,
        metavar="FILE",
        help="or a recipe's name; default: the run's own, else atlas",
    )
    add("--run", type=Path, metavar="DIR", help="default: datasets/<name>")
    add("--set", action="append", default=[], metavar="a.b=c", dest="overrides")
    add("--plugin", action="append", default=[], metavar="MODULE", dest="plugins",
        help="module or file.py that registers protocols, rewards, …")  # fmt: skip
    add("--resume", action="store_true", help="never replace another training's checkpoints")
    add("--json", action="store_true", help="totals as JSON on the last line")
    parser.set_defaults(dry_run=False, limit=None, history=None)
    if "dry_run" in stage.options_of_context:
        add("--dry-run", action="store_true", help="show plan and cost, then stop")
    if "limit" in stage.options_of_context:
        add("--limit", type=_positive_int, metavar="N", help="at most N questions")
    if "history" in stage.options_of_context:
        add("--history", type=Path, metavar="DIR", help="a dry run estimates from this run's calls")
    for option in stage.options():
        _add_option(parser, option)


def _add_option(parser: argparse.ArgumentParser, option: Parameter) -> None:
    """Adds the argument of a stage function's parameter; its annotation has the type and help."""
    kind, text, *count = get_args(option.annotation)
    if isinstance(kind, UnionType):
        kind, _ = get_args(kind)  # the other is None
    argument: dict[str, Any] = {"help": text}
    if option.default is not Parameter.empty:
        argument["default"] = option.default
        argument["help"] += f"; default {option.default}" if option.default else ""
    if kind is bool:
        argument["action"] = "store_true"
    elif kind is int:
        argument |= {"type": _count if option.default == 0 else _positive_int, "metavar": "N"}
    elif kind == tuple[int, ...]:
        argument |= {"type": _seed, "nargs": "+"}
    elif kind == tuple[str, ...]:
        argument["nargs"] = "+"
    elif get_origin(kind) is Literal:
        argument["choices"] = get_args(kind)
    else:
        argument["type"] = kind
    if count:
        parser.add_argument(option.name, nargs=count[0], **argument)
    else:
        flag = f"--{option.name.replace('_', '-')}"
        parser.add_argument(flag, required="default" not in argument, **argument)


def _count(text: str) -> int:
    return 0 if text == "0" else _positive_int(text)


def _positive_int(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= MOST:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive integer")
    return int(text)


def _seed(text: str) -> int:
    try:
        seed = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
    if not fits_int64(seed):
        raise argparse.ArgumentTypeError(f"{text} does not fit into 64 bits: {LEAST} to {MOST}")
    return seed


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs `branchwise`."""
    guard_streams()
    words = sys.argv[1:] if arguments is None else arguments
    top = parser()
    _reject_undecodable(top, words)
    if words and words[0] not in STAGES and not words[0].startswith("-"):
        top.error(f"no stage is named {words[0]!r}{did_you_mean(words[0], STAGES)}")
    set_library_environment(progress_bars=False)
    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")
    options = top.parse_args(words)
    if options.stage is None:
        top.print_help()
        return
    sys.exit(run_stage(options))


def _reject_undecodable(top: argparse.ArgumentParser, words: Sequence[str]) -> None:
    """Rejects arguments that are not text: tables, hashes and requests need text."""
    for word in words:
        if replace_surrogates(word) != word:
            shown = os.fsencode(word).decode(errors="backslashreplace")
            top.error(
                f"{shown}: is not text in the encoding of this locale "
                f"({sys.getfilesystemencoding()}): rename the file, or set LANG to another locale"
            )


def run_stage(options: argparse.Namespace) -> int:
    """Runs one stage; errors that a user can fix are printed without a traceback."""
    from branchwise.base import BranchwiseError, BudgetExceeded, ConfigError
    from branchwise.runs import Terminal

    console = Terminal(stderr=options.json)
    try:
        raise_on_interrupt()
        return _call_stage(options, console)
    except KeyboardInterrupt:
        console.print_line("interrupted; rerun the same command to resume")
        return 130
    except Exception as error:
        if cause := out_of_memory_message(error):  # libraries wrap it in errors of their own
            console.print_line(format_memory_error(cause))
            return 1
        if isinstance(error, ConfigError):
            console.print_line(f"error: {error}")
            return 2
        if isinstance(error, BudgetExceeded):
            console.print_line(f"stopped: {error}")
            return 3
        if isinstance(error, BranchwiseError):
            console.print_line(f"{type(error).__name__}: {error}")
            return 1
        raise


def _call_stage(options: argparse.Namespace, console: "Terminal") -> int:
    from branchwise.base import ConfigError, reject_special_files
    from branchwise.runs import StageContext, load_plugins, load_recipe

    if options.history is not None and not options.dry_run:
        raise ConfigError("--history: only a dry run uses it. Add --dry-run, or remove it")
    for folder in filter(None, (options.run, options.history)):
        reject_special_files(folder)  # before anything in it is read
    load_plugins(options.plugins)
    recipe = load_recipe(recipe_file(options), options.overrides)
    call = StageContext(
        recipe=recipe,
        run=options.run or Path("datasets") / recipe.name,
        resume=options.resume,
        dry_run=options.dry_run,
        limit=options.limit,
        history=options.history,
        console=console,
    )
    if options.run is None:
        reject_special_files(call.run)
    outcome = STAGES[options.stage].run(call, vars(options))
    produced = outcome.exit_code == 0 and not call.dry_run and outcome.totals.get("pairs") != 0
    if options.stage in NEXT and produced:
        label = outcome.totals.get("label")
        call.log(next_stages(options.stage, call.run, options.config, label, recipe.stages))
    if options.json:
        print(json_line(outcome.totals))
    return int(outcome.exit_code)


def next_stages(
    stage: str, run: Path, config: Path | None, label: str | None, planned: Sequence[str]
) -> str:
    """Returns the closing line that names the following stages.

    `annotate` has just stored the recipe in the run folder. Later the recipe may differ from it,
    for example in `training:`. A warm start makes no run folder, and trees or outcome RL follow,
    as `planned` in the recipe's `stages`. An installed wheel has no Makefile.
    """
    from branchwise.runs import checkout

    names = NEXT[stage].split(", ")
    if stage == "warm-start" and stage in planned[:-1]:
        names = [planned[planned.index(stage) + 1]]
    config_word = shlex.quote(str(config)) if config and stage != "annotate" else None
    run_word = shlex.quote(str(run)) if stage != "warm-start" else None
    command, forms = "branchwise", (" --config {}", " --run {}", " --label {}")
    if checkout():
        command, forms = "make", (" CONFIG={}", " RUN={}", ' ARGS="--label {}"')
    values = zip(forms, (config_word, run_word, label), strict=True)
    words = "".join(form.format(value) for form, value in values if value)
    return "next: " + ", or ".join(f"{command} {name}{words}" for name in names)


def json_line(totals: Any) -> str:
    """Returns the totals as the JSON of `--json`: one line of ASCII that may be shown as it is."""
    return terminal_safe_json(dump_json(totals, ascii_only=True))


def recipe_file(options: argparse.Namespace) -> Path:
    """Returns the recipe that was named, else the study's, else the run's own, else the default.

    Raises:
        ConfigError: If there is no recipe of the given name, or a stage that needs a run names a
            missing one.
    """
    from branchwise.base import ConfigError
    from branchwise.runs import DEFAULT_RECIPE, recipe_path

    if options.config is not None:
        return recipe_path(options.config)
    candidates = []
    if options.stage == "study":
        from branchwise.pipelines.study.stage import recipe_of

        candidates.append(recipe_of(options.name))
    if options.run:
        candidates.append(options.run / "config.yaml")
    # Not `exists`, which raises if a folder is not readable; the stage reports that.
    if options.stage in OF_A_RUN and options.run and not os.access(options.run, os.F_OK):
        runs = [str(file.parent) for file in options.run.parent.glob("*/config.yaml")]
        raise ConfigError(
            f"--run {options.run}: no such folder{did_you_mean(str(options.run), runs)}"
        )
    return next((file for file in candidates if os.access(file, os.F_OK)), DEFAULT_RECIPE)
