"""EVO-RAG as a reward scheme: weighted returns of seven step rewards (section 3.3)."""

from collections.abc import Iterator, Sequence
from functools import cache, cached_property

from branchwise.agent import State
from branchwise.base import digest_of
from branchwise.retrieval import QuerySimilarity
from branchwise.types import Question, TreeNode

from ..outcome import Label, Outcome
from ..scheme import NodeEvaluation, RewardScheme, register_reward
from ..settings import EvoRagSettings
from ..verifier import judge_evidence, verifier_prompt_hash
from .returns import label_returns
from .schedule import Weights, weights
from .steps import EpisodeRewards, Gold


@register_reward
class EvoRagRewards(RewardScheme):
    """Rewards every step of a trajectory."""

    name = "evo-rag"
    settings_class = EvoRagSettings
    settings: EvoRagSettings
    protocols = ("evo-rag",)
    extras = ("dense",)  # its encoder measures the similarity of queries
    asks_verifier = True
    learnable = True
    stages = ("discovery", "refinement")

    @property
    def horizon(self) -> int:
        """T_max of the weights' progress t / T_max, in policy calls."""
        return self.settings.horizon or self.recipe.agent.max_steps

    @property
    def resolved(self) -> EvoRagSettings:
        return self.settings.model_copy(update={"horizon": self.horizon})

    @cached_property
    def rewards(self) -> EpisodeRewards:
        """The seven rewards; loads the encoder of queries."""
        verified = self.recipe.verifier is not None
        return EpisodeRewards(self.settings, self.horizon, query_similarity(), verified=verified)

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        counted = self.settings.components or ("answer",)
        if self.settings.schedule == "answer-only" and "answer" not in counted:
            yield (
                "rewards.schedule is `answer-only`, but rewards.components lacks `answer`, "
                "so every weight is 0; add it, or remove rewards.components"
            )

    def inputs(self) -> dict[str, str]:
        digests = {"query_encoder": digest_of(query_similarity().identity)}
        if self.recipe.verifier is not None:
            digests["verifier_prompts"] = verifier_prompt_hash()
        return digests

    def describe(self) -> str:
        shown = {"schedule": self.settings.schedule, "stage": self.settings.stage}
        shown |= self.settings.model_dump(mode="json", exclude_defaults=True)
        settings = ", ".join(f"`{name}: {value}`" for name, value in shown.items())
        verifier = self.recipe.verifier
        judge = f"verifier `{verifier.model}`" if verifier else "no verifier"
        return f"EVO-RAG returns, {settings}, {judge}"

    def outcome(self, state: State, question: Question) -> Outcome:
        return self.rewards.episode(state.steps, Gold.of(question))

    async def finished(self, question: Question, state: State, path: str) -> NodeEvaluation:
        # A refusal before any search is wrong in any case, unless `early_refusal` is `judged`.
        has_searched = any(step.action.kind == "search" for step in state.steps)
        is_open = state.refused and (has_searched or self.settings.early_refusal == "judged")
        if self.verifier is None or self.recipe.verifier is None or not is_open:
            return await super().finished(question, state, path)
        verdict = await judge_evidence(
            self.verifier, self.recipe.verifier, question, state, path, seed=self.recipe.seed
        )
        outcome = self.rewards.episode(state.steps, Gold.of(question), verdict)
        return NodeEvaluation(outcome.total, verdict=verdict)

    def labels(
        self, question: Question, nodes: Sequence[TreeNode], states: Sequence[State]
    ) -> list[Label]:
        return label_returns(nodes, states, Gold.of(question), self.rewards)

    def weights(self, t: int) -> Weights:
        return weights(self.settings, t / self.horizon)


@cache
def query_similarity() -> QuerySimilarity:
    """Returns the shared encoder of queries, so that each query is encoded once."""
    return QuerySimilarity()
