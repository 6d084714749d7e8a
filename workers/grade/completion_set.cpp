#include "workers/grade/completion_set.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "data/prompts/record_stream.h"
#include "data/tasks/code/code_tasks.h"
#include "data/tasks/code/json_tree.h"
#include "runtime/comm/collectives.h"
#include "runtime/comm/failure_agreement.h"
#include "runtime/content_hash.h"
#include "runtime/error.h"

namespace jforge {

namespace {

/// Raise if verdicts change for a reason that no task's version covers.
constexpr const char* kKeyVersion = "grade-2";

std::string last_part(const std::string& id) { return id.substr(id.rfind('/') + 1); }

/// "mbpp" for "Mbpp/11" and "mbpp_plus@0.1.0/0".
std::string suite_of(const std::string& id) {
  std::string suite;
  for (const char c : id.substr(0, id.rfind('/'))) {
    if (c == '_' || c == '@') {
      break;
    }
    suite += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  }
  return suite;
}

std::vector<std::string> names_of(const std::vector<TaskRecord>& records) {
  std::vector<std::string> names;
  for (const TaskRecord& record : records) {
    const auto field = record.fields.find("task_id");
    names.push_back(field == record.fields.end() ? record.id : field->second);
  }
  return names;
}

/// Finds problems by the names that load_completions() allows.
class ProblemFinder {
 public:
  ProblemFinder(const std::vector<TaskRecord>& records, const std::vector<std::string>& names) {
    std::map<std::string, int, std::less<>> uses;
    for (std::size_t index = 0; index < records.size(); ++index) {
      suites_.push_back(suite_of(records[index].id));
      places_.emplace(names[index], index);
      ++uses[last_part(names[index])];
    }
    for (std::size_t index = 0; index < names.size(); ++index) {
      if (const std::string part = last_part(names[index]); uses[part] == 1) {
        parts_.emplace(part, index);
      }
    }
  }

  [[nodiscard]] std::optional<std::size_t> find(const std::string& id) const {
    if (const auto place = places_.find(id); place != places_.end()) {
      return place->second;
    }
    const auto part = parts_.find(last_part(id));
    if (part == parts_.end() ||
        (id.find('/') != std::string::npos && suite_of(id) != suites_[part->second])) {
      return std::nullopt;
    }
    return part->second;
  }

 private:
  std::vector<std::string> suites_;
  std::map<std::string, std::size_t, std::less<>> places_;
  std::map<std::string, std::size_t, std::less<>> parts_;
};

std::string text_of(const JsonNode* node, JsonNode::Kind other = JsonNode::Kind::text) {
  return node != nullptr && (node->kind == JsonNode::Kind::text || node->kind == other)
             ? node->text
             : std::string();
}

/// Hashes the length too, so that lists of texts cannot collide by concatenation.
std::uint64_t hash_text(const std::string& text, std::uint64_t seed) {
  return hash64(text, hash64(std::to_string(text.size()), seed));
}

std::string key_of(const Task& task, const TaskRecord& problem,
                   const std::optional<std::string>& answer) {
  std::uint64_t hash = hash_text(task.version(), hash64(kKeyVersion));
  for (const auto& [name, value] : problem.fields) {
    hash = hash_text(value, hash_text(name, hash));
  }
  hash = hash64(answer ? "answer" : "none", hash);
  return hash_hex(answer ? hash_text(*answer, hash) : hash);
}

std::string version_of(const Task& task, bool style_named) {
  const std::string version = task.version();
  return style_named || !task.runs_code()
             ? version
             : task.name() + "/completion" + version.substr(version.rfind('/'));
}

/// Without a style: the prompt and the whole text, as in OpenAI's and EvalPlus' evaluation.
std::optional<std::string> program_of(const Task& task, bool style_named, const TaskRecord& record,
                                      std::string_view text) {
  if (!style_named) {
    return program_from_completion(record, text);
  }
  // The style "evalchemy" has no stop texts and takes programs from code blocks.
  const std::vector<std::string> stops = task.stop_texts();
  return stops.empty() && !code_blocks(text).empty()
             ? task.extract(text, record)
             : program_from_completion(record, cut_at(text, stops));
}

/// Returns Completion::hint. A text that continues the prompt begins with whitespace.
std::string form_hint(const Task& task, const TaskRecord& record, std::string_view text) {
  const auto entry_point = record.fields.find("entry_point");
  text.remove_prefix(std::min(text.find_first_not_of("\r\n"), text.size()));
  if (entry_point == record.fields.end() || is_blank(text.substr(0, 1))) {
    return {};
  }
  if (!code_blocks(text).empty()) {
    return fmt::format("its program is in a block of text: --task {}:evalchemy takes it out",
                       task.name());
  }
  return defines_function(text, entry_point->second)
             ? fmt::format(
                   "its `completion` defines {} instead of continuing the prompt: give it "
                   "as `solution`",
                   entry_point->second)
             : std::string();
}

std::vector<Completion> read_completions(const std::filesystem::path& path,
                                         const CompletionSet& set, bool style_named) {
  const ProblemFinder finder(set.problems, set.names);
  RecordStream stream(path);
  RawRecord raw;
  std::vector<Completion> completions;
  const auto refuse = [&](const std::string& what) {
    throw DataError(fmt::format("{}:{}: {}", path.string(), raw.line, what));
  };
  while (stream.next(raw)) {
    if (!raw.unreadable.empty()) {
      refuse(raw.unreadable);
    }
    const auto node = parse_json(raw.text);
    if (!node || node->kind != JsonNode::Kind::object) {
      refuse("not a JSON object");
    }
    const std::string id = text_of(node->find("task_id"), JsonNode::Kind::number);
    if (id.empty()) {
      refuse("no 'task_id'");
    }
    const auto problem = finder.find(id);
    if (!problem) {
      refuse(fmt::format("task '{}' has no problem '{}'", set.task->name(), id));
    }
    const JsonNode* solution = node->find("solution");
    const JsonNode* text = solution != nullptr ? solution : node->find("completion");
    if (text == nullptr || text->kind != JsonNode::Kind::text) {
      refuse("no text 'completion' or 'solution'");
    }
    const TaskRecord& record = set.problems[*problem];
    Completion completion{*problem, std::nullopt, {}, {}};
    if (!set.task->runs_code()) {
      completion.answer = set.task->extract(cut_at(text->text, set.task->stop_texts()), record);
    } else if (solution != nullptr) {
      completion.answer = text->text;
    } else {
      completion.answer = program_of(*set.task, style_named, record, text->text);
      completion.hint = style_named ? "" : form_hint(*set.task, record, text->text);
    }
    completion.key = key_of(*set.task, record, completion.answer);
    completions.push_back(std::move(completion));
  }
  return completions;
}

void require_all(const CompletionSet& set, const std::filesystem::path& path) {
  std::vector<bool> seen(set.problems.size(), false);
  for (const Completion& completion : set.completions) {
    seen[completion.problem] = true;
  }
  const auto missing = static_cast<std::size_t>(std::count(seen.begin(), seen.end(), false));
  if (missing > 0) {
    const auto first =
        static_cast<std::size_t>(std::find(seen.begin(), seen.end(), false) - seen.begin());
    throw DataError(fmt::format(
        "{}: {} of {} problems have no completion (the first is {}): complete the file, or use "
        "--allow-missing to grade what is there",
        path.string(), missing, set.problems.size(), set.names[first]));
  }
}

/// Throws ConfigError as make_task().
std::unique_ptr<Task> chosen_task(const std::string& entry) {
  const std::size_t colon = entry.find(':');
  if (colon == std::string::npos) {
    // The default style puts imports before a program; OpenAI's check and lm-eval's do not.
    return entry == "humaneval" ? make_task(entry, {.prompt_style = "lm-eval"}) : make_task(entry);
  }
  if (colon == 0 || colon + 1 == entry.size()) {
    throw ConfigError(fmt::format("--task {}: neither TASK nor TASK:STYLE", entry));
  }
  return make_task(entry.substr(0, colon), {.prompt_style = entry.substr(colon + 1)});
}

}  // namespace

CompletionSet load_completions(const CompletionSource& source) {
  CompletionSet set;
  set.task = chosen_task(source.task);
  const bool style_named = source.task.find(':') != std::string::npos;
  set.version = version_of(*set.task, style_named);
  set.problems = set.task->load(source.data);
  set.names = names_of(set.problems);
  set.completions = read_completions(source.completions, set, style_named);
  if (!source.allow_missing) {
    require_all(set, source.completions);
  }
  std::uint64_t hash = 0;
  for (const Completion& completion : set.completions) {
    hash = hash_text(completion.key, hash_text(set.names[completion.problem], hash));
  }
  set.hash = hash_hex(hash);
  return set;
}

void expect_same(const Communicator& comm, const CompletionSet& set) {
  const std::string roots = broadcast_text(comm, set.hash, 0);
  together(comm, [&] {
    if (set.hash != roots) {
      throw DataError(
          "grade: this rank has read other completions or benchmark files than rank 0; all ranks "
          "must see the same files");
    }
  });
}

}  // namespace jforge
