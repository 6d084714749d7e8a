#pragma once

/// Choosing a token from logits (METHOD.md §6.6): argmax of logit / T + G with Gumbel noise G =
/// −log(−log u), whose law is softmax(logit / T). (seed, request, position, token) name the noise,
/// so every method, batch and rank emits the same tokens. A draft token x is accepted with
/// probability p(x), otherwise replaced by the law p given ≠ x, as in speculative sampling
/// (Leviathan et al. 2023; Chen et al. 2023).

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/ids.h"
#include "runtime/random.h"

namespace jforge {

/// Conventions and order are Hugging Face's: penalty, temperature, top-k, top-p.
struct SamplingOptions {
  double temperature = 0;  ///< T ≥ 0; 0: the largest logit, the smallest id on ties.
  /// In (0, 1]: keeps the most probable tokens, after top-k, until their sum reaches top_p; smaller
  /// ids first on ties. 1: all.
  double top_p = 1;
  /// ≥ 0: keeps tokens whose logit is at least the k-th largest; 0: all.
  std::int32_t top_k = 0;
  /// Above 0: divides positive logits of earlier tokens and multiplies others, once each; 1: none.
  double repetition_penalty = 1;
  std::uint64_t seed = 0;

  [[nodiscard]] bool draws() const noexcept { return temperature > 0; }
  [[nodiscard]] bool penalises() const noexcept { return repetition_penalty != 1; }
  /// Whether the plain argmax is chosen.
  [[nodiscard]] bool greedy() const noexcept { return !draws() && !penalises(); }
  /// Compares only options that have an effect.
  [[nodiscard]] bool chooses_as(const SamplingOptions& other) const noexcept;
  void validate() const;  ///< Throws ConfigError.
};

/// Chosen from NaN.
inline constexpr TokenId kNoToken = -1;

struct LikelyToken {
  TokenId token = kNoToken;
  float log_probability = 0;  ///< Of the softmax, within 1e-3.
};

/// Writes the tokens with the largest logits in descending order, the smallest ids first on ties.
/// Beyond the vocabulary, or if the largest is not finite: kNoToken with log-probability −∞.
void likeliest_tokens(std::span<const float> logits, std::span<LikelyToken> found);

/// The choice for `position` of `request`.
struct SampledRow {
  SamplingOptions options = {};
  PromptId request = 0;
  std::int64_t position = 0;
  /// Tokens before the new one, used with a penalty; an alternative's lie elsewhere.
  std::span<const TokenId> text = {};
  std::span<const TokenId> alternative = {};
};

/// Visits each different token that the penalty applies to.
class DistinctTokens {
 public:
  /// Throws InternalError for a token outside the vocabulary.
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
  [[nodiscard]] bool note(TokenId token);

  std::vector<std::uint32_t> seen_in_;  ///< [V]: the last row with the token.
  std::uint32_t row_ = 0;
};

/// Chooses on the host. Reuses its memory. Not thread-safe.
class TokenSampler {
 public:
  /// Returns kNoToken for NaN. A penalty changes the logits [V].
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
