"""`make study STUDY=real-dpo`: the arms of `atlas-dpo` on 2Wiki, HotpotQA and MuSiQue.

One policy for the three sets: a warm start on their parts `warm`, trees over their parts `train`,
and one test, registered here before it was run: all questions of the three parts `test` pooled,
greedy, in the precision of the trees, process DPO against the warm start and against SFT on EM.
Figures of a single set and of the stratum that can be guessed are descriptive. Baselines stand
beside: the untrained model on its own, by one search, and with the gold passages, and the most
frequent answer.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from experiments.arms import Arm, EvaluatedArm, evaluate_arms, predictions_of
from experiments.atlas_dpo import CANDIDATES, CLAIMS, SFT_CANDIDATES, arms
from experiments.report import Stratum, write_report
from runs.assemble import model_folder
from runs.training_start import WARM_START
from runs.workflow import Lab
from storage.errors import ConfigError

TEST = {"evaluation.part": "test"}
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
    for (arm,) in (CANDIDATES, SFT_CANDIDATES)
)
"""What was chosen on atlas's part `dev`, before the test of this study is asked."""


def real_dpo(lab: Lab) -> None:
    """Run the study (see module)."""
    refuse_other_start(lab)
    made = lab.branchwise("warm-start")
    lab.branchwise("annotate", after=made)
    beside = list(baselines(lab))
    for done in evaluate_arms(lab, arms(DPO, SFT), TEST):
        write_report(lab, "real-dpo", [*beside, *done], CLAIMS, STRATA)


def refuse_other_start(lab: Lab) -> None:
    """The policy of the trees is the warm start that the study makes.

    Raises:
        ConfigError: the recipe names another one.
    """
    made, named = model_folder(lab.call.run, WARM_START), lab.recipe.policy.trainable
    if Path(named) != made:
        raise ConfigError(
            f"policy.model is {named}, but the warm start of this study will be {made}: add "
            f"--set policy.model={made}, or leave --run out"
        )


def baselines(lab: Lab) -> Iterator[EvaluatedArm]:
    """The untrained model in the protocol, and what no protocol is needed for."""
    settings = {
        **TEST,
        "evaluation.policies": {"base": "packaged"},
        "evaluation.baselines": list(BASELINES),
    }
    asked = lab.branchwise("eval", settings=settings)
    for name in ("base", *BASELINES):
        yield EvaluatedArm(Arm(name), {0: predictions_of(lab, name, asked, settings)})
