"""The questions and the corpus of a recipe: reads, samples, merges and counts them."""

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from heapq import nsmallest
from itertools import islice

from branchwise.base import ConfigError, Faults, terminal_safe
from branchwise.types import Event, EventKind, Paragraph, Passage, Question, QuestionKey

from .corpus import Corpus, load_corpus
from .gold import resolve_gold
from .readers import PlacedQuestion, merge_questions, read_set
from .settings import AtlasSettings, DataSettings, SetSettings, Split

Notes = Counter[Event]

LEFT_OUT = (EventKind.OTHER_SPLIT, EventKind.UNFIT, EventKind.OVER_LIMIT)
"""Kinds of notes about questions that are not used."""
_CITING = Event(EventKind.WARNING, "questions that cite passages not in the corpus")
_CITED = Event(EventKind.WARNING, "cited passages not in the corpus")
_CUT = Event(
    EventKind.WARNING,
    "questions with a supporting title of several passages (cite the passages' ids)",
)
_RESPELLED = Event(EventKind.TITLE_RESPELLED)
_SHOWN = 80
"""Characters of a title that an example shows."""


@dataclass(frozen=True)
class Data:
    """Questions and corpus of a stage.

    Attributes:
        questions: Sampled questions, in an order that depends only on the seed. `split` is set by
            hash, and `supporting_ids` are resolved against the corpus.
        passages: Passages of the corpus, with distinct ids and contents.
        notes: Numbers read, dropped, merged or missing.
        examples: Up to three examples of some notes, in words.
        incomplete: Questions that cite ids of passages, some of which the corpus lacks.
    """

    questions: tuple[Question, ...]
    passages: tuple[Passage, ...]
    notes: Mapping[Event, int]
    examples: Mapping[Event, str] = field(default_factory=dict)
    incomplete: frozenset[QuestionKey] = frozenset()

    def describe_notes(self, kinds: Collection[EventKind] = tuple(EventKind)) -> Iterator[str]:
        """Yields a line per note of some kinds, with its examples."""
        notes = (note for note in self.notes if note.kind in kinds)
        for note in sorted(notes, key=str):
            yield f"{note}: {self.notes[note]}{self.examples.get(note, '')}"


Unfit = Callable[[Question], str | None]
"""Question → reason to leave it out; None to keep it."""


def unanswerable(question: Question) -> str | None:
    """Returns "unanswerable" if a question lacks an answer."""
    return None if question.answerable else "unanswerable"


def load_data(settings: DataSettings, seed: int, *, unfit: Unfit = lambda _: None) -> Data:
    """Reads everything that `settings` names.

    With `mix`, each set is sampled separately, and `settings.limit` caps the total (the other
    fields of a single set do not apply). A limit takes the first questions by a hash of seed and
    id, so a smaller sample is part of a larger one, and the file's order does not matter.
    `settings.skip` leaves out questions at the front of that order.

    Args:
        settings: Sets, splits, limits and the corpus.
        seed: Random seed of the sample, and of atlas's questions.
        unfit: Returns the reason to leave a question out, or None. Applies before limits; counted
            by reason.

    Raises:
        ConfigError: If the files are faulty (lists all faults with file and line), no corpus,
            or no questions left.
    """
    reading = _Reading(settings, seed, unfit)
    faults, notes = Faults(), reading.notes
    questions, corpus = _read_files(reading)
    placed, _ = merge_questions(questions, faults)
    faults.raise_any()
    if not corpus.passages:
        raise ConfigError(
            "data.corpus is not set, and the questions lack paragraphs with text; set "
            "data.corpus to a file"
        )
    notes.update(corpus.counts)
    if settings.mix:
        placed = _of_mix(placed, reading)
    if not placed:
        listed = "; ".join(f"{name}: {count}" for name, count in notes.items() if count)
        raise ConfigError(f"no questions are left: {listed}")
    cited = _with_paragraph_ids([question for _, question, _ in placed], corpus)
    resolved = resolve_gold(cited, corpus.passages, corpus.aliases)
    examples, incomplete = _note_missing(cited, resolved, corpus, notes)
    counted = {name: n for name, n in notes.items() if n}
    return Data(tuple(resolved), tuple(corpus.passages), counted, examples, incomplete)


def load_split(settings: DataSettings, split: Split, seed: int) -> tuple[Question, ...]:
    """Returns all answerable questions of one split of the sets in `settings`, without limits.

    Reads no corpus: gold passages stay as the files give them.

    Raises:
        ConfigError: If the files are faulty.
    """
    unlimited = {"split": split, "limit": None}
    reading = _Reading(settings.model_copy(update={"skip": 0}), seed, unanswerable)
    sets = [part.model_copy(update=unlimited) for part in settings.mix or (settings,)]
    return tuple(question for part in sets for _, question, _ in _load_set(part, reading))


@dataclass(frozen=True)
class _Reading:
    """Settings for reading any set, and what is counted and collected.

    Attributes:
        paragraphs: Passages of the sets, if the settings name no corpus.
    """

    settings: DataSettings
    seed: int
    unfit: Unfit
    notes: Notes = field(default_factory=Counter)
    paragraphs: Corpus = field(default_factory=Corpus)

    @property
    def skip(self) -> int:
        """Questions to skip in a single set; a mix skips the first ones of all its sets."""
        return 0 if self.settings.mix else self.settings.skip


def _read_files(reading: _Reading) -> tuple[list[PlacedQuestion], Corpus]:
    """Returns the questions of all sets, and the corpus; raises all their errors together."""
    settings, corpus = reading.settings, reading.paragraphs
    questions: list[PlacedQuestion] = []
    problems: list[str] = []
    for part in settings.mix or (settings,):
        with _noted(problems):
            questions += _load_set(part, reading)
    if settings.corpus is not None:
        paths = (settings.corpus,) if isinstance(settings.corpus, str) else settings.corpus
        with _noted(problems):
            corpus = load_corpus(paths, settings.passage_words)
    if problems:
        raise ConfigError("\n".join(problems))
    return questions, corpus


@contextmanager
def _noted(problems: list[str]) -> Iterator[None]:
    """Adds a ConfigError of the block to the list."""
    try:
        yield
    except ConfigError as error:
        problems.append(str(error))


def _load_set(settings: SetSettings, reading: _Reading) -> list[PlacedQuestion]:
    """Returns the questions of the requested split, sampled to the limit."""
    source, notes = settings.source, reading.notes
    if source == "atlas":
        questions, repeated = _atlas(settings, reading), 0
    else:
        questions, repeated = read_set(source, settings.questions)
        if reading.settings.corpus is None:
            faults = Faults()
            for place, question, _ in questions:
                reading.paragraphs.add_paragraphs(place, question, faults)
            faults.raise_any()
    notes[Event(EventKind.QUESTION_READ, source=source)] += len(questions)
    notes[Event(EventKind.QUESTION_MERGED, source=source)] += repeated
    eligible = []
    for placed in questions:
        if settings.split is not None and placed.question.split != settings.split:
            notes[Event(EventKind.OTHER_SPLIT, str(placed.question.split), source)] += 1
        elif reason := reading.unfit(placed.question):
            notes[Event(EventKind.UNFIT, reason, source)] += 1
        else:
            eligible.append(placed)
    # Atlas skips questions itself, in the order in which it makes them.
    remaining = _sampled(eligible, reading.seed)[0 if source == "atlas" else reading.skip :]
    notes[Event(EventKind.QUESTION_SKIPPED, source=source)] += len(eligible) - len(remaining)
    sample = remaining[: settings.limit]
    notes[Event(EventKind.OVER_LIMIT, "limit", source)] += len(remaining) - len(sample)
    return sample


def _atlas(settings: SetSettings, reading: _Reading) -> list[PlacedQuestion]:
    from .atlas import build_corpus, build_questions

    data = reading.settings
    cities = data.cities if isinstance(data, AtlasSettings) else None
    if settings.split is None:
        raise ConfigError("`split` is null, but atlas makes the questions of one split: name it")
    questions = build_questions(
        settings.split,
        settings.limit,
        reading.seed,
        cities,
        unfit=reading.unfit,
        skip=reading.skip,
        references=data.references if isinstance(data, AtlasSettings) else 0,
    )
    if data.corpus is None:
        faults = Faults()
        for passage in build_corpus(cities):
            reading.paragraphs.add(f"atlas: {passage.title}", passage, faults)
        faults.raise_any()
    return [PlacedQuestion(f"atlas: {question.id}", question) for question in questions]


def _of_mix(questions: Iterable[PlacedQuestion], reading: _Reading) -> list[PlacedQuestion]:
    """Applies `skip` and `limit` to all sets together."""
    placed, notes = _sampled(questions, reading.seed), reading.notes
    remaining = placed[reading.settings.skip :]
    notes[Event(EventKind.QUESTION_SKIPPED)] += len(placed) - len(remaining)
    sample = remaining[: reading.settings.limit]
    notes[Event(EventKind.OVER_LIMIT, "limit of the mix")] += len(remaining) - len(sample)
    return sample


def _sampled(questions: Iterable[PlacedQuestion], seed: int) -> list[PlacedQuestion]:
    def order(placed: PlacedQuestion) -> bytes:
        name = f"{seed}\x1f{placed.question.source}\x1f{placed.question.id}"
        return hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest()

    return sorted(questions, key=order)


def _with_paragraph_ids(questions: Iterable[Question], corpus: Corpus) -> list[Question]:
    """Returns questions with passage ids on the paragraphs that are in the corpus.

    A merged passage's id becomes that of the kept one. A paragraph without an id is matched by
    title and content, because several passages may share a title. If a supporting one is not found,
    the question stays unchanged, so that all its gold passages are found by title instead of only
    some by id.
    """

    def corpus_id(paragraph: Paragraph) -> str | None:
        if paragraph.id is None:
            return corpus.ids.get((paragraph.title, paragraph.text))
        return corpus.aliases.get(paragraph.id, paragraph.id)

    def identified(question: Question) -> Question:
        ids = [corpus_id(p) for p in question.paragraphs]
        # Copies a question only if it differs, because large sets are held in memory.
        if ids == [p.id for p in question.paragraphs]:
            return question
        paragraphs = tuple(
            p.model_copy(update={"id": name})
            for p, name in zip(question.paragraphs, ids, strict=True)
        )
        if any(p.is_supporting and p.id is None for p in paragraphs):
            return question
        return question.model_copy(update={"paragraphs": paragraphs})

    return [identified(question) for question in questions]


def _note_missing(
    cited: Iterable[Question], resolved: Iterable[Question], corpus: Corpus, notes: Notes
) -> tuple[dict[Event, str], frozenset[QuestionKey]]:
    """Counts questions whose gold passages are unknown, ambiguous or not in the corpus.

    Returns:
        Examples of the notes, and the questions that cite passages which the corpus lacks.
    """
    titles = dict.fromkeys(passage.title for passage in corpus.passages)
    ids = {passage.id for passage in corpus.passages}.union(corpus.aliases)
    missing: dict[str, None] = {}
    respelled: dict[str, None] = {}
    incomplete: set[QuestionKey] = set()
    for before, after in zip(cited, resolved, strict=True):
        marked = {p.id for p in before.paragraphs if p.is_supporting and p.id is not None}
        lost = marked.union(before.supporting_ids) - ids
        # Not `- titles.keys()`, which would visit every title of the corpus for each question.
        lost = lost or {title for title in after.supporting_titles if title not in titles}
        missing.update(dict.fromkeys(sorted(lost)))
        spelled = set(after.supporting_titles)
        respelled.update((t, None) for t in before.supporting_titles if t not in spelled)
        if lost:
            if not after.supporting_titles:  # titles are compared when gold passages are used
                incomplete.add((before.source, before.id))
            notes[_CITING] += 1
            notes[_CITED] += len(lost)
        elif after.answerable and not after.supporting_ids:
            notes[Event(EventKind.WITHOUT_GOLD)] += 1
        elif not (marked or before.supporting_ids):
            notes[_CUT] += len(after.supporting_ids) > len(after.supporting_titles)
    notes[_RESPELLED] += len(respelled)
    has = f"; the corpus has titles such as {_examples(titles)}" if titles else ""
    if missing and ids:
        has += f" and ids such as {_examples(nsmallest(3, ids))}"
    examples = {
        _CITED: f", such as {_examples(missing)}{has}",
        _RESPELLED: f", such as {_examples(respelled)}",
    }
    return examples, frozenset(incomplete)


def _examples(texts: Iterable[str]) -> str:
    """Returns the first three texts in quotes, shortened."""
    return ", ".join(f'"{terminal_safe(text[:_SHOWN])}"' for text in islice(texts, 3))
