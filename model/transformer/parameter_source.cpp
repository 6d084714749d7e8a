#include "model/transformer/parameter_source.h"

#include <algorithm>

namespace jforge {

PassUses::PassUses(const ParameterTable& table) {
  using enum GroupUse::Kind;
  const auto groups = static_cast<std::int32_t>(table.groups().size());
  for (std::int32_t group = 0; group < groups; ++group) {
    forward.push_back({acquire, group});
  }
  if (table.kind() == ParameterTable::Kind::adapter) {
    for (std::int32_t layer = groups; layer-- > 0;) {
      backward.push_back({acquire, layer});
      backward.push_back({ready, layer});
    }
    return;
  }
  constexpr std::int32_t kEmbedding = 0;  // of a head: features
  const std::int32_t head = groups - 1;
  const bool of_head = table.kind() == ParameterTable::Kind::head;
  const bool tied = !of_head && std::ranges::find(table.entries(), "lm_head.weight",
                                                  &ParameterEntry::name) == table.entries().end();
  teacher_head.push_back({acquire, tied ? kEmbedding : head});
  backward.push_back({acquire, head});
  if (tied) {
    backward.push_back({acquire, kEmbedding});
  }
  backward.push_back({ready, head});
  for (std::int32_t layer = head - 1; layer > kEmbedding; --layer) {
    backward.push_back({acquire, layer});
    backward.push_back({ready, layer});
  }
  if (of_head) {
    backward.push_back({acquire, kEmbedding});
  }
  backward.push_back({ready, kEmbedding});
}

}  // namespace jforge
