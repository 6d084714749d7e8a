#include "launch/config/config_reference.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>

#include "launch/config/job_fields.h"
#include "runtime/bounded_json.h"

namespace jforge {

std::vector<ConfigField> config_fields(ConfigFor command) {
  static JobConfig job = [] {
    JobConfig config;
    config.rounds.resize(1);
    return config;
  }();
  static PretrainConfig pretrain;
  static FinetuneConfig finetune;
  switch (command) {
    case ConfigFor::run:
      return job_fields(job);
    case ConfigFor::pretrain:
      return pretrain_fields(pretrain);
    case ConfigFor::finetune:
      return finetune_fields(finetune);
  }
  throw InternalError("a command without configuration");
}

namespace {

/// Text before and after a section's table. "{}" stands for other_sections().
struct SectionProse {
  const char* before = "";
  const char* after = "";
};

const std::map<std::string, SectionProse>& prose() {
  static const std::map<std::string, SectionProse> texts{
      {"prompts",
       {.after = "Texts that occur twice are kept once. What was read, kept and dropped by each "
                 "rule is in `prompts_import.json`; keeping nothing is an error."}},
      {"generate",
       {.after = "A round generates exactly the prompts that its training will use, not the whole "
                 "store."}},
      {"rounds",
       {.before = "Once for each round, in order. Round r + 1 generates from the model that round "
                  "r trained."}},
      {"sweep",
       {.before = "For `jforge sweep`, together with `[evaluate]` and `[model]`. Every combination "
                  "of the settings that are given values is evaluated; `[evaluate]` has the "
                  "others."}},
      {"finetune",
       {.before = "For `jforge finetune`, together with {}: ordinary training of an "
                  "existing model on question–answer pairs. A pair is one conversation in "
                  "the model's chat template, the question as the user's turn as evaluation puts "
                  "it; the loss is on the answer and its end-of-sequence token. Example: "
                  "[`finetune_smollm2.toml`](finetune_smollm2.toml)."}},
      {"pretrain",
       {.before = "For `jforge pretrain`, together with {}. "
                  "Example: [`pretrain_quickstart.toml`](pretrain_quickstart.toml)."}},
  };
  return texts;
}

// What `jforge init` says of each recipe. Figures: docs/results.md, results/studies/ablations.md.
constexpr const char* kRecipeEvidence =
    R"(# "jacobi-forcing": the paper's, for 7 billion parameters the only evidence that there is: 4.01 tokens
#   per forward and 83.5 % right, against 2.68 and 87.8 % with clean context.
# "clean-context": for small models and short budgets: on ledgers 3.11 tokens per forward and 91.3 %
#   right, against 2.30 and 95.0 % (1 million parameters, 240 steps, three seeds).
# "authors": the formulas of the authors' code, whose checkpoints are published; it fixes ar_weight at 1,
#   with which a small model needs more steps.
# `jforge pilot` compares them on your own model and prompts.
)";

constexpr const char* kPreface = R"(# Configuration

<!-- Made by `jforge schema --reference` from launch/config/job_fields.cpp; a test compares the two. -->

One TOML file. An unknown key is an error that names the nearest one, or what is known when none is near. The complete configuration of a run, defaults included, is in its `resolved_config.toml`. `jforge init my.toml` writes a commented one to start from; `jforge schema > jforge.schema.json` gives editors the keys, types and meanings (with `#:schema jforge.schema.json` as the file's first line, for example in Taplo or Even Better TOML). Any key can be set on the command line: `--set train.learning_rate=2e-5`.

Examples, complete and commented: [`quickstart.toml`](quickstart.toml), [`paper.toml`](paper.toml) (the paper's model, steps and rate), [`opencodeinstruct.toml`](opencodeinstruct.toml) and [`openthoughts2_math.toml`](openthoughts2_math.toml) (its data sets).

*identity* keys decide what the run computes. They are stored with the run and its checkpoints, and continuing with another value is refused (exit 2) unless `--accept-change KEY` allows it; nothing allows it for *import* keys once the prompts are imported, nor for *round* keys in the middle of a round. *operational* keys may change between two starts of the same run. †: for `jforge run` alone. The content of model and tokenizer files belongs to the identity too, under `model.hash` and `tokenizer.hash`; a pre-training or fine-tuning job records its data's content too, under `data.hash`; a run that multiplies bfloat16 on processors with AMX records their order of sums under `cpu.bfloat16_sums`, and later starts keep to it on every processor, without AMX more slowly. Trajectories that an accepted change or another checkpoint puts out of date are renamed to `*.stale`, which may be deleted, and are generated again.
)";

/// As one "rounds", since all rounds are alike.
std::vector<ConfigField> with_one_round(std::vector<ConfigField> fields) {
  for (ConfigField& field : fields) {
    field.section = field.section.substr(0, field.section.find('.'));
  }
  return fields;
}

/// Every field of every command once.
std::vector<ConfigField> all_fields() {
  std::vector<ConfigField> fields = config_fields(ConfigFor::run);
  for (const ConfigFor command : {ConfigFor::pretrain, ConfigFor::finetune}) {
    for (ConfigField& field : config_fields(command)) {
      if (find_field(fields, field.path()) == nullptr) {
        fields.push_back(std::move(field));
      }
    }
  }
  return with_one_round(std::move(fields));
}

/// The sections beside its own that the command of `section` reads: "`[run]` and `[train]`"; of a
/// section with a single key that key.
std::string other_sections(const std::string& section) {
  std::map<std::string, std::vector<std::string>> keys;
  std::vector<std::string> order;
  for (const ConfigField& field :
       config_fields(section == "pretrain" ? ConfigFor::pretrain : ConfigFor::finetune)) {
    if (field.section == section) {
      continue;
    }
    if (!keys.contains(field.section)) {
      order.push_back(field.section);
    }
    keys[field.section].push_back(field.path());
  }
  std::string text;
  for (const std::string& other : order) {
    text += text.empty() ? "" : other == order.back() ? " and " : ", ";
    text += keys[other].size() == 1 ? "`" + keys[other].front() + "`" : "`[" + other + "]`";
  }
  return text;
}

/// Whether other commands read the section, but not this key.
bool is_for_run_alone(const ConfigField& field) {
  return field.applies_to == Commands{ConfigFor::run} &&
         std::ranges::any_of(config_fields(ConfigFor::finetune), [&](const ConfigField& other) {
           return other.section == field.section;
         });
}

std::string kind_of(const ConfigField& field) {
  std::string kind = field.kind == FieldKind::operational           ? "operational"
                     : field.change.fixed_from == FixedFrom::import ? "import"
                     : field.change.fixed_from == FixedFrom::round  ? "round"
                                                                    : "identity";
  return kind + (is_for_run_alone(field) ? "†" : "");
}

std::string header(const std::string& section) {
  return section == "rounds" ? "[[rounds]]" : "[" + section + "]";
}

/// The default as TOML with the one kind of quotes that documents use.
std::optional<std::string> default_text(const ConfigField& field) {
  std::optional<std::string> text = field.write();
  if (text) {
    std::replace(text->begin(), text->end(), '\'', '"');
  }
  return text;
}

std::string escaped_bars(std::string text) {
  for (std::size_t at = text.find('|'); at != std::string::npos; at = text.find('|', at + 2)) {
    text.insert(at, "\\");
  }
  return text;
}

/// Without Markdown's links: [text](target) is text.
std::string without_links(const std::string& text) {
  static const std::regex link(R"(\[([^\]]*)\]\([^)]*\))");
  return std::regex_replace(text, link, "$1");
}

nlohmann::ordered_json property(const ConfigField& field) {
  auto schema = parse_bounded_json<nlohmann::ordered_json>(field.schema, field.path());
  schema["description"] = without_links(field.meaning);
  if (const std::optional<std::string> value = default_text(field)) {
    // TOML's scalars and arrays of them are JSON's.
    schema["default"] = parse_bounded_json<nlohmann::ordered_json>(*value, field.path());
  }
  return schema;
}

nlohmann::ordered_json closed_object() {
  return {{"type", "object"},
          {"additionalProperties", false},
          {"properties", nlohmann::ordered_json::object()}};
}

}  // namespace

std::string reference_markdown() {
  std::string text = kPreface;
  std::string section;
  const auto close = [&] {
    const auto found = prose().find(section);
    if (found != prose().end() && *found->second.after != '\0') {
      text += fmt::format("\n{}\n", found->second.after);
    }
  };
  for (const ConfigField& field : all_fields()) {
    if (field.section != section) {
      close();
      section = field.section;
      text += fmt::format("\n## `{}`\n\n", header(section));
      const auto found = prose().find(section);
      if (found != prose().end() && *found->second.before != '\0') {
        const std::string before = found->second.before;
        text += before.find("{}") == std::string::npos
                    ? before + "\n\n"
                    : fmt::format(fmt::runtime(before), other_sections(section)) + "\n\n";
      }
      text += "| key | default | kind | meaning |\n| --- | --- | --- | --- |\n";
    }
    const std::optional<std::string> value = default_text(field);
    text +=
        fmt::format("| `{}` | {} | {} | {} |\n", field.key, value ? "`" + *value + "`" : "not set",
                    kind_of(field), escaped_bars(field.meaning));
  }
  close();
  return text;
}

std::string config_schema() {
  nlohmann::ordered_json schema = {{"$schema", "http://json-schema.org/draft-07/schema#"},
                                   {"title", "Configuration of jforge"}};
  schema.update(closed_object());
  nlohmann::ordered_json& sections = schema["properties"];
  for (const ConfigField& field : all_fields()) {
    if (!sections.contains(field.section)) {
      sections[field.section] =
          field.section == "rounds"
              ? nlohmann::ordered_json{{"type", "array"}, {"items", closed_object()}}
              : closed_object();
    }
    nlohmann::ordered_json& section = sections[field.section];
    nlohmann::ordered_json& object = field.section == "rounds" ? section["items"] : section;
    object["properties"][field.key] = property(field);
  }
  return schema.dump(2) + "\n";
}

std::string commented_config(const ConfigStart& start) {
  std::string files;
  for (const std::string& file : start.files) {
    files += (files.empty() ? "" : ", ") + toml_quoted(file);
  }
  const std::map<std::string, std::string> given{
      {"run.directory", toml_quoted(start.directory)},
      {"model.source", toml_quoted(start.source)},
      {"prompts.files", "[" + files + "]"},
      {"rounds.block_size", "16"},
      {"rounds.epochs", "1"},
      {"train.recipe", toml_quoted("jacobi-forcing")},
  };
  std::string text =
      "# A configuration of `jforge run`. Commented keys show their defaults; [[rounds]] may be "
      "repeated.\n";
  std::string section;
  for (const ConfigField& field : with_one_round(config_fields(ConfigFor::run))) {
    if (field.section == "sweep") {
      continue;
    }
    if (field.section != section) {
      section = field.section;
      text += fmt::format("\n{}\n", header(section));
    }
    text += fmt::format("# {}\n", without_links(field.meaning));
    if (field.path() == "train.recipe") {
      text += kRecipeEvidence;
    }
    const auto found = given.find(field.path());
    const std::optional<std::string> value = default_text(field);
    text += found != given.end() ? fmt::format("{} = {}\n", field.key, found->second)
            : value              ? fmt::format("# {} = {}\n", field.key, *value)
                                 : fmt::format("# {} =\n", field.key);
  }
  return text;
}

}  // namespace jforge
