#include "model/decoding/prompt_lookup_decoder.h"

#include <fmt/format.h>

#include "model/decoding/draft_decoder_internal.h"
#include "model/decoding/method_entry_internal.h"

namespace jforge {

void PromptLookupOptions::validate() const {
  if (block_size < 1 || match_length < 1) {
    throw ConfigError(
        fmt::format("prompt lookup: block_size {} and match_length {} must be at least 1",
                    block_size, match_length));
  }
}

namespace {

class PromptLookupDecoder final : public DraftDecoder {
 public:
  PromptLookupDecoder(DecodeRequest request, const PromptLookupOptions& options)
      : DraftDecoder(std::move(request)), options_((options.validate(), options)) {
    draft_.reserve(
        static_cast<std::size_t>(std::min<std::int64_t>(options_.block_size, kUsualTokens)));
    branch_ = prompt_branch();
  }

  [[nodiscard]] std::span<const DraftBranch> pending() const override { return {&branch_, 1}; }

  Commit advance(std::span<const BranchOutcome> outcomes) override {
    expect(!finished_, "prompt-lookup decoder advanced after its end");
    expect(outcomes.size() == 1, "prompt lookup has one branch");
    const std::int64_t known = kv_length_;
    TokenId newest = 0;
    if (prefilling_) {
      newest = finish_prefill(outcomes);
      (void)test_end(newest);
    } else {
      const std::span<const TokenId> predictions = outcomes[0].predictions;
      expect(predictions.size() == draft_.size(), "prompt lookup wants a prediction for every row");
      const std::size_t accepted = count_accepted(draft_, predictions);
      newest = predictions[accepted - 1];
      ++result_.forwards;
      (void)commit_and_test_end(draft_, accepted, newest);
    }
    if (!finished_) {
      look_up(newest);
    }
    branch_ = {.first_position = kv_length_, .tokens = draft_};
    return {.rows = kv_length_ - known};
  }

 private:
  /// Drafts what followed the newest earlier occurrence of the longest matching suffix.
  void look_up(TokenId newest) {
    context_.push_back(newest);
    const std::size_t wanted =
        std::min(static_cast<std::size_t>(options_.block_size), tokens_left() + 1);
    repeat_period(find_period(context_, static_cast<std::size_t>(options_.match_length)), wanted,
                  draft_);
    if (draft_.empty()) {
      draft_.push_back(newest);
    }
    context_.pop_back();
  }

  PromptLookupOptions options_;
  std::vector<TokenId> draft_;
  DraftBranch branch_;
};

}  // namespace

std::unique_ptr<SequenceDecoder> make_prompt_lookup_decoder(DecodeRequest request,
                                                            const PromptLookupOptions& options) {
  return std::make_unique<PromptLookupDecoder>(std::move(request), options);
}

std::vector<MethodEntry> prompt_lookup_methods() {
  return {{"prompt_lookup",
           {block_size_key(), match_length_key()},
           [](const DecodingSettings& settings, std::uint64_t) {
             const PromptLookupOptions options{
                 .block_size = whole_number(settings, "block_size"),
                 .match_length = whole_number(settings, "match_length")};
             return method_of(options, make_prompt_lookup_decoder,
                              {{"block_size", options.block_size},
                               {"window", "none"},
                               {"match_length", options.match_length}});
           }}};
}

}  // namespace jforge
