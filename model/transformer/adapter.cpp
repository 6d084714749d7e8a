#include "model/transformer/adapter.h"

#include <string_view>

namespace jforge {
namespace {

/// "….q_proj.weight" with `part` before the last word.
std::string name_of_part(const PlannedWeight& weight, std::int64_t layer, std::string_view part) {
  std::string name = weight.name_in(layer);
  return name.insert(name.rfind('.'), part);
}

}  // namespace

std::string adapter_in(const PlannedWeight& weight, std::int64_t layer) {
  return name_of_part(weight, layer, ".lora_A");
}

std::string adapter_out(const PlannedWeight& weight, std::int64_t layer) {
  return name_of_part(weight, layer, ".lora_B");
}

}  // namespace jforge
