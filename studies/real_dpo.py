"""`make study STUDY=real-dpo`: the arms of `atlas-dpo` on 2Wiki, HotpotQA and MuSiQue.

One policy serves the three sets: a warm start on their `warm` splits, and trees over their `train`
splits. The test was registered here before it was run: all questions of the three `test` splits
pooled, greedy, in the precision of the trees; EM of process DPO against the warm start and against
SFT. Results per set and on guessable questions are descriptive. The baselines are the untrained
model in the protocol, closed-book, with one search and with the gold passages, and the most
frequent answer.
"""

from collections.abc import Iterator
from dataclasses import replace

from branchwise.runs import Study, StudyRunner

from . import atlas_dpo
from .arms import Arm, EvaluatedArm, evaluate_arms, make_start, predictions_of
from .atlas_dpo import CLAIMS, arms
from .study_tables import Stratum, write_report

TEST = {"evaluation.split": "test"}
BASELINES = ("majority", "closed-book", "one-shot", "oracle")

STRATA = (
    Stratum("2wiki", lambda row: row.source == "2wiki"),
    Stratum("hotpotqa", lambda row: row.source == "hotpotqa"),
    Stratum("musique", lambda row: row.source == "musique"),
    Stratum("guessable", lambda row: row.guessable is True),
    Stratum("not guessable", lambda row: row.guessable is False),
)

DPO, SFT = (
    replace(arm, training={**arm.training, "micro_batch": 2})  # prompts of a thousand tokens
    for arm in (atlas_dpo.DPO, atlas_dpo.SFT)
)
"""Recipes chosen on atlas's split `dev`, before this study's test is evaluated."""


def real_dpo(runner: StudyRunner) -> None:
    """Runs the study (see module)."""
    make_start(runner)
    runner.run_stage("annotate")
    references = list(baselines(runner))
    for results in evaluate_arms(runner, arms(DPO, SFT), TEST):
        write_report(runner, "real-dpo", [*references, *results], CLAIMS, STRATA)


def baselines(runner: StudyRunner) -> Iterator[EvaluatedArm]:
    """Returns the untrained model in the protocol, and the baselines without a protocol."""
    settings = {
        **TEST,
        "evaluation.policies": {"base": "packaged"},
        "evaluation.baselines": list(BASELINES),
    }
    evaluated = runner.run_stage("eval", settings=settings)
    for name in ("base", *BASELINES):
        yield EvaluatedArm(Arm(name), {0: predictions_of(runner, name, evaluated, settings)})


STUDY = Study(real_dpo)
