#include "model/decoding/greedy_decoder.h"

#include <algorithm>
#include <utility>

#include "model/decoding/draft_decoder_internal.h"
#include "model/decoding/method_entry_internal.h"
#include "runtime/error.h"

namespace jforge {

namespace {

class GreedyDecoder final : public SequenceDecoder {
 public:
  explicit GreedyDecoder(DecodeRequest request) : request_(std::move(request)) {
    request_.validate();
    result_.id = request_.id;
    const auto usual =
        static_cast<std::size_t>(std::min<std::int64_t>(request_.max_new_tokens, kUsualTokens));
    result_.tokens.reserve(usual);
    result_.accepted.reserve(usual);
    branch_ = {.tokens = request_.prompt, .first_output = request_.prompt.size() - 1};
  }

  [[nodiscard]] std::span<const DraftBranch> pending() const override { return {&branch_, 1}; }
  [[nodiscard]] std::int64_t kv_length() const override { return branch_.first_position; }
  [[nodiscard]] bool finished() const override { return finished_; }
  [[nodiscard]] PromptId id() const override { return request_.id; }
  [[nodiscard]] const SamplingOptions& sampling() const override { return request_.sampling; }
  [[nodiscard]] std::int64_t max_positions() const override {
    return static_cast<std::int64_t>(request_.prompt.size()) + request_.max_new_tokens - 1;
  }

  Commit advance(std::span<const BranchOutcome> outcomes) override {
    expect(!finished_, "greedy decoder advanced after its end");
    expect(outcomes.size() == 1 && outcomes[0].predictions.size() == 1,
           "greedy decoding wants one prediction");
    const auto rows = static_cast<std::int64_t>(branch_.tokens.size());
    if (std::exchange(prefilling_, false)) {
      result_.prefill_forwards = 1;
    } else {
      ++result_.forwards;
      result_.accepted.push_back(1);
    }
    last_ = outcomes[0].predictions[0];
    branch_ = {.first_position = branch_.first_position + rows, .tokens = {&last_, 1}};
    result_.tokens.push_back(last_);
    if (request_.is_eos(last_)) {
      result_.stop = StopReason::eos;
      finished_ = true;
    } else {
      finished_ = std::cmp_equal(result_.tokens.size(), request_.max_new_tokens);
    }
    return {.rows = rows};
  }

  [[nodiscard]] DecodeResult take_result() override {
    expect(finished_, "greedy result taken before the end");
    return std::move(result_);
  }

 private:
  DecodeRequest request_;
  DecodeResult result_;
  DraftBranch branch_;
  TokenId last_ = 0;
  bool prefilling_ = true;
  bool finished_ = false;
};

}  // namespace

std::unique_ptr<SequenceDecoder> make_greedy_decoder(DecodeRequest request) {
  return std::make_unique<GreedyDecoder>(std::move(request));
}

std::vector<MethodEntry> greedy_methods() {
  return {{"ar", {}, [](const DecodingSettings&, std::uint64_t) {
             DecodingMethod method;
             method.settings = {{"block_size", 1}, {"window", "none"}};
             method.make = make_greedy_decoder;
             return method;
           }}};
}

}  // namespace jforge
