#pragma once

/// Files that let stock `transformers` decode an exported model by Jacobi iteration.

namespace jforge {

/// Folder of a model directory in which `transformers` looks for custom code.
inline constexpr const char* kCustomGenerateFolder = "custom_generate";
inline constexpr const char* kCustomGenerateFile = "generate.py";
/// Decoding defaults: {"method": "jacobi", "block_size": n}, and "template_arguments": {NAME:
/// VALUE, …} if training used any.
inline constexpr const char* kJacobiDecodingFile = "jacobi_decoding.json";

/// Returns the text of custom_generate/generate.py.
[[nodiscard]] const char* custom_generate_source();

}  // namespace jforge
