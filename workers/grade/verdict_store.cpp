#include "workers/grade/verdict_store.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "runtime/bounded_json.h"
#include "runtime/durable_file.h"
#include "runtime/error.h"
#include "runtime/log.h"
#include "runtime/read_file.h"
#include "runtime/text_seal.h"

namespace jforge {

namespace {

std::filesystem::path parts_directory(const std::filesystem::path& file) {
  std::filesystem::path directory = file;
  directory += ".parts";
  return directory;
}

bool belongs(const VerdictRecord& record, const CompletionSet& set) {
  return record.index >= 0 && std::cmp_less(record.index, set.completions.size()) &&
         record.key == set.completions[static_cast<std::size_t>(record.index)].key;
}

nlohmann::json to_json(const VerdictRecord& record) {
  nlohmann::json entry;
  entry["base_status"] = record.base_verdict.value_or(record.verdict);
  if (record.base_verdict) {
    entry["plus_status"] = record.verdict;
  }
  entry["reason"] = record.reason;
  for (const auto& [rule, right] : record.rules) {
    entry["rules"][rule] = right;
  }
  return entry;
}

/// If c of a problem's n completions pass, 1 - C(n - c, 1) / C(n, 1) = c / n (Chen et al., 2021).
nlohmann::json pass_at_1(const nlohmann::json& problems) {
  nlohmann::json result = nlohmann::json::object();
  for (const std::string kind : {"base", "plus"}) {
    double sum = 0;
    bool present = !problems.empty();
    for (const auto& [id, entries] : problems.items()) {
      std::int64_t passed = 0;
      for (const nlohmann::json& entry : entries) {
        const auto status = entry.find(kind + "_status");
        present = present && status != entry.end();
        passed += status != entry.end() && *status == "pass" ? 1 : 0;
      }
      sum += static_cast<double>(passed) / static_cast<double>(entries.size());
    }
    if (present) {
      result[kind] = sum / static_cast<double>(problems.size());
    }
  }
  return result;
}

}  // namespace

bool is_verdict_file(const std::filesystem::path& file) {
  const auto json = try_bounded_json(read_file(file));
  return json.is_object() && json.contains("task") && json.contains("eval");
}

VerdictStore::VerdictStore(std::filesystem::path file)
    : file_(std::move(file)), directory_(parts_directory(file_)), parts_(directory_, "verdicts") {}

std::vector<VerdictRecord> VerdictStore::read(const CompletionSet& set) const {
  std::map<std::int64_t, VerdictRecord> found;
  std::size_t others = 0;
  parts_.read(
      [&](std::string_view line, const std::string& origin) {
        VerdictRecord record = parse_verdict_record(line, origin);
        if (belongs(record, set)) {
          const std::int64_t index = record.index;
          found.emplace(index, std::move(record));
        } else {
          ++others;
        }
      },
      "completions are graded again");
  if (others > 0) {
    log_warn("{}: {} verdicts are on other completions, problems or rules and do not count",
             directory_.string(), others);
  }
  std::vector<VerdictRecord> verdicts;
  verdicts.reserve(found.size());
  for (auto& [index, record] : found) {
    verdicts.push_back(std::move(record));
  }
  return verdicts;
}

std::optional<VerdictSummary> VerdictStore::finished(const CompletionSet& set) const {
  // Parts that are left hold verdicts that may be newer.
  if (!std::filesystem::exists(file_) || std::filesystem::exists(directory_)) {
    return std::nullopt;
  }
  try {
    const nlohmann::json file = try_bounded_json(read_sealed(file_));
    if (file.is_object() && file.value("input", nlohmann::json()) == set.hash) {
      return VerdictSummary{file.at("eval").size(), file.at("pass@1").dump()};
    }
  } catch (const std::exception& error) {
    log_warn("{}; everything is graded again", error.what());
  }
  return std::nullopt;
}

VerdictSummary VerdictStore::publish(const CompletionSet& set,
                                     const std::vector<VerdictRecord>& verdicts) const {
  std::vector<const VerdictRecord*> by_index(set.completions.size(), nullptr);
  for (const VerdictRecord& record : verdicts) {
    expect(belongs(record, set), "a verdict on a completion of the set");
    by_index[static_cast<std::size_t>(record.index)] = &record;
  }
  nlohmann::json problems = nlohmann::json::object();
  for (std::size_t index = 0; index < by_index.size(); ++index) {
    expect(by_index[index] != nullptr, "every completion has a verdict");
    problems[set.names[set.completions[index].problem]].push_back(to_json(*by_index[index]));
  }
  nlohmann::json file;
  file["task"] = set.task->name();
  file["version"] = set.version;
  file["input"] = set.hash;
  file["pass@1"] = pass_at_1(problems);
  VerdictSummary summary{problems.size(), file["pass@1"].dump()};
  file["eval"] = std::move(problems);
  publish_file(
      file_, seal_json(file.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n"));
  return summary;
}

void VerdictStore::remove_directory() const noexcept {
  // Fails, as intended, if another job has put parts there.
  std::error_code ignored;
  std::filesystem::remove(directory_, ignored);
}

}  // namespace jforge
