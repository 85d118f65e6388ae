"""The shortest way to the answer in each protocol except EVO-RAG's (`training.warm_start.evo_rag`).

Each hop is searched, in another wording if its passage was not found, so traces show real recovery.
An answer comes only after its evidence.
"""

from branchwise.agent import SearchLoop, supporting_numbers
from branchwise.types import RetrievedPassage

from .hops import GoldHop
from .trace_builder import NO_QUERY_FINDS_IT, Walk, cited, register_walk

NOTHING_FOUND = "None"
"""Evidence if none of the passages helps (ReasonRAG's own word)."""

NEEDLESS = 0.15
"""Share of the hops of R1-Searcher's traces that are followed by a useless search."""

NOT_FOUND, USELESS, ENOUGH = "The documents do not say.", "That does not help.", "That is enough."


@register_walk("arena")
async def walk_arena(walk: Walk) -> None:
    """Answers from ARENA's references: the supporting ones, an analysis of each, and the answer.

    Records it as a problem if a supporting reference is not shown.
    """
    shown = {passage.id: number for number, passage in enumerate(walk.state.given or (), start=1)}
    if any(hop.passage_id not in shown for hop in walk.hops):
        walk.problem = "a supporting passage is not among the references"
        return
    if walk.answer_only:
        walk.answer()
        return
    used = {shown[hop.passage_id]: cited(walk.rng, hop) for hop in walk.hops}
    supporting = supporting_numbers(walk.question, walk.state) or ()
    # Each leads to the next; a small policy follows this order more easily.
    listed = ",".join(str(number) for number in dict.fromkeys([*used, *sorted(supporting)]))
    analysis = " ".join(f"Reference {number}: {text}" for number, text in used.items())
    walk.answer(relevance=f"[{listed}]", analysis=analysis)


@register_walk("reasonrag")
async def walk_reasonrag(walk: Walk) -> None:
    """Walks one question by query, evidence, …, answer, or records the problem.

    Raises:
        RetrievalError: If a search failed.
    """
    for hop in walk.hops:
        for wording in walk.draw(hop.queries):
            passages = await walk.search("query", wording)
            shown = any(passage.id == hop.passage_id for passage in passages)
            walk.counts["query found it" if shown else "query missed"] += 1
            walk.step("evidence", walk.rng.choice(hop.evidence) if shown else NOTHING_FOUND)
            if shown:
                break
        else:
            walk.problem = walk.problem or NO_QUERY_FINDS_IT
            return
    walk.answer()


@register_walk("eval-rar")
@register_walk("search-r1")
@register_walk("autorefine")
async def walk_search_loop(walk: Walk) -> None:
    """Walks one question in the tags of its loop.

    Raises:
        RetrievalError: If a search failed.
    """
    protocol = walk.protocol
    assert isinstance(protocol, SearchLoop)
    await _Turn(walk, protocol.search_tags.evaluation or "think").to_answer()


@register_walk("r1-searcher")
async def walk_r1_searcher(walk: Walk) -> None:
    """Walks one question inside `<think>`, sometimes with a useless search.

    Raises:
        RetrievalError: If a search failed.
    """
    await _Turn(walk, "think", opening="<think>", needless=NEEDLESS).to_answer()


class _Turn:
    """A walk within one turn.

    The policy's text about documents cites the evidence, or states that the documents lack it, and
    names the missing fact.

    Args:
        walk: The walk.
        part: Part of a text that describes the documents.
        opening: First text of the turn.
        needless: Share of the hops that are followed by a useless search.
    """

    def __init__(self, walk: Walk, part: str, opening: str = "", needless: float = 0.0) -> None:
        self._walk, self._part, self._opening, self._needless = walk, part, opening, needless
        self._known = ""  # passages of the last search

    async def to_answer(self) -> None:
        walk = self._walk
        for number, hop in enumerate(walk.hops, start=1):
            passages = await self._find(hop)
            if passages is None:
                walk.problem = walk.problem or NO_QUERY_FINDS_IT
                return
            self._known = cited(walk.rng, hop)
            spare = walk.steps_left - (len(walk.hops) - number) - 1
            leads = [p.title for p in passages if p.title and not walk.is_gold(p)]
            if leads and spare > 0 and walk.rng.random() < self._needless:
                await self._search(walk.rng.choice(leads))
                walk.counts["searches: useless"] += 1
                self._known = f"{USELESS} {self._known}"
        walk.answer(**self._text(ENOUGH))

    async def _find(self, hop: GoldHop) -> tuple[RetrievedPassage, ...] | None:
        """Searches in up to `MAX_TRIES` wordings until the hop's passage is shown."""
        for query in self._walk.draw(hop.queries):
            passages = await self._search(query)
            if any(passage.id == hop.passage_id for passage in passages):
                return passages
            self._walk.counts["searches: missed"] += 1
            self._known = NOT_FOUND
        return None

    async def _search(self, query: str) -> tuple[RetrievedPassage, ...]:
        self._walk.counts["searches"] += 1
        return await self._walk.search("search", query, **self._text(f"I need {query}."))

    def _text(self, then: str) -> dict[str, str]:
        """Returns the policy's text before its next action, by part."""
        text = f"{self._known} {then}".lstrip()
        if self._walk.state.steps:
            return {self._part: text}
        return {"think": self._opening + text}
