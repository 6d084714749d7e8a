#include "model/decoding/parallel_trajectory_decoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "model/decoding/draft_decoder_internal.h"
#include "model/decoding/greedy_decoder.h"

namespace jforge {

void ParallelTrajectoryOptions::validate() const {
  if (block_size < 1) {
    throw ConfigError(
        fmt::format("parallel trajectories: block_size is {}; it must be at least 1", block_size));
  }
  if (schedule) {
    schedule->validate();
  }
}

namespace {

/// Cache rows for a sequence's iterates in one forward; at least one block's. The batch fills
/// forwards already, so more would not pay.
constexpr std::int64_t kIterateRows = 256;

class ParallelTrajectoryDecoder final : public SequenceDecoder {
 public:
  ParallelTrajectoryDecoder(DecodeRequest request, const ParallelTrajectoryOptions& options)
      : request_((request.validate(), std::move(request))),
        options_((options.validate(), options)),
        prompt_length_(request_.prompt.size()),
        block_size_(static_cast<std::size_t>(options.block_size)) {
    const std::int64_t n = options_.block_size;
    num_blocks_ = static_cast<std::size_t>((request_.max_new_tokens + n - 1) / n);
    text_decoder_ = make_text_decoder();
    max_positions_ =
        std::max(text_decoder_->max_positions(),
                 static_cast<std::int64_t>(prompt_length_ + num_blocks_ * block_size_));
    max_branch_rows_ = text_decoder_->max_branch_rows();
    if (n > 1) {
      const std::int64_t usual = std::max<std::int64_t>(kIterateRows / (n - 1), 1);
      iterate_rows_ = (n - 1) * std::min(usual, static_cast<std::int64_t>(num_blocks_));
      active_.reserve(static_cast<std::size_t>(iterate_rows_));
    }
    const auto usual = std::min<std::size_t>(num_blocks_ * block_size_, kUsualTokens);
    text_.reserve(prompt_length_ + usual + block_size_);
    result_.id = request_.id;
    result_.accepted.reserve(usual);
    collect_branches();
  }

  [[nodiscard]] std::span<const DraftBranch> pending() const override { return branches_; }
  [[nodiscard]] std::int64_t kv_length() const override { return kv_length_; }
  [[nodiscard]] bool finished() const override { return finished_; }
  [[nodiscard]] PromptId id() const override { return request_.id; }
  [[nodiscard]] const SamplingOptions& sampling() const override { return request_.sampling; }
  [[nodiscard]] std::int64_t max_positions() const override { return max_positions_; }
  [[nodiscard]] std::int64_t max_branch_rows() const override {
    return max_branch_rows_ + iterate_rows_;
  }

  Commit advance(std::span<const BranchOutcome> outcomes) override {
    expect(!finished_, "parallel decoder advanced after its end");
    expect(outcomes.size() == branches_.size(), "an outcome for every branch is wanted");
    const std::size_t known = known_tokens();
    const bool prefilling = text_.empty();
    Commit commit;
    const auto of_text = outcomes.first(num_text_branches_);
    for (std::size_t i = 0; i < active_.size(); ++i) {
      iterate(active_[i], outcomes[num_text_branches_ + i].predictions);
    }
    if (text_decoder_) {
      commit = advance_text(of_text);
    }
    if (prefilling) {
      result_.prefill_forwards = 1;
    } else {
      ++result_.forwards;
      result_.accepted.push_back(static_cast<std::int32_t>(known_tokens() - known));
    }
    std::erase_if(active_, [](const Block& block) { return block.done; });
    start_blocks();
    if (!text_decoder_ && active_.empty()) {
      finish();
    }
    collect_branches();
    return commit;
  }

  [[nodiscard]] DecodeResult take_result() override {
    expect(finished_, "a result is taken before the end");
    return std::move(result_);
  }

 private:
  /// A block being iterated.
  struct Block {
    std::size_t index = 0;
    std::vector<TokenId> state;  ///< [n]
    std::size_t converged = 0;   ///< d ≥ 1: leading tokens that equal the fixed point.
    std::optional<StateChoice> choice;
    bool flipped = false;
    bool done = false;
  };

  /// Decodes whole blocks, without stopping at an end of sequence.
  [[nodiscard]] std::unique_ptr<SequenceDecoder> make_text_decoder() const {
    DecodeRequest whole{.id = request_.id,
                        .prompt = request_.prompt,
                        .max_new_tokens = static_cast<std::int64_t>(num_blocks_ * block_size_)};
    return make_greedy_decoder(std::move(whole));
  }

  [[nodiscard]] std::size_t known_tokens() const {
    return text_.empty() ? 0 : std::min(text_.size() - prompt_length_, num_blocks_ * block_size_);
  }
  [[nodiscard]] std::span<const TokenId> fixed_point(std::size_t block) const {
    return std::span(text_).subspan(prompt_length_ + block * block_size_, block_size_);
  }

  /// Extends the text until a block with an end of sequence is complete.
  Commit advance_text(std::span<const BranchOutcome> outcomes) {
    const auto cached = static_cast<std::size_t>(kv_length_);
    forwarded_.clear();
    for (const DraftBranch& branch : std::span(branches_).first(num_text_branches_)) {
      forwarded_.insert(forwarded_.end(), branch.tokens.begin(), branch.tokens.end());
    }
    const Commit commit = text_decoder_->advance(outcomes);
    kv_length_ = text_decoder_->kv_length();
    text_.resize(cached);
    append_committed(commit);
    const bool whole = text_decoder_->finished();
    if (whole) {
      const DecodeResult text = text_decoder_->take_result();
      text_.resize(prompt_length_);
      text_.insert(text_.end(), text.tokens.begin(), text.tokens.end());
    } else {
      text_.push_back(text_decoder_->pending().front().tokens.front());
    }
    find_end();
    if (whole || known_tokens() == num_blocks_ * block_size_) {
      text_decoder_.reset();
    }
    return commit;
  }

  /// Appends the tokens that the cache gained: the sequence's own before the committed branch, then
  /// that branch's. The branches' spans are no longer valid, so it reads forwarded_.
  void append_committed(const Commit& commit) {
    std::size_t begin = 0;
    for (std::size_t i = 0; i < commit.branch; ++i) {
      begin += branches_[i].tokens.size();
    }
    const auto own_begin = static_cast<std::int64_t>(text_.size());
    for (std::int64_t position = own_begin; position < kv_length_; ++position) {
      const std::int64_t in_branch = position - branches_[commit.branch].first_position;
      text_.push_back(in_branch >= 0 ? forwarded_[begin + static_cast<std::size_t>(in_branch)]
                                     : forwarded_[static_cast<std::size_t>(position - own_begin)]);
    }
  }

  /// Ends the answer at the first complete block that holds an end of sequence.
  void find_end() {
    for (; (num_complete_ + 1) * block_size_ <= known_tokens(); ++num_complete_) {
      const auto is_eos = [this](TokenId token) { return request_.is_eos(token); };
      if (std::ranges::any_of(fixed_point(num_complete_), is_eos)) {
        num_blocks_ = num_complete_ + 1;
      }
    }
  }

  void start_blocks() {
    std::int64_t rows = 0;
    for (const Block& block : active_) {
      rows += rows_of(block);
    }
    while (num_started_ < std::min(num_complete_, num_blocks_) &&
           rows + options_.block_size - 1 <= iterate_rows_) {
      Block block = start_block(num_started_++);
      if (!block.done) {
        rows += rows_of(block);
        active_.push_back(std::move(block));
      }
    }
  }

  /// The draft is the recording Jacobi decoder's.
  [[nodiscard]] Block start_block(std::size_t index) {
    Block block;
    block.index = index;
    const std::span<const TokenId> before =
        std::span(text_).first(prompt_length_ + index * block_size_);
    block.state.reserve(block_size_);
    block.state.push_back(fixed_point(index).front());
    RandomStream stream =
        draft_stream(options_.seed, options_.round, request_.id, static_cast<std::int64_t>(index));
    fill_draft(block.state, block_size_, before, stream);
    result_.blocks.resize(std::max(result_.blocks.size(), index + 1));
    if (options_.schedule) {
      block.choice.emplace(*options_.schedule, options_.block_size, request_.id,
                           static_cast<std::int64_t>(index));
    }
    if (block.choice && block.choice->settled()) {
      close(block);  // the schedule wants the fixed point
    } else {
      note_state(block);
    }
    return block;
  }

  /// From the last right token to the last but one.
  [[nodiscard]] std::int64_t rows_of(const Block& block) const {
    return options_.block_size - static_cast<std::int64_t>(block.converged);
  }

  /// The text gives the token at the first wrong position.
  void iterate(Block& block, std::span<const TokenId> predictions) {
    expect(std::cmp_equal(predictions.size(), rows_of(block)),
           "a prediction for every row of a block is wanted");
    const TokenId right = fixed_point(block.index)[block.converged];
    if (predictions.front() != right && !std::exchange(block.flipped, true)) {
      ++result_.flipped_blocks;
    }
    std::ranges::copy(predictions,
                      block.state.begin() + static_cast<std::ptrdiff_t>(block.converged));
    block.state[block.converged] = right;
    note_state(block);
  }

  void note_state(Block& block) {
    const std::span<const TokenId> right = fixed_point(block.index);
    TrajectoryBlock& recorded = result_.blocks[block.index];
    block.converged = static_cast<std::size_t>(converged_prefix(block.state, right));
    if (block.converged == block_size_) {
      close(block);
      return;
    }
    ++recorded.states_seen;
    if (!block.choice) {
      recorded.states.insert(recorded.states.end(), block.state.begin(), block.state.end());
      return;
    }
    if (block.choice->consider(block.state, right)) {
      recorded.states.assign(block.state.begin(), block.state.end());
    }
    if (block.choice->settled()) {
      close(block);
    }
  }

  /// Appends the fixed point, which is the selected state if no earlier one is.
  void close(Block& block) {
    const std::span<const TokenId> right = fixed_point(block.index);
    TrajectoryBlock& recorded = result_.blocks[block.index];
    ++recorded.states_seen;
    if (block.choice) {
      const std::optional<std::int32_t> selected = block.choice->selected();
      recorded.selected_state = selected.value_or(recorded.states_seen - 1);
      if (!selected) {
        recorded.states.assign(right.begin(), right.end());
      }
    }
    recorded.states.insert(recorded.states.end(), right.begin(), right.end());
    block.done = true;
  }

  /// Cuts the answer at T and after the first eos, which the blocks may exceed.
  void finish() {
    const auto blocks = std::span(text_).subspan(prompt_length_, known_tokens());
    const auto answer =
        blocks.first(std::min(blocks.size(), static_cast<std::size_t>(request_.max_new_tokens)));
    const auto eos =
        std::ranges::find_if(answer, [this](TokenId token) { return request_.is_eos(token); });
    const bool ended = eos != answer.end();
    result_.tokens.assign(answer.begin(), ended ? eos + 1 : eos);
    result_.stop = ended ? StopReason::eos : StopReason::length;
    finished_ = true;
  }

  void collect_branches() {
    branches_.clear();
    if (text_decoder_) {
      const auto text = text_decoder_->pending();
      branches_.assign(text.begin(), text.end());
    }
    num_text_branches_ = branches_.size();
    for (const Block& block : active_) {
      const auto first = prompt_length_ + block.index * block_size_ + block.converged - 1;
      branches_.push_back(
          {.first_position = static_cast<std::int64_t>(first),
           .tokens = std::span(block.state)
                         .subspan(block.converged - 1, static_cast<std::size_t>(rows_of(block))),
           .alternative = true});
    }
  }

  DecodeRequest request_;
  ParallelTrajectoryOptions options_;
  std::size_t prompt_length_;
  std::size_t block_size_;
  std::size_t num_blocks_ = 0;  ///< ceil(T / n); fewer once the text has ended.
  std::int64_t max_positions_ = 0;
  std::int64_t max_branch_rows_ = 0;
  std::int64_t iterate_rows_ = 0;
  std::unique_ptr<SequenceDecoder> text_decoder_;  ///< Null once the text is complete.
  std::vector<TokenId> text_;  ///< Prompt and known tokens; empty before prefill.
  std::int64_t kv_length_ = 0;
  std::size_t num_complete_ = 0;
  std::size_t num_started_ = 0;
  std::vector<Block> active_;
  std::vector<DraftBranch> branches_;
  std::size_t num_text_branches_ = 0;
  std::vector<TokenId> forwarded_;  ///< Tokens of the text's branches.
  DecodeResult result_;
  bool finished_ = false;
};

}  // namespace

std::unique_ptr<SequenceDecoder> make_parallel_trajectory_decoder(
    DecodeRequest request, const ParallelTrajectoryOptions& options) {
  return std::make_unique<ParallelTrajectoryDecoder>(std::move(request), options);
}

}  // namespace jforge
