"""Builds EVO-RAG traces with deliberate inefficiencies for later training to remove.

In addition to the needed searches, `Habits` add what the rewards are about, by
chance: repeated searches for a passage that was found, wrong leads, taken-back searches without a
new result, and questions given up too early. Unanswerable questions are refused after
one to three searches.

The step after a search begins with a note: the evidence if the passage was shown, else a fixed
word. So every later prompt shows the findings, and an answer comes only after its evidence.
"""

from .hops import GoldHop
from .trace_builder import Walk, register_walk

NOTHING_FOUND = "Nothing found"
"""Note on a search without a useful passage."""


@register_walk("evo-rag")
async def walk_evo_rag(walk: Walk) -> None:
    """Walks one question to its answer or refusal, or records the problem.

    Raises:
        RetrievalError: If a search failed.
    """
    if walk.question.answerable:
        await _TraceBuilder(walk).to_answer()
    else:
        await _TraceBuilder(walk).to_refusal()


class _TraceBuilder:
    """A walk, with its pending note and hops."""

    def __init__(self, walk: Walk) -> None:
        self._walk = walk
        self._note: str | None = None
        self._needed = len(walk.hops)
        self._end = 1
        self._leads: dict[str, bool] = {}  # shown title → whether still to follow

    async def to_answer(self) -> None:
        walk, hops = self._walk, self._walk.hops
        walk.counts["hops"] += len(hops)
        followed = len(hops)
        if len(hops) > 1 and self._chance(walk.habits.give_up):
            followed = walk.rng.randrange(1, len(hops))
        for hop in hops[:followed]:
            if not await self._find(hop):
                self._refuse("refusals: nothing found")
                return
            await self._add_wasteful_steps(hop)
        if followed < len(hops):
            self._refuse("refusals: given up")
        else:
            walk.answer(note=self._taken_note())

    async def to_refusal(self) -> None:
        walk = self._walk
        wordings = walk.draw(walk.wordings)
        if not wordings:
            walk.problem = "no query"
            return
        self._needed, self._end = walk.rng.randint(1, len(wordings)), 2  # the last call must answer
        for wording in wordings[: self._needed]:
            await self._search(wording, "searches: unanswerable")
            self._needed -= 1
            if self._needed:
                self._take_back()
        self._refuse("refusals: unanswerable")

    async def _find(self, hop: GoldHop) -> bool:
        """Searches in up to `MAX_TRIES` wordings until the hop's passage is shown."""
        wordings = self._walk.draw(hop.queries)
        for tried, wording in enumerate(wordings, start=1):
            if await self._search(wording, "searches: needed", hop):
                self._needed -= 1
                return True
            self._walk.counts["searches: missed"] += 1
            if tried < len(wordings):
                self._take_back()
        return False

    async def _add_wasteful_steps(self, hop: GoldHop) -> None:
        """Adds unnecessary steps while the budget allows."""
        walk = self._walk
        if self._spare > 1 and self._chance(walk.habits.redundant):
            await self._search(walk.rng.choice(hop.queries), "searches: redundant", hop)
            self._take_back()
        leads = [title for title, is_new in self._leads.items() if is_new]
        if self._spare > 1 and leads and self._chance(walk.habits.detour):
            lead = walk.rng.choice(leads)
            self._leads[lead] = False
            await self._search(lead, "searches: detours")
            self._take_back()

    async def _search(self, query: str, counted: str, hop: GoldHop | None = None) -> bool:
        """Searches and sets the next note; returns whether the hop's passage is shown."""
        walk = self._walk
        passages = await walk.search("search", query, note=self._taken_note())
        walk.counts["searches"] += 1
        walk.counts[counted] += 1
        for passage in passages:
            if passage.title and not walk.is_gold(passage):
                self._leads.setdefault(passage.title, True)
        shown = hop is not None and any(p.id == hop.passage_id for p in passages)
        self._note = walk.rng.choice(hop.evidence) if hop and shown else NOTHING_FOUND
        return shown

    def _take_back(self) -> None:
        """Takes the last search back, at random."""
        if self._spare > 0 and self._chance(self._walk.habits.backtrack):
            self._walk.step("backtrack", note=self._taken_note())
            self._walk.counts["backtracks"] += 1

    def _refuse(self, counted: str) -> None:
        self._walk.step("refuse", note=self._taken_note())
        self._walk.counts[counted] += 1

    def _taken_note(self) -> str | None:
        """Returns the pending note and clears it."""
        note, self._note = self._note, None
        return note

    @property
    def _spare(self) -> int:
        """Steps left after the needed searches and the end."""
        return self._walk.steps_left - self._needed - self._end

    def _chance(self, share: float) -> bool:
        return self._walk.rng.random() < share
