"""The shortest way to the answer in ReasonRAG's protocol: query, evidence, …, answer.

If a query misses the passage, the trace keeps it with the evidence "None" and then tries another
wording, so it shows real recovery. An answer comes only after its evidence.
"""

from training.warm_start.hops import GoldHop
from training.warm_start.trace_builder import MAX_TRIES, Walk

NOTHING_FOUND = "None"
"""Evidence if none of the passages helps (the protocol's own word)."""


async def walk_reasonrag(walk: Walk) -> None:
    """Walks one question to its answer, or records the problem.

    Raises:
        RetrievalError: If a search failed.
    """
    for hop in walk.hops:
        if not await _take(walk, hop):
            walk.problem = walk.problem or "no query wording finds the passage"
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
