#pragma once

/// Jacobi decoding for exported models in stock `transformers`.

namespace jforge {

inline constexpr const char* kCustomGenerateFolder = "custom_generate";
inline constexpr const char* kCustomGenerateFile = "generate.py";
/// {"method": "jacobi", "block_size": n}; "template_arguments": {NAME: VALUE, …} if training used
/// any.
inline constexpr const char* kJacobiDecodingFile = "jacobi_decoding.json";

[[nodiscard]] const char* custom_generate_source();

}  // namespace jforge
