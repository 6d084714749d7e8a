#pragma once

/// Records a sequence's drafts and known tokens pass by pass.

#include <chrono>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "model/decoding/decode_engine.h"
#include "runtime/ids.h"

namespace jforge {

enum class TraceKind : std::uint8_t {
  accepted,    ///< Became known: a right draft token or the correction.
  recycled,    ///< Became known through an alternative draft.
  stationary,  ///< Draft token, not known yet, but equal to the final one.
  draft,       ///< Wrong draft token.
};

struct TraceCell {
  std::int64_t position = 0;  ///< In the answer.
  TokenId token = 0;
  TraceKind kind = TraceKind::draft;
};

/// Known tokens, then the rest of the committed draft. Positions ascend by 1.
using TraceRow = std::vector<TraceCell>;

/// Observes an engine with a single sequence.
class PassRecorder final : public DecodeObserver {
 public:
  /// Calls `on_known` with the tokens that each pass makes known; the last pass may omit some.
  explicit PassRecorder(std::function<void(std::span<const TokenId>)> on_known = {})
      : on_known_(std::move(on_known)) {}

  void before_advance(const SequenceDecoder& decoder) override;
  void after_advance(const SequenceDecoder& decoder, const Commit& commit) override;

  /// Returns a row for the prefill and each pass. Each of `tokens`, the finished sequence's, is
  /// accepted or recycled in exactly one row. Not for complete_blocks, whose passes exceed the
  /// answer.
  [[nodiscard]] std::vector<TraceRow> rows(std::span<const TokenId> tokens) const;
  /// Returns each row's wall-clock time since the end of the prefill.
  [[nodiscard]] std::vector<double> seconds() const;

 private:
  struct Branch {
    std::int64_t first_position = 0;
    std::vector<TokenId> tokens;
    bool alternative = false;
  };
  /// The draft that a pass committed to.
  struct Pass {
    std::int64_t begin = 0;  ///< Position of the newest known token.
    std::int64_t fork = 0;   ///< An alternative's tokens begin here.
    std::vector<TokenId> draft;
  };

  [[nodiscard]] Pass verified_draft(const Commit& commit) const;

  std::function<void(std::span<const TokenId>)> on_known_;
  std::vector<std::chrono::steady_clock::time_point> ends_;  ///< Of the prefill and each pass.
  std::vector<Pass> passes_;
  std::vector<TokenId> known_;
  std::vector<Branch> branches_;
  std::int64_t begin_ = 0;  ///< kv_length() before the newest pass.
  std::int64_t prompt_length_ = 0;
};

}  // namespace jforge
