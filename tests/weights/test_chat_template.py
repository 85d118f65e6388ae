"""Chat templates: what they may use, and those of untrusted models."""

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


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{ date_string }}", "26 Jul 2024"),
        ("{{ strftime_now('%d %B %Y') }}", "26 July 2024"),
        ("{{ messages | tojson }}", '[{"role": "user", "content": "Où?"}]'),
        ("{% generation %}{{ messages[0].role }}{% endgeneration %}", "user"),
        ("{% for i in [1, 2] %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "1"),
    ],
)
def test_templates_get_the_functions_of_transformers_and_a_fixed_date(
    template: str, text: str
) -> None:
    assert rendered(template, (Message("user", "Où?"),), special_tokens={}) == text


def test_the_reason_that_a_template_gives_is_shown() -> None:
    with pytest.raises(ConfigError, match="rejects the messages: no system role"):
        rendered("{{ raise_exception('no system role') }}", (), special_tokens={})
