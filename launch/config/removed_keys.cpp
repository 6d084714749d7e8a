#include "launch/config/removed_keys.h"

#include <fmt/format.h>

#include <string_view>

namespace jforge {

namespace {

struct RemovedKey {
  std::string_view path;  ///< "rounds.endpoint" for all rounds.
  const char* advice;
  /// The recorded value that gives today's results, without a text's quotes. Null for operational
  /// keys and for keys that were recorded only with other values.
  const char* value = nullptr;
  KeyChange change = {};
  bool run_alone = false;       ///< Recorded by `jforge run` alone.
  const char* paper = nullptr;  ///< The value with train.compat = "paper", if another.
  const char* repo = nullptr;   ///< Likewise with "repo".

  [[nodiscard]] const char* value_with(Compat compat) const {
    const char* const special = compat == Compat::paper  ? paper
                                : compat == Compat::repo ? repo
                                                         : nullptr;
    return special == nullptr ? value : special;
  }
};

constexpr const char* kByCompat = "set train.compat";
constexpr const char* kDataFields = "name the fields \"question\" and \"answer\"";
constexpr const char* kOwnTemplate = "put the chat template into pretrain.tokenizer";
constexpr const char* kByLimit = "set generate.max_new_tokens and train.filter_eos";
constexpr const char* kNoLookahead =
    "the method \"lookahead\" was removed; \"prompt_lookup\" needs no training either";
constexpr KeyChange kOfOtherLoss = {.other_loss = true};
constexpr KeyChange kOfSamples = {.fixed_from = FixedFrom::round};

constexpr RemovedKey kRemoved[] = {
    {"prompts.max_bad_records", "set prompts.max_bad_fraction"},
    {"prompts.threads", "the import uses all cores"},
    {"generate.fixed_point", "answers are decoded token by token, as with \"ar\""},
    {"generate.lease_seconds", "set run.hang_limit_seconds"},
    {"rounds.endpoint", kByCompat, "inclusive", kOfOtherLoss, true, "exclusive"},
    {"rounds.measure", kByCompat, "prefix", kOfOtherLoss, true, "positionwise"},
    {"rounds.target", kByCompat, "ratio", kOfOtherLoss, true, "ceil_count"},
    {"train.reduction", kByCompat, "token_mean", kOfOtherLoss, false, "paper", "repo"},
    {"train.spike_guard_measure", "the loss is what is compared", "loss", kOfOtherLoss},
    {"train.spike_guard_window", "it is always 32", "32"},
    {"train.spike_guard_patience", "it is always 8", "8"},
    {"train.collapse_prompts", "it is always 8"},
    {"train.collapse_max_new_tokens", "it is 128, or generate.max_new_tokens if that is less"},
    {"train.early_stop_max_new_tokens", "set evaluate.max_new_tokens", ""},
    {"train.early_stop_measure", "speed and accuracy both count", "either"},
    {"train.early_stop_min_gain", "it is always 0.01", "0.01"},
    {"train.filter_sentence_repeats", "set train.filter_repetition", "0", kOfSamples, true},
    {"train.filter_min_tokens", kByLimit, "0", kOfSamples, true},
    {"train.filter_max_tokens", kByLimit, "", kOfSamples, true},
    {"train.check_replicas_every", "ranks are compared at every step"},
    {"train.check_owned_state", "set train.check_state_every"},
    {"evaluate.lookahead_guesses", kNoLookahead},
    {"evaluate.lookahead_ngram", kNoLookahead},
    {"evaluate.lookahead_window", kNoLookahead},
    {"sweep.lookahead_guesses", kNoLookahead},
    {"sweep.lookahead_ngram", kNoLookahead},
    {"sweep.lookahead_window", kNoLookahead},
    {"sweep.tasks", "set evaluate.tasks"},
    {"sweep.include_ar", "greedy decoding is always measured"},
    {"pretrain.device", "set model.device"},
    {"pretrain.question_field", kDataFields, "question"},
    {"pretrain.answer_field", kDataFields, "answer"},
    {"pretrain.template", kOwnTemplate},
    {"pretrain.template_arguments", kOwnTemplate},
    {"pretrain.rms_norm_eps", "it is always 1e-6", "1e-06"},
};

/// As configurations print it: numbers as they are, texts in quotes, nothing if it was not set.
std::string printed(std::string_view value) {
  return value.empty() || (value.front() >= '0' && value.front() <= '9') ? std::string(value)
                                                                         : toml_quoted(value);
}

}  // namespace

std::optional<std::string> removed_key_advice(const std::string& path) {
  const std::string unnumbered = path.substr(0, path.find('.')) + path.substr(path.rfind('.'));
  for (const RemovedKey& key : kRemoved) {
    if (key.path == unnumbered) {
      return key.advice;
    }
  }
  return std::nullopt;
}

void record_removed_keys(Identity& identity, ConfigFor command, std::size_t rounds, Compat compat) {
  for (const RemovedKey& key : kRemoved) {
    const std::string_view section = key.path.substr(0, key.path.find('.'));
    if (key.value == nullptr || (key.run_alone && command != ConfigFor::run) ||
        (section == "pretrain" && command != ConfigFor::pretrain)) {
      continue;
    }
    const auto record = [&](const std::string& path) {
      identity[path] = printed(key.value_with(compat));
      identity.changes[path] = key.change;
    };
    if (section == "rounds") {
      for (std::size_t round = 1; round <= rounds; ++round) {
        record(fmt::format("rounds.{}{}", round, key.path.substr(section.size())));
      }
    } else {
      record(std::string(key.path));
    }
  }
}

}  // namespace jforge
