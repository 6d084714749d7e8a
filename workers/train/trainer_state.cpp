#include "workers/train/trainer_state.h"

#include <nlohmann/json.hpp>
#include <optional>

#include "runtime/bounded_json.h"
#include "runtime/error.h"

namespace jforge {

namespace {

using Json = nlohmann::json;

constexpr const char* kTrainer = "trainer";

}  // namespace

std::string with_trainer_state(const std::string& cursors, const TrainerState& state) {
  auto json = parse_bounded_json<Json>(cursors, "a checkpoint's cursors");
  const SpikeGuardState& guard = state.spike_guard;
  json[kTrainer]["spike_guard"] = {
      {"recent", guard.recent}, {"skipped", guard.skipped}, {"in_a_row", guard.in_a_row}};
  const EarlyStopState& stop = state.early_stop;
  const auto or_null = [](const std::optional<double>& value) {
    return value ? Json(*value) : Json(nullptr);
  };
  json[kTrainer]["early_stop"] = {{"best_tpf", or_null(stop.best_tpf)},
                                  {"best_accuracy", or_null(stop.best_accuracy)},
                                  {"without_gain", stop.without_gain},
                                  {"problems", stop.problems}};
  return json.dump();
}

TrainerState trainer_state_of(const std::string& cursors) {
  const auto json = try_bounded_json<Json>(cursors);
  TrainerState state;
  if (!json.is_object() || !json.contains(kTrainer)) {
    return state;
  }
  try {
    const Json& guard = json.at(kTrainer).at("spike_guard");
    state.spike_guard = {.recent = guard.at("recent").get<std::vector<double>>(),
                         .skipped = json_integer<std::int64_t>(guard.at("skipped")),
                         .in_a_row = json_integer<std::int64_t>(guard.at("in_a_row"))};
    const Json& stop = json.at(kTrainer).at("early_stop");
    const auto number = [&](const char* key) {
      return stop.at(key).is_null() ? std::nullopt : std::optional(stop.at(key).get<double>());
    };
    state.early_stop = {.best_tpf = number("best_tpf"),
                        .best_accuracy = number("best_accuracy"),
                        .without_gain = json_integer<std::int64_t>(stop.at("without_gain")),
                        .problems = stop.value("problems", "")};
  } catch (const Json::exception& error) {
    throw DataError(std::string("the trainer's state in the checkpoint's cursors is garbled: ") +
                    error.what());
  }
  return state;
}

}  // namespace jforge
