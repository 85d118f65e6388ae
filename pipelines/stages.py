"""The list of stages. The Makefile reads it too, with sed, so every entry has one line.

A stage's own options are the parameters of its function after the context.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from runs.stage import StageContext, StageResult

READS: tuple[str, ...] = ()
WRITES = ("dry_run",)
ASKS = (*WRITES, "limit")
"""The stage works through questions."""
PAYS = (*ASKS, "history")
"""The stage's dry run estimates costs."""

TRAIN, STUDY = ("train",), ("train", "study")


@dataclass(frozen=True)
class Stage:
    """A stage.

    Attributes:
        place: Its module and function in `pipelines/`, or the name of both.
        takes: Options of `StageContext` that it takes, of those that not every stage takes.
        extras: Extras of pyproject.toml that it needs in addition to `cpu`.
    """

    place: str
    does: str
    takes: tuple[str, ...] = WRITES
    extras: tuple[str, ...] = ()

    @property
    def function(self) -> Any:
        """Its function; imports the stage."""
        module, _, name = self.place.partition(".")
        return getattr(import_module(f"pipelines.{module}"), name or module)

    def options(self) -> list[Parameter]:
        """Returns its own options: the parameters of its function after the context."""
        return list(signature(self.function).parameters.values())[1:]

    def run(self, context: "StageContext", given: Mapping[str, Any]) -> "StageResult":
        """Runs the stage with those of the given options that are its own."""
        own = {one.name: given[one.name] for one in self.options() if one.name in given}
        result: StageResult = self.function(context, **own)
        return result


STAGES = {
    "doctor": Stage("doctor", "check this machine and the recipe", READS),
    "settings": Stage("settings.settings_page", "print every setting, and its default", READS),
    "data": Stage("data", "read questions and corpus, and count them", READS),
    "index": Stage("data.index", "build the index (also done on demand)"),
    "warm-start": Stage("warm_start", "train on traces built from gold facts", ASKS, TRAIN),
    "select": Stage("select", "rate questions by difficulty, draw stages of outcome RL", PAYS),
    "annotate": Stage("annotate", "grow trees, label their steps, write preference pairs", PAYS),
    "relabel": Stage("relabel", "label a finished run with other reward settings"),
    "diagnose": Stage("diagnose", "check labels and pairs, before and after a training on them"),
    "verify": Stage("verify", "check the run's files; rebuild damaged ones from the ledger"),
    "inspect": Stage("inspect", "query the run with DuckDB", READS),
    "show": Stage("show", "print a tree, a step or a pair", READS),
    "report": Stage("report", "write the run as one HTML page, with all trees", READS),
    "export-pairs": Stage("proguide.export_pairs", "write pairs as RAG-ProGuide JSON"),
    "import-pairs": Stage("proguide.import_pairs", "make a run from RAG-ProGuide JSON"),
    "train-sft": Stage("train_sft", "train on chosen steps", extras=TRAIN),
    "train-dpo": Stage("train_dpo", "train on preference pairs (DPO)", extras=TRAIN),
    "train-grpo": Stage("train_grpo", "train on rewards of whole rollouts (GRPO)", PAYS, STUDY),
    "train-rm": Stage("train_rm", "train a reward model on sibling steps (EVO-RAG)", extras=TRAIN),
    "serve": Stage("serve", "start vLLM with the recipe's policy, judge or verifier"),
    "export": Stage("export", "write the merged policy as safetensors and GGUF", extras=TRAIN),
    "eval": Stage("evaluate", "compare policies on a question set", PAYS),
    "curriculum": Stage("curriculum", "run Discovery and Refinement in cycles", extras=STUDY),
    "schedule": Stage("schedule", "print EVO-RAG's reward weights over an episode", extras=STUDY),
    "study": Stage("study", "run a recorded experiment", extras=STUDY),
    "all": Stage("all.all_stages", "run the recipe's stages, one after the other", ASKS, TRAIN),
}
