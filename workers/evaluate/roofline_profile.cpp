#include "workers/evaluate/roofline_profile.h"

#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <chrono>

#include "runtime/error.h"
#include "runtime/random.h"

namespace jforge {

namespace {

// Interpolates linearly.
double quantile(const std::vector<double>& sorted, double share) {
  const double place = share * static_cast<double>(sorted.size() - 1);
  const auto index = static_cast<std::size_t>(place);
  const double part = place - static_cast<double>(index);
  return index + 1 < sorted.size() ? sorted[index] * (1 - part) + sorted[index + 1] * part
                                   : sorted[index];
}

// Fills one slot with the context once, then runs drafts after it.
class Prober {
 public:
  Prober(DecodeModel& model, std::int64_t vocabulary_size, const RooflineSettings& settings)
      : model_(model), settings_(settings) {
    RandomStream stream(settings.seed, RandomPurpose::jacobi_draft);
    for (std::int64_t i = 0; i < settings.positions(); ++i) {
      tokens_.push_back(
          static_cast<TokenId>(stream.below(static_cast<std::uint64_t>(vocabulary_size))));
    }
    predictions_.resize(static_cast<std::size_t>(settings.max_rows));
    if (settings.context_tokens > 0) {
      fill(0, settings.context_tokens);
      for (DecodeRow& row : rows_) {
        row.wants_output = false;
      }
      // Decoding never calls predict() without outputs.
      rows_.back().wants_output = true;
      model_.predict(rows_, std::span(predictions_).first(1));
    }
  }

  void pass(std::int32_t rows) {
    fill(settings_.context_tokens, rows);
    model_.predict(rows_, std::span(predictions_).first(static_cast<std::size_t>(rows)));
  }

 private:
  void fill(std::int64_t begin, std::int64_t count) {
    rows_.clear();
    for (std::int64_t i = begin; i < begin + count; ++i) {
      rows_.push_back({.token = tokens_[static_cast<std::size_t>(i)],
                       .place = {.slot = 0, .position = static_cast<std::int32_t>(i)}});
    }
  }

  DecodeModel& model_;
  const RooflineSettings& settings_;
  std::vector<TokenId> tokens_;
  std::vector<DecodeRow> rows_;
  std::vector<TokenId> predictions_;
};

}  // namespace

void RooflineSettings::validate() const {
  const auto at_least = [](const char* name, std::int64_t value, std::int64_t least) {
    if (value < least) {
      throw ConfigError(
          fmt::format("roofline {} is {}; it must be at least {}", name, value, least));
    }
  };
  at_least("max_rows", max_rows, 1);
  at_least("context_tokens", context_tokens, 0);
  at_least("repeats", repeats, 1);
  at_least("warm_up", warm_up, 0);
}

std::vector<std::int32_t> RooflineSettings::row_counts() const {
  std::vector<std::int32_t> counts;
  for (std::int64_t rows = 1; rows < max_rows; rows *= 2) {
    counts.push_back(static_cast<std::int32_t>(rows));
  }
  counts.push_back(max_rows);
  return counts;
}

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::vector<RooflinePoint> profile_roofline(DecodeModel& model, std::int64_t vocabulary_size,
                                            const RooflineSettings& settings,
                                            const std::function<bool()>& on_pass,
                                            const SecondsClock& clock) {
  settings.validate();
  expect(vocabulary_size > 0, "a roofline of a model without tokens");
  if (settings.positions() > model.slot_capacity()) {
    throw DataError(fmt::format(
        "the roofline needs {} positions ({} of context, {} rows), a slot holds {}; profile fewer",
        settings.positions(), settings.context_tokens, settings.max_rows, model.slot_capacity()));
  }
  const std::vector<std::int32_t> counts = settings.row_counts();
  std::vector<std::vector<double>> seconds(counts.size());
  Prober prober(model, vocabulary_size, settings);
  for (std::int32_t repeat = -settings.warm_up; repeat < settings.repeats; ++repeat) {
    for (std::size_t i = 0; i < counts.size(); ++i) {
      const double begin = clock();
      prober.pass(counts[i]);
      const double end = clock();
      if (repeat >= 0) {
        seconds[i].push_back(end - begin);
      }
      if (on_pass && on_pass()) {
        return {};
      }
    }
  }
  std::vector<RooflinePoint> points;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    std::ranges::sort(seconds[i]);
    points.push_back({.rows = counts[i],
                      .seconds = quantile(seconds[i], 0.5),
                      .seconds_low = quantile(seconds[i], 0.25),
                      .seconds_high = quantile(seconds[i], 0.75)});
  }
  return points;
}

std::vector<RooflinePoint> profile_roofline(const ModelUnderTest& model, KernelSet& kernels,
                                            RooflineSettings settings,
                                            const std::function<bool()>& on_pass) {
  while (settings.max_rows > 1 && settings.positions() > model.config.max_position_embeddings) {
    settings.max_rows /= 2;
  }
  if (settings.positions() > model.config.max_position_embeddings) {
    throw DataError(fmt::format("the roofline needs {} positions, the model has {}",
                                settings.positions(), model.config.max_position_embeddings));
  }
  MemoryAccount account("roofline");
  InferenceTransformer transformer(
      model.config, model.table, model.read, kernels, account,
      {.num_slots = 1,
       .slot_capacity = static_cast<std::int32_t>(settings.positions()),
       .weights = model.decode_weights});
  return profile_roofline(transformer, model.config.vocabulary_size, settings, on_pass);
}

nlohmann::ordered_json roofline_machine(const KernelSet& kernels) {
  return {{"device", kernels.device() == Device::cpu ? "cpu" : "cuda"},
          {"threads", omp_get_max_threads()}};
}

nlohmann::ordered_json to_json(std::span<const RooflinePoint> points) {
  auto json = nlohmann::ordered_json::array();
  for (const RooflinePoint& point : points) {
    json.push_back({{"rows", point.rows},
                    {"seconds", point.seconds},
                    {"seconds_low", point.seconds_low},
                    {"seconds_high", point.seconds_high}});
  }
  return json;
}

}  // namespace jforge
