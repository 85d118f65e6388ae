"""The list of stages. The Makefile reads it too, with sed, so every entry has one line.

A stage's own options are the parameters of its function after the context.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from branchwise.runs import StageContext, StageResult

READ: tuple[str, ...] = ()
"""Options of a stage that only reads."""
WRITE = ("dry_run",)
QUESTIONS = (*WRITE, "limit")
"""Options of a stage that works through questions."""
COST = (*QUESTIONS, "history")
"""Options of a stage whose dry run estimates costs."""

TRAIN, STUDY = ("train",), ("train", "study")


@dataclass(frozen=True)
class Stage:
    """A stage.

    Attributes:
        path: Its folder in `pipelines/`, named after the command, and its function there in
            `stage.py`: "folder.function", or "folder" if both have one name.
        help: One line for `--help` and `make`.
        options_of_context: Options of `StageContext` that it takes and some stages do not.
        extras: Extras of pyproject.toml that it needs in addition to `cpu`.
    """

    path: str
    help: str
    options_of_context: tuple[str, ...] = WRITE
    extras: tuple[str, ...] = ()

    @property
    def function(self) -> Any:
        """Its function; imports the stage."""
        folder, _, name = self.path.partition(".")
        return getattr(import_module(f"branchwise.pipelines.{folder}.stage"), name or folder)

    def options(self) -> list[Parameter]:
        """Returns its own options: the parameters of its function after the context."""
        return list(signature(self.function).parameters.values())[1:]

    def run(self, context: "StageContext", given: Mapping[str, Any]) -> "StageResult":
        """Runs the stage with those of the given options that are its own."""
        names = [option.name for option in self.options() if option.name in given]
        result: StageResult = self.function(context, **{name: given[name] for name in names})
        return result


STAGES = {
    "doctor": Stage("doctor", "check this machine and the recipe", READ),
    "settings": Stage("settings.settings_page", "print every setting, and its default", READ),
    "data": Stage("data", "read questions and corpus, and count them", READ),
    "index": Stage("index", "build the index (also done on demand)"),
    "warm-start": Stage("warm_start", "train on traces built from gold facts", QUESTIONS, TRAIN),
    "select": Stage("select", "rate questions by difficulty, draw stages of outcome RL", COST),
    "annotate": Stage("annotate", "grow trees, label their steps, write preference pairs", COST),
    "relabel": Stage("relabel", "label a finished run with other reward settings"),
    "diagnose": Stage("diagnose", "check labels and pairs, before and after a training on them"),
    "verify": Stage("verify", "check the run's files, and remove damaged parts"),
    "inspect": Stage("inspect", "query the run with DuckDB", READ),
    "show": Stage("show", "print a tree, a step or a pair", READ),
    "report": Stage("report", "write the run as one HTML page, with all trees", READ),
    "export-pairs": Stage("export_pairs", "write pairs as RAG-ProGuide JSON"),
    "import-pairs": Stage("import_pairs", "make a run from RAG-ProGuide JSON"),
    "train-sft": Stage("train_sft", "train on chosen steps", extras=TRAIN),
    "train-dpo": Stage("train_dpo", "train on preference pairs (DPO)", extras=TRAIN),
    "train-grpo": Stage("train_grpo", "train on rewards of whole rollouts (GRPO)", COST, STUDY),
    "train-rm": Stage("train_rm", "train a reward model on sibling steps (EVO-RAG)", extras=TRAIN),
    "serve-model": Stage("serve_model", "start vLLM with the recipe's policy, judge or verifier"),
    "serve-index": Stage("serve_index", "serve the recipe's index to other machines"),
    "export": Stage("export", "write the merged policy as safetensors and GGUF", extras=TRAIN),
    "eval": Stage("eval.evaluate", "compare policies on a question set", COST),
    "curriculum": Stage("curriculum", "run Discovery and Refinement in cycles", extras=STUDY),
    "schedule": Stage("schedule", "print EVO-RAG's reward weights over an episode", extras=STUDY),
    "study": Stage("study", "run a recorded experiment", extras=STUDY),
    "all": Stage("all.all_stages", "run the recipe's stages in order", QUESTIONS, TRAIN),
}
