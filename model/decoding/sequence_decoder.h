#pragma once

/// Decoding methods as state machines over one sequence: pure logic, no arithmetic, so that each is
/// tested with a fake model and any mix of them shares one batch (decode_engine.h).
///
/// How forwards and tokens are counted, in every method (METHOD.md, invariant I24):
///  - the prefill forwards the whole prompt and gives the first token;
///  - `forwards` are the passes after it, `accepted[i]` is how many tokens pass i made known, so
///    sum(accepted) = tokens − 1 and tokens per forward = (tokens − 1) / forwards (DecodingCost);
///  - no pass is made whose predictions nobody needs: the answer ends with the pass that makes its
///    last token known, by eos or by length, and that token is never forwarded.
/// One token at a time, each pass makes one token known: T tokens take T − 1, exactly 1 token per
/// forward. A Jacobi pass over a draft whose first token is known makes 1 to n tokens known, the
/// accepted rest of the draft and the correction behind it; with n = 1 the counts are those.
///
/// With complete_blocks (trajectories) the same holds of all n · blocks tokens, of which `tokens`
/// may be a part.

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

/// What every method is told about one request.
struct DecodeRequest {
  /// Names the random stream of the drafts, with seed and round, and with a seed the sampler's.
  PromptId id = 0;
  std::vector<TokenId> prompt = {};   ///< At least one token.
  std::int64_t max_new_tokens = 0;    ///< T ≥ 1
  std::vector<TokenId> eos_ids = {};  ///< Empty: never stop early.
  SamplingOptions sampling = {};      ///< How its tokens are chosen; greedily by default.

  /// Throws DataError for an empty prompt or a negative token, ConfigError for T outside [1, 2^31)
  /// and for what SamplingOptions refuses.
  void validate() const;
  [[nodiscard]] bool is_eos(TokenId token) const noexcept;
};

/// What decoding of some sequences took.
struct DecodingCost {
  std::int64_t sequences = 0;
  std::int64_t tokens = 0;    ///< Of all sequences, the first of each included.
  std::int64_t forwards = 0;  ///< Passes of each sequence, prefill excluded.

  DecodingCost& operator+=(const DecodingCost& other) noexcept;
  /// Σ(tokens − 1) / Σ forwards; nothing where no forward was made.
  [[nodiscard]] std::optional<double> tokens_per_forward() const;
  /// Σ tokens / Σ(forwards + 1); nothing for no sequence.
  [[nodiscard]] std::optional<double> tokens_per_forward_with_prefill() const;
};

/// What every method gives back.
struct DecodeResult {
  PromptId id = 0;
  std::vector<TokenId> tokens;  ///< New ids, first eos included, prompt excluded, at most T.
  StopReason stop = StopReason::length;  ///< eos exactly when `tokens` ends with one.
  std::int64_t prefill_forwards = 0;     ///< 1, however the driver cut it.
  std::int64_t forwards = 0;             ///< Prefill excluded.
  std::vector<std::int32_t> accepted;    ///< [forwards]: tokens each forward made known.
  std::vector<TrajectoryBlock> blocks;   ///< Recorded states (trajectory mode only).
  std::int64_t flipped_blocks = 0;       ///< Of parallel trajectories.
};

/// A run of tokens to forward at first_position, first_position + 1, … .
struct DraftBranch {
  std::int64_t first_position = 0;
  std::span<const TokenId> tokens;  ///< At least one.
  /// Index in `tokens` of the first row whose prediction is wanted (all later ones are too);
  /// tokens.size() when none is.
  std::size_t first_output = 0;
  /// Whether it is another way to go on than the sequence's own rows. It sees what they have before
  /// its first position, in the cache and in the own branches of this forward, then its own rows.
  bool alternative = false;
};

/// What a forward gave for one branch: the token chosen after each wanted row, in order. It is the
/// argmax, or what sampling gives for the request, the position and all that the row sees
/// (model/kernels/token_sampler.h); a decoder need not know which.
struct BranchOutcome {
  std::span<const TokenId> predictions;
};

/// The branch whose first `rows` rows are the sequence's from now on, those of the sequence before
/// them as they are. Of a branch that is no alternative nothing has to be moved.
struct Commit {
  std::size_t branch = 0;
  std::int64_t rows = 0;
};

/// One sequence being decoded. The driver forwards pending() behind the sequence's first
/// kv_length() positions, hands back the predictions of the rows that want output, keeps what
/// advance() commits, and repeats until finished().
class SequenceDecoder {
 public:
  virtual ~SequenceDecoder() = default;
  /// What to forward next, never empty before finished(): first the sequence's own branches, one
  /// behind the other without a gap from kv_length() on, then alternatives, which begin anywhere up
  /// to the end of the former. The first call gives the prompt, as one branch. The spans hold until
  /// the next advance().
  [[nodiscard]] virtual std::span<const DraftBranch> pending() const = 0;
  /// Cache entries that are valid; what lies behind is overwritten. After the prefill: the prompt
  /// and every known token but the newest.
  [[nodiscard]] virtual std::int64_t kv_length() const = 0;
  /// `outcomes`: of every pending branch. Throws InternalError for another number of outcomes or
  /// predictions.
  virtual Commit advance(std::span<const BranchOutcome> outcomes) = 0;
  [[nodiscard]] virtual bool finished() const = 0;
  /// Valid once finished(), and once.
  [[nodiscard]] virtual DecodeResult take_result() = 0;
  /// Positions the cache slot must hold for this request at most.
  [[nodiscard]] virtual std::int64_t max_positions() const = 0;
  /// Rows that its alternatives take at most, all together.
  [[nodiscard]] virtual std::int64_t max_branch_rows() const { return 0; }
  /// The request's id.
  [[nodiscard]] virtual PromptId id() const = 0;
  /// How the request's tokens are chosen.
  [[nodiscard]] virtual const SamplingOptions& sampling() const = 0;
};

}  // namespace jforge
