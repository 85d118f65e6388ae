"""Messages as the text, and the tokens, that a model was trained to continue."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from storage.errors import ConfigError
from storage.records import Message


def rendered(template: str, messages: tuple[Message, ...], prefix: str = "") -> str:
    """The prompt: `messages` in a Jinja chat template, then the begun assistant's turn.

    Raises:
        ConfigError: jinja2 is missing, or the template refuses the messages.
    """
    from jinja2 import TemplateError

    turns = [{"role": m.role, "content": m.content} for m in messages]
    try:
        text = str(_compiled(template).render(messages=turns, add_generation_prompt=True))
    except TemplateError as error:
        raise ConfigError(f"the model's chat template refuses the messages: {error}") from error
    except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise ConfigError(
            f"the model's chat template cannot be used ({type(error).__name__}: {error})"
        ) from error
    # A lone surrogate (it can stand in JSON) has no UTF-8, which the tokenizer takes.
    return (text + prefix).encode("utf-8", "replace").decode("utf-8")


def prompt_ids(messages: Sequence[Message], tokenizer: Any) -> tuple[int, ...]:
    """Token ids that ask a model for its turn; the embedded engine's own ids."""
    text = rendered(tokenizer.chat_template, tuple(messages))
    return tuple(tokenizer(text, add_special_tokens=False)["input_ids"])


def target_ids(target: str, tokenizer: Any) -> tuple[int, ...]:
    """Token ids of a turn and of the token that ends it."""
    text = target.encode("utf-8", "replace").decode("utf-8")
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    return (*ids, int(tokenizer.eos_token_id))


@lru_cache(maxsize=8)
def _compiled(template: str) -> Any:
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    # The options that transformers renders templates with; without them white space differs.
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(template)
