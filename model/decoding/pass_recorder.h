#pragma once

/// What happened to one sequence, pass by pass: which drafts were forwarded, which became known.
/// For text that is shown while it is made, and for pictures of how a method works.

#include <chrono>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "model/decoding/decode_engine.h"
#include "runtime/ids.h"

namespace jforge {

/// How a token stood in a pass.
enum class TraceKind : std::uint8_t {
  accepted,    ///< Made known by the pass: a draft's token that was right, or the one behind them.
  recycled,    ///< Made known by the pass out of an alternative draft.
  stationary,  ///< Of the draft and not known yet, but already the token that came to stand there.
  draft,       ///< Of the draft, and wrong.
};

struct TraceCell {
  std::int64_t position = 0;  ///< In the answer.
  TokenId token = 0;
  TraceKind kind = TraceKind::draft;
};

/// What one pass made known and, behind it, the rest of the draft that it verified (the alternative
/// one where that won). Positions ascend by 1.
using TraceRow = std::vector<TraceCell>;

/// Observes the only sequence of an engine.
class PassRecorder final : public DecodeObserver {
 public:
  /// `on_known`, where given, is called with the tokens that a pass has made known; those of the
  /// last pass may be missing from it, they are in the result.
  explicit PassRecorder(std::function<void(std::span<const TokenId>)> on_known = {})
      : on_known_(std::move(on_known)) {}

  void before_advance(const SequenceDecoder& decoder) override;
  void after_advance(const SequenceDecoder& decoder, const Commit& commit) override;

  /// One row for the prefill and for each pass. `tokens`: the finished sequence's
  /// (DecodeResult::tokens), each of which is in exactly one row as accepted or recycled. Not for
  /// JacobiOptions::complete_blocks, whose passes go on behind the answer.
  [[nodiscard]] std::vector<TraceRow> rows(std::span<const TokenId> tokens) const;
  /// By the wall clock from the prefill's end to that of each row; as many as rows.
  [[nodiscard]] std::vector<double> seconds() const;

 private:
  struct Branch {
    std::int64_t first_position = 0;
    std::vector<TokenId> tokens;
    bool alternative = false;
  };
  /// The draft that a pass verified and committed to.
  struct Pass {
    std::int64_t begin = 0;      ///< Position of the newest known token, which begins the draft.
    std::int64_t fork = 0;       ///< From here on it is an alternative's.
    std::vector<TokenId> draft;  ///< Of the sequence's own branches up to there, then that one's.
  };

  [[nodiscard]] Pass verified_draft(const Commit& commit) const;

  std::function<void(std::span<const TokenId>)> on_known_;
  std::vector<std::chrono::steady_clock::time_point> ends_;  ///< Of the prefill and each pass.
  std::vector<Pass> passes_;                                 ///< Without the prefill.
  std::vector<TokenId> known_;                               ///< By the newest pass.
  std::vector<Branch> branches_;                             ///< Of the newest pass …
  std::int64_t begin_ = 0;                                   ///< … and where it began.
  std::int64_t prompt_length_ = 0;
};

}  // namespace jforge
