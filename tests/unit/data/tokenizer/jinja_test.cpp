/// Expected: jinja2 3.1.6 in transformers' sandbox.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "data/tokenizer/chat_template.h"
#include "data/tokenizer/jinja/template.h"
#include "tests/support/message_of.h"

namespace jforge {
namespace {

using jinja::TemplateError;
using testing::HasSubstr;

const std::vector<ChatMessage> kMessages = {{"user", "Hi "}, {"assistant", "<think>a</think>\nb"}};

std::string rendered(const std::string& jinja) {
  return ChatTemplate::parse(jinja, "test", {{"bos_token", "<B>"}}).render(kMessages, true);
}

struct Case {
  std::string jinja;
  std::string expected;
};

void expect_all(const std::vector<Case>& cases) {
  for (const auto& [jinja, expected] : cases) {
    try {
      EXPECT_EQ(rendered(jinja), expected) << jinja;
    } catch (const Error& error) {
      ADD_FAILURE() << jinja << ": " << error.what();
    }
  }
}

/// Rendering fails with these words.
void expect_failures(const std::vector<Case>& cases) {
  for (const auto& [jinja, says] : cases) {
    const auto chat = ChatTemplate::parse(jinja, "test", {{"bos_token", "<B>"}});
    EXPECT_THAT(test::message_of<DataError>([&] { return chat.render(kMessages, true); }),
                HasSubstr(says))
        << jinja;
  }
}

TEST(Jinja, BlanksAroundTags) {
  expect_all({{"a\n{% if true %}\n b\n{% endif %}\nc\n", "a\n b\nc"},
              {"a\n  {% if true %}\n  b\n  {% endif %}  \nc\n\n", "a\n  b\n  \nc\n"},
              {"a \n {%- if true -%} \n b \n {%- endif -%} \n c", "abc"},
              {"  {{ 'x' }}  \n  {{- 'y' -}}  \n z", "  xyz"},
              {"a{# note #}\nb{#- note -#}\n c\n  {# note #}\nd", "abc\nd"},
              {"x{% raw %} {{ y }} {% if %}\n{% endraw %}\nz", "x {{ y }} {% if %}\nz"},
              {"x {%- raw -%} \n y {%- endraw -%} \n z", "xyz"},
              {"a\r\n{% if true %}\r\nb\rc{% endif %}\r\n", "a\nb\nc"},
              {"{{ 'a\r\nb' }}\n", "a\nb"},
              {"\343\200\200{%- if true %} x{% endif %}\302\240{%- if true %}y{% endif %}", " xy"},
              {"{% set x = 1 %}\n  {% set y = 2 %}\n{{ x }}", "1"},
              {R"({{ '}}' ~ "%}" }}{{ {'a': {'b': 1}} }})", "}}%}{'a': {'b': 1}}"},
              {"{{\n'a'\n}}{%\nif true\n%}b{%\nendif\n%}", "ab"},
              {"{ {a}} {% if true %}b{% endif %}", "{ {a}} b"},
              {"\n\n{{ 1 }}\n\n\n", "\n\n1\n\n"},
              {"{%- for x in [1, 2] -%}\n  {{ x }}\n{%- endfor -%}\n end", "12end"}});
}

TEST(Jinja, StringConstants) {
  expect_all(
      {{R"({{ 'a\tb\\\n\r\b\'\"é😀' }})", "a\tb\\\n\r\b'\"é😀"}, {R"({{ 'a' 'b' "c" }})", "abc"}});
}

TEST(Jinja, OperatorsAndTheirPrecedence) {
  expect_all(
      {{"{{ 1 + 2 * 3 - 4 % 3 }} {{ -7 % 3 }} {{ 7 % -3 }} {{ 7 % -1 }} {{ 2 - 3 - 4 }}",
        "6 2 -2 0 -5"},
       {"{{ 1 ~ (2 + 3) ~ 'a' }} {{ 'x' + 2 ~ 'b' }} {{ nothing ~ none }}", "15a x2b None"},
       {"{{ 'ab' * 2 }} {{ 2 * 'hé' }} {{ 'a' * -1 }}|", "abab héhé |"},
       {"{{ [1] + [2] }} {{ (1,) + (2,) }} {{ true + 1 }} {{ -true }}", "[1, 2] (1, 2) 2 -1"},
       {"{{ 1 < 2 }} {{ 2 <= 2 }} {{ 3 > 4 }} {{ 3 >= 4 }} {{ 1 == true }} {{ 'a' < 'b' }} {{ 1 != "
        "2 }}",
        "True True False False True True True"},
       {"{{ 'a' in 'cab' }} {{ 'x' not in 'cab' }} {{ 1 in [1] }} {{ 'a' in {'a': 1} }} {{ 1 in "
        "none_such }} {{ not 1 in [2] }}",
        "True True True True False True"},
       {"{{ 0 or 'x' }} {{ 1 and 'y' }} {{ '' and 1 }}| {{ not '' }} {{ not 1 == 2 }} {{ true and "
        "not false or false }}",
        "x y | True True True"},
       {"{{ 'a' if true }} {{ 'a' if false }}| {{ 'a' if false else 'b' if false else 'c' }} {{ "
        "('a' if false) is defined }}",
        "a | c False"},
       {"{{ true }} {{ True }} {{ none }} {{ None }} {{ false }}", "True True None None False"},
       {"{{ - 3 }} {{ -3|string|length }} {{ 1 + 2|string|length }} {{ 1 - -1 }}", "-3 2 2 2"},
       {"{{ 1 if 2 > 1 and 'a' is string else 0 }}", "1"},
       {"{{ none == none }} {{ nothing == nothing2 }} {{ nothing == none }} {{ '1' == 1 }} {{ "
        "{'a': [1]} == {'a': [1]} }} {{ [1] == (1,) }}",
        "True True False False True False"}});
}

TEST(Jinja, AttributesElementsAndSlices) {
  expect_all(
      {{"{{ messages[0].role }} {{ messages[0]['role'] }} {{ messages[-1]['role'] }} {{ "
        "messages.0.role }}",
        "user user assistant user"},
       {"{{ messages[9] }}|{{ messages[0].none_such }}|{{ messages[0]['none_such'] is defined }}",
        "||False"},
       {"{{ {'items': 1}['items'] }} {{ {'a': 1}['get']('a') }}", "1 1"},
       {"{{ 'hé😀'[1] }} {{ 'hé😀'[-1] }} {{ 'abc'[7] }}|{{ 'abc'['x'] }}|", "é 😀 ||"},
       {"{{ 'abcdef'[1:3] }} {{ 'abcdef'[:-1] }} {{ 'abcdef'[-2:] }} {{ "
        "'hé😀x'[1:3] }} {{ 'abc'[5:] }}|{{ 'abc'[:0] }}|",
        "bc abcde ef é😀 ||"},
       {"{{ [1, 2, 3][1:] }} {{ (1, 2, 3)[::-1] }} {{ [1, 2][none:1] }} {{ range(5)[1:3]|list }} "
        "{{ [1, 2, 3][-9:9] }}",
        "[2, 3] (3, 2, 1) [1] [1, 2] [1, 2, 3]"},
       {"{{ [[1, 2], [3]][0][1] }} {{ {'a': {'b': [5]}}.a.b[0] }} {{ {1: 'x'}[1] }} {{ {1: "
        "'x'}[true] }} {{ {(1, 2): 3}[(1, 2)] }}",
        "2 5 x x 3"},
       {"{{ none.x }}|{{ none['x'] }}|{{ 1 .x }}|{{ [].x }}|{{ 'a'.upper is defined }} {{ "
        "'a'.nope is defined }}",
        "||||True False"},
       {"{{ messages[0].content[0] }} {{ messages[0].content.text }}|", "H |"}});
}

TEST(Jinja, ValuesArePrintedAsPythonDoes) {
  expect_all({{R"({{ [1, 'a', "it's", 'q"', none, true, 1, {'k': (1,)}] }})",
               R"([1, 'a', "it's", 'q"', None, True, 1, {'k': (1,)}])"},
              {"{{ {} }} {{ [] }} {{ () }} {{ (1, 2) }} {{ 1, 2 }}", "{} [] () (1, 2) (1, 2)"},
              {"{{ ['é\\n\\t\\\\', '\342\200\213\001\x7f', 'a\\'b\\\"c', '😀\343\200\200'] }}",
               R"(['é\n\t\\', '\u200b\x01\x7f', 'a\'b"c', '😀\u3000'])"},
              {"{{ nothing }}|{{ [nothing] }}", "|[Undefined]"}});
}

TEST(Jinja, Conditions) {
  expect_all({{"{% if 0 %}a{% elif '' %}b{% elif 1 %}c{% else %}d{% endif %}", "c"},
              {"{% if [] or {} or none or nothing %}a{% else %}b{% endif %}", "b"},
              {"{% if messages and messages[0].role == 'user' and 'x' not in messages[0].content "
               "%}a{% endif %}",
               "a"},
              {"{% if [0]|select('string') %}generator{% endif %}", "generator"}});
}

TEST(Jinja, Loops) {
  expect_all(
      {{"{% for x in [1, 2, 3] %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ "
        "loop.last }}{{ loop.length }}{{ loop.previtem }}{{ loop.nextitem }};{% endfor %}",
        "10TrueFalse32;21FalseFalse313;32FalseTrue32;"},
       {"{% for x in range(6) if x % 2 %}{{ loop.index }}{{ x }}{{ loop.last }}{{ "
        "loop.length }}{{ loop.nextitem }};{% else %}none{% endfor %}",
        "11False33;23False35;35True3;"},
       {"{% for x in [] %}a{% else %}b{% endfor %}", "b"},
       {"{% for x in [1, 2] if x > 5 %}a{% else %}b{% endfor %}", "b"},
       {"{% for k, v in {'a': 1, 'b': 2}.items() %}{{ k }}{{ v }}{% endfor %}", "a1b2"},
       {"{% for a, b, c in [(1, 2, 3)] %}{{ a }}{{ b }}{{ c }}{% endfor %}{% for (a, b) in [(4, "
        "5)] %}{{ a }}{{ b }}{% endfor %}",
        "12345"},
       {"{% for x in 'hé' %}{{ x }}.{% endfor %}", "h.é."},
       {"{% for x in {'a': 1} %}{{ x }}{% endfor %}", "a"},
       {"{% for x in nothing %}a{% else %}b{% endfor %}", "b"},
       {"{% for x in range(5) %}{% if x == 1 %}{% continue %}{% endif %}{% if x == 3 %}{% "
        "break %}{% endif %}{{ x }}{% endfor %}",
        "02"},
       {"{% for x in [1] %}{% break %}{% else %}b{% endfor %}", "b"},
       {"{% for x in [1, 2] %}{% continue %}{% else %}b{% endfor %}", "b"},
       {"{% for x in [1, 2] %}{{ x }}{% continue %}{% else %}b{% endfor %}{% for x in [1, "
        "2] %}{% if x == 1 %}{% continue %}{% endif %}{% else %}b{% endfor %}",
        "12b"},
       {"{% for x in [1, 2] %}{% for y in [3, 4] %}{{ loop.index }}{% endfor %}{{ "
        "loop.index }}{% endfor %}",
        "121122"},
       {"{% for x in [1, 2, 3, 4] if not loop %}{{ x }}{% endfor %}", "1234"},
       {"{% set ns = namespace(go=true) %}{% for x in [1, 2, 3] if ns.go %}{{ x }}{% set "
        "ns.go = false %}{% endfor %}",
        "1"},
       {"{% for x in [1, 2, 3]|map('string') %}{{ x }}{{ loop.last }}{% endfor %}",
        "1False2False3True"},
       {"{% for x in range(3, 0, -1) %}{{ x }}{% endfor %}{{ range(3) == range(0, 3) }}",
        "321True"},
       {"{% for x in [1, 2] %}{% for y in [1, 2] %}{% if y == 2 %}{% break %}{% endif %}{{ "
        "x }}{{ y }}{% endfor %};{% endfor %}",
        "11;21;"}});
}

TEST(Jinja, ScopesOfNames) {
  expect_all(
      {{"{% set x = 1 %}{% for i in [1, 2] %}{{ x }}{% set x = x + 1 %}{{ x }}{% endfor %}{{ x }}",
        "12121"},
       {"{% if true %}{% set x = 1 %}{% endif %}{{ x }}", "1"},
       {"{% for i in [1] %}{% if true %}{% set x = 2 %}{% endif %}{{ x }}{% endfor %}{{ x is "
        "defined }}",
        "2False"},
       {"{% for i in [1] %}{{ tools is defined }}{% endfor %}{% set tools = 1 %}", "False"},
       {"{% if not date is defined %}{% set date = 'd' %}{% endif %}{{ date }}", "d"},
       {"{% if false %}{% set bos_token = 'x' %}{% endif %}{{ bos_token }}", "<B>"},
       {"{% set bos_token = bos_token ~ '!' %}{{ bos_token }}", "<B>!"},
       {"{% set ns = namespace(a=1) %}{% for i in [1, 2] %}{% set ns.a = ns.a + i %}{% set ns.b = "
        "i %}{% endfor %}{{ ns.a }}{{ ns.b }}{{ ns['a'] }}{{ ns.c is defined }}",
        "424False"},
       {"{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set (c, d) = [3, 4] %}{{ c }}{{ d }}", "1234"},
       {"{% set x %} a {{ 1 }} {% endset %}[{{ x }}]", "[ a 1 ]"},
       {"{% set x %}{% set y = 1 %}{{ y }}{% endset %}{{ x }}{{ y is defined }}", "1False"},
       {"{% for x in [1] %}{{ x }}{% endfor %}{{ x is defined }}", "1False"},
       {"{% set x = 5 %}{% for x in [1] %}{{ x }}{% endfor %}{{ x }}", "15"},
       {"{% generation %}{% set x = 1 %}{{ x }}{% endgeneration %}{{ x is defined }}", "1False"},
       {"{% filter upper %}a{{ 'b' }}{% endfilter %}", "AB"},
       {"{% filter replace('a', 'b')|upper %}a a{% endfilter %}", "B B"},
       {"{% for i in [1, 2] %}{% if loop.first %}{% set seen = i %}{% endif %}{{ seen is defined "
        "}}{% endfor %}",
        "TrueFalse"},
       {"{% for i in [1, 2] %}{% set messages = [] %}{% endfor %}{{ messages|length }}", "2"},
       {"{% set x = namespace() %}{% set x.y = 1 %}{{ x.y }}", "1"},
       {"{% for m in messages %}{% set content = m.content %}{% if m.role == 'user' %}{% set "
        "content = content|trim %}{% endif %}[{{ content }}]{% endfor %}{{ content is defined }}",
        "[Hi][<think>a</think>\nb]False"}});
}

TEST(Jinja, Macros) {
  expect_all(
      {{"{% macro f(a, b=2, c=a) %}{{ a }}{{ b }}{{ c }};{% endmacro %}{{ f(1) }}{{ f(1, c=3) }}{{ "
        "f(b=1, a=4) }}{{ f() }}",
        "121;123;414;2;"},
       {"{% macro f(x) %}{{ x }}{% if x > 0 %}{{ f(x - 1) }}{% endif %}{% endmacro %}{{ f(3) }}",
        "3210"},
       {"{% set y = 1 %}{% macro f() %}{{ y }}{% set y = 5 %}{{ y }}{% endmacro %}{{ f() }}{% set "
        "y = 2 %}{{ f() }}{{ y }}",
        "15252"},
       {"{% macro f() -%}  a  {%- endmacro %}[{{ f() }}]{{ f()|length }}{{ f() + 'x' }}", "[a]1ax"},
       {"{% macro f() %}{{ later }}{% endmacro %}{{ f() }}|{% set later = 1 %}{{ f() }}", "|1"},
       {"{% macro f(m) %}{% for x in m %}{{ loop.index }}{{ x }}{% endfor %}{% endmacro %}{% for i "
        "in [1] %}{{ f([7, 8]) }}{% endfor %}",
        "1728"},
       {"{% for i in [1, 2] %}{% macro f() %}{{ i }}{% endmacro %}{{ f() }}{% endfor %}", "12"},
       {"{% macro f(a) %}{{ a is defined }}{{ a }}{% endmacro %}{{ f() }}", "False"},
       {"{% macro f(n) %}{% if n %}{{ n }}{{ g(n - 1) }}{% endif %}{% endmacro %}{% macro g(n) "
        "%}<{{ f(n) }}>{% endmacro %}{{ f(3) }}",
        "3<2<1<>>>"},
       {"{% set fs = [namespace, range] %}{{ fs[1](2)|list }}", "[0, 1]"}});
}

TEST(Jinja, MethodsOfPythonsTypes) {
  expect_all(
      {{"{{ ' a b '.strip() }}|{{ 'xxaxx'.strip('x') }}|{{ '\\n a'.lstrip('\\n') }}|{{ 'a "
        "\\n'.rstrip() }}|{{ '\343\200\200\302\205\034a\342\200\250'.strip() }}|{{ "
        "'éaé'.strip('é') }}",
        "a b|a| a|a|a|a"},
       {"{{ 'a,b,,c'.split(',') }} {{ 'a,b,c'.split(',', 1) }} {{ 'a,b,c'.rsplit(',', 1) }} {{ "
        "''.split(',') }} {{ 'aaa'.rsplit('aa') }} {{ 'aaa'.split('aa') }} {{ 'a'.rsplit('aa') }}",
        "['a', 'b', '', 'c'] ['a', 'b,c'] ['a,b', 'c'] [''] ['a', ''] ['', 'a'] ['a']"},
       {"{{ 'abc'.startswith('ab') }} {{ 'abc'.endswith('x') }} {{ ''.startswith('') }}",
        "True False True"},
       {"{{ 'aBc'.upper() }} {{ 'ABC'.lower() }} {{ \"it's a b-c\".title() }} {{ 'aBC "
        "dE'.capitalize() }} {{ 'ß'.upper() }} {{ 'ΑΣ'.lower() }} {{ 'ßa'.capitalize() }} {{ "
        "'ǆa'.title() }}",
        "ABC abc It'S A B-C Abc de SS ας Ssa ǅa"},
       {"{{ 'aXbXc'.replace('X', '-') }} {{ 'héllo'.find('l') }} {{ 'a'.find('x') }}",
        "a-b-c 2 -1"},
       {"{{ '<{}>{}'.format('a', none) }}", "<a>None"},
       {"{{ {'a': 1}.get('a') }} {{ {'a': 1}.get('b') }} {{ {'a': 1}.get('b', 2) }} {{ {'a': 1, "
        "'b': 2}.keys()|list }} {{ {'a': 1}.values()|list }} {{ {'a': 1}.items()|list }}",
        "1 None 2 ['a', 'b'] [1] [('a', 1)]"}});
}

TEST(Jinja, Filters) {
  expect_all(
      {{"{{ ' a '|trim }}|{{ 'xax'|trim('x') }}|{{ nothing|trim }}|{{ 5|trim }}", "a|a||5"},
       {"{{ 'hé😀'|length }} {{ [1, 2]|count }} {{ {'a': 1}|length }} {{ nothing|length }}",
        "3 2 1 0"},
       {"{{ nothing|default('d') }} {{ ''|default('d') }}| {{ ''|default('d', true) }} {{ "
        "none|d('x', boolean=true) }} {{ nothing|default }}|",
        "d | d x |"},
       {"{{ [1, 2]|first }} {{ 'hé'|last }} {{ []|first }}|{{ {'a': 1}|first }} {{ range(3)|last "
        "}}",
        "1 é |a 2"},
       {"{{ 'ab'|list }} {{ {'a': 1}|list }} {{ nothing|list }} {{ {'a': 1}|items|list }}",
        "['a', 'b'] ['a'] [] [('a', 1)]"},
       {"{{ messages|map(attribute='role')|list }} {{ ['a']|map('upper')|list }} {{ "
        "['a,b']|map('replace', ',', '-')|join }} {{ [{'a': {'b': 2}}]|map(attribute='a.b')|first "
        "}}",
        "['user', 'assistant'] ['A'] a-b 2"},
       {"{{ [1, '2']|select('string')|list }} {{ [1, 2]|reject('equalto', 1)|list }} {{ [0, "
        "1]|select|list }} {{ messages|selectattr('role', 'equalto', 'user')|list|length }} {{ "
        "messages|rejectattr('role', 'in', ['user'])|map(attribute='role')|join }} {{ "
        "messages|selectattr('none_such')|list }} {{ messages|selectattr('content', "
        "'defined')|list|length }} {{ none|select|list }}",
        "['2'] [2] [1] 1 assistant [] 2 []"},
       {"{% set g = messages|map(attribute='role') %}{{ g|first }} {{ g|join }} {{ g|join }}|",
        "user assistant |"},
       {"{{ ['a', 1, none]|join(', ') }} {{ 'abc'|join('.') }}", "a, 1, None a.b.c"},
       {"{{ 'aB c-d'|upper }} {{ 'AB'|lower }} {{ 'aBC'|capitalize "
        "}} {{ 5|upper }}",
        "AB C-D ab Abc 5"},
       {"{{ 'aXbX'|replace('X', '-') }} {{ 121|replace(1, 'a') }}", "a-b- a2a"},
       {"{{ {'a': [1, 'é', none, true, {}], 'b': {'c': (1,)}}|tojson }} {{ "
        "'a\"\\n\\t\\\\/</x>&\001\x7f😀'|tojson }} {{ 'é😀\x7f'|tojson(ensure_ascii=true) }}",
        "{\"a\": [1, \"é\", null, true, {}], \"b\": {\"c\": [1]}} "
        "\"a\\\"\\n\\t\\\\/</x>&\\u0001\177😀\" \"\\u00e9\\ud83d\\ude00\\u007f\""},
       {"{{ 5|string + 'x' }} {{ '5'|int + 1 }} {{ 'x'|int }} {{ 'x'|int(7) }} {{ ' -3 '|int }} {{ "
        "'+4'|int }} {{ true|int }}",
        "5x 6 0 7 -3 4 1"},
       {"{{ {'b': 1, 'A': 2}|dictsort }}", "[('A', 2), ('b', 1)]"},
       {"{{ '<a>'|safe }} {{ [1]|tojson|safe }} {{ '<a>'|safe|string|length }}", "<a> [1] 3"},
       {"{{ 'a'|upper|lower|default('x') ~ 'b' }}", "ab"}});
}

TEST(Jinja, Tests) {
  expect_all({{"{{ x is defined }} {{ messages is defined }} {{ x is undefined }} {{ x is not "
               "defined }} {{ tools is none }} {{ tools is not none }}",
               "False True True True True False"},
              {"{{ 'a' is string }} {{ {} is mapping }} {{ [] is mapping }} {{ [] is sequence }} "
               "{{ 'a' is sequence }} {{ {} is sequence }} {{ 1 is sequence }} {{ x is sequence }} "
               "{{ x is iterable }} {{ 'a' is iterable }} {{ 1 is iterable }} {{ none is iterable "
               "}} {{ [1]|map('string') is iterable }} {{ [1]|map('string') is sequence }} {{ "
               "{}.items() is sequence }}",
               "True True False True True True False True True True False False True False False"},
              {"{{ 1 is number }} {{ true is number }} {{ true is integer }} {{ 1 is integer }} {{ "
               "true is boolean }} {{ 1 is boolean }} {{ "
               "true is true }} {{ 1 is true }} {{ false is false }} {{ 0 is false }}",
               "True True False True True False True False True False"},
              {"{{ 1 is eq(1) }} {{ 1 is equalto(2) }} {{ 1 is ne(2) }} {{ 'a' is in('abc') }} {{ "
               "'a' is not string and true }}",
               "True False True True False"},
              {"{{ 1 is string or 'a' is string }} {{ not 1 is string }} {{ 'x' if 1 is defined "
               "else 'y' }}",
               "True True x"}});
}

TEST(Jinja, FunctionsAndWhatIsGiven) {
  expect_all(
      {{"{{ range(3)|list }} {{ range(1, 4)|list }} {{ range(4, 0, -2)|list }} {{ range(0)|list }} "
        "{{ range(5)|length }} {{ range(5)[-1] }}",
        "[0, 1, 2] [1, 2, 3] [4, 2] [] 5 4"},
       {"{{ dict(a=1, b=2) }} {{ dict({'a': 1}, b=3) }} {{ dict() }}",
        "{'a': 1, 'b': 2} {'a': 1, 'b': 3} {}"},
       {"{{ namespace(a=1).a }} {{ namespace({'b': 2}).b }}", "1 2"},
       {"{{ bos_token }}{{ eos_token is defined }}{{ add_generation_prompt }}{{ documents is none "
        "}}{{ enable_thinking }}{{ strftime_now is defined }}{{ date_string is defined }}",
        "<B>FalseTrueTrueFalseFalseFalse"}});
}

TEST(Jinja, EvaluationFailsAsJinja2Does) {
  expect_failures({
      {"{{ x.y }}", "line 1: 'x' is undefined"},
      {"\n{{ x['y'] }}", "line 2: 'x' is undefined"},
      {"{{ x + 1 }}", "'x' is undefined"},
      {"{{ x() }}", "'x' is undefined"},
      {"{{ x[1:] }}", "'x' is undefined"},
      {"{{ messages[0].none_such.x }}", "'dict object' has no attribute 'none_such'"},
      {"{{ messages[7].role }}", "list object has no element 7"},
      {"{{ ('a' if false) + 'b' }}", "no else section was defined"},
      {"{{ 'a' + 1 }}", "unsupported operand types for +: str object and int object"},
      {"{{ none + 'a' }}", "unsupported operand types for +"},
      {"{{ [] < 1 }}", "unsupported operand types for <"},
      {"{{ 1 in 5 }}", "int object is not iterable"},
      {"{% for x in 5 %}{% endfor %}", "int object is not iterable"},
      {"{% for a, b in [[1]] %}{% endfor %}", "1 values for 2 names"},
      {"{{ 1 % 0 }}", "division by zero"},
      {"{{ 9223372036854775807 + 1 }}", "beyond 64 bits"},
      {"{{ 'a'.split('') }}", "empty separator"},
      {"{{ none|length }}", "has no length"},
      {"{{ {[]: 1} }}", "is no key of a mapping"},
      {"{{ nothing|tojson }}", "has no JSON"},
      {"{% set x = 1 %}{% set x.y = 2 %}", "'x' is no namespace"},
      {"{{ namespace(_a=1) }}", "begins with '_'"},
      {"{% macro f(a) %}{% endmacro %}{{ f(1, 2) }}", "takes not more than 1"},
      {"{% macro f(a) %}{% endmacro %}{{ f(b=2) }}", "takes no keyword argument 'b'"},
      {"{{ 'a'.strip('a', 'b') }}", "more than 1 arguments"},
      {"{{ 'a'|trim(x=1) }}", "the argument 'x' of 'trim' is not supported"},
      {"{{ range(100001) }}", "a range of more than 100000"},
      {"{{ raise_exception('No ' ~ messages[0].role) }}", "refuses the conversation: No user"},
      {"{{ strftime_now('%d') }}", "the present day (strftime_now)"},
  });
}

TEST(Jinja, WhatIsNotKnownFailsWhereItIsReached) {
  expect_all(
      {{"{% if false %}{{ x|no_such }}{{ x is no_such }}{{ ''.zfill(1) }}"
        "{{ 'a' % 1 }}{{ 1.5 / 2 ** 3 // +4 }}{{ '\\x41' }}{{ 1 < 2 < 3 }}{{ self }}{% endif %}a",
        "a"}});
  expect_failures({
      {"{{ 1|no_such }}", "the filter 'no_such' is not supported"},
      {"{{ 1|xmlattr }}", "the filter 'xmlattr' is not supported"},
      {"{{ 1 is no_such }}", "the test 'no_such' is not supported"},
      {"{{ [1]|map('no_such')|list }}", "the filter 'no_such' is not supported"},
      {"{{ [1]|select('no_such')|list }}", "the test 'no_such' is not supported"},
      {"{{ 'a'.zfill(3) }}", "'str object' has no attribute 'zfill'"},
      {"{{ [1].append(2) }}", "'list object' has no attribute 'append'"},
      {"{{ {}.update({}) }}", "'dict object' has no attribute 'update'"},
      {"{{ cycler(1) }}", "'cycler' is undefined"},
      {"{% for x in [1] %}{{ loop.cycle(1) }}{% endfor %}", "'loop.cycle' is not supported"},
      {"{{ '%s' % 1 }}", "formatting with '%' is not supported"},
      {"{{ '{x}'.format(x=1) }}", "a format with more than '{}'"},
      {"{{ 4 / 2 }}", "the operator '/' is not supported"},
      {"{{ 4 // 2 }}", "the operator '//' is not supported"},
      {"{{ 4 ** 2 }}", "the operator '**' is not supported"},
      {"{{ [1] * 2 }}", "the operator '*' of lists is not supported"},
      {"{{ 1 < 2 < 3 }}", "more than one comparison without 'and' is not supported"},
      {"{{ +3 }}", "the sign '+' is not supported"},
      {"{{ 1.5 }}", "the number '1.5' is not supported"},
      {"{{ 1e3 }}", "the number '1e3' is not supported"},
      {"{{ 99999999999999999999 }}", "the number '99999999999999999999' is not supported"},
      {"{{ '\\x41' }}", "the escape '\\x' in a string is not supported"},
      {"{{ '\\é' }}", "the escape '\\é' in a string is not supported"},
      {"{{ 'abc'[::-1] }}", "a slice with a step is not supported"},
      {"{{ [1][::2] }}", "a slice with a step is not supported"},
      {"{{ 'a b'.split() }}", "a split at blanks is not supported"},
      {"{{ 'ab'.replace('', '.') }}", "replacing an empty text is not supported"},
      {"{{ 'ab'.replace('a', '.', 1) }}", "more than 2 arguments of 'replace' are not supported"},
      {"{{ [1]|tojson(sort_keys=true) }}", "the argument 'sort_keys' of 'tojson' is not supported"},
      {"{{ [[1]]|map(attribute=0)|list }}", "an attribute that is no string is not supported"},
      {"{{ '4.9'|int }}", "other texts than whole numbers"},
      {"{% macro f() %}{{ caller() }}{% endmacro %}{{ f() }}", "'caller' is not supported"},
      {"{{ self }}", "'self' is not supported"},
      {"{{ [1]|map('string') }}", "printing a generator object is not supported"},
      {"{{ {}.items() }}", "printing a dict view object is not supported"},
      {"{{ range }}", "printing a function object is not supported"},
      {"{{ ('<'|safe) + '>' }}", "the filter 'safe'"},
      {"{{ ('<'|safe) ~ '>' }}", "the filter 'safe'"},
      {"{{ ('<'|safe).upper() }}", "the filter 'safe'"},
      {"{{ '<'|safe|upper }}", "the filter 'safe'"},
      {"{{ ['<'|safe]|join }}", "the filter 'safe'"},
      {"{{ ['<'|safe] }}", "the filter 'safe'"},
  });
}

TEST(Jinja, WhatIsNoTemplateIsRefusedByLine) {
  const std::vector<Case> cases = {
      {"{% if %}", "expected an expression, found '%}'"},
      {"{% if true %}", "'endif' is missing"},
      {"{% if true %}{% else %}", "'endif' is missing"},
      {"{% endif %}", "unexpected 'endif'"},
      {"{% if true %}{% endfor %}", "unexpected 'endfor'"},
      {"{% for x %}{% endfor %}", "expected 'in'"},
      {"{% for loop in [1] %}{% endfor %}", "'loop' cannot be set"},
      {"{% set 1 = 2 %}", "expected a name"},
      {"{% set true = 2 %}", "'true' cannot be set"},
      {"{% macro f(a=1, b) %}{% endmacro %}", "follows one with a default"},
      {"{% break %}", "'break' outside a loop"},
      {"{% for x in [1] %}{% macro f() %}{% break %}{% endmacro %}{% endfor %}", "'break' outside"},
      {"{{ 'a }}", "a string without its end"},
      {"{{ 'a\\", "a string without its end"},
      {"{{ (1 }}", "unexpected '}'"},
      {"{{ } }}", "unexpected '}'"},
      {"{{ 1 + }}", "expected an expression, found '}}'"},
      {"{{ a b }}", "expected '}}', found 'b'"},
      {"{{ 1 is string is string }}", "tests cannot be chained"},
      {"{{ f(a=1, 2) }}", "without a name follows one with a name"},
      {"{{ 'a' | }}", "expected a name"},
      {"{{ ! }}", "unexpected character '!'"},
      {"{{ é }}", "unexpected character 'é'"},
      {"{{", "a tag without its end"},
      {"{%", "a tag without its end"},
      {"{# a", "a comment without its end"},
      {"{% raw %}a", "'raw' without its end"},
      {"{% set x | trim %}a{% endset %}", "a filter of a 'set' block is not supported"},
      {"{%+ if true %}{% endif %}", "'+' at the begin of a tag is not supported"},
      {"{% include 'a' %}", "the statement 'include' is not supported"},
      {"{% call f() %}{% endcall %}", "the statement 'call' is not supported"},
      {"{% for x in [] recursive %}{% endfor %}", "a recursive loop is not supported"},
      {"{{ f(*x) }}", "the argument '*' is not supported"},
  };
  for (const auto& [jinja, says] : cases) {
    try {
      (void)ChatTemplate::parse("\n\n" + jinja, "test");
      ADD_FAILURE() << "accepted " << jinja;
    } catch (const TemplateError& error) {
      EXPECT_EQ(error.line(), 3) << jinja;
      EXPECT_THAT(error.reason(), HasSubstr(says)) << jinja;
    }
  }
  EXPECT_THROW((void)ChatTemplate::parse("\xFF", "test"), DataError);
}

std::string repeated(const std::string& text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += text;
  return all;
}

/// Must neither end the process nor keep it busy.
TEST(Jinja, HostileTemplatesAreRefused) {
  for (const std::string& jinja :
       {"{{ " + repeated("(", 10000) + "1" + repeated(")", 10000) + " }}",
        "{{ " + repeated("not ", 10000) + "1 }}", "{{ " + repeated("-", 10000) + "1 }}",
        "{{ " + repeated("[", 10000) + repeated("]", 10000) + " }}",
        "{% set " + repeated("(", 10000) + "a" + repeated(")", 10000) + " = 1 %}",
        repeated("{% if 1 %}", 10000) + repeated("{% endif %}", 10000), repeated("a", 300000)}) {
    EXPECT_THROW((void)ChatTemplate::parse(jinja, "test"), TemplateError) << jinja.substr(0, 40);
  }
  const std::string endless = "{% set r = range(99999) %}{% for a in r %}{% for b in r %}";
  const std::string end = "{% endfor %}{% endfor %}";
  const std::string doubled =
      "{% set ns = namespace(x='ab') %}{% for i in range(60) %}"
      "{% set ns.x = ns.x + ns.x %}{% endfor %}";
  const std::string nested =
      "{% set ns = namespace(x=[]) %}{% for i in range(N) %}"
      "{% set ns.x = [ns.x, ns.x] %}{% endfor %}";
  const auto nested_by = [&](const std::string& count) {
    std::string text = nested;
    return text.replace(text.find('N'), 1, count);
  };
  expect_failures({
      {"{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "nested too deeply"},
      {"{{ 1" + repeated(" + 1", 10000) + " }}", "nested too deeply"},
      {"{{ x" + repeated(".a", 10000) + " }}", "nested too deeply"},
      {"{{ x" + repeated("|trim", 10000) + " }}", "nested too deeply"},
      {endless + end, "too many steps"},
      {endless + "x" + end, "too many steps"},
      {endless + "{% set x = [a] %}" + end, ""},
      {"{% for a in range(99999) %}" + repeated("abcdefghij", 200) + "{% endfor %}", "MiB"},
      {doubled, "too much memory"},
      {"{{ 'ab' * 999999999999 }}", "too long"},
      {"{{ 'a' * 9223372036854775807 * 9 }}", ""},
      {"{{ ('a' * 9999999).replace('a', 'b' * 9999) }}", "too long"},
      {"{{ (',' * 9999999).split(',')|length }}", "too many parts"},
      {"{{ ('a' * 99999999)|list|length }}", "too many steps"},
      {nested_by("200") + "{{ ns.x }}", "nested too deeply"},
      {nested_by("90") + "{{ ns.x }}", "too many steps"},
      {nested_by("90") + "{{ ns.x|tojson }}", "too many steps"},
      {nested_by("90") + "{{ ns.x == ns.x }}", "too many steps"},
      {"{% for i in range(9999) %}{{ ('a' * 9999999).find('a' * 4999999 ~ 'b') }}{% endfor %}", ""},
  });
}

TEST(Jinja, WhatIsPrintedIsBoundedInSum) {
  const std::string big = "{% set k = 'a' * 1000000 %}";
  const auto many = [](const std::string& item) {
    return "{% set ns = namespace(b=[" + item + "]) %}{% for i in range(17) %}" +
           "{% set ns.b = ns.b + ns.b %}{% endfor %}";
  };
  const std::string nested = "{{ k }}{% if n %}{{ f(n - 1) }}{% endif %}";
  expect_failures({
      {big + many("{k: 1}") + "{{ ns.b|tojson }}", "too long"},
      {big + many("k") + "{{ ns.b|tojson }}", "too long"},
      {big + many("k") + "{{ ns.b }}", "too long"},
      {big + "{% macro f(n) %}" + nested + "{% endmacro %}{{ f(150) }}", "prints more than"},
      {big + "{% macro f(n) %}{% set x %}" + nested + "{% endset %}{% endmacro %}{{ f(150) }}",
       "prints more than"},
      {big + "{% for i in range(99999) %}{% set x %}{{ k }}{% continue %}{% endset %}{% endfor %}",
       "prints more than"},
  });
}

TEST(Jinja, WorkTakesSteps) {
  const std::string texts = "{% set p = 'a' * 999999 ~ 'b' %}{% set q = 'a' * 999999 ~ 'c' %}";
  const auto often = [&](const std::string& jinja) {
    return texts + "{% for i in range(99999) %}{% set x = " + jinja + " %}{% endfor %}";
  };
  std::string names;
  for (int i = 0; i < 2000; ++i) names += "{% set a" + std::to_string(i) + " = 1 %}";
  for (const std::string& jinja : std::vector<std::string>{
           often("p.startswith(q)"), often("p.endswith(p)"), often("p|int"), often("p == q"),
           often("p < q"), often("p|length"), texts + "{% set d = {p: 1} %}" + often("d[q]"),
           texts + "{% set d = namespace(dict({p: 1})) %}" + often("d[q]"), often("p is in([q])"),
           "{% set r = range(99999)|list %}{% for i in r %}{% set x = -1 in r %}{% endfor %}",
           "{% for i in range(99999) %}{% if false %}" + names + "{% endif %}{% endfor %}"}) {
    expect_failures({{jinja, "too many steps"}});
  }
}

}  // namespace
}  // namespace jforge
