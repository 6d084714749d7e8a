#pragma once

/// Jacobi decoding for exported models in stock `transformers`.

namespace jforge {

inline constexpr const char* kCustomGenerateFolder = "custom_generate";
inline constexpr const char* kCustomGenerateFile = "generate.py";

[[nodiscard]] const char* custom_generate_source();

}  // namespace jforge
