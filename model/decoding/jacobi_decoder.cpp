#include "model/decoding/jacobi_decoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "model/decoding/draft_decoder_internal.h"
#include "model/decoding/method_entry_internal.h"

namespace jforge {

void JacobiOptions::validate() const {
  if (block_size < 1) {
    throw ConfigError(
        fmt::format("Jacobi decoding: block_size is {}; it must be at least 1", block_size));
  }
  if (complete_blocks && window == DraftWindow::running) {
    throw ConfigError(
        "Jacobi decoding: complete blocks need the shrinking window; the running window has no "
        "blocks");
  }
  if (record_states && !complete_blocks) {
    throw ConfigError(
        "Jacobi decoding: recording states needs complete blocks, else the last block has no fixed "
        "point");
  }
}

namespace {

class JacobiDecoder final : public DraftDecoder {
 public:
  JacobiDecoder(DecodeRequest request, const JacobiOptions& options)
      : DraftDecoder(std::move(request)), options_(options), stream_(stream_of(0)) {
    options_.validate();
    num_blocks_ = (request_.max_new_tokens + options_.block_size - 1) / options_.block_size;
    draft_.reserve(std::min<std::size_t>(block_size(), kUsualTokens));
    branch_ = prompt_branch();
  }

  [[nodiscard]] std::span<const DraftBranch> pending() const override { return {&branch_, 1}; }
  [[nodiscard]] std::int64_t max_positions() const override {
    return options_.complete_blocks ? static_cast<std::int64_t>(request_.prompt.size()) +
                                          num_blocks_ * options_.block_size
                                    : DraftDecoder::max_positions();
  }

  Commit advance(std::span<const BranchOutcome> outcomes) override {
    expect(!finished_, "Jacobi decoder advanced after its end");
    expect(outcomes.size() == 1, "Jacobi decoding has one branch");
    const std::int64_t known = kv_length_;
    if (prefilling_) {
      start_answer(finish_prefill(outcomes));
    } else {
      advance_draft(outcomes[0].predictions);
    }
    branch_ = {.first_position = kv_length_, .tokens = draft_};
    return {.rows = kv_length_ - known};
  }

 private:
  void advance_draft(std::span<const TokenId> predictions) {
    expect(predictions.size() == draft_.size(), "Jacobi decoding wants a prediction for every row");
    const std::size_t accepted = count_accepted(draft_, predictions);
    ++result_.forwards;
    if (options_.complete_blocks) {
      advance_block(accepted, predictions);
    } else if (!commit_and_test_end(draft_, accepted, predictions[accepted - 1])) {
      if (options_.window == DraftWindow::running) {
        keep_predictions(accepted, std::min(predictions.size(), accepted - 1 + draft_length()),
                         predictions);
        fill_draft();
      } else {
        shrink(accepted, predictions);
      }
    }
  }

  [[nodiscard]] std::size_t block_size() const {
    return static_cast<std::size_t>(options_.block_size);
  }
  [[nodiscard]] RandomStream stream_of(std::int64_t block) const {
    return draft_stream(options_.seed, options_.round, block);
  }
  /// Length of a new draft: n, or, outside trajectory mode, at most the remaining length.
  [[nodiscard]] std::size_t draft_length() const {
    return options_.complete_blocks ? block_size() : std::min(block_size(), tokens_left());
  }

  void start_answer(TokenId first) {
    if (options_.complete_blocks) {
      start_draft(first);
      finish_if_known();
    } else if (!test_end(first)) {
      start_draft(first);
    }
  }

  void start_draft(TokenId first) {
    draft_.assign(1, first);
    if (options_.window == DraftWindow::shrinking) {
      stream_ = stream_of(block_);
      block_begin_ = context_.size();
    }
    fill_draft();
    if (options_.record_states) {
      result_.blocks.emplace_back();
      record_state();
    }
  }

  void fill_draft() { fill(draft_, draft_length(), stream_); }

  void record_state() {
    TrajectoryBlock& block = result_.blocks.back();
    block.states.insert(block.states.end(),
                        context_.begin() + static_cast<std::ptrdiff_t>(block_begin_),
                        context_.end());
    block.states.insert(block.states.end(), draft_.begin(), draft_.end());
    ++block.states_seen;
  }

  void advance_block(std::size_t accepted, std::span<const TokenId> predictions) {
    if (accepted == draft_.size() && known_block_is_last()) {
      // The token predicted after the last block is not part of the answer.
      commit(std::span(draft_).first(accepted - 1));
      draft_.erase(draft_.begin(), draft_.end() - 1);
    } else {
      commit(std::span(draft_).first(accepted));
      shrink(accepted, predictions);
    }
    finish_if_known();
  }

  /// Avoids a forward over the last block's newest token, which would predict nothing useful.
  void finish_if_known() {
    if (draft_.size() == 1 && known_block_is_last()) {
      context_.push_back(draft_.front());
      finish_blocks();
    }
  }

  /// Requires: the current draft is right to its end.
  [[nodiscard]] bool known_block_is_last() const {
    const auto is_eos = [this](TokenId token) { return request_.is_eos(token); };
    return block_ + 1 == num_blocks_ ||
           std::any_of(context_.begin() + static_cast<std::ptrdiff_t>(block_begin_), context_.end(),
                       is_eos) ||
           std::ranges::any_of(draft_, is_eos);
  }

  void shrink(std::size_t accepted, std::span<const TokenId> predictions) {
    if (accepted < draft_.size()) {
      // The last prediction belongs to the next block.
      keep_predictions(accepted, predictions.size() - 1, predictions);
      // Each recorded state is new: its first draft token is a correction. The last one is the
      // fixed point, because the forward that completes a block changes nothing.
      if (options_.record_states) {
        record_state();
      }
      return;
    }
    ++block_;
    start_draft(predictions.back());
  }

  /// Keeps the predictions from the correction up to `end` as the next draft.
  void keep_predictions(std::size_t accepted, std::size_t end,
                        std::span<const TokenId> predictions) {
    const auto kept = predictions.first(end).subspan(accepted - 1);
    draft_.assign(kept.begin(), kept.end());
  }

  /// Trajectory mode: cuts the answer at T and after the first eos, which the blocks may exceed.
  void finish_blocks() {
    const auto limit = request_.prompt.size() +
                       std::min(static_cast<std::size_t>(request_.max_new_tokens), answer_length());
    context_.resize(limit);
    const auto answer = context_.begin() + static_cast<std::ptrdiff_t>(request_.prompt.size());
    const auto eos = std::find_if(answer, context_.end(),
                                  [this](TokenId token) { return request_.is_eos(token); });
    const bool ended = eos != context_.end();
    if (ended) {
      context_.erase(eos + 1, context_.end());
    }
    finish(ended ? StopReason::eos : StopReason::length);
  }

  JacobiOptions options_;
  RandomStream stream_;
  std::vector<TokenId> draft_;
  DraftBranch branch_;
  std::size_t block_begin_ = 0;  ///< Index in context_ of the current block's first token.
  std::int64_t block_ = 0;
  std::int64_t num_blocks_ = 0;
};

}  // namespace

std::unique_ptr<SequenceDecoder> make_jacobi_decoder(DecodeRequest request,
                                                     const JacobiOptions& options) {
  return std::make_unique<JacobiDecoder>(std::move(request), options);
}

namespace {

template <DraftWindow window>
DecodingMethod jacobi_method(const DecodingSettings& settings, std::uint64_t seed) {
  const JacobiOptions options{
      .block_size = whole_number(settings, "block_size"), .window = window, .seed = seed};
  return method_of(options, make_jacobi_decoder,
                   {{"block_size", options.block_size},
                    {"window", window == DraftWindow::running ? "running" : "shrinking"},
                    {"seed", seed}});
}

}  // namespace

std::vector<MethodEntry> jacobi_methods() {
  return {{"jacobi", {block_size_key()}, jacobi_method<DraftWindow::running>},
          {"jacobi_shrinking", {block_size_key()}, jacobi_method<DraftWindow::shrinking>}};
}

}  // namespace jforge
