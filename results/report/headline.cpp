#include "results/report/headline.h"

#include <fmt/format.h>

#include <cmath>

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

/// Returns the method with the highest TPF; nothing if only greedy decoding was measured.
std::string best_method(const ReportJson& methods) {
  std::string best;
  double most = -1;
  for (const auto& [name, figures] : methods.items()) {
    if (name != kGreedy && json_number(figures, "tpf") > most) {
      most = json_number(figures, "tpf");
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
  const std::vector<double> batches = speed_batches({&figures});
  const ReportJson* const speed = batches.empty() ? nullptr : speed_at(figures, batches.front());
  if (speed == nullptr || !std::isfinite(json_number(*speed, "speed_up"))) {
    return {};
  }
  return fmt::format(", at {:.2f} times the speed of its ordinary decoding in batches of {:.0f}",
                     json_number(*speed, "speed_up"), batches.front());
}

std::string sentence(const std::string& model, const std::string& task, const ReportJson& methods,
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
  return fmt::format("On {} the model `{}` makes {} tokens per forward pass{} by {}, {} right{}{}.",
                     task, model, tpf(figures), base_clause(tpf), method, percent(figures),
                     base_clause(percent), speed_clause(figures));
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
    const std::string one = sentence(name, task, methods, member(base, task));
    text += text.empty() || one.empty() ? one : " " + one;
  }
  return text;
}

}  // namespace jforge
