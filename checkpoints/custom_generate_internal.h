#pragma once

/// What lets stock `transformers` decode an exported model by Jacobi iteration.

namespace jforge {

/// Where `transformers` looks for it in a model directory: a folder of its own.
inline constexpr const char* kCustomGenerateFolder = "custom_generate";
inline constexpr const char* kCustomGenerateFile = "generate.py";
/// {"method": "jacobi", "block_size": n}: what generate.py does unless it is told otherwise; with
/// "template_arguments": {NAME: VALUE, …} if training used any.
inline constexpr const char* kJacobiDecodingFile = "jacobi_decoding.json";

/// The text of custom_generate/generate.py.
[[nodiscard]] const char* custom_generate_source();

}  // namespace jforge
