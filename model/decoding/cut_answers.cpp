#include "model/decoding/cut_answers.h"

#include <fmt/format.h>

namespace jforge {

std::optional<std::string> warning_of_cut_answers(const std::string& phase, const AnswerEnds& ends,
                                                  const std::string& key, std::int64_t longest) {
  if (2 * ends.cut <= ends.answers) {
    return std::nullopt;
  }
  return fmt::format(
      "{}: {} of {} answers were cut at {} = {} and did not end by an end-of-sequence token; raise "
      "it, or see whether eos_token_id in the model's generation_config.json names the token that "
      "ends its answers",
      phase, ends.cut, ends.answers, key, longest);
}

}  // namespace jforge
