#pragma once

/// A function for each parser of outside bytes, called by libFuzzer (fuzz_main.cpp, built with
/// JFORGE_FUZZ) or with the committed corpus (corpus_replay_test.cpp).

#include <cstdint>
#include <span>
#include <string_view>

namespace jforge {

struct FuzzTarget {
  std::string_view name;  ///< also its folder in corpus/
  /// Takes any bytes. An Error that is not internal is a proper refusal; any other exception is a
  /// bug.
  void (*run)(std::span<const std::uint8_t> bytes);
};

[[nodiscard]] std::span<const FuzzTarget> fuzz_targets();

/// Runs a target and catches its refusals.
void run_target(const FuzzTarget& target, std::span<const std::uint8_t> bytes);

// Texts and messages.
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
/// Builds a well-formed HDF5 file with a valid seal, because the HDF5 library is not tested.
void fuzz_hdf5_store(std::span<const std::uint8_t> bytes);

}  // namespace jforge
