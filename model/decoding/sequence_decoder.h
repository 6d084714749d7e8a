#pragma once

/// Decoding methods as state machines over one sequence. They do no arithmetic, so tests use a fake
/// model, and any mix of methods shares one batch (decode_engine.h).
///
/// Counting (METHOD.md, I24): the prefill forwards the prompt and gives the first token. `forwards`
/// counts later passes, accepted[i] the tokens that pass i made known; sum(accepted) = tokens − 1.
/// The answer ends with the pass that makes its last token known; that token is never forwarded.
/// With complete_blocks this holds for all n · blocks tokens, of which `tokens` may be a part.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/trajectories/trajectory.h"
#include "model/kernels/token_sampler.h"
#include "runtime/ids.h"

namespace jforge {

struct DecodeRequest {
  /// Selects, with seed and round, the drafts' and the sampler's random streams.
  PromptId id = 0;
  std::vector<TokenId> prompt = {};   ///< Not empty.
  std::int64_t max_new_tokens = 0;    ///< T ≥ 1
  std::vector<TokenId> eos_ids = {};  ///< Empty: never stop early.
  SamplingOptions sampling = {};      ///< Greedy by default.

  /// Throws DataError for an empty prompt or a negative token; ConfigError for other bad values.
  void validate() const;
  [[nodiscard]] bool is_eos(TokenId token) const noexcept;
};

struct DecodingCost {
  std::int64_t sequences = 0;
  std::int64_t tokens = 0;
  std::int64_t forwards = 0;  ///< Prefill excluded.

  DecodingCost& operator+=(const DecodingCost& other) noexcept;
  /// Returns Σ(tokens − 1) / Σ forwards; empty if there were no forwards.
  [[nodiscard]] std::optional<double> tokens_per_forward() const;
  /// Returns Σ tokens / Σ(forwards + 1); empty for no sequence.
  [[nodiscard]] std::optional<double> tokens_per_forward_with_prefill() const;
};

struct DecodeResult {
  PromptId id = 0;
  std::vector<TokenId> tokens;           ///< Without the prompt, with the first eos; at most T.
  StopReason stop = StopReason::length;  ///< eos if and only if `tokens` ends with one.
  std::int64_t prefill_forwards = 0;     ///< 1, even if the driver cuts the prompt.
  std::int64_t forwards = 0;             ///< Prefill excluded.
  std::vector<std::int32_t> accepted;    ///< [forwards]: tokens that each made known.
  std::vector<TrajectoryBlock> blocks;   ///< Recorded states (trajectories only).
  std::int64_t flipped_blocks = 0;       ///< Parallel trajectories only.
};

/// Tokens to forward at consecutive positions from first_position.
struct DraftBranch {
  std::int64_t first_position = 0;
  std::span<const TokenId> tokens;  ///< Not empty.
  /// Index of the first token whose prediction is wanted, as all later ones are.
  std::size_t first_output = 0;
  /// An alternative to the sequence's own rows: it sees theirs before first_position, then its own.
  bool alternative = false;
  /// An alternative whose rows are an adapter's. It is never committed, and the last branch.
  bool drafts = false;
};

/// The token chosen after each wanted row: the argmax or a sample (token_sampler.h).
struct BranchOutcome {
  std::span<const TokenId> predictions;
};

/// Adds the branch's first `rows` rows to the sequence. Only an alternative's move in the cache.
struct Commit {
  std::size_t branch = 0;
  std::int64_t rows = 0;
};

/// One sequence being decoded. The driver forwards pending() after kv_length() positions, passes
/// the predictions to advance(), keeps the rows it commits, and repeats until finished().
class SequenceDecoder {
 public:
  virtual ~SequenceDecoder() = default;
  /// Returns the branches to forward: the prompt at first, then the sequence's own, contiguous from
  /// kv_length() on, followed by alternatives, which begin anywhere up to their end. Not empty
  /// before finished(). Spans are valid until the next advance().
  [[nodiscard]] virtual std::span<const DraftBranch> pending() const = 0;
  /// Returns the number of valid cache entries: after prefill, all known tokens but the newest.
  [[nodiscard]] virtual std::int64_t kv_length() const = 0;
  /// Takes an outcome per pending branch. Throws InternalError for wrong numbers of predictions.
  virtual Commit advance(std::span<const BranchOutcome> outcomes) = 0;
  [[nodiscard]] virtual bool finished() const = 0;
  /// Requires: finished(). Call once.
  [[nodiscard]] virtual DecodeResult take_result() = 0;
  /// Maximum number of cache positions.
  [[nodiscard]] virtual std::int64_t max_positions() const = 0;
  /// Maximum number of rows of all alternatives.
  [[nodiscard]] virtual std::int64_t max_branch_rows() const { return 0; }
  /// Called before the first pending() if the model proposes (DecodeModel::proposes()).
  virtual void use_proposals() {}
  /// A decoder that uses them: for how many positions after its newest token it wants them before
  /// the next pending(), and how many tokens for each.
  struct WantedProposals {
    TokenId newest = 0;
    std::int64_t count = 0;
    std::int64_t choices = 1;
  };
  [[nodiscard]] virtual std::optional<WantedProposals> wanted_proposals() const { return {}; }
  /// Takes [count, choices] proposals, `choices` being at least what it wants, after every
  /// advance() that neither ended the sequence nor cut the prompt (DecodeModel::propose()).
  virtual void take_proposals(std::span<const LikelyToken> /*proposals*/, std::size_t /*choices*/) {
  }
  [[nodiscard]] virtual PromptId id() const = 0;
  [[nodiscard]] virtual const SamplingOptions& sampling() const = 0;
};

}  // namespace jforge
