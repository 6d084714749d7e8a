#include <fmt/format.h>

#include <cmath>

#include "results/report/recorded_settings.h"
#include "results/report/report_sections.h"
#include "results/report/speed_figures.h"

namespace jforge {

namespace {

constexpr const char* kGreedy = "ar";

const ReportJson* member(const ReportJson* object, const std::string& key) {
  if (object == nullptr || !object->is_object()) {
    return nullptr;
  }
  const auto found = object->find(key);
  return found == object->end() ? nullptr : &*found;
}

/// Speeds at the smallest batch; null if not measured.
const ReportJson* first_speed(const ReportJson& figures) {
  const std::vector<double> batches = speed_batches({&figures});
  const ReportJson* const speed = batches.empty() ? nullptr : speed_at(figures, batches.front());
  return speed != nullptr && std::isfinite(json_number(*speed, "speed_up")) ? speed : nullptr;
}

/// Returns the method that gains most by the clock, without speeds by TPF; nothing if only greedy
/// decoding was measured.
std::string best_method(const ReportJson& methods) {
  std::string best;
  double most = -1;
  for (const auto& [name, figures] : methods.items()) {
    const ReportJson* const speed = first_speed(figures);
    const double gain =
        speed != nullptr ? json_number(*speed, "speed_up") : json_number(figures, "tpf");
    if (name != kGreedy && gain > most) {
      most = gain;
      best = name;
    }
  }
  return best;
}

std::string percent(const ReportJson& figures) {
  return shown(100 * json_number(figures, "accuracy"), "{:.1f} %");
}

std::string tpf(const ReportJson& figures) { return shown(json_number(figures, "tpf"), "{:.2f}"); }

std::string speed_clause(const ReportJson& figures) {
  const ReportJson* const speed = first_speed(figures);
  return speed == nullptr
             ? std::string()
             : fmt::format(", {:.0f} tokens/s at batch {:.0f}, {:.2f} times its ordinary decoding",
                           json_number(*speed, "tokens_per_second"),
                           json_number(*speed, "batch_prompts"), json_number(*speed, "speed_up"));
}

/// Two sentences: what was gained and what it cost.
std::string sentences(const std::string& model, const std::string& task, const ReportJson& methods,
                      const ReportJson* base) {
  const std::string method = best_method(methods);
  if (method.empty()) {
    return {};
  }
  const ReportJson& figures = methods.at(method);
  const ReportJson* const before = member(base, method);
  const auto base_clause = [&](const auto& text_of) {
    return before == nullptr ? std::string() : fmt::format(" (base {})", text_of(*before));
  };
  const std::string block_size = recorded_setting(figures, "block_size");
  return fmt::format(
      "On {} the model `{}` makes {} tokens per forward pass{} by {}{}{}. Of its answers {} are "
      "right{}.",
      task, model, tpf(figures), base_clause(tpf), method,
      block_size == "–" ? std::string() : " with block size " + block_size, speed_clause(figures),
      percent(figures), base_clause(percent));
}

}  // namespace

std::string headline(const ReportJson& summary) {
  const ReportJson* const models = member(&summary, "models");
  if (models == nullptr || models->empty()) {
    return {};
  }
  const bool trained = models->contains("final");
  if (!trained && models->size() != 1) {
    return {};
  }
  const std::string name = trained ? "final" : models->begin().key();
  const ReportJson* const base = trained ? member(models, "base") : nullptr;
  std::string text;
  for (const auto& [task, methods] : models->at(name).items()) {
    const std::string one = sentences(name, task, methods, member(base, task));
    text += text.empty() || one.empty() ? one : " " + one;
  }
  return text;
}

}  // namespace jforge
