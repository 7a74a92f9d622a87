"""A checkpoint's template makes no value that fills the memory, and honest ones render as ever."""

import resource
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from agentrl.chat.template import Template, TemplateRefusal
from tests.chat.conversations import user
from tests.chat.realia import tokenizer

DOUBLED = (
    "{%- set n = namespace(x='a') -%}{%- for i in range(60) -%}{%- set n.x = EXPR -%}{%- endfor -%}{{ n.x|length }}"
)
BOMBS = [
    "{{ 'a' * 3000000000 }}",
    "{{ 3000000000 * 'a' }}",
    "{{ ('a' * messages|length) * 3000000000 }}",
    "{{ [1] * 3000000000 }}",
    "{{ 2 ** 3000000000 }}",
    "{{ (10 ** 1000000) ** 1000000 }}",
    "{{ '%3000000000d' % 1 }}",
    "{{ '%*d' % (3000000000, 1) }}",
    "{{ '%3000000000d'|format(1) }}",
    "{{ '{:3000000000}'.format(1) }}",
    "{{ 'a'.ljust(3000000000) }}",
    "{{ 'a'.center(width=3000000000) }}",
    "{{ 'a'|center(3000000000) }}",
    "{{ ('\t' * 100000).expandtabs(100000) }}",
    "{{ ('\n' * 100000)|indent(100000) }}",
    "{{ ('\n' * 100000)|indent('x' * 100000) }}",
    "{{ ('a' * 1000000).replace('a', 'b' * 1000000) }}",
    "{{ ('a' * 1000000)|replace('a', 'b' * 1000000) }}",
    "{{ ('b' * 1000000).join('a' * 1000000) }}",
    "{{ range(100000)|join('b' * 1000000) }}",
    "{{ (['a' * 1000000] * 10000)|map('string')|join }}",
    "{{ messages|tojson(indent=3000000000) }}",
    "{% for i in range(100000) %}{{ 'a' * 1000000 }}{% endfor %}",
    "{% macro m() %}{% for i in range(100000) %}{{ 'a' * 1000000 }}{% endfor %}{% endmacro %}{{ m()|length }}",
    "{{ range(3000000000)|list|length }}",
    *(DOUBLED.replace("EXPR", e) for e in ("n.x + n.x", "n.x ~ n.x", "'{0}{0}'.format(n.x)", "n.x.join([n.x, n.x])")),
    "{{ '{:>{}}'.format('a', '3000000000') }}",
    "{{ '{0:>{1[0]}}'.format('a', [3000000000]) }}",
    "{{ '{a:>{b}}'.format_map({'a': 'a', 'b': 3000000000}) }}",
    "{{ '{a:>3000000000}'.format_map({'a': 'a'}) }}",
    "{{ ('{0:>99999}' * 30000).format(1) }}",
    "{{ '%(a)3000000000d' % {'a': 1} }}",
    "{{ 'a'.encode() * 3000000000 }}",
    "{{ ('a' * 1000000).encode().replace('a'.encode(), ('b' * 1000000).encode()) }}",
    "{{ ('a' * 1000000).translate({97: 'b' * 1000000}) }}",
    "{{ ([[1] * 100000] * 100000)|sum(start=[])|length }}",
    "{{ ('a' * 1000000)|replace(new='b' * 1000000, old='a') }}",
    "{{ ('\v' * 100000)|indent('x' * 100000) }}",
    "{{ ('a' * 1000000)|wordwrap(1, wrapstring='b' * 1000000) }}",
    "{{ ('http://a.b ' * 100000)|urlize(rel='b' * 1000000) }}",
    "{{ ([1] * 100000)|tojson(indent='b' * 100000) }}",
    DOUBLED.replace("EXPR", "[n.x, n.x]").replace("n.x|length", "n.x"),
    *(DOUBLED.replace("EXPR", "[n.x, n.x]").replace("|length", f"|{f}|length") for f in ("upper", "e", "trim", "safe")),
    DOUBLED.replace("EXPR", "[n.x, n.x]").replace("n.x|length", "({'a': n.x}|xmlattr)|length"),
    DOUBLED.replace("EXPR", "[n.x, n.x]").replace("n.x|length", "(n.x|string)|length"),
    DOUBLED.replace("EXPR", "[n.x, n.x]").replace("n.x|length", "(n.x ~ '')|length"),
    DOUBLED.replace("EXPR", "{'a': n.x, 'b': n.x}").replace("n.x|length", "(n.x|tojson)|length"),
]  # fmt: skip


def made() -> PreTrainedTokenizerFast:
    return tokenizer("smollm2")


@pytest.mark.prevents("a checkpoint's template fills the memory (`'a' * 3000000000`)")
@pytest.mark.parametrize("bomb", BOMBS)
def test_a_bomb_is_a_refusal(bomb: str) -> None:
    template = Template(made(), "{{ messages[0].content }}")
    template.source = bomb
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (600 << 20), before[1]))
    try:
        with pytest.raises(TemplateRefusal, match="SecurityError|OverflowError"):
            template.render([user("x")])
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def test_honest_operations_are_unchanged() -> None:
    source = (
        "{{ 'ab' * 3 }}|{{ 2 * 3 }}|{{ 2 ** 5 }}|{{ 'x' ~ 1 ~ none ~ [1, 'a'] }}|{{ '%5d' % 3 }}|{{ '%s' % 'a' }}|"
        "{{ 'a\nb'|indent(2) }}|{{ [1, 2]|join(', ') }}|{{ ', '.join(['a', 'b']) }}|{{ 'aXb'.replace('X', '--') }}|"
        "{{ {'a': 1}|tojson }}|{{ {'a': 1}|tojson(indent=2) }}|{{ '{:>4}'.format(7) }}|{{ 7 % 4 }}|{{ [1] + [2] }}|"
        "{{ messages|map(attribute='content')|join }}|{{ 3|string }}|{{ missing|default('d') }}|{{ ('a', 'b')|length }}"
        "|{{ '{\"a\": {\"b\": %s}}'|format(1) }}|{{ 'see http://x:80801: {%s}' % 1 }}|"
        "{{ ('a ' * 2000)|truncate(20000)|length }}"
        "|{{ [1, 2]|sum }}|{{ [{'a': 1}]|sum(attribute='a') }}|{{ 'a'|center(3) }}|{{ 'ab'|replace(new='c', old='b') }}"
    )
    due = (
        "ababab|6|32|x1None[1, 'a']|    3|a|a\n  b|1, 2|a, b|a--b|{\"a\": 1}|{\n  \"a\": 1\n}|   7|3|[1, 2]|x|3|d|2"
        '|{"a": {"b": 1}}|see http://x:80801: {1}|4000|3|1| a |ac'
    )  # fmt: skip
    assert Template(made(), source).render([user("x")]) == due
