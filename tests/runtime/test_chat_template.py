"""Chat templates: what Hugging Face's environment offers them, what a stranger's may not do, and messages as parts."""

from __future__ import annotations

import json
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
    messages = [{"role": "tool", "content": "one"}, {"role": "assistant", "content": "two"}]  # neither has to arrive
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


def text(*texts: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text} for text in texts]


LOOP = "{% for m in messages %}{{ m.role }}: "
PARTS_ONLY = (
    LOOP + "{% for p in m.content %}{% if p.type == 'text' %}{{ p.text }}{% endif %}{% endfor %};{% endfor %}A:"
)
FIRST_PART = LOOP + "{{ m['content'][0]['text'] }};{% endfor %}A:"
BY_INDEX = LOOP + "{% for i in range(m.content | length) %}{{ m.content[i].text }}{% endfor %};{% endfor %}A:"
TEXT_ONLY = LOOP + "{{ m.content | trim }};{% endfor %}A:"
SUM = LOOP + "{{ m.content + ';' }}{% endfor %}A:"
JSON = LOOP + "{{ m.content if m.content is string else m.content | tojson }};{% endfor %}A:"
ELSE_NOTHING = LOOP + "{{ m.content if m.content is string else '' }};{% endfor %}A:"
BOTH = (
    LOOP + "{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}<{{ p.text }}>{% endfor %}"
    "{% endif %};{% endfor %}A:"
)


@pytest.mark.parametrize("source", [PARTS_ONLY, FIRST_PART, BY_INDEX, TEXT_ONLY, SUM, JSON, ELSE_NOTHING, BOTH])
@pytest.mark.parametrize("content", ["hello", text("hello")])
def test_what_was_said_arrives_in_the_form_that_the_template_reads(source: str, content: Any) -> None:
    """A template that wants parts wrote nothing for a text, one that wants text Python's words for a list."""
    expected = "user: hello;A:" if source is not BOTH or content == "hello" else "user: <hello>;A:"
    assert rendered(source, [{"role": "user", "content": content}]) == expected


@pytest.mark.parametrize("content", ["hello", text("hello")])
def test_a_template_that_wants_parts_is_written_as_transformers_does(content: Any) -> None:
    """'user: A:' in both cases, once: the model answered a question that it never saw."""
    source = (
        "{% for m in messages %}{{ m.role }}: {% for p in m.content %}{% if p.type == 'text' %}{{ p.text }}"
        "{% endif %}{% endfor %}\n{% endfor %}{% if add_generation_prompt %}A:{% endif %}"
    )
    assert rendered(source, [{"role": "user", "content": content}]) == "user: helloA:"


@pytest.mark.parametrize("source", [PARTS_ONLY, BY_INDEX, TEXT_ONLY, BOTH])
def test_a_conversation_may_mix_both_forms(source: str) -> None:
    messages = [
        {"role": "system", "content": text("Be brief.")},
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "hi"},
        {"role": "user", "content": text("why?", "say")},
    ]
    found = rendered(source, messages)
    assert [found.find(word) for word in ("Be brief.", "hello", "hi", "why?", "say")] == sorted(
        found.find(word) for word in ("Be brief.", "hello", "hi", "why?", "say")
    )
    assert "type" not in found


@pytest.mark.parametrize(
    ("source", "messages", "words"),
    [
        ("{% for m in messages %}{{ m.role }}: {{ m.text }}{% endfor %}A:", HI, r"user message says \('hi'\)"),
        ("user: A:", [{"role": "user", "content": "A"}], r"user message says \('A'\)"),
        ("user: A:", [{"role": "user", "content": text("A")}], r"user message says \('A'\)"),
        (FIRST_PART, [{"role": "user", "content": text("hi", "x" * 50)}], r"x\.\.\.'\)"),
        ("{{ messages[-1].content }}", [{"role": "system", "content": "Be brief."}, *HI], "system message says"),
        (
            "{{ messages[-1].content }}",
            [*HI, *HI[:0], {"role": "user", "content": "so?"}],
            r"user message says \('hi'\)",
        ),
        ("{% for c in messages[0].content if c in 'xyz' %}{{ c }}{% endfor %}", HI, r"\('hi'\)"),
        ("{{ messages[0].content if messages[0].content | length > 9 }}", HI, r"\('hi'\)"),
    ],
)
def test_what_does_not_arrive_is_an_error(source: str, messages: Any, words: str) -> None:
    """The model answered a question that it never saw. A word that the template says anyway proves nothing."""
    with pytest.raises(UsageError, match=f"leaves out what the .*{words}"):
        rendered(source, messages)


@pytest.mark.parametrize(
    "said", ["  hi\n", "hi /no_think", "/no_think", 'so "é" it\\is', "</think> why", "!!!", "😀", "", "  ", "A", "<s>"]
)
@pytest.mark.parametrize(
    "written",
    [
        "m.content",
        "m.content | trim",
        "m.content.replace('/no_think', '').replace('</think>', '')",
        "m.content | tojson",
        "m.content | tojson(ensure_ascii=true)",
        "m.content | upper",
        "(m.content.split('</think>') | last).strip()",
    ],
)
def test_what_a_template_changes_on_purpose_is_no_loss(written: str, said: str) -> None:
    """Trimmed, escaped, switches and tags taken out: public templates do all of this."""
    rendered("{% for m in messages %}{{ " + written + " }}{% endfor %}A:", [{"role": "user", "content": said}])


def test_an_assistants_thinking_and_a_tools_answer_need_not_arrive() -> None:
    source = (
        "{% for m in messages %}{% if m.role == 'assistant' %}{{ (m.content or '').split('</think>')[-1] }}"
        "{% elif m.role != 'tool' %}{{ m.content }}{% endif %}{% endfor %}"
    )
    messages = [
        *HI,
        {"role": "assistant", "content": "<think>well</think>so"},
        {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": {}}}]},
        {"role": "tool", "content": "4", "tool_call_id": "1", "name": "f"},
        {"role": "user", "content": "?"},
    ]
    assert rendered(source, messages) == "hiso?"


def test_a_template_that_looks_into_what_is_said_is_asked_with_the_real_words_only() -> None:
    """A made-up word in their place is refused, or not written."""
    source = (
        "{% for m in messages %}{% if 'please' not in m.content %}{{ raise_exception('be polite') }}{% endif %}"
        "{{ m.content }}{% endfor %}"
    )
    assert rendered(source, [{"role": "user", "content": "hi, please"}]) == "hi, please"
    with pytest.raises(UsageError, match="be polite"):
        rendered(source)


def test_fields_beside_the_content_reach_the_template() -> None:
    source = (
        "{% for m in messages %}{{ m.content }}{{ m.name }}{{ m.tool_call_id }}{{ m.tool_calls[0].id }}{% endfor %}"
    )
    message = {"role": "user", "content": "hi", "name": "-n", "tool_call_id": "-t", "tool_calls": [{"id": "-c"}]}
    assert rendered(source, [message]) == "hi-n-t-c"


TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {}}}}
TOOLS = "{% if tools %}{% for t in tools %}{{ t | tojson }}{% endfor %}{% endif %}{{ messages[0].content }}"


def test_tools_are_written_as_they_are() -> None:
    template = ChatTemplate(TOOLS, {}, "x")
    assert template.render(HI, [TOOL]) == json.dumps(TOOL) + "hi"
    assert template.render(HI, [{"name": "f"}]) == '{"name": "f"}hi'
    assert template.render(HI, []) == template.render(HI) == "hi"


@pytest.mark.parametrize(
    ("source", "tools", "words"),
    [
        ("{{ messages[0].content }}", [TOOL], "no place for `tools`: 'get_weather'"),
        ("{% if tools %}I have tools. {% endif %}{{ messages[0].content }}", [TOOL], "no place for `tools`"),
        ("{{ messages[0].content }}i", [{"name": "i"}], "no place for `tools`: 'i'"),
        (TOOLS.replace("in tools", "in tools[:1]"), [TOOL, {"name": "weather"}], "no place for `tools`: 'weather'"),
        (PARTS_ONLY, [TOOL], "no place for `tools`"),
        (TOOLS, TOOL, "`tools` is dict"),
        (TOOLS, ["get_weather"], "a tool is a JSON schema with a name"),
        (TOOLS, [{"type": "function"}], "a tool is a JSON schema with a name"),
    ],
)
def test_tools_that_do_not_arrive_are_refused(source: str, tools: Any, words: str) -> None:
    """The model would not call what it does not know, and nobody would know why."""
    with pytest.raises(UsageError, match=words) as caught:
        ChatTemplate(source, {}, "x").render(HI, tools)
    assert caught.value.parameter == "tools"


THINKS = (
    "{% if enable_thinking is not defined %}{% set enable_thinking = true %}{% endif %}"
    "{{ messages[0].content }}{{ '' if enable_thinking else '<think></think>' }}{{ documents }}"
)


def test_variables_of_the_template_can_be_set() -> None:
    template = ChatTemplate(THINKS, {"bos_token": "<s>"}, "x")
    assert template.render(HI) == template.render(HI, variables={}) == "hiNone"
    assert template.render(HI, variables={"enable_thinking": False}) == "hi<think></think>None"
    assert template.render(HI, variables={"documents": ["d"], "enable_thinking": True}) == "hi['d']"


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"messages": []}, "sets 'messages'"),
        ({"add_generation_prompt": False}, "sets 'add_generation_prompt'"),
        ({"tools": []}, "sets 'tools'"),
        ({"bos_token": ""}, "sets 'bos_token'"),
        ({"raise_exception": None}, "sets 'raise_exception'"),
        ({"enable_thinkng": False}, "unknown variable .*'enable_thinkng'.*Did you mean 'enable_thinking'"),
        ({"m": 1}, "unknown variable .*'m'"),
        ({3: 1}, "unknown variable"),
        ("enable_thinking", "is str"),
    ],
)
def test_variables_that_have_no_effect_or_are_taken_are_refused(variables: Any, words: str) -> None:
    """A typo would leave thinking on without a word."""
    with pytest.raises(UsageError, match=words) as caught:
        ChatTemplate(THINKS, {"bos_token": "<s>"}, "x").render(HI, variables=variables)
    assert caught.value.parameter == "chat_template_kwargs"


def test_looking_for_variables_runs_nothing() -> None:
    """jinja2's own search computes constants: gigabytes here."""
    template = ChatTemplate(
        "{{ messages[0].content }}{% if x is defined %}{{ 'a'|center(10000000000) }}{% endif %}", {}, "x"
    )
    with pytest.raises(UsageError, match="known are x"):
        template.render(HI, variables={"y": 1})


def test_messages_of_the_caller_stay_as_they_are() -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]
    rendered("{{ messages[0].content }}", messages)
    assert messages == [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]
