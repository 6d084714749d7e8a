#pragma once

/// Whether tokenizer, chat template and model of one directory belong together.

#include <filesystem>
#include <optional>
#include <span>
#include <string>

#include "data/tokenizer/byte_pair_tokenizer.h"
#include "data/tokenizer/chat_template.h"
#include "model/transformer/transformer_config.h"
#include "runtime/ids.h"

namespace jforge {

/// Throws DataError naming `directory` when the tokenizer has ids that the model has no embedding
/// row for. (The reverse is usual: models have more rows than their tokenizer has tokens.)
void expect_tokenizer_fits(const std::filesystem::path& directory,
                           const BytePairTokenizer& tokenizer, const TransformerConfig& model);

/// The same for ids that were stored earlier: throws DataError naming `owner` ("FILE: prompt 7")
/// and the first id outside 0 … vocabulary − 1.
void expect_ids_fit(const std::string& owner, std::span<const TokenId> ids,
                    const TransformerConfig& model);

/// Returns an error message if the chat template ends an answer with special tokens and none of
/// them is an end-of-sequence token of the model, because answers then run on to the length limit.
/// Returns nothing for a template that ends answers with ordinary text or renders no answer.
[[nodiscard]] std::optional<std::string> unstopped_turns(const BytePairTokenizer& tokenizer,
                                                         const ChatTemplate& chat,
                                                         const TransformerConfig& model);
/// Throws DataError with the message of unstopped_turns(), if there is one.
void expect_turns_stop(const BytePairTokenizer& tokenizer, const ChatTemplate& chat,
                       const TransformerConfig& model);

}  // namespace jforge
