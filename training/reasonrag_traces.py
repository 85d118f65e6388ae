"""The shortest way to the answer in ReasonRAG's protocol: query, evidence, …, answer.

A query that does not bring the passage is kept with the evidence "None" and tried again in other
words: recovery as it really happens. Nothing is answered before its evidence was seen.
"""

from training.hops import GoldHop
from training.trace_builder import MAX_TRIES, Walk

NOTHING_FOUND = "None"
"""Evidence if no passage helps (the protocol's own word)."""


async def walk_reasonrag(walk: Walk) -> None:
    """Walks one question to its answer, or notes why it cannot be.

    Raises:
        RetrievalError: If a search failed.
    """
    for hop in walk.hops:
        if not await _take(walk, hop):
            walk.problem = walk.problem or "no query wording brings the passage"
            return
    walk.answer()


async def _take(walk: Walk, hop: GoldHop) -> bool:
    """Searches in up to `MAX_TRIES` wordings for the hop's passage; copies its evidence."""
    for wording in walk.rng.sample(hop.queries, min(MAX_TRIES, len(hop.queries))):
        found = await walk.search("query", wording)
        shown = any(passage.id == hop.passage_id for passage in found)
        walk.counts["query found it" if shown else "query missed"] += 1
        walk.step("evidence", walk.rng.choice(hop.evidence) if shown else NOTHING_FOUND)
        if shown:
            return True
    return False
