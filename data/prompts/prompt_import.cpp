#include "data/prompts/prompt_import.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <numeric>
#include <system_error>
#include <thread>
#include <unordered_set>
#include <utility>

#include "data/prompts/file_patterns.h"
#include "data/prompts/json_path_internal.h"
#include "data/prompts/prompt_store.h"
#include "runtime/content_hash.h"
#include "runtime/durable_file.h"
#include "runtime/error.h"
#include "runtime/phase_clock.h"
#include "runtime/random.h"
#include "runtime/text_seal.h"

namespace jforge {
namespace {

struct Ordering {
  std::string path;
  bool descending = false;
};

Ordering parse_ordering(const std::string& order_by) {
  const bool descending = order_by.starts_with('-');
  return {order_by.substr(descending ? 1 : 0), descending};
}

/// Hashes a single message without its role.
std::uint64_t text_hash(const Conversation& messages) {
  if (messages.size() == 1) {
    return hash64(std::string_view(messages.front().content));
  }
  std::string all;
  for (const ChatMessage& message : messages) {
    all += fmt::format("{} {}\n{}\n", message.role, message.content.size(), message.content);
  }
  return hash64(std::string_view(all));
}

class Selection {
 public:
  Selection(const PromptImportConfig& config, PromptReaderResult& read, ImportReport& report)
      : config_(config),
        candidates_(read.candidates),
        answers_(read.answers),
        report_(report),
        order_(candidates_.size()) {
    std::iota(order_.begin(), order_.end(), std::size_t{0});
  }

  void sort() {
    if (config_.order_by) {
      const bool descending = parse_ordering(*config_.order_by).descending;
      std::stable_sort(order_.begin(), order_.end(), [&](std::size_t a, std::size_t b) {
        return order_before(candidates_[a].key, candidates_[b].key, descending);
      });
    }
  }

  void drop_duplicates() {
    std::unordered_set<std::uint64_t> seen;
    hashes_.resize(candidates_.size());
    const std::size_t before = order_.size();
    std::erase_if(order_, [&](std::size_t i) {
      hashes_[i] = text_hash(candidates_[i].messages);
      return !seen.insert(hashes_[i]).second;
    });
    report_.dropped.push_back(
        {"duplicate text", static_cast<std::int64_t>(before - order_.size())});
  }

  /// Tokenises in sampling order until `limit` prompts are kept.
  void take(const PromptEncoder& encoder, ImportProgress now,
            const std::function<void(const ImportProgress&)>& progress,
            PromptStoreContent& content) {
    const std::vector<std::size_t> ranks = taking_order();
    const auto limit =
        static_cast<std::size_t>(config_.limit.value_or(static_cast<std::int64_t>(ranks.size())));
    const int threads = config_.threads.value_or(
        static_cast<int>(std::max(1U, std::thread::hardware_concurrency())));
    now.candidates = static_cast<std::int64_t>(std::min(limit, ranks.size()));
    std::vector<std::pair<std::size_t, StoredPrompt>> kept;
    kept.reserve(std::min(limit, ranks.size()));
    std::int64_t over_long = 0;
    std::size_t done = 0;
    while (done < ranks.size() && kept.size() < limit) {
      constexpr std::size_t kPiece = 4096;
      const std::size_t count = std::min({kPiece, ranks.size() - done, limit - kept.size()});
      std::vector<const Conversation*> prompts;
      for (std::size_t i = done; i < done + count; ++i) {
        prompts.push_back(&candidates_[order_[ranks[i]]].messages);
      }
      auto encoded = encode_all(encoder, prompts, threads);
      for (std::size_t i = 0; i < count; ++i) {
        const std::size_t rank = ranks[done + i];
        PromptCandidate& from = candidates_[order_[rank]];
        const Conversation messages = std::move(from.messages);
        if (encoded[i].refusal) {
          report_.unreadable.push_back(
              {report_.files[static_cast<std::size_t>(from.file)], from.line, *encoded[i].refusal});
          continue;
        }
        if (config_.max_prompt_tokens &&
            static_cast<std::int64_t>(encoded[i].tokens.size()) > *config_.max_prompt_tokens) {
          ++over_long;
          continue;
        }
        report_.with_control_tokens +=
            encoder.holds_control_tokens &&
                    std::ranges::any_of(messages,
                                        [&](const ChatMessage& message) {
                                          return encoder.holds_control_tokens(message.content);
                                        })
                ? 1
                : 0;
        kept.emplace_back(rank, StoredPrompt{std::move(encoded[i].tokens), hashes_[order_[rank]],
                                             from.file, from.line});
      }
      done += count;
      note_progress();
      if (progress) {
        now.encoded = static_cast<std::int64_t>(done);
        progress(now);
      }
    }
    if (config_.max_prompt_tokens) {
      report_.dropped.push_back(
          {fmt::format("over max_prompt_tokens {}", *config_.max_prompt_tokens), over_long});
    }
    if (config_.limit) {
      report_.dropped.push_back({fmt::format("over limit {}", *config_.limit),
                                 static_cast<std::int64_t>(ranks.size() - done)});
    }
    std::sort(kept.begin(), kept.end(),
              [](const auto& a, const auto& b) { return a.first < b.first; });
    content.prompts.reserve(kept.size());
    for (auto& [rank, prompt] : kept) {
      content.prompts.push_back(std::move(prompt));
      if (!answers_.empty()) {
        content.answers.push_back(std::move(answers_[order_[rank]]));
      }
    }
  }

 private:
  /// Returns indices into `order_`.
  [[nodiscard]] std::vector<std::size_t> taking_order() const {
    std::vector<std::size_t> ranks(order_.size());
    std::iota(ranks.begin(), ranks.end(), std::size_t{0});
    if (config_.sample == PromptSample::random) {
      RandomStream stream(config_.seed, RandomPurpose::prompt_sample);
      for (std::size_t i = ranks.size(); i > 1; --i) {
        std::swap(ranks[i - 1], ranks[stream.below(i)]);
      }
    }
    return ranks;
  }

  const PromptImportConfig& config_;
  std::vector<PromptCandidate>& candidates_;
  std::vector<std::string>& answers_;
  ImportReport& report_;
  std::vector<std::size_t> order_;
  std::vector<std::uint64_t> hashes_;
};

void write_quarantine(const std::filesystem::path& store_path, const std::vector<BadRecord>& bad) {
  std::filesystem::path path = store_path;
  path += ".quarantine";
  if (bad.empty()) {
    std::error_code ignored;
    std::filesystem::remove(path, ignored);
    return;
  }
  std::string lines;
  for (const BadRecord& record : bad) {
    const nlohmann::ordered_json line{
        {"file", record.file}, {"line", record.line}, {"reason", record.reason}};
    lines += seal_json(line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)) + "\n";
  }
  publish_file(path, lines);
}

void require_kept(const ImportReport& report) {
  if (report.kept > 0) {
    return;
  }
  const std::string losses = report.losses();
  throw DataError(
      fmt::format("no prompt is left of {}{}: {} records read{}{}; check prompts.files, field and "
                  "keep_if",
                  report.files.front(), report.files.size() > 1 ? " and others" : "",
                  report.records, losses.empty() ? "" : ", ", losses));
}

void require_expected(const PromptImportConfig& config, const std::vector<StoredPrompt>& prompts,
                      const std::filesystem::path& store_path) {
  if (!config.expected_digest) {
    return;
  }
  if (const std::string digest = prompts_digest(prompts); digest != *config.expected_digest) {
    throw DataError(fmt::format(
        "{} is lost, and prompts.files no longer give the prompts that the run's checkpoints were "
        "trained on (digest {} instead of {}); put the files, or {}, back as they were, or use "
        "another run.directory",
        store_path.string(), digest, *config.expected_digest, store_path.filename().string()));
  }
}

}  // namespace

void expect_chat_template(const std::string& key, const std::optional<std::string>& name) {
  if (name && *name != "chatml") {
    throw ConfigError(
        fmt::format("{} is '{}': the only template that can be forced is \"chatml\"", key, *name));
  }
}

void PromptImportConfig::validate() const {
  const auto positive = [](const char* name, std::int64_t value) {
    if (value < 1) {
      throw ConfigError(fmt::format("prompts.{} is {}: must be at least 1", name, value));
    }
  };
  if (files.empty()) {
    throw ConfigError("prompts.files is empty: name at least one file or pattern");
  }
  positive("limit", limit.value_or(1));
  positive("max_prompt_tokens", max_prompt_tokens.value_or(1));
  if (!(max_bad_fraction >= 0 && max_bad_fraction <= 1)) {
    throw ConfigError(
        fmt::format("prompts.max_bad_fraction is {}: must be from 0 to 1", max_bad_fraction));
  }
  expect_chat_template("prompts.template", chat_template);
  expect_template_arguments("prompts.template_arguments", template_arguments);
  static_cast<void>(parse_fields(field));
  if (text) {
    static_cast<void>(parse_text_template(*text));
  }
  if (answer_field) {
    static_cast<void>(parse_fields(*answer_field));
  }
  if (order_by) {
    static_cast<void>(JsonPath(parse_ordering(*order_by).path));
  }
  for (const std::string& rule : keep_if) {
    static_cast<void>(JsonPath(RecordFilter(rule).path()));
  }
}

std::string ImportReport::losses() const {
  std::vector<std::string> counts;
  if (!unreadable.empty()) {
    counts.push_back(fmt::format("{} unreadable", unreadable.size()));
  }
  for (const DroppedByRule& rule : dropped) {
    if (rule.count > 0) {
      counts.push_back(fmt::format("{} dropped by '{}'", rule.count, rule.rule));
    }
  }
  std::string text = fmt::format("{}", fmt::join(counts, ", "));
  if (!unreadable.empty()) {
    const BadRecord& first = unreadable.front();
    text += fmt::format("; first unreadable: {}:{}: {}", first.file, first.line, first.reason);
  }
  return text;
}

std::string ImportReport::to_json() const {
  nlohmann::ordered_json json;
  json["files"] = files;
  json["records"] = records;
  json["unreadable"] = unreadable.size();
  json["dropped"] = nlohmann::ordered_json::array();
  for (const DroppedByRule& rule : dropped) {
    json["dropped"].push_back({{"rule", rule.rule}, {"count", rule.count}});
  }
  json["kept"] = kept;
  json["tokens"] = tokens;
  json["with_control_tokens"] = with_control_tokens;
  if (with_answers) {
    json["with_answers"] = *with_answers;
  }
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string import_identity(const PromptImportConfig& config, const PromptEncoder& encoder) {
  const auto optional = [](const auto& value) {
    return value ? nlohmann::json(*value) : nlohmann::json();
  };
  nlohmann::json json{
      {"files", config.files},
      {"field", config.field},
      {"keep_if", config.keep_if},
      {"order_by", optional(config.order_by)},
      {"sample", config.sample == PromptSample::random ? "random" : "first"},
      {"seed", config.sample == PromptSample::random ? config.seed : 0},
      {"limit", optional(config.limit)},
      {"max_prompt_tokens", optional(config.max_prompt_tokens)},
      {"encoder", encoder.identity},
  };
  if (config.text) {
    json["text"] = *config.text;
  }
  if (config.answer_field) {
    json["answer_field"] = *config.answer_field;
  }
  if (!config.template_arguments.empty()) {
    json["template_arguments"] = arguments_json(config.template_arguments);
  }
  const std::string text = json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  return hash_hex(hash64(std::string_view(text)));
}

PromptReaderOptions reader_options(const PromptImportConfig& config) {
  PromptReaderOptions options{.files = match_files(config.files),
                              .field = config.field,
                              .text = config.text,
                              .keep_if = config.keep_if,
                              .order_by = std::nullopt,
                              .answer_field = config.answer_field,
                              .max_bad_fraction = config.max_bad_fraction};
  if (config.order_by) {
    options.order_by = parse_ordering(*config.order_by).path;
  }
  return options;
}

ImportReport import_prompts(const PromptImportConfig& config, const PromptEncoder& encoder,
                            const std::filesystem::path& store_path,
                            const std::function<void(const ImportProgress&)>& progress) {
  config.validate();
  const auto start = std::chrono::steady_clock::now();
  const PromptReaderOptions options = reader_options(config);
  ImportProgress now;
  PromptReaderResult read = read_prompts(options, [&](std::int64_t records, std::int64_t bytes) {
    if (progress) {
      now.records = records;
      now.bytes = bytes;
      progress(now);
    }
  });
  ImportReport report;
  for (const auto& file : options.files) {
    report.files.push_back(file.string());
  }
  report.records = now.records = read.records;
  report.bytes = now.bytes = read.bytes;
  report.unreadable = std::move(read.bad);
  report.dropped = std::move(read.dropped);

  Selection selection(config, read, report);
  selection.sort();
  selection.drop_duplicates();
  PromptStoreContent content;
  selection.take(encoder, now, progress, content);
  read.candidates = {};  // Frees as much memory as the tokens take.
  expect_few_bad(options, report.unreadable, report.records);
  report.kept = static_cast<std::int64_t>(content.prompts.size());
  for (const StoredPrompt& prompt : content.prompts) {
    report.tokens += static_cast<std::int64_t>(prompt.tokens.size());
  }
  if (config.answer_field) {
    report.with_answers = std::ranges::count_if(
        content.answers, [](const std::string& answer) { return !answer.empty(); });
  }
  // Written even if nothing is kept, when it is needed most.
  write_quarantine(store_path, report.unreadable);
  require_kept(report);
  require_expected(config, content.prompts, store_path);
  content.identity = import_identity(config, encoder);
  content.report = report.to_json();
  write_prompt_store(store_path, content);
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report;
}

}  // namespace jforge
