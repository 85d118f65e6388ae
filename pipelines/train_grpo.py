"""`make train-grpo`: reinforcement learning on the rewards of whole rollouts.

    branchwise train-grpo --config configs/eval-rar.yaml

The policy answers questions of the recipe's data with its protocol, several times each; the reward
scheme scores the rollouts, and the policy learns from what the better ones of a question did.
Then the new weights draw the next batch. Writes `models/<run>/grpo/`, or another folder beside it
with `--name`; `metrics.jsonl` and `curves.svg` in it show how it went. Rollouts are calls in the
run's ledger, so a training that was stopped goes on where it was.
"""

import json
from collections.abc import Sequence

from agent.protocol import root_of
from agent.protocols import protocol_of
from rewards.schemes import scheme_of
from runs.assemble import open_data, open_index
from runs.evaluation_set import answering, data_settings
from runs.folder import Run, open_run, refuse_unusable, run_with
from runs.inputs import questions_digest
from runs.policy_serving import serving_for
from runs.preflight import model_files, overheard, require
from runs.recipe import Recipe
from runs.rollouts import Rollouts
from runs.spending import in_words, spending
from runs.stage import Gate, Invocation, Outcome
from runs.training_start import trained_folder
from sources.load import load_data
from storage.errors import BudgetExceeded, ConfigError
from storage.inert import inert
from storage.records import Message, Question
from training.canary import TOLERANCE, Canary
from training.grpo import train_grpo as train

_CANARY_PROMPTS = 4


def train_grpo(call: Invocation) -> Outcome:
    """Run the stage (see module)."""
    recipe = rollout_recipe(call)
    settings = recipe.training.grpo
    scheme, start = scheme_of(recipe), recipe.policy.trainable
    data = open_data(recipe)
    dev = dev_questions(recipe) if settings.eval_every else ()
    refuse_unusable(call.run)
    require(model_files("policy", recipe.policy))
    target = trained_folder(call, "grpo")
    announce(call, recipe, len(data.questions))
    for note, count in sorted(data.notes.items()):
        call.say(f"data: {note}: {count}")
    for line in overheard(recipe):
        call.say(f"note: {line}")
    if call.dry_run:
        return Outcome({"questions": len(data.questions), "dry_run": True})
    retriever = open_index(recipe, data.passages, call.say)
    run = run_with(call.run, recipe) or open_run(
        call.run, recipe, {"index_digest": retriever.digest}
    )
    serving = serving_for(recipe, target / "serving")
    asked_with = json.dumps([answering(recipe), recipe.rewards.model_dump(mode="json")])
    with run.open_ledger() as ledger:
        gate = Gate(recipe.limits, ledger.totals)
        source = Rollouts(
            call,
            recipe,
            data.questions,
            dev,
            retriever,
            ledger,
            gate,
            scheme,
            serving,
            Canary(canary_prompts(recipe, data.questions), TOLERANCE[recipe.policy.precision]),
        )
        try:
            with gate.listening():
                report = train(
                    source,
                    settings,
                    start=start,
                    target=target,
                    seed=recipe.seed,
                    temperature=recipe.policy.temperature,
                    deciding=(questions_digest(data.questions), retriever.digest, asked_with),
                    resume=call.resume,
                    data=asked_of(run, data.questions),
                    say=call.say,
                )
        except BudgetExceeded:
            call.say(f"stopped: {gate.reason}; run the same command again to continue")
            return Outcome(spending(ledger.totals()), gate.exit_code)
        finally:
            serving.close()
        for line in in_words(ledger, recipe.limits):
            call.say(line)
        totals = spending(ledger.totals())
    call.say(f"wrote {target}: {report.summary()}")
    return Outcome({"model": str(target), **report.totals(), **totals})


def rollout_recipe(call: Invocation) -> Recipe:
    """Returns the recipe of the rollouts: unstructured, over as many questions as are asked.

    Raises:
        ConfigError: If rollouts cannot differ, or the ratio of the loss would be wrong.
    """
    recipe = call.recipe
    settings, policy = recipe.training.grpo, recipe.policy
    if policy.temperature == 0:
        raise ConfigError("policy.temperature is 0, so all rollouts of a question are the same")
    if settings.ratio == "engine" and (policy.temperature, policy.top_p) != (1.0, 1.0):
        raise ConfigError(
            "training.grpo.ratio: the engine tells log-probabilities at temperature 1. Set "
            "policy.temperature: 1.0 and policy.top_p: 1.0, or use ratio: trainer"
        )
    update = {"limit": call.limit or settings.questions}
    return recipe.model_copy(
        update={
            "data": recipe.data.model_copy(update=update),
            "agent": recipe.agent.model_copy(update={"structured": False}),
        }
    )


def dev_questions(recipe: Recipe) -> Sequence[Question]:
    """Returns the questions of the part `dev` that are answered now and then."""
    part = recipe.evaluation.model_copy(update={"part": "dev", "set": None})
    settings = data_settings(
        recipe.model_copy(update={"evaluation": part}), recipe.training.grpo.eval_questions
    )
    return load_data(settings, recipe.seed, unfit=protocol_of(recipe.agent).unfit).questions


def announce(call: Invocation, recipe: Recipe, questions: int) -> None:
    """Prints what will be done, and what it costs at most."""
    settings, protocol = recipe.training.grpo, protocol_of(recipe.agent)
    asked = settings.batch_questions + settings.dynamic_sampling
    rollouts = settings.batches * asked * settings.group_size
    call.say(
        f"train-grpo: {settings.algorithm} on {recipe.rewards.scheme} rewards, protocol "
        f"{protocol.name}, {questions:,} questions, start {inert(recipe.policy.trainable)}; run "
        f"folder {inert(str(call.run))}"
    )
    call.say(
        f"cost: {settings.batches} batches of {settings.batch_questions} questions, "
        f"{settings.group_size} rollouts each; at most {rollouts:,} rollouts and "
        f"{rollouts * protocol.max_calls:,} calls; those in the ledger are free"
    )


def canary_prompts(recipe: Recipe, questions: Sequence[Question]) -> list[tuple[Message, ...]]:
    """Returns the first prompts of some questions, without passages."""
    protocol = protocol_of(recipe.agent)
    roots = [root_of(question, protocol) for question in questions[:_CANARY_PROMPTS]]
    return [protocol.messages(root, last=False) for root in roots]


def asked_of(run: Run, questions: Sequence[Question]) -> dict[str, object]:
    """Returns which questions were asked, for `training.json`."""
    return {
        "run": run.folder.name,
        "run_id": run.id,
        "questions": len(questions),
        "digest": questions_digest(questions),
    }
