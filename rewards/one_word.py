"""Asks a model a question with two possible one-word replies."""

from engines.sampling import CallIdentity, Engine, SampleRequest, Sampling, Structure
from engines.settings import JudgeSettings
from storage.records import Message


async def ask_for_word(
    engine: Engine,
    settings: JudgeSettings,
    messages: tuple[Message, ...],
    identity: CallIdentity,
    words: tuple[str, str] = ("yes", "no"),
) -> bool | None:
    """Asks for one of two words; decoding is constrained to them if the engine can.

    Returns:
        Whether the reply is the first word; None if it is neither.

    Raises:
        EndpointError: If the model's endpoint failed.
    """
    can = engine.capabilities.structured_output
    request = SampleRequest(
        messages,
        Sampling(settings.temperature, settings.top_p, settings.max_new_tokens),
        identity,
        Structure("regex", "|".join(words)) if can else None,
    )
    reply = await engine.sample(request)
    first, second = (word.lower() for word in words)
    # A reply that was cut may be the start of a longer one.
    said = None if reply.finish_reason == "length" else reply.text.strip().rstrip(".").lower()
    return {first: True, second: False}.get(said or "")
