"""Simulates a policy and a judge without weights; replies depend only on the request.

The policy follows ReasonRAG's protocol on questions of two hops: it usually searches, reads,
searches, reads and answers; sometimes it answers too early or wrongly. The judge is strict. A speed
benchmark does not need good models, but realistic calls per question. So the numbers below make
about 34 of 64 simulations draw a child, as in the published schedule.
"""

import re
from zlib import crc32

ANSWERS = ("Paris", "Tokyo", "Lima", "Oslo", "Cairo", "Quito", "Rabat", "Hanoi", "Accra", "Minsk")
RELATIONS = ("capital", "currency", "largest river", "national bird", "president", "old name")
NAMES = ("Arlen", "Borovo", "Castell", "Dunmore", "Eskvale", "Farrow", "Glenrath", "Holm")

ANSWERING = (0.05, 0.4, 1.0)
"""Probability that the policy answers with no, one, and two or more pieces of evidence."""
RIGHT = (0.1, 0.4, 0.9)
"""Probability that such an answer is the golden one."""
FOUND = 0.95
"""Probability that a reader copies something from the passages."""
MANNERS = ("", "the ", "what is the ", "find the ", "about the ", "name of the ", "which is the ")
"""Openings of the policy's texts; siblings rarely repeat each other word for word."""

_QUESTION = re.compile(r"^Question: (.*)$", re.MULTILINE)
_EVIDENCE = re.compile(r"^Evidence: (?!None$)", re.MULTILINE)
_PASSAGE = re.compile(r"^<passage>(.*)</passage>$", re.MULTILINE)
_SUBJECT = re.compile(r"the (.+) of the country of (.+)\?")


def question_text(number: int) -> str:
    """Returns question `number`; every number gives a different question."""
    relation, name = RELATIONS[number % len(RELATIONS)], NAMES[number % len(NAMES)]
    return f"What is the {relation} of the country of {name} {number}?"


def golden_answer(question: str) -> str:
    """Returns the answer that counts as right."""
    return ANSWERS[crc32(question.encode()) % len(ANSWERS)]


def reply(model: str, system: str, user: str, chance: bytes) -> str:
    """Returns the reply of `model` ("policy" or "judge"); `chance` are at least 4 random bytes."""
    if model == "judge":
        return _verdict(chance)
    match = _QUESTION.search(user)
    question = match.group(1) if match else user
    if "no searches left" in system:
        return _answer(question, RIGHT[1], chance)
    if system.startswith("Copy from the passages"):
        return _evidence(user, chance)
    hops = min(len(_EVIDENCE.findall(user)), 2)
    if chance[0] < 256 * ANSWERING[hops]:
        return _answer(question, RIGHT[hops], chance)
    return _query(question, hops, chance)


def tokens(text: str) -> int:
    """Returns about the number of tokens that a tokenizer would count in English text."""
    return len(text) // 4 + 1


def _answer(question: str, right: float, chance: bytes) -> str:
    is_right = chance[1] < 256 * right
    answer = golden_answer(question) if is_right else ANSWERS[chance[2] % len(ANSWERS)]
    return f"<answer>{answer}</answer>"


def _evidence(user: str, chance: bytes) -> str:
    passages = _PASSAGE.findall(user)
    if not passages or chance[0] >= 256 * FOUND:
        return "<evidence>None</evidence>"
    read = passages[chance[1] % len(passages)]
    copied = read.split(".")[0].split(": ", 1)[-1]
    return f"<evidence>{MANNERS[chance[2] % len(MANNERS)]}{copied}.</evidence>"


def _query(question: str, hops: int, chance: bytes) -> str:
    match = _SUBJECT.search(question)
    relation, name = match.groups() if match else ("answer", question)
    query = (f"country of {name}", f"{relation} of the country", f"{name} {relation}")[hops]
    return f"<query>{MANNERS[chance[1] % len(MANNERS)]}{query}</query>"


def _verdict(chance: bytes) -> str:
    score = round(0.05 * (1 + chance[0] % 9), 2)
    critique = (
        f"Search {chance[1] % 3 + 1} is vague, and the evidence that was copied leaves the second "
        "fact open."
    )
    return f'{{"critique": "{critique}", "score": {score}}}'
