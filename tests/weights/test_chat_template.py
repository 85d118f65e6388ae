"""Chat templates of untrusted models."""

import pytest

from base.errors import ConfigError
from storage.records import Message
from weights.chat_template import rendered


@pytest.mark.parametrize(
    "template",
    [
        "{{ 1 / 0 }}",
        "{{ messages[99]['content'] }}",
        "{{ messages + 1 }}",
        "{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}",
        "{% for i in range(10 ** 9) %}x{% endfor %}",
        "{{ ''.__class__.__mro__ }}",
        "{% broken",
        "{{ 'x' * 'y' }}",
    ],
)
def test_a_failing_template_is_reported(template: str) -> None:
    with pytest.raises(ConfigError, match="the model's chat template"):
        rendered(template, (Message("user", "Who?"),), special_tokens={})
