/// Chat templates: what the known forms print, what is read out of them, and what is refused.

#include "data/tokenizer/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "data/tokenizer/jinja_canonical.h"
#include "data/tokenizer/tokenizer_files.h"
#include "runtime/content_hash.h"
#include "runtime/error.h"
#include "tests/unit/data/tokenizer/tokenizer_fixture.h"

namespace jforge {
namespace {

using nlohmann::json;
using test::ScratchDirectory;
using testing::HasSubstr;
using Conversation = std::vector<ChatMessage>;

const char* const kQwen2 =
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";
const char* const kQwen15 =
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\\nYou are a helpful assistant<|im_end|>\\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\\n' + message['content']}}"
    "{% if (loop.last and add_generation_prompt) or not loop.last %}{{ '<|im_end|>' + '\\n'}}"
    "{% endif %}{% endfor %}{% if add_generation_prompt and messages[-1]['role'] != 'assistant' %}"
    "{{ '<|im_start|>assistant\\n' }}{% endif %}";

ChatTemplate recognised(const std::string& jinja) {
  auto found = ChatTemplate::recognise(jinja, "test");
  if (!found) throw std::runtime_error("the template was not recognised");
  return *found;
}

TEST(ChatTemplate, Qwen2HasADefaultSystemText) {
  const ChatTemplate chat = recognised(kQwen2);
  EXPECT_EQ(chat.default_system(), "You are a helpful assistant.");
  EXPECT_EQ(chat.render(Conversation{{"user", "Hi"}}, true),
            "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(chat.render(Conversation{{"system", ""}, {"user", "Hi"}}, false),
            "<|im_start|>system\n<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n");
}

TEST(ChatTemplate, Qwen15LeavesTheLastMessageOpen) {
  const ChatTemplate chat = recognised(kQwen15);
  EXPECT_EQ(chat.default_system(), "You are a helpful assistant");
  const Conversation dialogue{{"system", "S"}, {"user", "Q"}, {"assistant", "A"}};
  EXPECT_EQ(chat.render(dialogue, false),
            "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nQ<|im_end|>\n"
            "<|im_start|>assistant\nA");
  EXPECT_EQ(chat.render_answered(dialogue), chat.render(dialogue, true)) << "closed";
  EXPECT_EQ(recognised(kQwen2).render_answered(dialogue),
            recognised(kQwen2).render(dialogue, false));
  EXPECT_EQ(chat.render(dialogue, true),
            "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nQ<|im_end|>\n"
            "<|im_start|>assistant\nA<|im_end|>\n");
  EXPECT_EQ(chat.render(Conversation{{"system", "S"}, {"user", "Q"}}, true),
            "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nQ<|im_end|>\n"
            "<|im_start|>assistant\n");
}

TEST(ChatTemplate, PlainChatMlHasNoSystemText) {
  const std::string one_line =
      "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}"
      "{% endif %}{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + "
      "message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt %}"
      "{{ '<|im_start|>assistant\\n' }}{% endif %}";
  const std::string spread =
      "{# ChatML #}\n"
      "{% for message in messages %}\n"
      "    {{- \"<|im_start|>\" ~ message.role }}\n"
      "{{ message[\"content\"] + '<|im_end|>' }}\n"
      "    {# between #}\n"
      "{% endfor %}\n"
      "{% if add_generation_prompt %}\n"
      "  {{- '<|im_start|>assistant\\n' -}}\n"
      "{% endif %}\n";
  for (const std::string& jinja : {one_line, spread}) {
    const ChatTemplate chat = recognised(jinja);
    EXPECT_EQ(chat.default_system(), std::nullopt);
    EXPECT_EQ(chat.render(Conversation{{"user", "Hi"}}, true),
              "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
    EXPECT_EQ(chat.render(Conversation{{"user", "a"}, {"assistant", "b"}, {"system", "c"}}, false),
              "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n"
              "<|im_start|>system\nc<|im_end|>\n");
  }
}

TEST(ChatTemplate, NearMissesAreNotRecognised) {
  const auto changed = [](std::string text, const std::string& from, const std::string& to) {
    const std::size_t at = text.find(from);
    if (at == std::string::npos) throw std::runtime_error("nothing to change");
    return text.replace(at, from.size(), to);
  };
  const std::vector<std::string> strangers = {
      "",
      "hello",
      "{% for message in messages %}{{ message.content }}{% endfor %}",
      changed(kQwen2, "message['content'] +", "message['content'] | trim +"),
      changed(kQwen2, "'\\n' + message['content']", "'\\n\\n' + message['content']"),
      changed(kQwen2, "loop.first and", "loop.last and"),
      changed(kQwen2, "<|im_end|>\\n' }}", "<|im_end|>' }}"),
      changed(kQwen2, "You are a helpful assistant.", "' + date + '"),
      changed(kQwen2, "assistant\\n' }}", "assistant\\n<think>\\n' }}"),
      std::string(kQwen2) + "x",
      std::string("\x01") + kQwen2,
      std::string(kQwen2).substr(0, 300),
      "{{ 'open",
      "{# open",
      "{% if",
      "{{ '\\uZZZZ' }}",
  };
  for (const std::string& jinja : strangers) {
    EXPECT_FALSE(ChatTemplate::recognise(jinja, "test").has_value()) << jinja;
  }
  EXPECT_THROW((void)ChatTemplate::recognise("\xFF", "test"), DataError);
}

TEST(ChatTemplate, SystemTextIsReadWithJinjasEscapes) {
  std::string jinja = kQwen2;
  const std::string plain = "You are a helpful assistant.";
  jinja.replace(jinja.find(plain), plain.size(), R"(Put it in \\boxed{}.\n\u00e9 \'q\' \d)");
  EXPECT_EQ(recognised(jinja).default_system(), "Put it in \\boxed{}.\né 'q' \\d");
}

TEST(ChatTemplate, CanonicalFormFollowsTheBlankRules) {
  const auto canonical = [](const std::string& jinja) { return canonical_jinja(jinja, "test"); };
  EXPECT_EQ(canonical("a  {%  if  x['y']  ==  'z' %}\n b\n\n"), "a  \x01if x . y == \"z\"\x02 b\n");
  EXPECT_EQ(canonical("a\n  {% if x %}\n\nb"), "a\n\x01if x\x02\nb");
  EXPECT_EQ(canonical("a\n  {%+ if x +%}\nb"), "a\n  \x01if x\x02\nb");
  EXPECT_EQ(canonical("a \n {%- if x -%} \n b"),
            "a\x01if x\x02"
            "b");
  EXPECT_EQ(canonical("a {{ x }}\nb"), "a \x01= x\x02\nb");
  EXPECT_EQ(canonical("{{ 'p' + x['q'] ~ \"}}\" }}"), "p\x01= x . q\x02}}");
  EXPECT_EQ(canonical("{{ 'p' + x | trim }}"), "\x01= \"p\" + x | trim\x02");
  EXPECT_EQ(canonical("{{ 'p' if x else 'q' }}"), "\x01= \"p\" if x else \"q\"\x02");
  EXPECT_EQ(canonical("a{# {{ gone #}\nb"), "ab");
  EXPECT_EQ(canonical("a\r\n  {% if x %}\r\rb{{ 'c\r\nd' }}\r\n"),
            canonical("a\n  {% if x %}\n\nb{{ 'c\nd' }}\n"));
}

std::uint64_t digest_of(const std::string& jinja) {
  return hash64(std::string_view(canonical_jinja(jinja, "test")));
}

// What known templates are written with, in a text of our own. Most of them are known by a digest
// of their canonical form alone: one that changes here changes there, and they are lost.
const char* const kEveryConstruct =
    R"({{- bos_token }}
{%- set ns = namespace(first=true, last_index=items|length - 1) %}

{#- A note, {{ no tag }} -#}
{%- for item in items[::-1] %}
    {%- set index = (items|length - 1) - loop.index0 %}
    {%- if ns.first and item.role == "a" and not(item.text.startswith('<r>') and item['text'].endswith("</r>")) %}
        {%- set ns.first = false %}
    {%- elif (item.n % 2 == 0) != (index <= 3) or item.n >= 4 or 'key' in item %}
        {{- '<|x|>' + item.role + '\n' + item["text"] | trim + "<|y|>" }}
    {%- elif item.kind is defined and item.kind is not none %}
{{'<|x|>' + item['role'] + '\n' + item.parts[0].text + '<|y|>' + '\n'}}
        {{- item.text.split('</t>')[-1].lstrip('\n').strip() }}
        {{- '<t>\n' + item.text.strip('\n') + '\t</t>' + item.get("a")["b"] }}
    {%- else -%}
        {{ item ~ '; ' ~ item.n * 2 }}
        {{- item.text[3:] + 'x' }} {{ out[:-1] if out else '' }}{# Of one line. -#}
        {{ '-' + out if out is string else item }}{% set x = 1 %} {% set y = 2 %}
    {%- endif %}
    {%- for key, value in item.fields.items() if key != "r" %}
        {{- '{"type": "f", "of": {' + value|tojson(indent=4) }}
        {{- "}}\n{\"name\": <f>, \"rest\": {{'a'}}}" -}}
        {%- if not loop.last %}{{ ", " }}{% endif %}
    {% endfor %}
{%- endfor %}
{% if add_prompt %}
  text {%+ if x < 1.5 %} more
  {% endif +%}
  {{ raise_exception('No \u00e9, \d, it\'s "a/b"...') }}
{% endif %}

)";

// Its canonical form, with « and » for the brackets around tags.
const char* const kEveryConstructCanonical =
    "«= bos_token»"
    "«set ns = namespace ( first = true , last_index = items | length - 1 )»"
    "«for item in items [ : : - 1 ]»"
    "«set index = ( items | length - 1 ) - loop . index0»"
    "«if ns . first and item . role == \"a\" and not ( item . text . startswith ( \"<r>\" ) and "
    "item . text . endswith ( \"</r>\" ) )»"
    "«set ns . first = false»"
    "«elif ( item . n % 2 == 0 ) != ( index <= 3 ) or item . n >= 4 or \"key\" in item»"
    "«= \"<|x|>\" + item . role + \"\n\" + item . text | trim + \"<|y|>\"»"
    "«elif item . kind is defined and item . kind is not none»<|x|>«= item . role»\n"
    "«= item . parts [ 0 ] . text»<|y|>\n"
    "«= item . text . split ( \"</t>\" ) [ - 1 ] . lstrip ( \"\n\" ) . strip ( )»"
    "«= \"<t>\n\" + item . text . strip ( \"\n\" ) + \"\t</t>\" + item . get ( \"a\" ) . b»"
    "«else»«= item ~ \"; \" ~ item . n * 2»«= item . text [ 3 : ] + \"x\"» "
    "«= out [ : - 1 ] if out else \"\"»«= \"-\" + out if out is string else item»"
    "«set x = 1» «set y = 2»«endif»"
    "«for key , value in item . fields . items ( ) if key != \"r\"»"
    "«= \"{\"type\": \"f\", \"of\": {\" + value | tojson ( indent = 4 )»}}\n{\"name\": <f>, "
    "\"rest\": {{'a'}}}"
    "«if not loop . last», «endif»«endfor»«endfor»«if add_prompt»  text "
    "«if x < 1 . 5» more\n«endif»\n  «= raise_exception ( \"No é, \\d, it's \"a/b\"...\" )»\n"
    "«endif»";

TEST(ChatTemplate, CanonicalFormOfEveryConstructIsPinned) {
  std::string shown;
  for (const char c : canonical_jinja(kEveryConstruct, "test")) {
    shown += c == kTagOpen ? "«" : c == kTagClose ? "»" : std::string(1, c);
  }
  EXPECT_EQ(shown, kEveryConstructCanonical);
  EXPECT_EQ(digest_of(kEveryConstruct), 0x9911AD7004FBAB61);
}

TEST(ChatTemplate, SpellingLeavesTheDigestAndMeaningChangesIt) {
  const auto digest_with = [](const std::string& from, const std::string& to) {
    std::string text = kEveryConstruct;
    const std::size_t at = text.find(from);
    if (at == std::string::npos) throw std::runtime_error("nothing to change: " + from);
    return digest_of(text.replace(at, from.size(), to));
  };
  const std::uint64_t digest = digest_of(kEveryConstruct);
  using Changes = std::vector<std::pair<std::string, std::string>>;
  for (const auto& [from, to] : Changes{{"item.role == \"a\"", "item['role']=='a'"},
                                        {"{%- set ns.first = false %}", "{%-set\nns.first=false%}"},
                                        {"'<|y|>' + '\\n'", "\"<|y|>\\n\""},
                                        {"{#- A note, {{ no tag }} -#}", ""},
                                        {"\\u00e9", "é"},
                                        {"    {% endfor %}", "{% endfor %}"},
                                        {"{% endif %}\n\n", "{% endif %}\n"}}) {
    EXPECT_EQ(digest_with(from, to), digest) << from;
  }
  for (const auto& [from, to] : Changes{{"'<r>'", "'<r> '"},
                                        {"<= 3", "< = 3"},
                                        {"items[::-1]", "items[:-1]"},
                                        {"and not(", "and (not "},
                                        {"| trim", ""},
                                        {"item['role']", "item[role]"},
                                        {"+%}", "%}"},
                                        {"else -%}", "else %}"},
                                        {"  text", " text"}}) {
    EXPECT_NE(digest_with(from, to), digest) << from;
  }
}

// The known digests are of published texts, which are not ours to keep here. All but three are in
// chat_templates of the Python package trl 1.16.0; two are in models/templates of llama.cpp, which
// the sources of llama-cpp-python 0.3.36 hold; qwen3_thinking.jinja is to hold the value of
// qwen3_thinking_template in unsloth 2026.10.9's chat_templates.py. Of 0xDBA9C514C77DEE96, a form
// of Qwen3's in GGUF files, we know no package.
TEST(ChatTemplate, PublishedTextsHaveTheKnownDigests) {
  const std::vector<std::pair<const char*, std::uint64_t>> files = {
      {"Qwen-Qwen3-0.6B.jinja", 0x780BA577526219AA},
      {"qwen3.jinja", 0xEC96CA472F094917},
      {"qwen3_instruct_2507.jinja", 0x6BC8979986241D21},
      {"qwen3_thinking.jinja", 0xBDA5D850E11BB10F},
      {"llama3.jinja", 0xD2BC134EBB436481},
      {"llama3_1.jinja", 0xE91BAC0FEC82EF92},
      {"llama3_2.jinja", 0x1329D0F3E1706B89},
      {"mistralai-Mistral-Nemo-Instruct-2407.jinja", 0xA5F2AED1B665BA64}};
  const char* directory = std::getenv("JFORGE_TEST_TEMPLATES");
  std::string absent;
  for (const auto& [name, digest] : files) {
    const auto path = std::filesystem::path(directory == nullptr ? "" : directory) / name;
    if (directory == nullptr || !std::filesystem::exists(path)) {
      absent += std::string(" ") + name;
      continue;
    }
    const std::string jinja = read_file_or_gz(path);
    EXPECT_EQ(digest_of(jinja), digest) << name;
    EXPECT_TRUE(ChatTemplate::recognise(jinja, name, {.bos = "<B>", .eos = "<E>"}).has_value());
  }
  if (!absent.empty()) {
    GTEST_SKIP() << "published chat templates are absent (JFORGE_TEST_TEMPLATES):" << absent;
  }
}

// Written by Jinja2 3.1 (trim_blocks, lstrip_blocks, enable_thinking = false, bos <B>, eos <E>)
// from the models' own files, or public copies of their text, known by the hash of the canonical
// form. Every known digest is here.
TEST(ChatTemplate, OtherFamiliesRenderAsTheirJinjaFilesDo) {
  const std::vector<std::pair<Conversation, bool>> conversations = {
      {{{"user", " Hi\n"}}, true},
      {{{"system", "S "}, {"user", "a"}, {"assistant", "<think>\nt\n</think>\n\nb"}, {"user", "c"}},
       true},
      {{{"user", "a"}, {"assistant", "\nb "}}, false},
      {{{"system", "S"}, {"user", "a"}, {"assistant", "<think>\nt\n</think>\n\nb"}}, false}};
  const std::vector<std::pair<std::vector<std::uint64_t>, std::vector<std::string>>> expected = {
      {{0x780BA577526219AA, 0xEC96CA472F094917, 0xDBA9C514C77DEE96},
       {"<|im_start|>user\n Hi\n<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
        "<|im_start|>system\nS "
        "<|im_end|>\n<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n<|im_start|"
        ">user\nc<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
        "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\nb "
        "<|im_end|>\n",
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n<"
        "think>\nt\n</think>\n\nb<|im_end|>\n"}},
      {{0x6BC8979986241D21},
       {"<|im_start|>user\n Hi\n<|im_end|>\n<|im_start|>assistant\n",
        "<|im_start|>system\nS <|im_end|>\n<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n"
        "<think>\nt\n</think>\n\nb<|im_end|>\n<|im_start|>user\nc<|im_end|>\n"
        "<|im_start|>assistant\n",
        "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n\nb <|im_end|>\n",
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n"
        "<think>\nt\n</think>\n\nb<|im_end|>\n"}},
      {{0xBDA5D850E11BB10F},
       {"<|im_start|>user\n Hi\n<|im_end|>\n<|im_start|>assistant\n<think>\n",
        "<|im_start|>system\nS <|im_end|>\n<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n"
        "b<|im_end|>\n<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n<think>\n",
        "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\nb "
        "<|im_end|>\n",
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n"
        "<think>\nt\n</think>\n\nb<|im_end|>\n"}},
      {{0xD2BC134EBB436481},
       {"<B><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|><|start_header_id|>assistant<|"
        "end_header_id|>\n\n",
        "<B><|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|><|start_header_id|>user<|end_"
        "header_id|>\n\na<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n<think>\nt\n</"
        "think>\n\nb<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nc<|eot_id|><|start_"
        "header_id|>assistant<|end_header_id|>\n\n",
        "<B><|start_header_id|>user<|end_header_id|>\n\na<|eot_id|><|start_header_id|>assistant<|"
        "end_header_id|>\n\nb<|eot_id|>",
        "<B><|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|><|start_header_id|>user<|end_"
        "header_id|>\n\na<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n<think>\nt\n</"
        "think>\n\nb<|eot_id|>"}},
      {{0xE91BAC0FEC82EF92, 0x1329D0F3E1706B89},
       {"<B><|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December "
        "2023\nToday Date: 26 Jul "
        "2024\n\n<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|><|start_header_"
        "id|>assistant<|end_header_id|>\n\n",
        "<B><|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December "
        "2023\nToday Date: 26 Jul "
        "2024\n\nS<|eot_id|><|start_header_id|>user<|end_header_id|>\n\na<|eot_id|><|start_header_"
        "id|>assistant<|end_header_id|>\n\n<think>\nt\n</"
        "think>\n\nb<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nc<|eot_id|><|start_"
        "header_id|>assistant<|end_header_id|>\n\n",
        "<B><|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December "
        "2023\nToday Date: 26 Jul "
        "2024\n\n<|eot_id|><|start_header_id|>user<|end_header_id|>\n\na<|eot_id|><|start_header_"
        "id|>assistant<|end_header_id|>\n\nb<|eot_id|>",
        "<B><|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December "
        "2023\nToday Date: 26 Jul "
        "2024\n\nS<|eot_id|><|start_header_id|>user<|end_header_id|>\n\na<|eot_id|><|start_header_"
        "id|>assistant<|end_header_id|>\n\n<think>\nt\n</think>\n\nb<|eot_id|>"}},
      {{0xA5F2AED1B665BA64},
       {"<B>[INST] Hi\n[/INST]",
        "<B>[INST]a[/INST]<think>\nt\n</think>\n\nb<E>[INST]S \n\nc[/INST]",
        "<B>[INST]a[/INST]\nb <E>", "<B>[INST]a[/INST]<think>\nt\n</think>\n\nb<E>"}},
  };
  for (const auto& [digests, texts] : expected) {
    for (const std::uint64_t digest : digests) {
      const auto chat = ChatTemplate::of_digest(digest, "test", {.bos = "<B>", .eos = "<E>"});
      ASSERT_TRUE(chat.has_value()) << std::hex << digest;
      for (std::size_t i = 0; i < texts.size(); ++i) {
        EXPECT_EQ(chat->render(conversations[i].first, conversations[i].second), texts[i])
            << std::hex << digest;
      }
      EXPECT_THROW((void)chat->render(Conversation{{"tool", "x"}}, true), DataError);
    }
  }
  EXPECT_FALSE(ChatTemplate::of_digest(1, "test", {}).has_value());
}

TEST(ChatTemplate, MistralTakesUserAndAssistantInTurn) {
  const auto chat =
      ChatTemplate::of_digest(0xA5F2AED1B665BA64, "test", {.bos = "<B>", .eos = "<E>"});
  for (const Conversation& given :
       {Conversation{{"assistant", "a"}}, Conversation{{"user", "a"}, {"user", "b"}},
        Conversation{{"user", "a"}, {"system", "b"}}}) {
    EXPECT_THROW((void)chat->render(given, true), DataError);
  }
}

TEST(ChatTemplate, TemplatesThatPrintSpecialTokensTakeTheTokenizers) {
  const std::string llama3 =
      "{% set loop_messages = messages %}{% for message in loop_messages %}"
      "{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ "
      "message['content'] | trim + '<|eot_id|>' %}"
      "{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}"
      "{% endfor %}{% if add_generation_prompt %}"
      "{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}";
  const ScratchDirectory directory;
  const auto write = [&](const json& bos) {
    directory.write("tokenizer_config.json",
                    json{{"chat_template", llama3}, {"bos_token", bos}}.dump());
  };
  for (const json& bos : {json("<s>"), json{{"content", "<s>"}}}) {
    write(bos);
    EXPECT_EQ(ChatTemplate::load(directory.path()).render(Conversation{{"user", "Hi "}}, true),
              "<s><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
              "<|start_header_id|>assistant<|end_header_id|>\n\n");
  }
  write(nullptr);
  try {
    (void)ChatTemplate::load(directory.path());
    ADD_FAILURE() << "accepted";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("bos_token"));
    EXPECT_THAT(error.what(), HasSubstr("Llama 3"));
  }
}

TEST(ChatTemplate, ConversationsThatCannotBeRendered) {
  const ChatTemplate chat = recognised(kQwen2);
  EXPECT_THROW((void)chat.render(Conversation{}, true), DataError);
  for (const char* role : {"tool", "User", ""}) {
    EXPECT_THROW((void)chat.render(Conversation{{"user", "a"}, {role, "b"}}, true), DataError);
  }
}

TEST(ChatTemplate, LoadReadsEitherFile) {
  const ScratchDirectory directory;
  directory.write("tokenizer_config.json", json{{"chat_template", kQwen15}}.dump());
  EXPECT_EQ(ChatTemplate::load(directory.path()).default_system(), "You are a helpful assistant");
  const json list = {{{"name", "tool_use"}, {"template", "x"}},
                     {{"name", "default"}, {"template", kQwen2}}};
  directory.write("tokenizer_config.json", json{{"chat_template", list}}.dump());
  EXPECT_EQ(ChatTemplate::load(directory.path()).default_system(), "You are a helpful assistant.");
  directory.write("chat_template.jinja", kQwen15);
  EXPECT_EQ(ChatTemplate::load(directory.path()).default_system(), "You are a helpful assistant");
  // A known template is not overruled.
  EXPECT_EQ(ChatTemplate::load(directory.path(), true).default_system(),
            "You are a helpful assistant");
}

TEST(ChatTemplate, ChatMlIsForcedOnTokenizersThatHaveItsTokensOnly) {
  const ScratchDirectory directory;
  const auto expect_refusal = [&] {
    for (const bool force : {false, true}) {
      try {
        (void)ChatTemplate::load(directory.path(), force);
        ADD_FAILURE() << "accepted";
      } catch (const ConfigError& error) {
        EXPECT_THAT(error.what(), HasSubstr("this tokenizer has no tokens <|im_start|>"));
      }
    }
  };
  expect_refusal();
  directory.write("tokenizer.json", json{{"added_tokens", {{{"content", "<|im_end|>"}}}}}.dump());
  expect_refusal();
  directory.write("tokenizer_config.json", json{{"chat_template", "[INST]{{ x }}"}}.dump());
  expect_refusal();
}

TEST(ChatTemplate, UnknownOrMissingIsRefusedByNameUnlessForced) {
  const ScratchDirectory directory;
  const json tokens = {{{"content", "<|im_start|>"}}, {{"content", "<|im_end|>"}}};
  directory.write("tokenizer.json", json{{"added_tokens", tokens}}.dump());
  const auto refused = [&] {
    try {
      (void)ChatTemplate::load(directory.path());
      ADD_FAILURE() << "accepted";
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), HasSubstr(directory.path().string()));
    }
    const ChatTemplate forced = ChatTemplate::load(directory.path(), true);
    EXPECT_EQ(forced.default_system(), std::nullopt);
    EXPECT_EQ(forced.render(Conversation{{"user", "Hi"}}, true),
              "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
  };
  refused();
  directory.write("tokenizer_config.json", "{}");
  refused();
  directory.write("tokenizer_config.json", json{{"chat_template", json::array()}}.dump());
  refused();
  directory.write("tokenizer_config.json", json{{"chat_template", "[INST]{{ x }}"}}.dump());
  refused();
}

TEST(ChatTemplate, MalformedFilesAreDataErrors) {
  for (const char* content : {"", "{", "[]", R"({"chat_template": 3})", R"({"chat_template": [3]})",
                              R"({"chat_template": [{"name": 1, "template": "x"}]})",
                              R"({"chat_template": [{"name": "default"}]})"}) {
    const ScratchDirectory directory;
    directory.write("tokenizer_config.json", content);
    EXPECT_THROW((void)ChatTemplate::load(directory.path()), DataError) << content;
    EXPECT_THROW((void)ChatTemplate::load(directory.path(), true), DataError) << content;
  }
}

class Qwen25Template : public testing::Test {
 protected:
  void SetUp() override {
    if (test::shared_data().empty()) {
      GTEST_SKIP() << "Qwen2.5's chat_template.jinja is absent (JFORGE_TEST_DATA)";
    }
    directory = test::shared_data() / "qwen_tokenizer";
  }
  std::filesystem::path directory;
};

const std::string kQwenSystem =
    "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant."
    "<|im_end|>\n";

// Expected texts were compared once with Jinja2 (trim_blocks, lstrip_blocks) on the same file.
TEST_F(Qwen25Template, RendersAsTheJinjaFileDoes) {
  const ChatTemplate chat = ChatTemplate::load(directory);
  EXPECT_EQ(chat.default_system(),
            "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.");
  EXPECT_EQ(chat.render(Conversation{{"user", "Hi"}}, true),
            kQwenSystem + "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(chat.render(Conversation{{"user", "Hi"}}, false),
            kQwenSystem + "<|im_start|>user\nHi<|im_end|>\n");
  EXPECT_EQ(chat.render(Conversation{{"system", "S"}, {"user", "Hi"}}, true),
            "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
            "<|im_start|>assistant\n");
  const Conversation dialogue{{"user", "a"}, {"assistant", "b"}, {"system", "c"}, {"user", " d\n"}};
  const std::string expected =
      kQwenSystem +
      "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n"
      "<|im_start|>system\nc<|im_end|>\n<|im_start|>user\n d\n<|im_end|>\n";
  EXPECT_EQ(chat.render(dialogue, false), expected);
  EXPECT_EQ(chat.render(dialogue, true), expected + "<|im_start|>assistant\n");
}

TEST_F(Qwen25Template, TheConfigFileHoldsTheSameTemplate) {
  const ScratchDirectory scratch;
  scratch.write("tokenizer_config.json", read_file_or_gz(directory / "tokenizer_config.json"));
  EXPECT_EQ(ChatTemplate::load(scratch.path()).default_system(),
            ChatTemplate::load(directory).default_system());
}

/// Qwen2.5-Coder-Instruct, whose text about tools differs.
TEST_F(Qwen25Template, CoderModelsDoubleTheBracesOfTheirTools) {
  std::string jinja = read_file_or_gz(directory / "chat_template.jinja");
  for (const auto& [part, by] : {std::pair{R"({\"name\": <)", R"({{\"name\": <)"},
                                 std::pair{"<args-json-object>}", "<args-json-object>}}"}}) {
    const std::size_t at = jinja.find(part);
    ASSERT_NE(at, std::string::npos);
    jinja.replace(at, std::string_view(part).size(), by);
  }
  EXPECT_EQ(recognised(jinja).render(Conversation{{"user", "Hi"}}, true),
            kQwenSystem + "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
}

TEST_F(Qwen25Template, MathModelsHaveAnotherSystemText) {
  std::string jinja = read_file_or_gz(directory / "chat_template.jinja");
  const std::string old_text =
      "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.";
  const std::string math =
      R"(Please reason step by step, and put your final answer within \\boxed{}.)";
  const std::size_t first = jinja.find(old_text);
  jinja.replace(first, old_text.size(), math);
  // The text stands in the template twice: once for tool use. Both must say the same.
  EXPECT_FALSE(ChatTemplate::recognise(jinja, "test").has_value());
  jinja.replace(jinja.find(old_text), old_text.size(), math);
  const ChatTemplate chat = recognised(jinja);
  EXPECT_EQ(chat.render(Conversation{{"user", "1+1?"}}, true),
            "<|im_start|>system\nPlease reason step by step, and put your final answer within "
            "\\boxed{}.<|im_end|>\n<|im_start|>user\n1+1?<|im_end|>\n<|im_start|>assistant\n");
}

}  // namespace
}  // namespace jforge
