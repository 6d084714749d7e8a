#pragma once

/// Checks that tokenizer, chat template and model of a directory belong together.

#include <filesystem>
#include <optional>
#include <span>
#include <string>

#include "data/tokenizer/byte_pair_tokenizer.h"
#include "data/tokenizer/chat_template.h"
#include "model/transformer/transformer_config.h"
#include "runtime/ids.h"

namespace jforge {

/// Throws DataError if a token id has no embedding row. Surplus rows are usual.
void expect_tokenizer_fits(const std::filesystem::path& directory,
                           const BytePairTokenizer& tokenizer, const TransformerConfig& model);

/// Throws DataError naming `owner` and the first id outside 0 … vocabulary − 1.
void expect_ids_fit(const std::string& owner, std::span<const TokenId> ids,
                    const TransformerConfig& model);

/// Returns an error message if the template ends answers with special tokens, none of them an
/// end-of-sequence token: answers would run on to the length limit.
[[nodiscard]] std::optional<std::string> unstopped_turns(const BytePairTokenizer& tokenizer,
                                                         const ChatTemplate& chat,
                                                         const TransformerConfig& model);
/// Throws DataError with that message.
void expect_turns_stop(const BytePairTokenizer& tokenizer, const ChatTemplate& chat,
                       const TransformerConfig& model);

}  // namespace jforge
