#include "data/prompts/prompt_encoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>

#include "runtime/content_hash.h"
#include "runtime/error.h"

namespace jforge {

PromptEncoder make_prompt_encoder(const BytePairTokenizer& tokenizer,
                                  const ChatTemplate& chat_template,
                                  const std::optional<std::string>& system) {
  const auto render = [chat_template, system](const Conversation& given) {
    if (!system || given.front().role == "system") {
      return chat_template.render(given, true);
    }
    Conversation messages = given;
    messages.insert(messages.begin(), {"system", *system});
    return chat_template.render(messages, true);
  };
  PromptEncoder encoder;
  encoder.encode = [tokenizer, render](const Conversation& messages) {
    return tokenizer.encode(render(messages));
  };
  encoder.holds_control_tokens = [tokenizer](std::string_view text) {
    return tokenizer.holds_special_token(text);
  };
  // A rendered fixed text identifies chat template and system text.
  encoder.identity = tokenizer.content_hash() + "-" +
                     hash_hex(hash64(std::string_view(render({{"user", "identity"}}))));
  return encoder;
}

std::vector<EncodedPrompt> encode_all(const PromptEncoder& encoder,
                                      std::span<const Conversation* const> prompts, int threads) {
  constexpr std::size_t kTake = 16;
  std::vector<EncodedPrompt> results(prompts.size());
  std::atomic<std::size_t> next = 0;
  std::mutex failure_mutex;
  std::exception_ptr failure;
  const auto work = [&] {
    try {
      for (std::size_t begin; (begin = next.fetch_add(kTake)) < prompts.size();) {
        for (std::size_t i = begin; i < std::min(begin + kTake, prompts.size()); ++i) {
          try {
            results[i].tokens = encoder.encode(*prompts[i]);
            results[i].tokens.shrink_to_fit();  // All ids stay in memory.
          } catch (const DataError& error) {
            results[i].refusal = error.what();
          }
        }
      }
    } catch (...) {
      const std::lock_guard lock(failure_mutex);
      failure = failure ? failure : std::current_exception();
      next = prompts.size();
    }
  };
  {
    std::vector<std::jthread> helpers;
    for (int i = 1; i < threads; ++i) {
      helpers.emplace_back(work);
    }
    work();
  }
  if (failure) {
    std::rethrow_exception(failure);
  }
  return results;
}

}  // namespace jforge
