#include <algorithm>
#include <utility>

#include "model/decoding/sequence_decoder.h"
#include "runtime/error.h"
#include "runtime/random.h"

namespace jforge {

namespace {

/// a = 1 + leading j with draft[j + 1] == predictions[j]: how many draft tokens are known correct.
std::size_t count_accepted(std::span<const TokenId> draft, std::span<const TokenId> predictions) {
  std::size_t accepted = 1;
  while (accepted < draft.size() && draft[accepted] == predictions[accepted - 1]) {
    ++accepted;
  }
  return accepted;
}

class JacobiDecoder final : public SequenceDecoder {
 public:
  JacobiDecoder(DecodeRequest request, const JacobiOptions& options)
      : request_(std::move(request)), options_(options), stream_(draft_stream(0)) {
    request_.validate();
    options_.validate();
    num_blocks_ = (request_.max_new_tokens + options_.block_size - 1) / options_.block_size;
    // No more than a usual answer: an absurd T must fail at the slot capacity, not here.
    const auto usual =
        static_cast<std::size_t>(std::min<std::int64_t>(request_.max_new_tokens, 4096));
    context_.reserve(request_.prompt.size() + usual + std::min<std::size_t>(block_size(), 4096));
    context_.assign(request_.prompt.begin(), request_.prompt.end());
    draft_.reserve(std::min<std::size_t>(block_size(), 4096));
    result_.id = request_.id;
  }

  [[nodiscard]] std::span<const TokenId> pending() const override {
    return prefilling_ ? std::span(context_) : std::span(draft_);
  }
  [[nodiscard]] std::int64_t kv_length() const override { return kv_length_; }
  [[nodiscard]] std::size_t first_output() const override {
    return prefilling_ ? context_.size() - 1 : 0;
  }
  [[nodiscard]] bool finished() const override { return finished_; }
  [[nodiscard]] PromptId id() const override { return request_.id; }
  [[nodiscard]] std::int64_t max_positions() const override {
    return static_cast<std::int64_t>(request_.prompt.size()) +
           (options_.complete_blocks ? num_blocks_ * options_.block_size
                                     : request_.max_new_tokens - 1);
  }

  void advance(std::span<const TokenId> predictions) override {
    expect(!finished_, "Jacobi decoder advanced after its end");
    if (prefilling_) {
      expect(predictions.size() == 1, "Jacobi prefill wants one prediction");
      finish_prefill(predictions[0]);
      return;
    }
    expect(predictions.size() == draft_.size(), "Jacobi decoding wants a prediction for every row");
    const std::size_t accepted = count_accepted(draft_, predictions);
    ++result_.forwards;
    if (options_.complete_blocks) {
      advance_block(accepted, predictions);
    } else if (!commit_and_test_end(accepted, predictions[accepted - 1])) {
      if (options_.window == DraftWindow::running) {
        keep_predictions(accepted, predictions);
        fill_draft();
      } else {
        shrink(accepted, predictions);
      }
    }
  }

  [[nodiscard]] DecodeResult take_result() override {
    expect(finished_, "Jacobi result taken before the end");
    return std::move(result_);
  }

 private:
  [[nodiscard]] std::size_t block_size() const {
    return static_cast<std::size_t>(options_.block_size);
  }
  [[nodiscard]] RandomStream draft_stream(std::int64_t block) const {
    return RandomStream(options_.seed, RandomPurpose::jacobi_draft, options_.round,
                        static_cast<std::uint64_t>(request_.id), static_cast<std::uint64_t>(block));
  }
  /// Committed tokens of the answer: all that are known but the newest, which is draft_[0].
  [[nodiscard]] std::size_t answer_length() const {
    return context_.size() - request_.prompt.size();
  }
  /// Length of a new draft: n, or, where blocks need not be complete, what a forward can still add.
  [[nodiscard]] std::size_t draft_length() const {
    if (options_.complete_blocks) {
      return block_size();
    }
    const std::size_t known = answer_length() + 1;
    return std::min(block_size(), static_cast<std::size_t>(request_.max_new_tokens) - known);
  }

  void finish_prefill(TokenId first) {
    prefilling_ = false;
    kv_length_ = static_cast<std::int64_t>(context_.size());
    result_.prefill_forwards = 1;
    if (options_.complete_blocks) {
      start_draft(first);
      finish_if_known();
    } else if (!test_end(first)) {
      start_draft(first);
    }
  }

  /// A fresh draft whose first token is known; the rest is drawn from all ids so far.
  void start_draft(TokenId first) {
    draft_.assign(1, first);
    if (options_.window == DraftWindow::shrinking) {
      stream_ = draft_stream(block_);
      block_begin_ = context_.size();
    }
    fill_draft();
    if (options_.record_states) {
      result_.blocks.emplace_back();
      record_state();
    }
  }

  void fill_draft() {
    for (const std::size_t length = draft_length(); draft_.size() < length;) {
      draft_.push_back(context_[static_cast<std::size_t>(stream_.below(context_.size()))]);
    }
  }

  void record_state() {
    TrajectoryBlock& block = result_.blocks.back();
    block.states.insert(block.states.end(),
                        context_.begin() + static_cast<std::ptrdiff_t>(block_begin_),
                        context_.end());
    block.states.insert(block.states.end(), draft_.begin(), draft_.end());
    ++block.states_seen;
  }

  void commit(std::size_t count) {
    context_.insert(context_.end(), draft_.begin(),
                    draft_.begin() + static_cast<std::ptrdiff_t>(count));
    kv_length_ += static_cast<std::int64_t>(count);
    result_.accepted.push_back(static_cast<std::int32_t>(count));
  }

  /// A forward has made known: draft_1 … draft_{a−1} and the correction. Commits and, where the
  /// answer ends, finishes: at the first eos among them, or at T, which no draft reaches beyond.
  bool commit_and_test_end(std::size_t accepted, TokenId correction) {
    const auto accepted_end = draft_.begin() + static_cast<std::ptrdiff_t>(accepted);
    const auto eos = std::find_if(draft_.begin() + 1, accepted_end,
                                  [this](TokenId token) { return request_.is_eos(token); });
    const TokenId newest = eos == accepted_end ? correction : *eos;
    commit(static_cast<std::size_t>(eos - draft_.begin()));
    return test_end(newest);
  }

  /// Whether `newest`, the token behind the committed ones, ends the answer: then it is finished.
  bool test_end(TokenId newest) {
    const bool eos = request_.is_eos(newest);
    if (!eos && std::cmp_less(answer_length() + 1, request_.max_new_tokens)) {
      return false;
    }
    context_.push_back(newest);
    finish(eos ? StopReason::eos : StopReason::length);
    return true;
  }

  /// Trajectory mode.
  void advance_block(std::size_t accepted, std::span<const TokenId> predictions) {
    if (accepted == draft_.size() && known_block_is_last()) {
      // The prediction behind the last block belongs to no answer.
      commit(accepted - 1);
      draft_.erase(draft_.begin(), draft_.end() - 1);
    } else {
      commit(accepted);
      shrink(accepted, predictions);
    }
    finish_if_known();
  }

  /// A last block of which only the newest token is uncommitted is at its fixed point: a forward
  /// over that token would predict what nobody needs.
  void finish_if_known() {
    if (draft_.size() == 1 && known_block_is_last()) {
      context_.push_back(draft_.front());
      finish_blocks();
    }
  }

  /// Of a block whose draft is right to its end: whether no other follows.
  [[nodiscard]] bool known_block_is_last() const {
    const auto is_eos = [this](TokenId token) { return request_.is_eos(token); };
    return block_ + 1 == num_blocks_ ||
           std::any_of(context_.begin() + static_cast<std::ptrdiff_t>(block_begin_), context_.end(),
                       is_eos) ||
           std::ranges::any_of(draft_, is_eos);
  }

  /// Shrinking window: the rest of the block, or the next block.
  void shrink(std::size_t accepted, std::span<const TokenId> predictions) {
    if (accepted < draft_.size()) {
      keep_predictions(accepted, predictions);
      // Every such state is new (its first draft token is a correction) and the last one recorded
      // is the fixed point, because the forward that ends a block changes nothing.
      if (options_.record_states) {
        record_state();
      }
      return;
    }
    ++block_;
    start_draft(predictions.back());
  }

  void keep_predictions(std::size_t accepted, std::span<const TokenId> predictions) {
    const std::size_t end = std::max(accepted, predictions.size() - 1);
    const auto kept = predictions.subspan(accepted - 1, end - (accepted - 1));
    draft_.assign(kept.begin(), kept.end());
  }

  /// Trajectory mode: the answer proper ends at T and after the first eos, which the blocks run
  /// past.
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

  void finish(StopReason stop) {
    result_.stop = stop;
    result_.tokens.assign(context_.begin() + static_cast<std::ptrdiff_t>(request_.prompt.size()),
                          context_.end());
    finished_ = true;
  }

  DecodeRequest request_;
  JacobiOptions options_;
  RandomStream stream_;
  DecodeResult result_;
  std::vector<TokenId> context_;  ///< Prompt and committed tokens: what drafts are drawn from.
  std::vector<TokenId> draft_;
  std::size_t block_begin_ = 0;  ///< Index in context_ of the current block's first token.
  std::int64_t block_ = 0;
  std::int64_t num_blocks_ = 0;
  std::int64_t kv_length_ = 0;
  bool prefilling_ = true;
  bool finished_ = false;
};

}  // namespace

std::unique_ptr<SequenceDecoder> make_jacobi_decoder(DecodeRequest request,
                                                     const JacobiOptions& options) {
  return std::make_unique<JacobiDecoder>(std::move(request), options);
}

}  // namespace jforge
