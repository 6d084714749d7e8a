#include "data/tokenizer/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <optional>
#include <thread>

#include "data/tokenizer/tokenizer_files.h"
#include "runtime/error.h"
#include "tests/support/message_of.h"
#include "tests/unit/data/tokenizer/tokenizer_fixture.h"

namespace jforge {
namespace {

using nlohmann::json;
using test::ScratchDirectory;
using testing::HasSubstr;
using testing::Not;
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

ChatTemplate parsed(const std::string& jinja) {
  return ChatTemplate::parse(jinja, "test", {{"bos_token", "<B>"}, {"eos_token", "<E>"}});
}

/// The system text that ChatML adds.
std::optional<std::string> default_system(const ChatTemplate& chat) {
  const std::string text = chat.render(Conversation{{"user", "Hi"}}, false);
  const std::string begin = "<|im_start|>system\n";
  if (!text.starts_with(begin)) return std::nullopt;
  return text.substr(begin.size(), text.find("<|im_end|>") - begin.size());
}

TEST(ChatTemplate, Qwen2HasADefaultSystemText) {
  const ChatTemplate chat = parsed(kQwen2);
  EXPECT_EQ(default_system(chat), "You are a helpful assistant.");
  EXPECT_EQ(chat.render(Conversation{{"user", "Hi"}}, true),
            "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(chat.render(Conversation{{"system", ""}, {"user", "Hi"}}, false),
            "<|im_start|>system\n<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n");
}

TEST(ChatTemplate, Qwen15LeavesTheLastMessageOpen) {
  const ChatTemplate chat = parsed(kQwen15);
  EXPECT_EQ(default_system(chat), "You are a helpful assistant");
  const Conversation dialogue{{"system", "S"}, {"user", "Q"}, {"assistant", "A"}};
  EXPECT_EQ(chat.render(dialogue, false),
            "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nQ<|im_end|>\n"
            "<|im_start|>assistant\nA");
  EXPECT_EQ(chat.render_answered(dialogue), chat.render(dialogue, true)) << "closed";
  EXPECT_EQ(parsed(kQwen2).render_answered(dialogue), parsed(kQwen2).render(dialogue, false));
  EXPECT_EQ(chat.render(dialogue, true),
            "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nQ<|im_end|>\n"
            "<|im_start|>assistant\nA<|im_end|>\n");
  EXPECT_EQ(chat.render(Conversation{{"system", "S"}, {"user", "Q"}}, true),
            "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nQ<|im_end|>\n"
            "<|im_start|>assistant\n");
}

TEST(ChatTemplate, PlainChatMlHasNoSystemText) {
  const ChatTemplate chat = parsed(
      "{# ChatML #}\n"
      "{% for message in messages %}\n"
      "    {{- \"<|im_start|>\" ~ message.role }}\n"
      "{{ message[\"content\"] + '<|im_end|>' }}\n"
      "    {# between #}\n"
      "{% endfor %}\n"
      "{% if add_generation_prompt %}\n"
      "  {{- '<|im_start|>assistant\\n' -}}\n"
      "{% endif %}\n");
  EXPECT_EQ(default_system(chat), std::nullopt);
  EXPECT_EQ(chat.render(Conversation{{"user", "a"}, {"assistant", "b"}, {"system", "c"}}, true),
            "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n"
            "<|im_start|>system\nc<|im_end|>\n<|im_start|>assistant\n");
}

TEST(ChatTemplate, ATemplateRefusesConversationsItself) {
  const ChatTemplate chat = parsed(
      "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
      "{{ raise_exception('roles must alternate') }}{% endif %}[{{ m.content }}]{% endfor %}");
  EXPECT_EQ(chat.render(Conversation{{"user", "a"}, {"assistant", "b"}}, true), "[a][b]");
  for (const Conversation& given :
       {Conversation{{"assistant", "a"}}, Conversation{{"user", "a"}, {"user", "b"}},
        Conversation{{"system", "a"}, {"user", "b"}}}) {
    EXPECT_EQ(test::message_of<DataError>([&] { return chat.render(given, true); }),
              "the chat template of test refuses the conversation: roles must alternate");
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
  EXPECT_THAT(test::message_of<ConfigError>([&] { return ChatTemplate::load(directory.path()); }),
              HasSubstr("line 1: 'bos_token' is undefined"));
}

TEST(ChatTemplate, SpecialTokensComeFromEitherFile) {
  const ScratchDirectory directory;
  directory.write("chat_template.jinja",
                  "{{ bos_token }}{{ eos_token }}{{ pad_token }}{{ image_token }}"
                  "{{ add_bos_token is defined }}{{ messages[0].content }}");
  const auto rendered = [&] {
    const std::string text =
        ChatTemplate::load(directory.path()).render(Conversation{{"user", "."}}, true);
    return text.substr(0, text.size() - 1);
  };
  EXPECT_EQ(rendered(), "False");
  json config = {{"bos_token", "<s>"},
                 {"eos_token", {{"content", "</s>"}, {"special", true}}},
                 {"image_token", "<i>"},
                 {"add_bos_token", true},
                 {"pad_token", nullptr}};
  directory.write("tokenizer_config.json", config.dump());
  EXPECT_EQ(rendered(), "<s></s><i>False");
  directory.write("special_tokens_map.json",
                  json{{"bos_token", "<m>"}, {"pad_token", {{"content", "<p>"}}}}.dump());
  EXPECT_EQ(rendered(), "<m></s><p><i>False");
  config["added_tokens_decoder"] = json::object();
  directory.write("tokenizer_config.json", config.dump());
  EXPECT_EQ(rendered(), "<s></s><i>False") << "the newer form, which needs no other file";
  config["eos_token"] = 3;
  directory.write("tokenizer_config.json", config.dump());
  EXPECT_THROW(rendered(), DataError);
}

TEST(ChatTemplate, ConversationsThatCannotBeRendered) {
  const ChatTemplate chat = parsed(kQwen2);
  EXPECT_THROW((void)chat.render(Conversation{}, true), DataError);
  for (const char* role : {"tool", "User", ""}) {
    EXPECT_THROW((void)chat.render(Conversation{{"user", "a"}, {role, "b"}}, true), DataError);
  }
  EXPECT_THROW((void)chat.render(Conversation{{"user", "\xFF"}}, true), DataError);
}

TEST(ChatTemplate, LoadReadsEitherFile) {
  const ScratchDirectory directory;
  directory.write("tokenizer_config.json", json{{"chat_template", kQwen15}}.dump());
  EXPECT_EQ(default_system(ChatTemplate::load(directory.path())), "You are a helpful assistant");
  const json list = {{{"name", "tool_use"}, {"template", "x"}},
                     {{"name", "default"}, {"template", kQwen2}}};
  directory.write("tokenizer_config.json", json{{"chat_template", list}}.dump());
  EXPECT_EQ(default_system(ChatTemplate::load(directory.path())), "You are a helpful assistant.");
  directory.write("chat_template.jinja", kQwen15);
  EXPECT_EQ(default_system(ChatTemplate::load(directory.path())), "You are a helpful assistant");
  EXPECT_EQ(default_system(ChatTemplate::load(directory.path(), {.force_chatml = true})),
            "You are a helpful assistant");
}

TEST(ChatTemplate, LoadReadsWhatTransformersReads) {
  const ScratchDirectory directory;
  directory.write("tokenizer_config.json", json{{"chat_template", {{"default", kQwen2}}}}.dump());
  EXPECT_EQ(default_system(ChatTemplate::load(directory.path())), "You are a helpful assistant.");
  directory.write("chat_template.jinja", kQwen2);
  std::filesystem::create_directory(directory.path() / "additional_chat_templates");
  directory.write("additional_chat_templates/tool_use.jinja", "x");
  EXPECT_EQ(default_system(ChatTemplate::load(directory.path())), "You are a helpful assistant.");
  directory.write("additional_chat_templates/default.jinja", kQwen15);
  EXPECT_EQ(default_system(ChatTemplate::load(directory.path())), "You are a helpful assistant");
}

TEST(ChatTemplate, LoadTriesTheTemplate) {
  const ScratchDirectory directory;
  const json tokens = {{{"content", "<|im_start|>"}}, {{"content", "<|im_end|>"}}};
  directory.write("tokenizer.json", json{{"added_tokens", tokens}}.dump());
  const std::vector<std::pair<std::string, std::string>> refused = {
      {"{{ messages[0].content }}\n{% include 'x' %}",
       "cannot render one message of the user, line 2: no loader"},
      {"{{ messages[0].content }}\n{% for x in %}",
       "is not understood, line 2: Expected an expression"},
      {"{{ messages[0].content }}{{ x.y }}",
       "cannot render one message of the user, line 1: 'x' is undefined"},
      {"{{ messages[0].content|shout }}", "is not understood, line 1: No filter named 'shout'"},
      {"{{ messages[0].content ~ strftime_now('%d') }}", "the present day (strftime_now)"},
      {"", "does not print the user's message"},
      {"{{ prompt }}", "does not print the user's message"}};
  for (const auto& [jinja, says] : refused) {
    directory.write("chat_template.jinja", jinja);
    const std::string message =
        test::message_of<ConfigError>([&] { return ChatTemplate::load(directory.path()); });
    EXPECT_THAT(message, HasSubstr(says)) << "accepted " << jinja;
    EXPECT_THAT(message, HasSubstr(directory.path().string()));
    EXPECT_THAT(message, HasSubstr("--template chatml"));
    EXPECT_THAT(message, HasSubstr("on which the model was not tuned"));
    EXPECT_THAT(message, Not(HasSubstr("\n")));
    EXPECT_EQ(ChatTemplate::load(directory.path(), {.force_chatml = true})
                  .render(Conversation{{"user", "a"}}, false),
              "<|im_start|>user\na<|im_end|>\n");
  }
  // Another conversation may be valid.
  directory.write("chat_template.jinja",
                  "{% if messages[0].role != 'system' %}{{ raise_exception('no system text') }}"
                  "{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}");
  const ChatTemplate chat = ChatTemplate::load(directory.path(), {.force_chatml = true});
  EXPECT_EQ(chat.render(Conversation{{"system", "a"}, {"user", "b"}}, true), "ab");
  EXPECT_THROW((void)chat.render(Conversation{{"user", "b"}}, true), DataError);
  directory.write("chat_template.jinja", "{{ messages[0].content }}{{ messages[1].content }}");
  const ChatTemplate pair = ChatTemplate::load(directory.path(), {.force_chatml = true});
  EXPECT_EQ(pair.render(Conversation{{"system", "a"}, {"user", "b"}}, true), "ab");
  EXPECT_THROW((void)pair.render(Conversation{{"user", "b"}}, true), DataError);
}

TEST(ChatTemplate, ThinkingIsOffUnlessItsPromptIsAskedFor) {
  const ChatTemplate chat = parsed(
      "{% for m in messages %}[{{ m.content }}]{% endfor %}{% if add_generation_prompt %}>"
      "{% if enable_thinking is defined and enable_thinking is false %}<think></think>{% endif %}"
      "{% endif %}");
  EXPECT_EQ(chat.render(Conversation{{"user", "a"}}, true), "[a]><think></think>");
  EXPECT_EQ(chat.render_thinking_prompt(Conversation{{"user", "a"}}), "[a]>");
}

// Expected: render_jinja_template of transformers 5.24, enable_thinking = False, that date.
TEST(ChatTemplate, ArgumentsAreThoseOfTransformers) {
  const std::string jinja =
      "{%- if not date_string is defined %}{%- if strftime_now is defined %}"
      "{%- set date_string = strftime_now('%d %b %Y') %}{%- else %}"
      "{%- set date_string = '26 Jul 2024' %}{%- endif %}{%- endif %}"
      "{{ date_string }}|{{ effort | default('none') }}|{{ eos_token }}|"
      "{% for m in messages %}[{{ m.content }}]{% endfor %}{% if add_generation_prompt %}>"
      "{% if enable_thinking is defined and enable_thinking is false %}<think></think>{% endif %}"
      "{% endif %}";
  const auto rendered = [&](const TemplateArguments& arguments) {
    const ScratchDirectory directory;
    directory.write("chat_template.jinja", jinja);
    directory.write("tokenizer_config.json", R"({"eos_token": "<E>"})");
    return ChatTemplate::load(directory.path(), {.arguments = arguments})
        .render(Conversation{{"user", "a"}}, true);
  };
  EXPECT_EQ(rendered({}), "26 Jul 2024|none|<E>|[a]><think></think>") << "ours: no day";
  EXPECT_EQ(rendered({{"date_string", "1 Jan 2026"}}), "1 Jan 2026|none|<E>|[a]><think></think>");
  EXPECT_EQ(rendered({{"enable_thinking", true}, {"date_string", "x"}}), "x|none|<E>|[a]>");
  EXPECT_EQ(rendered({{"strftime_now", "2026-01-31"}}), "31 Jan 2026|none|<E>|[a]><think></think>");
  EXPECT_EQ(rendered({{"date_string", "x"}, {"effort", std::int64_t{3}}}),
            "x|3|<E>|[a]><think></think>");
  EXPECT_EQ(rendered({{"date_string", "x"}, {"eos_token", "!"}}), "x|none|!|[a]><think></think>");
  EXPECT_THAT(test::message_of<ConfigError>([&] {
                return rendered({{"enable_thinkng", true}});
              }),
              HasSubstr("does not name enable_thinkng"))
      << "accepted what the template does not name";
}

// Expected: transformers' sandbox.
TEST(ChatTemplate, TheEnvironmentIsThatOfTransformers) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"a\n  {% if true %}\n  b\n  {% endif %}\nc\n", "a\n  b\nc"},
      {"{% for m in 'abc' %}{% if m == 'b' %}{% continue %}{% endif %}{{ m }}{% endfor %}", "ac"},
      {"{% generation %}{{ messages[0].content }}{% endgeneration %}\n!", "<é>!"},
      {"{{ {'b': '<é>', 'a': [none]}|tojson }}", R"({"b": "<é>", "a": [null]})"},
      {"{{ messages|tojson(indent=1) }}",
       "[\n {\n  \"content\": \"<é>\",\n  \"role\": \"user\"\n }\n]"},
      {"{{ tools is none and documents is none and x is not defined }}{{ x }}", "True"},
      {"{{ messages[0].__class__ }}{{ range(3)|list }}", "[0, 1, 2]"}};
  for (const auto& [jinja, expected] : cases) {
    EXPECT_EQ(parsed(jinja).render(Conversation{{"user", "<é>"}}, true), expected) << jinja;
  }
}

TEST(ChatTemplate, ATemplateNeitherLeavesItsSandboxNorEndsItsProcess) {
  for (const std::string jinja :
       {"{{ ''.__class__.__mro__ }}", "{{ messages.append(1) }}", "{{ 'ab' * 999999999999 }}",
        "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}"
        "{% endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "{{ '\\ud800' }}",
        "{% set r = range(99999) %}{% for a in r %}{% for b in r %}{% endfor %}{% endfor %}"}) {
    const ChatTemplate chat = parsed("{% if messages[0].content == 'a' %}" + jinja + "{% endif %}");
    EXPECT_THROW((void)chat.render(Conversation{{"user", "a"}}, true), DataError) << jinja;
    EXPECT_EQ(chat.render(Conversation{{"user", "b"}}, true), "") << jinja;
  }
  std::string deep = "{{ ";
  for (int i = 0; i < 10000; ++i) deep += '(';
  EXPECT_THROW((void)parsed(deep), DataError);
}

TEST(ChatTemplate, ADayIsPrintedAsPythonPrintsIt) {
  EXPECT_EQ(ChatTemplate::parse("{{ strftime_now('%A %-d %B %Y, %j %V %H:%M') }}", "test", {},
                                {{"strftime_now", "2026-01-31"}})
                .render(Conversation{{"user", "a"}}, true),
            "Saturday 31 January 2026, 031 05 00:00");
}

TEST(ChatTemplate, ArgumentsThatNoTemplateTakesAreRefused) {
  const auto expect = [](const TemplateArguments& arguments) {
    expect_template_arguments("key", arguments);
  };
  EXPECT_NO_THROW(expect({{"a_1", "b"}, {"strftime_now", "2024-02-29"}}));
  for (const char* name : {"messages", "tools", "a b", "", "1a", "a-b"}) {
    EXPECT_THROW(expect({{name, true}}), ConfigError) << name;
  }
  for (const char* day : {"2026-02-29", "2026-1-31", "0999-01-01", "today", "2026-01-31T00"}) {
    EXPECT_THROW(expect({{"strftime_now", day}}), ConfigError) << day;
  }
  EXPECT_THROW(expect({{"strftime_now", true}}), ConfigError);
}

TEST(ChatTemplate, AnsweredConversationsEndBehindTheAnswer) {
  const std::string each = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}";
  const Conversation dialogue{{"user", "Q"}, {"assistant", "A"}};
  EXPECT_EQ(parsed(each + "{% if add_generation_prompt %}<assistant>{% endif %}")
                .render_answered(dialogue),
            "<user>Q<assistant>A");
  EXPECT_EQ(parsed(each + "{% if add_generation_prompt %}<end>{% if messages[-1].role == 'user' %}"
                          "<assistant>{% endif %}{% endif %}")
                .render_answered(dialogue),
            "<user>Q<assistant>A<end>");
}

TEST(ChatTemplate, ManyThreadsShareATemplate) {
  const ChatTemplate chat = parsed(kQwen2);
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      const std::string name = std::to_string(thread);
      for (int i = 0; i < 200; ++i) {
        const std::string text = chat.render(Conversation{{"system", name}, {"user", "a"}}, false);
        if (text != "<|im_start|>system\n" + name + "<|im_end|>\n<|im_start|>user\na<|im_end|>\n") {
          ++wrong;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST(ChatTemplate, ChatMlIsForcedOnTokenizersThatHaveItsTokensOnly) {
  const ScratchDirectory directory;
  const auto expect_refusal = [&] {
    for (const bool force : {false, true}) {
      EXPECT_THAT(test::message_of<ConfigError>([&] {
                    return ChatTemplate::load(directory.path(), {.force_chatml = force});
                  }),
                  HasSubstr("this tokenizer has no tokens <|im_start|>"));
    }
  };
  expect_refusal();
  directory.write("tokenizer.json", json{{"added_tokens", {{{"content", "<|im_end|>"}}}}}.dump());
  expect_refusal();
  directory.write("tokenizer_config.json", json{{"chat_template", "[INST]{{ x }}"}}.dump());
  expect_refusal();
}

TEST(ChatTemplate, MissingOrNotUnderstoodIsRefusedByNameUnlessForced) {
  const ScratchDirectory directory;
  const json tokens = {{{"content", "<|im_start|>"}}, {{"content", "<|im_end|>"}}};
  directory.write("tokenizer.json", json{{"added_tokens", tokens}}.dump());
  const auto refused = [&] {
    EXPECT_THAT(test::message_of<ConfigError>([&] { return ChatTemplate::load(directory.path()); }),
                HasSubstr(directory.path().string()));
    const ChatTemplate forced = ChatTemplate::load(directory.path(), {.force_chatml = true});
    EXPECT_EQ(default_system(forced), std::nullopt);
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
    EXPECT_THROW((void)ChatTemplate::load(directory.path(), {.force_chatml = true}), DataError)
        << content;
  }
}

class Qwen25Template : public testing::Test {
 protected:
  void SetUp() override {
    SKIP_WITHOUT_TEST_DATA("qwen_tokenizer");
    directory = test::test_data() / "qwen_tokenizer";
  }
  std::filesystem::path directory;
};

const std::string kQwenSystem =
    "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant."
    "<|im_end|>\n";

// Expected: Jinja2 (trim_blocks, lstrip_blocks).
TEST_F(Qwen25Template, RendersAsTheJinjaFileDoes) {
  const ChatTemplate chat = ChatTemplate::load(directory);
  EXPECT_EQ(default_system(chat),
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
  EXPECT_EQ(default_system(ChatTemplate::load(scratch.path())),
            default_system(ChatTemplate::load(directory)));
}

}  // namespace
}  // namespace jforge
