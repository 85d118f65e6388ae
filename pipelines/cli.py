"""The command line: `branchwise <stage> [--config FILE] [--run DIR] …`.

Every stage is one function in a module of its own; this file only reads arguments, loads the
recipe, calls the stage and turns errors into exit codes (docs/troubleshooting.md).
"""

import argparse
import json
import os
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from storage.memory import format_memory_error, out_of_memory_message
from storage.seeds import LEAST, MOST, fits_int64
from storage.terminal_escape import guard_streams, inert, inert_json
from storage.text import did_you_mean, replace_surrogates

if TYPE_CHECKING:
    from runs.terminal import Terminal

QUIET_ENVIRONMENT = {
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "TOKENIZERS_PARALLELISM": "false",
    "TQDM_DISABLE": "1",
}
"""Set before any import that might phone home, or draw progress bars of a second's work."""

DEFAULT_RECIPE = Path("configs/atlas.yaml")
"""The recipe if neither `--config` nor an existing run gives one."""


@dataclass(frozen=True)
class StageEntry:
    """A stage: its module, its function, and a one-line description."""

    module: str
    function: str
    does: str


STAGES = {
    "doctor": StageEntry("pipelines.doctor", "doctor", "check this machine and the recipe"),
    "settings": StageEntry("pipelines.settings", "settings_page", "every setting, and its default"),
    "data": StageEntry("pipelines.data", "data", "read questions and corpus, and count them"),
    "index": StageEntry("pipelines.data", "index", "build the index"),
    "warm-start": StageEntry(
        "pipelines.warm_start", "warm_start", "supervised start on gold traces"
    ),
    "select": StageEntry("pipelines.select", "select", "questions by difficulty, for outcome RL"),
    "annotate": StageEntry("pipelines.annotate", "annotate", "grow trees, label, write pairs"),
    "relabel": StageEntry(
        "pipelines.relabel", "relabel", "recompute labels and pairs, no model calls"
    ),
    "diagnose": StageEntry(
        "pipelines.diagnose", "diagnose", "predict whether training on a run helps"
    ),
    "verify": StageEntry("pipelines.verify", "verify", "check the run's files and repair them"),
    "inspect": StageEntry("pipelines.inspect", "inspect", "DuckDB on the run"),
    "show": StageEntry("pipelines.show", "show", "print a tree, a step or a pair"),
    "report": StageEntry("pipelines.report", "report", "write the run as one HTML page"),
    "export-pairs": StageEntry("pipelines.proguide", "export_pairs", "pairs as RAG-ProGuide JSON"),
    "import-pairs": StageEntry("pipelines.proguide", "import_pairs", "RAG-ProGuide JSON as a run"),
    "train-sft": StageEntry(
        "pipelines.train_sft", "train_sft", "supervised training on chosen steps"
    ),
    "train-dpo": StageEntry("pipelines.train_dpo", "train_dpo", "preference training on the pairs"),
    "train-grpo": StageEntry(
        "pipelines.train_grpo", "train_grpo", "reinforcement learning on outcome rewards"
    ),
    "train-rm": StageEntry(
        "pipelines.train_rm", "train_rm", "a reward model on the run's siblings"
    ),
    "serve": StageEntry("pipelines.serve", "serve", "policy or judge on a vLLM server of its own"),
    "export": StageEntry("pipelines.export", "export", "merged policy: safetensors, GGUF"),
    "eval": StageEntry("pipelines.evaluate", "evaluate", "policies on a question set"),
    "curriculum": StageEntry("pipelines.curriculum", "curriculum", "EVO-RAG's stages, in cycles"),
    "schedule": StageEntry("pipelines.schedule", "schedule", "show EVO-RAG's reward weights"),
    "study": StageEntry("pipelines.study", "study", "a recorded experiment, resumable"),
    "all": StageEntry("pipelines.all", "all_stages", "the recipe's stages, one after the other"),
}
STAGES_WITH_LIMIT = frozenset({"warm-start", "select", "annotate", "train-grpo", "eval", "all"})
"""Stages that work through questions."""
STAGES_WITH_ESTIMATE = frozenset({"select", "annotate", "train-grpo", "eval"})
"""Stages whose dry run estimates costs."""
STAGES_WITH_NAME = {
    "train-sft": "sft",
    "train-dpo": "dpo",
    "train-grpo": "grpo",
    "train-rm": "reward-model",
}
"""Stages whose model may be given another name than this one."""
NEXT = {
    "warm-start": "annotate",
    "annotate": "report, train-dpo",
    "relabel": "train-dpo",
    "train-sft": "eval",
    "train-dpo": "eval",
    "train-grpo": "eval",
    "train-rm": "curriculum",
}
"""Stages that usually follow a stage, for its closing line."""
READ_ONLY_STAGES = frozenset({"doctor", "settings", "data", "inspect", "report", "show"})
"""Stages that write nothing, so `--dry-run` does not apply."""


class Arguments(argparse.ArgumentParser):
    """A parser with one-line error messages."""

    def error(self, message: str) -> NoReturn:
        """Prints the message and exits with code 2."""
        super().error(inert(message))


def parser() -> argparse.ArgumentParser:
    """Returns the argument parser; light, so that `--help` answers at once."""
    top = Arguments(
        prog="branchwise",
        description="Grow reasoning trees over your documents, prune them into process "
        "preferences, train a search-and-answer policy.",
    )
    top.add_argument("--version", action="version", version=f"branchwise {version('branchwise')}")
    stages = top.add_subparsers(dest="stage", metavar="STAGE")
    for name, stage in STAGES.items():
        one = stages.add_parser(name, help=stage.does, description=stage.does)
        one.add_argument(
            "--config", type=Path, metavar="FILE", help="default: the run's own, else atlas"
        )
        one.add_argument("--run", type=Path, metavar="DIR", help="default: datasets/<name>")
        one.add_argument("--set", action="append", default=[], metavar="a.b=c", dest="overrides")
        one.add_argument(
            "--resume", action="store_true", help="never replace another training's checkpoints"
        )
        one.add_argument("--json", action="store_true", help="totals as JSON on the last line")
        _add_stage_arguments(name, one)
    return top


def _add_stage_arguments(name: str, one: argparse.ArgumentParser) -> None:
    """Adds the arguments that only some stages take."""
    one.set_defaults(dry_run=False, limit=None)
    if name not in READ_ONLY_STAGES:
        one.add_argument("--dry-run", action="store_true", help="show plan and cost, then stop")
    if name in STAGES_WITH_LIMIT:
        one.add_argument("--limit", type=_positive_int, metavar="N", help="at most N questions")
    if name in STAGES_WITH_ESTIMATE:
        one.add_argument(
            "--history", type=Path, metavar="DIR", help="a dry run estimates from this run's calls"
        )
    if name in {"eval", "all"}:
        one.add_argument("--by-type", action="store_true", help="also print rows by question type")
    if name in {"annotate", "all"}:
        one.add_argument(
            "--workers", type=_positive_int, metavar="N", help="processes at an endpoint"
        )
    if name == "inspect":
        one.add_argument("--format", choices=("table", "csv", "json", "md"), default="table")
    if name in {"relabel", "diagnose", "inspect", "train-sft", "train-dpo", "train-grpo"}:
        one.add_argument("--label", default=None, help="name of the relabelling")
    if name == "verify":
        one.add_argument(
            "--drop-damaged",
            action="store_true",
            help="remove damaged rows from the ledger; their calls will be paid for a second time",
        )
    if name == "diagnose":
        one.add_argument(
            "--sample", type=_positive_int, default=40, metavar="N", help="pairs rolled out"
        )
        one.add_argument(
            "--rollouts", type=_positive_int, default=8, metavar="N", help="a side of a pair"
        )
        one.add_argument("--no-model", action="store_true", help="use no model, parquet only")
        one.add_argument("--model", default=None, help="trained; default models/<run>/dpo")
        one.add_argument("--export", action="store_true", help="also compare it with its export")
    if name in {"export-pairs", "import-pairs"}:
        one.add_argument("--file", type=Path, required=True, help="the RAG-ProGuide JSON file")
    if name == "show":
        one.add_argument("what", nargs="?", help="question id or words, ID:STEP, or pair id")
    if name == "study":
        one.add_argument("--name", required=True, help="which: atlas-dpo, …; see docs/studies.md")
        one.add_argument("--seeds", type=_seed, nargs="+", default=None, help="of the trainings")
    _add_model_arguments(name, one)


def _add_model_arguments(name: str, one: argparse.ArgumentParser) -> None:
    """Adds the arguments that name a model."""
    if name == "export":
        one.add_argument("--model", default=None, help="model folder; default models/<run>/dpo")
    if name == "serve":
        one.add_argument("--role", choices=("policy", "judge", "verifier"), default="policy")
        one.add_argument(
            "--port", type=_positive_int, metavar="N", help="default: one that is free"
        )
    if name in STAGES_WITH_NAME:
        one.add_argument(
            "--name", default=None, help=f"of the model; default {STAGES_WITH_NAME[name]}"
        )


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
    options = top.parse_args(words)
    if options.stage is None:
        top.print_help()
        return
    for name, value in QUIET_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")
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
    from runs.terminal import Terminal
    from storage.errors import BranchwiseError, BudgetExceeded, ConfigError

    console = Terminal(stderr=options.json)
    try:
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
    from runs.recipe_file import load_recipe
    from runs.stage import StageContext
    from storage.errors import ConfigError
    from storage.safe_files import reject_special_files

    history = getattr(options, "history", None)
    if history is not None and not options.dry_run:
        raise ConfigError("--history: only a dry run uses it. Add --dry-run, or remove it")
    for named in filter(None, (options.run, history)):
        reject_special_files(named)  # before anything in it is read
    recipe = load_recipe(recipe_file(options), options.overrides)
    shared = {"stage", "config", "run", "overrides", "resume", "dry_run", "limit", "json"}
    call = StageContext(
        recipe=recipe,
        run=options.run or Path("datasets") / recipe.name,
        resume=options.resume,
        dry_run=options.dry_run,
        limit=options.limit,
        console=console,
        options={k: v for k, v in vars(options).items() if k not in shared},
    )
    if options.run is None:
        reject_special_files(call.run)
    stage = STAGES[options.stage]
    outcome = getattr(import_module(stage.module), stage.function)(call)
    produced = outcome.exit_code == 0 and not call.dry_run and outcome.totals.get("pairs") != 0
    if options.stage in NEXT and produced:
        call.log(next_stages(options, outcome.totals.get("label")))
    if options.json:
        print(json_line(outcome.totals))
    return int(outcome.exit_code)


def next_stages(options: argparse.Namespace, label: str | None) -> str:
    """Returns the closing line that names the following stages, with the same run or recipe."""
    # A run folder holds its recipe.
    given = [f"CONFIG={options.config}" if options.config and not options.run else ""]
    given += [f"RUN={options.run}" if options.run else ""]
    given += [f'ARGS="--label {label}"' if label else ""]
    words = " ".join(filter(None, given))
    commands = (f"make {name} {words}".strip() for name in NEXT[options.stage].split(", "))
    return "next: " + ", or ".join(commands)


def json_line(totals: Any) -> str:
    """Returns the totals as the JSON of `--json`: one line of ASCII that may be shown as it is."""
    return inert_json(json.dumps(totals, default=str))


def recipe_file(options: argparse.Namespace) -> Path:
    """Returns the recipe that was named, else the study's, else the run's own, else the default."""
    if options.config is not None:
        return Path(options.config)
    candidates = []
    if options.stage == "study":
        from pipelines.study import recipe_of

        candidates.append(recipe_of(options.name))
    if options.run:
        candidates.append(options.run / "config.yaml")
    # Not `exists`, which raises if a folder is not readable; the stage reports that.
    return next((file for file in candidates if os.access(file, os.F_OK)), DEFAULT_RECIPE)


if __name__ == "__main__":
    main()
