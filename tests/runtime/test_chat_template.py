"""Chat templates: what Hugging Face's environment offers them, what a stranger's may not do, and messages as parts."""

from __future__ import annotations

from typing import Any

import pytest

from selfspec.errors import ArtifactError, UsageError
from selfspec.runtime.chat_template import ChatTemplate

HI = [{"role": "user", "content": "hi"}]


def rendered(source: str, messages: Any = HI, **special_tokens: str) -> str:
    return ChatTemplate(source, special_tokens, "chat_template.jinja").render(messages)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{% for m in messages[::-1] %}{{ m.content }}{% endfor %}", "twoone"),
        ("{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}", "2"),
        ("{{ {'b': 'é', 'a': '<'} | tojson }}", '{"b": "é", "a": "<"}'),
        ("{{ {'b': 'é', 'a': 1} | tojson(ensure_ascii=true, sort_keys=true) }}", '{"a": 1, "b": "\\u00e9"}'),
        ("{{ [1, {'a': 2}] | tojson(separators=(',', ':')) }}", '[1,{"a":2}]'),
        ("{{ {'a': 1} | tojson(indent=2) }}", '{\n  "a": 1\n}'),
        ("{{ strftime_now('%Y') | length }}", "4"),
        ("{% for m in messages %}{% if loop.last %}{% break %}{% endif %}{{ m.content }}{% endfor %}", "one"),
        ("{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}{{ m.content }}{% endfor %}", "two"),
        ("{% generation %}{{ messages[0]['content'] }}{% endgeneration %}", "one"),
        ("{{ bos_token }}{{ eos_token }}|{{ pad_token }}", "<s></s>|"),
        ("{{ bos_token is defined }} {{ pad_token is defined }} {{ tools is none }}", "True False True"),
        ("{% if add_generation_prompt %}{{ '-' * 3 + '>' }}{{ 2 ** 3 }}{% endif %}", "--->8"),
    ],
)
def test_what_templates_rely_on(source: str, expected: str) -> None:
    messages = [{"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}]
    assert rendered(source, messages, bos_token="<s>", eos_token="</s>") == expected


def test_a_template_that_refuses_is_quoted() -> None:
    """'Conversation roles must alternate' tells the user what to change; a line break would tear the sentence."""
    with pytest.raises(UsageError, match=r"chat template refuses.*\(roles must alternate: user\)"):
        rendered("{{ raise_exception('roles must\nalternate: ' + messages[0].role) }}")


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'x' * 10 ** 11 }}",
        "{{ 10 ** 11 * 'x' }}",
        "{{ [1] * 10 ** 11 }}",
        "{{ 2 ** (2 ** 40) }}",
        "{% set ns = namespace(s='x') %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}{{ ns.s }}",
        "{% for i in range(99999) %}{{ '%9999d' | format(i) }}{% endfor %}",
        "{% macro deep(n) %}{{ deep(n + 1) }}{% endmacro %}{{ deep(0) }}",
        "{{ range(10 ** 9) | list }}",
    ],
)
def test_a_template_that_runs_away_is_one_sentence(source: str) -> None:
    """Gigabytes of one letter, a power with a billion digits, a macro that calls itself."""
    with pytest.raises(UsageError, match="chat template") as caught:
        rendered(source)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__.__mro__[1].__subclasses__() }}",
        "{{ raise_exception.__globals__.json }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__ }}{{ cycler.__init__.__globals__.os.system('true') }}",
        "{% include 'x' %}",
    ],
)
def test_a_template_does_not_leave_its_sandbox(source: str) -> None:
    """An artifact is a stranger's: its template may look at messages and write text, no more."""
    with pytest.raises(UsageError, match="chat template"):
        rendered(source)


@pytest.mark.parametrize(
    "source", ["{% for m in messages %}", "{{ " + "(" * 5000, "{% for a in b %}" * 30, "{{ 1 | no }}"]
)
def test_what_is_no_template_is_a_damaged_artifact(source: str) -> None:
    """Also where it is not jinja2 that complains, but Python about the code made of it."""
    with pytest.raises(ArtifactError, match=r"chat_template\.jinja is no usable template"):
        rendered(source)


@pytest.mark.parametrize("source", ["{{ 'a'|center(10000000000) }}", "{{ [1] * 3 + ['x' * 10] }}", "{{ 1 // 0 }}"])
def test_nothing_runs_before_there_are_messages(source: str) -> None:
    """jinja2 computes constants when it reads a template: opening an artifact took gigabytes."""
    ChatTemplate(source, {}, "chat_template.jinja")


@pytest.mark.parametrize("message", [{}, {"role": "user"}, {"content": "hi"}, {"role": 3, "content": "hi"}])
def test_a_message_without_role_or_content_is_refused(message: Any) -> None:
    """jinja2 would write nothing for it, and nobody would know."""
    with pytest.raises(UsageError, match="needs a role and a content"):
        rendered("{{ messages[0].content }}", [message])


def test_content_may_be_a_list_of_text_parts() -> None:
    """As OpenAI's API has it; '[{'type': ...' in the prompt would be worse than an error."""
    source = "{{ messages[0].role }}: {{ messages[0].content + '!' }}"
    part = {"type": "text", "text": "hi"}
    assert rendered(source, [{"role": "user", "content": [part]}]) == rendered(source, HI) == "user: hi!"
    assert rendered(source, [{"role": "user", "content": [part, part]}]) == "user: hi\nhi!"
    assert rendered(source, [{"role": "user", "content": []}]) == "user: !"


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("hi", "a message is str"),
        ({"role": "user", "content": 3}, "content is int"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, "type 'image_url'"),
        ({"role": "user", "content": ["hi"]}, "type None"),
        ({"role": "user", "content": [{"type": "text"}]}, "type 'text'"),
    ],
)
def test_a_message_that_cannot_be_read_is_refused(message: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        rendered("{{ messages[0].content }}", [message])


def test_messages_of_the_caller_stay_as_they_are() -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]
    rendered("{{ messages[0].content }}", messages)
    assert messages == [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]
