#include "data/prompts/prompt_encoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>

#include "runtime/durable_file.h"

namespace jforge {

PromptEncoder make_prompt_encoder(const BytePairTokenizer& tokenizer,
                                  const ChatTemplate& chat_template,
                                  const std::optional<std::string>& system) {
  const auto render = [chat_template, system](std::string_view text) {
    std::vector<ChatMessage> messages;
    if (system) {
      messages.push_back({"system", *system});
    }
    messages.push_back({"user", std::string(text)});
    return chat_template.render(messages, true);
  };
  PromptEncoder encoder;
  encoder.encode = [tokenizer, render](std::string_view text) {
    return tokenizer.encode(render(text));
  };
  encoder.holds_control_tokens = [tokenizer](std::string_view text) {
    return tokenizer.holds_special_token(text);
  };
  // The rendering of a fixed text tells templates and system texts apart.
  encoder.identity =
      tokenizer.content_hash() + "-" + hash_hex(hash64(std::string_view(render("identity"))));
  return encoder;
}

std::vector<std::vector<TokenId>> encode_all(const PromptEncoder& encoder,
                                             std::span<const std::string_view> texts, int threads) {
  constexpr std::size_t kTake = 16;
  std::vector<std::vector<TokenId>> results(texts.size());
  std::atomic<std::size_t> next = 0;
  std::mutex failure_mutex;
  std::exception_ptr failure;
  const auto work = [&] {
    try {
      for (std::size_t begin; (begin = next.fetch_add(kTake)) < texts.size();) {
        for (std::size_t i = begin; i < std::min(begin + kTake, texts.size()); ++i) {
          results[i] = encoder.encode(texts[i]);
        }
      }
    } catch (...) {
      const std::lock_guard lock(failure_mutex);
      failure = failure ? failure : std::current_exception();
      next = texts.size();
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
