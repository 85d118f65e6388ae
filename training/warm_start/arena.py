"""Replies in ARENA's protocol: supporting references, an analysis of each, and the answer."""

from agent.arena import supporting_numbers
from training.warm_start.trace_builder import Walk, cited


async def walk_arena(walk: Walk) -> None:
    """Answers from the references, or records that a supporting one is not shown."""
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
