"""EVO-RAG as a reward scheme: weighted returns of seven step rewards (section 3.3)."""

from collections.abc import Iterator, Sequence
from functools import cache, cached_property

from agent.state import State
from base.text import digest_of
from retrieval.similarity import QuerySimilarity
from rewards.evo_rag.returns import EpisodeRewards, label_returns
from rewards.evo_rag.schedule import Weights, weights
from rewards.evo_rag.steps import Gold
from rewards.judges import Verifier, verifier_prompt_hash
from rewards.labels import Label
from rewards.outcome import Outcome
from rewards.scheme import NodeEvaluation, RewardScheme
from rewards.settings import EvoRagSettings
from storage.records import Question, TreeNode


class EvoRag(RewardScheme):
    """Rewards every step of a trajectory."""

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
        found = {"query_encoder": digest_of(query_similarity().identity)}
        if self.recipe.verifier is not None:
            found["verifier_prompts"] = verifier_prompt_hash()
        return found

    def describe(self) -> str:
        always = {"schedule": self.settings.schedule, "stage": self.settings.stage}
        others = self.settings.model_dump(mode="json", exclude_defaults=True)
        named = ", ".join(f"`{name}: {value}`" for name, value in {**always, **others}.items())
        verifier = self.recipe.verifier
        judge = f"verifier `{verifier.model}`" if verifier else "no verifier"
        return f"EVO-RAG returns, {named}, {judge}"

    def outcome(self, state: State, question: Question) -> Outcome:
        return self.rewards.episode(state.steps, Gold.of(question))

    async def finished(self, question: Question, state: State, path: str) -> NodeEvaluation:
        if self.verifier is None or self.recipe.verifier is None or not self._open(state):
            return await super().finished(question, state, path)
        asked = Verifier(self.verifier, self.recipe.verifier, self.recipe.seed)
        verdict = await asked.judge_evidence(question, state, path)
        whole = self.rewards.episode(state.steps, Gold.of(question), verdict)
        return NodeEvaluation(whole.total, verdict=verdict)

    def _open(self, state: State) -> bool:
        """Returns whether the evidence decides on a refusal.

        A refusal before any search is wrong in any case, unless `early_refusal` is `judged`.
        """
        judged = self.settings.early_refusal == "judged"
        return state.refused and (judged or any(s.action.kind == "search" for s in state.steps))

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
