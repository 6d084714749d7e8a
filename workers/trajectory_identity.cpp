#include "workers/trajectory_identity.h"

#include <fmt/format.h>

#include <set>
#include <string_view>

#include "runtime/content_hash.h"

namespace jforge {

namespace {
// An identity holds texts as the configuration prints them, in quotes of either kind.
bool is_text(const Identity& identity, const std::string& key, std::string_view text) {
  const auto found = identity.find(key);
  return found != identity.end() && found->second.size() == text.size() + 2 &&
         found->second.substr(1, text.size()) == text;
}
}  // namespace

std::string trajectory_identity(const Identity& identity, std::int32_t round,
                                const std::string& origin) {
  const std::string of_round = fmt::format("rounds.{}.", round);
  // The only key of model.* that affects decoding; absent if weights are not rounded.
  std::set<std::string> keys = {"run.seed", "prompts.digest", "model.decode_weights",
                                of_round + "block_size"};
  if (is_text(identity, "model.decode_weights", "bfloat16_arithmetic")) {
    keys.insert(kBFloat16SumsFact);
  }
  if (!is_text(identity, "generate.store_states", "all")) {
    keys.insert("train.compat");
    for (const char* const key : {"noise_window", "schedule", "drop_initial_state"}) {
      keys.insert(of_round + key);
    }
  }
  std::string text = fmt::format("origin={}\n", origin);
  for (const auto& [key, value] : identity) {
    if (key.starts_with("generate.") || keys.contains(key)) {
      text += fmt::format("{}={}\n", key, value);
    }
  }
  return hash_hex(hash64(std::string_view(text)));
}

}  // namespace jforge
