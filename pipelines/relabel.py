"""`make relabel`: labels and pairs of a finished run under other reward settings; no model call.

    branchwise relabel --run datasets/atlas --set spre.estimator=tree --set pairs.min_outcomes=1

Trees keep the facts (judge scores, rollouts, answers), so a label is arithmetic. Writes
`relabelled/<label>/labels`, `relabelled/<label>/pairs`, and the settings that they were made with;
the label's name is the digest of those settings unless `--label` gives one.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from agent.environment import prompter
from agent.protocols import protocol_named
from agent.replay import replay_tree
from analysis.survival import Fresh, survives
from annotation.pairs import sibling_pairs
from annotation.reward_schemes import RewardScheme
from annotation.rows import Provenance, labelled, pair_rows, trees_of
from annotation.scoring import node_scores
from rewards.guessing import guessable
from rewards.reward_model import RewardModel
from runs.folder import Run, existing_run
from runs.fresh_rollouts import stored_fresh
from runs.growing import LABELLING, label_digest
from runs.inputs import replay_passages
from runs.labelling import keep_labelling, labelled_by
from runs.recipe import Recipe
from runs.reward_model import other_total, reward_model_for
from runs.reward_scheme import reward_scheme_for
from runs.stage import Invocation, Outcome, checked_name
from storage.errors import ConfigError
from storage.parts import read_parts, stored_questions, write_part
from storage.records import Pair, Passage, Question, Record, TreeNode
from storage.schemas import rows_to_table, schema_of, table_to_records


def relabel(call: Invocation) -> Outcome:
    """Run the stage (see module)."""
    run = existing_run(call.run)
    with run.held():
        return _relabel(call, run)


def _relabel(call: Invocation, run: Run) -> Outcome:
    recipe = labelled_by(run, call.recipe)
    label = checked_name(call.options.get("label") or recipe.digest(*LABELLING))
    questions = stored_questions(call.run)
    fresh = fresh_for(run, recipe) if recipe.pairs.confirmed else {}
    relabeller = Relabeller(recipe, questions, replay_passages(run), fresh)
    if told := other_total(recipe):
        call.say(told)
    nodes, pairs = [], []
    for tree in trees_of(table_to_records(read_parts(call.run, "trees"), TreeNode)):
        labels, found = relabeller.tree(tree)
        nodes += labels
        pairs += found
    if not call.dry_run:
        keep_labelling(run, label, recipe)
        commit(run, {f"relabelled/{label}/labels": nodes, f"relabelled/{label}/pairs": pairs})
    done = "would relabel" if call.dry_run else "relabelled"
    call.say(f"{done} {len(nodes)} nodes as `{label}`: {len(pairs)} pairs")
    call.say(f"pairs dropped: {dict(relabeller.dropped)}")
    return Outcome({"label": label, "pairs": len(pairs), "dropped": dict(relabeller.dropped)})


def fresh_for(run: Run, recipe: Recipe) -> Fresh:
    """What `pairs.confirmed` goes by.

    Raises:
        ConfigError: there is nothing, or it says nothing of these labels.
    """
    if recipe.evo_rag is not None:
        raise ConfigError(
            "pairs.confirmed: EVO-RAG's rewards prefer more than right answers, and fresh rollouts "
            "tell of answers alone; leave it out"
        )
    if fresh := stored_fresh(run):
        return fresh
    raise ConfigError(
        f"{run.folder}: pairs.confirmed wants fresh rollouts, and there are none: "
        "`branchwise diagnose --sample N` draws those of N pairs"
    )


def commit(run: Run, tables: Mapping[str, Sequence[Record]]) -> None:
    """Write each table as one part, and name them all at once."""
    run.commit(
        [
            write_part(run.folder, name, rows_to_table(rows, schema_of(name), run.id), 0)
            for name, rows in tables.items()
        ]
    )


@dataclass
class Relabeller:
    """Labels stored trees under a recipe's rewards and `pairs`."""

    recipe: Recipe
    questions: Mapping[str, Question]
    passages: Mapping[str, Passage]
    fresh: Fresh = field(default_factory=dict)
    dropped: Counter[str] = field(default_factory=Counter)

    @cached_property
    def _worth(self) -> RewardScheme:
        return reward_scheme_for(self.recipe)

    @cached_property
    def _model(self) -> RewardModel | None:
        """What orders the pairs; null: the labels do."""
        by_score = self.recipe.pairs.score == "reward_model"
        return reward_model_for(self.recipe) if by_score else None

    def tree(self, rows: Sequence[TreeNode]) -> tuple[list[TreeNode], list[Pair]]:
        """The rows with new labels, and the new pairs."""
        recipe, root = self.recipe, rows[0]
        question = self.questions[root.question_id]
        protocol = protocol_named(recipe.agent.protocol)
        states = replay_tree(question.question, rows, self.passages, protocol)
        labels = self._worth.labels(question, rows, states)
        prompt = prompter(protocol, recipe.agent.max_steps)
        scores = node_scores(self._model, rows, states, prompt) if self._model else None
        luck = guessable(question.question, question.answers)
        pairs, dropped = sibling_pairs(rows, labels, recipe.pairs, scores, guessable=luck)
        self.dropped.update(dropped)
        found = pair_rows(question, pairs, states, prompt, self._provenance(root))
        return labelled(rows, labels), self._confirmed(found)

    def _confirmed(self, pairs: list[Pair]) -> list[Pair]:
        """Those that fresh rollouts bear out, where `pairs.confirmed` asks for it."""
        if not self.recipe.pairs.confirmed:
            return pairs
        kept = []
        for pair in pairs:
            held = survives(pair, self.fresh, self.recipe.spre)
            if held == "kept":
                kept.append(pair)
            else:
                self.dropped[f"fresh_{held or 'missing'}"] += 1
        return kept

    def _provenance(self, root: TreeNode) -> Provenance:
        recipe = self.recipe
        return Provenance(
            seed=root.seed,
            cycle=root.cycle,
            policy_model=recipe.policy.model,
            policy_digest=root.policy_digest,
            judge_model=recipe.asked_judge.model if recipe.asked_judge else None,
            prompt_hash=root.prompt_hash,
            label_digest=label_digest(recipe, self._model),
            config_digest=recipe.decisive_digest,
        )
