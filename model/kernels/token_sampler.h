#pragma once

/// Choosing a token from logits (METHOD.md §6.6).
///
/// A sampled token is a function of its logits, of what stands before it and of noise that is named
/// by (seed, request, position, token): there is nothing to draw in order. So the token that a
/// method predicts behind a right prefix is the one that decoding one token at a time samples
/// there, a draft is accepted where it equals the prediction, and every method emits the very same
/// tokens, in any batch and on any rank. A draft token x that was fixed before is accepted with
/// probability p(x), and what replaces it has the law p given ≠ x: speculative sampling with a
/// certain proposal (Leviathan et al. 2023; Chen et al. 2023).
///
/// The function is Gumbel's maximum: argmax of logit / T + G, with independent G = −log(−log u),
/// has the law softmax(logit / T). Two similar distributions choose the same token with probability
/// (1 − d) / (1 + d) at least, d being their total variation, which lets Jacobi iteration converge.

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/ids.h"
#include "runtime/random.h"

namespace jforge {

/// How tokens are chosen. The conventions and their order are Hugging Face's: penalty, temperature,
/// top-k, top-p.
struct SamplingOptions {
  double temperature = 0;  ///< T ≥ 0; 0: the largest logit, the smallest id among equals.
  /// In (0, 1]. Kept are the most probable tokens up to and including the one with which their
  /// probabilities, after top-k, sum up to at least top_p; the smaller id first among equals. 1:
  /// all.
  double top_p = 1;
  /// ≥ 0. Kept are the tokens whose logit is no less than the k-th largest; 0: all.
  std::int32_t top_k = 0;
  /// > 0. Logits of the tokens of prompt and answer before the new one are divided by it where they
  /// are positive and multiplied with it elsewhere, once for each different token; 1: none.
  double repetition_penalty = 1;
  std::uint64_t seed = 0;  ///< Of the noise.

  [[nodiscard]] bool draws() const noexcept { return temperature > 0; }
  [[nodiscard]] bool penalises() const noexcept { return repetition_penalty != 1; }
  /// Greedy decoding: the argmax of the logits as they are, for which nobody needs them.
  [[nodiscard]] bool greedy() const noexcept { return !draws() && !penalises(); }
  /// Whether both choose equal tokens: what has no effect is not looked at.
  [[nodiscard]] bool chooses_as(const SamplingOptions& other) const noexcept;
  /// Throws ConfigError naming the value.
  void validate() const;
};

/// What is chosen of logits that hold NaN.
inline constexpr TokenId kNoToken = -1;

/// A row whose token is chosen: the one for `position` of `request`.
struct SampledRow {
  SamplingOptions options = {};
  PromptId request = 0;
  std::int64_t position = 0;
  /// Tokens of prompt and answer before the new one, in two pieces: those of an alternative draft
  /// lie elsewhere. Looked at where `options` penalise.
  std::span<const TokenId> text = {};
  std::span<const TokenId> alternative = {};
};

/// Calls see(token) for each different one of the tokens that a row's penalty falls on.
class DistinctTokens {
 public:
  /// Throws InternalError for a token outside a vocabulary of so many.
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
  /// Whether it is the row's first of them.
  [[nodiscard]] bool note(TokenId token);

  std::vector<std::uint32_t> seen_in_;  ///< [V]: the row in which a token was last noted.
  std::uint32_t row_ = 0;
};

/// Chooses on the host. Keeps the memory that choosing needs: what has seen a row of a vocabulary
/// allocates nothing for the next one. Not thread-safe.
class TokenSampler {
 public:
  /// Of logits [V] float32, which a penalty overwrites; kNoToken where they hold NaN.
  [[nodiscard]] TokenId choose(std::span<float> logits, const SampledRow& row);

 private:
  struct Candidate {
    double logit = 0;   ///< Less the largest, over T.
    double weight = 0;  ///< Its exponential, where top-p is asked for.
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
