#pragma once

/// jacobi_decoding.json of an exported model, read by custom_generate/generate.py and jforge
/// decode:
///
///   {"method": "jacobi", "block_size": N,    of training, then the fastest measured at batch 1
///    "template_arguments": {NAME: VALUE, …}, if training used any
///    "measured": [{"machine": TEXT, "batch_prompts": B, "method": …, …}, …],  if measured
///    "checksum": its seal (runtime/text_seal.h)}
///
/// "measured" has an entry per machine and batch size (workers/evaluate/tuning.h).

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>

#include "data/tokenizer/chat_template.h"

namespace jforge {

inline constexpr const char* kJacobiDecodingFile = "jacobi_decoding.json";

void write_jacobi_decoding(const std::filesystem::path& directory, std::int32_t block_size,
                           const TemplateArguments& arguments);

/// Returns the block size; nothing without the file. Throws DataError if it is malformed.
[[nodiscard]] std::optional<std::int32_t> exported_block_size(
    const std::filesystem::path& directory);

/// Adds an entry of "measured" in place of one of the same machine and batch size, and sets
/// `block_size` if it is given. Returns false without the file: the directory is no export. Throws
/// DataError if it is malformed.
bool record_measured_decoding(const std::filesystem::path& directory,
                              const nlohmann::ordered_json& entry,
                              std::optional<std::int32_t> block_size);

}  // namespace jforge
