#pragma once

/// One function for each parser of bytes from outside. libFuzzer calls them with inputs that it
/// makes (fuzz_main.cpp, built with JFORGE_FUZZ); the plain tests call them with the committed
/// corpus (corpus_replay_test.cpp).

#include <cstdint>
#include <span>
#include <string_view>

namespace jforge {

struct FuzzTarget {
  std::string_view name;  ///< Also the name of its folder in corpus/.
  /// Takes any bytes. An Error that is not internal is a refusal, as it should be; whatever else
  /// leaves this function is a bug.
  void (*run)(std::span<const std::uint8_t> bytes);
};

/// All of them.
[[nodiscard]] std::span<const FuzzTarget> fuzz_targets();

/// Runs a target; its refusals end here.
void run_target(const FuzzTarget& target, std::span<const std::uint8_t> bytes);

// Texts and messages.
void fuzz_chat_template(std::span<const std::uint8_t> bytes);
void fuzz_toml_config(std::span<const std::uint8_t> bytes);
void fuzz_manifest(std::span<const std::uint8_t> bytes);
void fuzz_evalplus_json(std::span<const std::uint8_t> bytes);
void fuzz_math_answers(std::span<const std::uint8_t> bytes);
void fuzz_harness_frames(std::span<const std::uint8_t> bytes);
void fuzz_control_messages(std::span<const std::uint8_t> bytes);

// Files.
void fuzz_safetensors(std::span<const std::uint8_t> bytes);
void fuzz_tokenizer_json(std::span<const std::uint8_t> bytes);
void fuzz_model_config(std::span<const std::uint8_t> bytes);
void fuzz_prompt_records(std::span<const std::uint8_t> bytes);
/// The bytes decide what stands in an HDF5 file that is well-formed and carries a valid seal. (The
/// HDF5 library itself is not what is looked at.)
void fuzz_hdf5_store(std::span<const std::uint8_t> bytes);

}  // namespace jforge
