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

#include "data/batches/noise_schedule.h"
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

/// Which draft follows an acceptance.
enum class DraftWindow : std::uint8_t {
  shrinking,  ///< The block's draft shrinks until n tokens are committed (trajectories; records
              ///< states).
  running,    ///< The draft is refilled to n after every forward (plain generation).
};

struct JacobiOptions {
  std::int32_t block_size = 16;  ///< n ≥ 1
  DraftWindow window = DraftWindow::shrinking;
  std::uint64_t seed = 0;
  std::uint64_t round = 0;  ///< Part of the drafts' random stream.
  /// Trajectory mode (METHOD.md §1): eos is ignored until its block is complete; blocks
  /// = ceil(T / n); the result's tokens are the concatenated fixed points cut after the first eos
  /// and at T. Without it decoding stops at the first eos, and the last draft is cut to what a
  /// forward can still add to T.
  bool complete_blocks = false;
  /// Record every state of every block; needs complete_blocks, else the last block has no fixed
  /// point.
  bool record_states = false;

  /// Throws ConfigError: block_size < 1, record_states without complete_blocks, or complete_blocks
  /// with the running window, which has no blocks.
  void validate() const;
};

/// What a new pseudo block of multi-block decoding begins as.
enum class SpawnMode : std::uint8_t {
  continuation,  ///< What was predicted behind the newest block, then its continuation in the pool.
  clone,         ///< A copy of the real-active draft, as in the paper.
};

struct MultiBlockOptions {
  std::int32_t block_size = 64;  ///< n ≥ 1
  std::int32_t blocks = 2;       ///< K ≥ 1, the real-active one included.
  double spawn_ratio = 0.85;     ///< r in (0, 1]
  std::int32_t verification_size =
      4;                         ///< Drafts verified per forward, the plain one included; ≥ 1.
  std::int32_t ngram_pool = 16;  ///< Sequences kept of what was rejected; ≥ 0.
  /// Last tokens, at most, that are looked for in prompt and answer: what followed them there is a
  /// candidate before the pool's. 0: none is, as in the paper.
  std::int32_t match_length = 0;
  SpawnMode spawn = SpawnMode::continuation;
  /// Candidates carry the pseudo blocks, too, and the winner's refine them, as in the authors'
  /// code: more rows a forward, and no draft that was made behind a row that lost.
  bool pseudo_on_every_row = false;
  std::uint64_t seed = 0;
  std::uint64_t round = 0;

  /// Throws ConfigError.
  void validate() const;
};

struct PromptLookupOptions {
  std::int32_t block_size = 16;   ///< n ≥ 1: tokens of a draft at most.
  std::int32_t match_length = 3;  ///< Last tokens that are looked for, at most; ≥ 1.

  /// Throws ConfigError.
  void validate() const;
};

/// The defaults are the authors' for models of 7 billion parameters, who bound the n-grams of each
/// first token instead of all.
struct LookaheadOptions {
  std::int32_t window = 15;        ///< W ≥ 1: columns of the window that n-grams are made in.
  std::int32_t ngram = 5;          ///< N ≥ 2: tokens of an n-gram; N − 1 levels of the window.
  std::int32_t guesses = 15;       ///< G ≥ 0: n-grams verified in one forward.
  std::int32_t ngram_pool = 1024;  ///< n-grams kept of a request: more than recent text needs; ≥ 0.
  std::uint64_t seed = 0;
  std::uint64_t round = 0;

  /// Throws ConfigError.
  void validate() const;
};

/// Who finds the fixed points of parallel trajectories: all give greedy decoding's tokens.
enum class FixedPointMethod : std::uint8_t {
  ar,      ///< Greedy: the fewest rows, one forward a token.
  jacobi,  ///< The running window.
  mr,      ///< Multi-block decoding with rejection recycling.
};

struct ParallelTrajectoryOptions {
  std::int32_t block_size = 16;  ///< n ≥ 1
  FixedPointMethod fixed_point = FixedPointMethod::ar;
  std::uint64_t seed = 0;
  std::uint64_t round = 0;
  /// Which state is kept of each block, beside the fixed point; nothing: all are.
  std::optional<NoiseScheduleOptions> schedule;

  /// Throws ConfigError.
  void validate() const;
};

/// One token per forward.
[[nodiscard]] std::unique_ptr<SequenceDecoder> make_greedy_decoder(DecodeRequest request);
/// Jacobi fixed-point iteration (METHOD.md §1, §6.1, §6.2). Drafts are drawn with
/// replacement from all ids so far (prompt + committed), from the stream (seed, jacobi_draft,
/// round, request id, block); the running window, which has no blocks, draws all its fillers from
/// the stream of block 0. After a forward over the draft out_0 … out_{L−1} with predictions g, a =
/// 1 + the number of leading j with out_{j+1} = g_j tokens are committed. Shrinking: the next draft
/// is g_{a−1} … g_{L−2}, or, when a = L, a new block that begins with g_{L−1}. Running: g_{a−1} …
/// g_{L−1}, refilled to n after every forward. Every forward commits at least one token, so a block
/// takes at most n, whatever the arithmetic, and the last one n − 1.
[[nodiscard]] std::unique_ptr<SequenceDecoder> make_jacobi_decoder(DecodeRequest request,
                                                                   const JacobiOptions& options);
/// Multi-block decoding with rejection recycling (METHOD.md §6.3; the paper's algorithm 1). Only
/// the real-active block's verification makes tokens known, so that the tokens are greedy's
/// whatever pseudo blocks and candidates hold. With one block and verification_size 1 it is the
/// shrinking window, draw by draw.
[[nodiscard]] std::unique_ptr<SequenceDecoder> make_multi_block_decoder(
    DecodeRequest request, const MultiBlockOptions& options);
/// Prompt lookup, a baseline that needs no training and no seed (METHOD.md §6.3): the draft is the
/// newest token and what followed the last tokens where they stood before, in prompt or answer,
/// which repeats where it reaches the newest; only the newest token where they never did.
[[nodiscard]] std::unique_ptr<SequenceDecoder> make_prompt_lookup_decoder(
    DecodeRequest request, const PromptLookupOptions& options);
/// Lookahead decoding, a baseline that needs no training (METHOD.md §6.3; Fu et al. 2024). Beside
/// the newest token a forward holds a window of N − 1 levels and W columns, the last N − 1 states
/// of a Jacobi iteration, each of which continues the one before it: what level l holds in column j
/// stands at offset j + l behind the newest token and sees the first level up to column j and its
/// own column. The predictions behind the columns complete W n-grams, which are kept by their first
/// token; those that begin with the newest one are verified. The window's mask is exact: its first
/// level is a draft of the sequence, and each column an alternative that forks off there.
[[nodiscard]] std::unique_ptr<SequenceDecoder> make_lookahead_decoder(
    DecodeRequest request, const LookaheadOptions& options);
/// Teacher-forced parallel trajectories (METHOD.md §1): the states that the recording Jacobi
/// decoder goes through, for the same drafts, in another order of work. Another method decodes the
/// text; every block that is complete in it is iterated apart from all others, as an alternative
/// behind the clean text before it, and no longer than until the schedule's state of it is certain.
/// The text is authoritative: each pass puts its next right token where the iterate fails, so n − 1
/// passes suffice; where the iterate predicts another one there, which reproducible arithmetic
/// excludes, the block counts as flipped.
///
/// `blocks` come as a trajectory stores them: the selected state and the fixed point
/// (`selected_state` ≥ 0), or all states; `states_seen` counts those that were computed. `forwards`
/// are the passes that the sequence took part in.
[[nodiscard]] std::unique_ptr<SequenceDecoder> make_parallel_trajectory_decoder(
    DecodeRequest request, const ParallelTrajectoryOptions& options);

}  // namespace jforge
