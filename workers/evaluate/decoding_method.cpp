#include "workers/evaluate/decoding_method.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <utility>

#include "runtime/error.h"

namespace jforge {

namespace {

using Json = nlohmann::ordered_json;
using MethodMaker = DecodingMethod (*)(const EvaluateConfig&, std::uint64_t seed);

DecodingMethod make_greedy(const EvaluateConfig& /*config*/, std::uint64_t /*seed*/) {
  return {.name = {},
          .settings = Json{{"block_size", 1}, {"window", "none"}},
          .make = [](DecodeRequest request) { return make_greedy_decoder(std::move(request)); }};
}

template <DraftWindow window>
DecodingMethod make_jacobi(const EvaluateConfig& config, std::uint64_t seed) {
  const JacobiOptions options{.block_size = config.block_size, .window = window, .seed = seed};
  options.validate();
  return {.name = {},
          .settings = Json{{"block_size", options.block_size},
                           {"window", window == DraftWindow::running ? "running" : "shrinking"},
                           {"seed", seed}},
          .make = [options](DecodeRequest request) {
            return make_jacobi_decoder(std::move(request), options);
          }};
}

/// Every method of the program: a new one is one line here.
const std::map<std::string, MethodMaker, std::less<>>& registry() {
  static const std::map<std::string, MethodMaker, std::less<>> methods{
      {std::string(kBaselineMethod), make_greedy},
      {"jacobi", make_jacobi<DraftWindow::running>},
      {"jacobi_shrinking", make_jacobi<DraftWindow::shrinking>},
  };
  return methods;
}

}  // namespace

DecodingMethod make_decoding_method(std::string_view name, const EvaluateConfig& config,
                                    std::uint64_t seed) {
  const auto found = registry().find(name);
  if (found == registry().end()) {
    throw ConfigError(fmt::format("unknown decoding method \"{}\"; known are {}", name,
                                  fmt::join(decoding_method_names(), ", ")));
  }
  DecodingMethod method = found->second(config, seed);
  method.name = found->first;
  return method;
}

std::vector<std::string> decoding_method_names() {
  std::vector<std::string> names;
  for (const auto& [name, maker] : registry()) {
    names.push_back(name);
  }
  return names;
}

}  // namespace jforge
