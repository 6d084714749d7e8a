#include "tests/fuzz/fuzz_targets.h"

#include <array>

#include "runtime/error.h"

namespace jforge {

namespace {

constexpr std::array kTargets{
    FuzzTarget{"control_messages", fuzz_control_messages},
    FuzzTarget{"evalplus_json", fuzz_evalplus_json},
    FuzzTarget{"harness_frames", fuzz_harness_frames},
    FuzzTarget{"hdf5_store", fuzz_hdf5_store},
    FuzzTarget{"manifest", fuzz_manifest},
    FuzzTarget{"math_answers", fuzz_math_answers},
    FuzzTarget{"model_config", fuzz_model_config},
    FuzzTarget{"prompt_records", fuzz_prompt_records},
    FuzzTarget{"safetensors", fuzz_safetensors},
    FuzzTarget{"tokenizer_json", fuzz_tokenizer_json},
    FuzzTarget{"toml_config", fuzz_toml_config},
};

}  // namespace

std::span<const FuzzTarget> fuzz_targets() { return kTargets; }

void run_target(const FuzzTarget& target, std::span<const std::uint8_t> bytes) {
  try {
    target.run(bytes);
  } catch (const Error& error) {
    if (error.code() == ExitCode::internal) {
      throw;
    }
  }
}

}  // namespace jforge
