"""The questions and the corpus of a recipe: reads, samples, merges and counts them."""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from heapq import nsmallest
from itertools import islice

from base.errors import ConfigError
from base.faults import Faults
from base.terminal_escape import inert
from sources.corpus import READ, Corpus, corpus_of_paragraphs, load_corpus, merge_passages
from sources.gold import resolve_gold
from sources.readers import PlacedQuestion, QuestionSet, merge_questions, read_set
from sources.settings import DataSettings, SetSettings, Split
from storage.records import Paragraph, Passage, Question, QuestionKey

Notes = Counter[str]

_CITING = "warning: questions that cite passages not in the corpus"
_CITED = "warning: cited passages not in the corpus"
_CUT = "warning: questions with a supporting title of several passages (cite the passages' ids)"
_RESPELLED = "supporting titles found by another spelling or by file name"
_SHOWN = 80
"""Characters of a title that an example shows."""


@dataclass(frozen=True)
class Data:
    """Questions and corpus of a stage.

    Attributes:
        questions: Sampled questions, in an order that depends only on the seed. `split` is set by
            hash, and `supporting_ids` are resolved against the corpus.
        passages: Passages of the corpus, with distinct ids and contents.
        notes: Numbers read, dropped, merged or missing, by reason.
        examples: Up to three examples of some notes, in words.
        incomplete: Questions that cite ids of passages, some of which the corpus lacks.
    """

    questions: tuple[Question, ...]
    passages: tuple[Passage, ...]
    notes: Mapping[str, int]
    examples: Mapping[str, str] = field(default_factory=dict)
    incomplete: frozenset[QuestionKey] = frozenset()

    def describe_notes(self) -> Iterator[str]:
        """Yields a line per note, with its examples."""
        for note, count in sorted(self.notes.items()):
            yield f"{note}: {count}{self.examples.get(note, '')}"


@dataclass(frozen=True)
class _Loaded:
    """One set: its sampled questions, and its own passages."""

    questions: tuple[PlacedQuestion, ...]
    corpus: Corpus


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
    notes: Notes = Counter()
    loaded, named = _read_files(_Reading(settings, seed, unfit, notes))
    faults = Faults()
    placed, _ = merge_questions((one for part in loaded for one in part.questions), faults)
    corpus = named or _own_corpus(loaded, faults)
    faults.raise_any()
    if not corpus.passages:
        raise ConfigError(
            "data.corpus is not set, and the questions lack paragraphs with text; set "
            "data.corpus to a file"
        )
    notes.update(corpus.counts)
    drawn = _of_mix(placed, settings, seed, notes) if settings.mix else _sampled(placed, seed)
    if not drawn:
        raise ConfigError(f"no questions are left: {_listed(notes)}")
    cited = _with_paragraph_ids([one.question for one in drawn], corpus)
    questions = resolve_gold(cited, corpus.passages, corpus.aliases)
    examples, incomplete = _note_missing(cited, questions, corpus, notes)
    counted = {name: n for name, n in notes.items() if n}
    return Data(tuple(questions), corpus.passages, counted, examples, incomplete)


def load_split(settings: DataSettings, split: Split, seed: int) -> tuple[Question, ...]:
    """Returns all answerable questions of one split of the sets in `settings`, without limits.

    Reads no corpus: gold passages stay as the files give them.

    Raises:
        ConfigError: If the files are faulty.
    """
    wanted = {"split": split, "limit": None}
    settings = settings.model_copy(update={"skip": 0})
    reading = _Reading(settings, seed, unfit=unanswerable, notes=Counter())
    sets = [one.model_copy(update=wanted) for one in settings.mix or (settings,)]
    return tuple(placed.question for one in sets for placed in _load_set(one, reading).questions)


@dataclass(frozen=True)
class _Reading:
    """Settings for reading any set."""

    settings: DataSettings
    seed: int
    unfit: Unfit
    notes: Notes


def _read_files(reading: _Reading) -> tuple[list[_Loaded], Corpus | None]:
    """Returns all sets, and the corpus in the recipe; raises all their errors together."""
    settings = reading.settings
    loaded: list[_Loaded] = []
    named: Corpus | None = None
    problems: list[str] = []
    for one in settings.mix or (settings,):
        with _noted(problems):
            loaded.append(_load_set(one, reading))
    if settings.corpus is not None:
        paths = (settings.corpus,) if isinstance(settings.corpus, str) else settings.corpus
        with _noted(problems):
            named = load_corpus(paths, settings.passage_words)
    if problems:
        raise ConfigError("\n".join(problems))
    return loaded, named


@contextmanager
def _noted(problems: list[str]) -> Iterator[None]:
    """Adds a ConfigError of the block to the list."""
    try:
        yield
    except ConfigError as error:
        problems.append(str(error))


def _load_set(one: SetSettings, reading: _Reading) -> _Loaded:
    found, own = _read(one, reading)
    reading.notes[f"{one.source}: questions read"] += len(found.questions)
    reading.notes[f"{one.source}: questions merged, repeated word for word"] += found.repeated
    return _Loaded(_drawn(one, found.questions, reading), own)


def _drawn(
    one: SetSettings, questions: Iterable[PlacedQuestion], reading: _Reading
) -> tuple[PlacedQuestion, ...]:
    """Returns the questions of the wanted split, sampled to the limit."""
    kept, notes = [], reading.notes
    for placed in questions:
        if one.split is not None and placed.question.split != one.split:
            notes[f"{one.source}: questions of another split"] += 1
        elif reason := reading.unfit(placed.question):
            notes[f"{one.source}: questions left out, {reason}"] += 1
        else:
            kept.append(placed)
    # Atlas skips questions itself, in the order in which it makes them.
    skip = 0 if one.source == "atlas" else _offset_of(one)
    left = _sampled(kept, reading.seed)[skip:]
    notes[f"{one.source}: questions skipped"] += len(kept) - len(left)
    notes[f"{one.source}: questions left out by the limit"] += len(left) - len(left[: one.limit])
    return left[: one.limit]


def _offset_of(one: SetSettings) -> int:
    """Returns the offset of a single set; 0 for the sets of a mix."""
    return one.skip if isinstance(one, DataSettings) else 0


def _of_mix(
    questions: Iterable[PlacedQuestion], settings: DataSettings, seed: int, notes: Notes
) -> tuple[PlacedQuestion, ...]:
    """Applies `skip` and `limit` to all sets together."""
    placed = _sampled(questions, seed)
    left = placed[settings.skip :]
    notes["questions skipped"] += len(placed) - len(left)
    notes["questions left out by the limit of the mix"] += len(left) - len(left[: settings.limit])
    return left[: settings.limit]


def _sampled(questions: Iterable[PlacedQuestion], seed: int) -> tuple[PlacedQuestion, ...]:
    def order(placed: PlacedQuestion) -> bytes:
        name = f"{seed}\x1f{placed.question.source}\x1f{placed.question.id}"
        return hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest()

    return tuple(sorted(questions, key=order))


def _own_corpus(loaded: Iterable[_Loaded], faults: Faults) -> Corpus:
    """Returns the passages of the sets."""
    own = [one.corpus for one in loaded]
    whole = merge_passages(
        ((f"{passage.id} ({passage.title})", passage) for one in own for passage in one.passages),
        faults,
    )
    counts = Counter({name: n for name, n in whole.counts.items() if name != READ})
    aliases = dict(whole.aliases)
    for one in own:
        counts.update(one.counts)
        aliases.update({name: whole.aliases.get(to, to) for name, to in one.aliases.items()})
    return Corpus(whole.passages, aliases, counts)


def _with_paragraph_ids(questions: Iterable[Question], corpus: Corpus) -> list[Question]:
    """Returns questions with passage ids on the paragraphs that are in the corpus.

    A merged passage's id becomes that of the kept one. A paragraph without an id is matched by
    title and content, because several passages may share a title. If a supporting one is not found,
    the question stays unchanged, so that all its gold passages are found by title instead of only
    some by id.
    """
    by_content = {(passage.title, passage.text): passage.id for passage in corpus.passages}

    def kept_id(paragraph: Paragraph) -> str | None:
        if paragraph.id is None:
            return by_content.get((paragraph.title, paragraph.text))
        return corpus.aliases.get(paragraph.id, paragraph.id)

    def identified(question: Question) -> Question:
        ids = [kept_id(p) for p in question.paragraphs]
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
) -> tuple[dict[str, str], frozenset[QuestionKey]]:
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
        found = set(after.supporting_titles)
        respelled.update((title, None) for title in before.supporting_titles if title not in found)
        if lost:
            if not after.supporting_titles:  # titles are compared where gold passages are used
                incomplete.add((before.source, before.id))
            notes[_CITING] += 1
            notes[_CITED] += len(lost)
        elif after.answerable and not after.supporting_ids:
            notes["questions without known gold passages"] += 1
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
    return ", ".join(f'"{inert(text[:_SHOWN])}"' for text in islice(texts, 3))


def _listed(notes: Notes) -> str:
    return "; ".join(f"{name}: {count}" for name, count in notes.items() if count)


def _read(one: SetSettings, reading: _Reading) -> tuple[QuestionSet, Corpus]:
    """Returns all questions of a set, and its own passages."""
    if one.source == "atlas":
        return _atlas(one, reading)
    found = read_set(one.source, one.questions)
    if reading.settings.corpus is not None:
        return found, Corpus((), {}, {})
    return found, corpus_of_paragraphs(
        (placed.place, placed.question) for placed in found.questions
    )


def _atlas(one: SetSettings, reading: _Reading) -> tuple[QuestionSet, Corpus]:
    from sources.atlas import build_corpus, build_questions

    settings = reading.settings
    if one.split is None:
        raise ConfigError("`split` is null, but atlas makes the questions of one split: name it")
    questions = build_questions(
        one.split,
        one.limit,
        reading.seed,
        settings.cities,
        unfit=reading.unfit,
        skip=_offset_of(one),
        references=settings.references,
    )
    placed = tuple(PlacedQuestion(f"atlas: {question.id}", question) for question in questions)
    own = build_corpus(settings.cities) if settings.corpus is None else []
    return QuestionSet(placed, 0), Corpus(tuple(own), {}, {READ: len(own)})
