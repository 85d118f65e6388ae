"""Trees and pairs as records, without their rewards."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from branchwise.agent import State
from branchwise.base import digest_of
from branchwise.engines import Usage
from branchwise.mcts import Node
from branchwise.rewards import AnswerScores, Label, NodeEvaluation
from branchwise.types import Message, Pair, PassageRef, Question, TreeNode, pair_id

from .grower import GrownTree
from .pairs import SiblingPair


@dataclass(frozen=True, slots=True)
class Provenance:
    """Provenance of rows; the same for all rows of a run.

    Attributes:
        label_digest: Hash of the settings that decide labels and pairs.
        config_digest: Hash of the whole resolved configuration.
    """

    seed: int
    cycle: int
    policy_model: str
    policy_digest: str
    judge_model: str | None
    prompt_hash: str
    label_digest: str
    config_digest: str


def tree_id(question: Question, provenance: Provenance) -> str:
    """Returns the hash of source, question id, seed, cycle and policy."""
    return digest_of(
        question.source,
        question.id,
        str(provenance.seed),
        str(provenance.cycle),
        provenance.policy_digest,
    )


def tree_rows(question: Question, grown: GrownTree, provenance: Provenance) -> list[TreeNode]:
    """Returns one unlabelled row per node, in order of id."""
    identity = tree_id(question, provenance)
    return [_tree_row(question, grown, node, identity, provenance) for node in grown.tree.nodes]


def _tree_row(
    question: Question, grown: GrownTree, node: Node[State], identity: str, provenance: Provenance
) -> TreeNode:
    step = node.state.steps[-1] if node.state.steps else None
    shown = step.passages if step else node.state.given or ()
    evaluation = grown.evaluations.get(node.id, NodeEvaluation(None))
    completion = grown.moves[node.path].completion if step else None
    usage = completion.usage if completion else Usage()
    scores = AnswerScores.of(node.state.answer, question.answers)
    score = evaluation.judge_score
    return TreeNode(
        tree_id=identity,
        question_id=question.id,
        source=question.source,
        cycle=provenance.cycle,
        seed=provenance.seed,
        node_id=node.id,
        parent_id=node.parent,
        depth=node.depth,
        stage=step.stage if step else node.state.stage,
        action=step.action.kind if step else "",
        text=step.text if step else "",
        content=step.action.content if step else "",
        passages=tuple(PassageRef(id=p.id, title=p.title, score=p.score) for p in shown),
        terminal=node.terminal,
        forced=node.state.forced,
        cut=bool(step and step.cut),
        token_ids=step.token_ids if step else None,
        reasoning=completion.reasoning or None if completion else None,
        visits=node.visits,
        value=node.value_sum / node.scored_visits if node.scored_visits else None,
        # As the table keeps it, so that stored trees have the labels of grown ones.
        judge_score=None if score is None else float(np.float32(score)),
        judge_text=evaluation.judge_text,
        rollouts=evaluation.rollouts,
        iteration=node.iteration,
        verdict=evaluation.verdict,
        em=scores.em,
        f1=scores.f1,
        input_tokens=usage.input_tokens,
        cached_tokens=usage.cached_tokens,
        output_tokens=usage.output_tokens,
        prompt_hash=provenance.prompt_hash,
        policy_digest=provenance.policy_digest,
    )


def with_labels(rows: Sequence[TreeNode], labels: Sequence[Label]) -> list[TreeNode]:
    """Returns the rows with reward, evidence and components filled in."""
    names = ("reward", "n_outcomes", "components")
    return [
        row.model_copy(update={name: getattr(label, name) for name in names})
        for row, label in zip(rows, labels, strict=True)
    ]


def pair_row(
    question: Question, pair: SiblingPair, messages: Sequence[Message], provenance: Provenance
) -> Pair:
    """Returns a preference row.

    Args:
        messages: Prompt of the rollouts for the state that both actions follow.
    """
    prompt = tuple(messages)
    chosen, rejected = pair.chosen, pair.rejected
    return Pair(
        pair_id=pair_id(prompt, chosen.text, rejected.text),
        tree_id=chosen.tree_id,
        question_id=question.id,
        source=question.source,
        question=question.question,
        answers=question.answers,
        parent_node=chosen.parent_id,
        chosen_node=chosen.node_id,
        rejected_node=rejected.node_id,
        depth=chosen.depth,
        stage=chosen.stage,
        prompt=prompt,
        chosen=(Message(role="assistant", content=chosen.text),),
        rejected=(Message(role="assistant", content=rejected.text),),
        chosen_action=chosen.action,
        rejected_action=rejected.action,
        chosen_reward=pair.chosen_label.reward or 0.0,
        rejected_reward=pair.rejected_label.reward or 0.0,
        reward_gap=pair.gap,
        chosen_visits=chosen.visits,
        rejected_visits=rejected.visits,
        chosen_outcomes=pair.chosen_label.n_outcomes,
        rejected_outcomes=pair.rejected_label.n_outcomes,
        chosen_components=pair.chosen_label.components,
        rejected_components=pair.rejected_label.components,
        **asdict(provenance),
    )
