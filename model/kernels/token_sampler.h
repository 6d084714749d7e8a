#pragma once

/// Choosing a token from logits (METHOD.md §6.6).
///
/// A sampled token is argmax of logit / T + G with Gumbel noise G = −log(−log u), whose law is
/// softmax(logit / T). The noise is named by (seed, request, position, token), so that every
/// method, batch and rank emits the same tokens: a draft is accepted if it equals the prediction. A
/// draft token x is accepted with probability p(x) and replaced by the law p given ≠ x, as in
/// speculative sampling with a deterministic proposal (Leviathan et al. 2023; Chen et al. 2023).
/// Two laws of total variation d choose the same token with probability at least (1 − d) / (1 + d),
/// so Jacobi iteration converges.

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/ids.h"
#include "runtime/random.h"

namespace jforge {

/// Conventions and order are Hugging Face's: penalty, temperature, top-k, top-p.
struct SamplingOptions {
  double temperature = 0;  ///< T ≥ 0; 0: the largest logit, the smallest id on ties.
  /// In (0, 1]: keeps the most probable tokens up to the one with which their sum, after top-k,
  /// reaches top_p; smaller ids first on ties. 1: all.
  double top_p = 1;
  /// ≥ 0: keeps tokens whose logit is at least the k-th largest; 0: all.
  std::int32_t top_k = 0;
  double repetition_penalty = 1;  ///< 0: divides positive logits and multiplies others, once per
                                  ///< different token of prompt and answer; 1: none.
  std::uint64_t seed = 0;

  [[nodiscard]] bool draws() const noexcept { return temperature > 0; }
  [[nodiscard]] bool penalises() const noexcept { return repetition_penalty != 1; }
  /// Whether the choice is the plain argmax, which needs no stored logits.
  [[nodiscard]] bool greedy() const noexcept { return !draws() && !penalises(); }
  /// Compares only the options that have an effect.
  [[nodiscard]] bool chooses_as(const SamplingOptions& other) const noexcept;
  /// Throws ConfigError naming the value.
  void validate() const;
};

/// The choice from logits that hold NaN.
inline constexpr TokenId kNoToken = -1;

/// The choice for `position` of `request`.
struct SampledRow {
  SamplingOptions options = {};
  PromptId request = 0;
  std::int64_t position = 0;
  /// Tokens before the new one, read only with a penalty; an alternative draft's end lies
  /// elsewhere.
  std::span<const TokenId> text = {};
  std::span<const TokenId> alternative = {};
};

/// Visits each different token that a row's penalty applies to.
class DistinctTokens {
 public:
  /// Calls see(token). Throws InternalError for a token outside the vocabulary.
  template <class See>
  void of(const SampledRow& row, std::size_t vocabulary, const See& see) {
    begin(vocabulary);
    for (const std::span<const TokenId> piece : {row.text, row.alternative}) {
      for (const TokenId token : piece) {
        if (note(token)) {
          see(token);
        }
      }
    }
  }

 private:
  void begin(std::size_t vocabulary);
  /// Returns whether `token` is new in this row.
  [[nodiscard]] bool note(TokenId token);

  std::vector<std::uint32_t> seen_in_;  ///< [V]: the last row with the token.
  std::uint32_t row_ = 0;
};

/// Chooses on the host. Reuses its memory from row to row. Not thread-safe.
class TokenSampler {
 public:
  /// Returns the token for logits [V], kNoToken for NaN. A penalty changes the logits.
  [[nodiscard]] TokenId choose(std::span<float> logits, const SampledRow& row);

 private:
  struct Candidate {
    double logit = 0;   ///< (logit − largest) / T
    double weight = 0;  ///< exp(logit), only with top-p.
    TokenId token = 0;
  };

  void penalise(const SampledRow& row);
  [[nodiscard]] TokenId find_largest() const;
  [[nodiscard]] TokenId choose_of_all(double temperature, TokenId largest,
                                      const RandomStream& noise) const;
  [[nodiscard]] TokenId choose_of_kept(const RandomStream& noise) const;
  void keep(const SamplingOptions& options, TokenId largest);
  [[nodiscard]] float kth_largest(std::size_t k);
  void keep_nucleus(double top_p);

  std::span<float> logits_;
  DistinctTokens distinct_;
  std::vector<float> largest_;  ///< A heap.
  std::vector<Candidate> kept_;
};

}  // namespace jforge
