#include "model/kernels/token_sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <utility>

#include "model/kernels/gumbel_noise.h"
#include "runtime/error.h"

namespace jforge {

namespace {

double noise_of_token(const RandomStream& noise, TokenId token) {
  const auto index = static_cast<std::uint64_t>(token);
  return gumbel_noise(noise.block_at(index / 4)[index % 4]);
}

}  // namespace

bool SamplingOptions::chooses_as(const SamplingOptions& other) const noexcept {
  if (repetition_penalty != other.repetition_penalty || temperature != other.temperature) {
    return false;
  }
  return !draws() || (top_p == other.top_p && top_k == other.top_k && seed == other.seed);
}

void SamplingOptions::validate() const {
  // Also true for NaN.
  if (!(temperature >= 0 && std::isfinite(temperature))) {
    throw ConfigError(
        fmt::format("temperature is {}; it must be a finite number of at least 0", temperature));
  }
  if (!(top_p > 0 && top_p <= 1)) {
    throw ConfigError(fmt::format("top_p is {}; it must be above 0 and at most 1", top_p));
  }
  if (top_k < 0) {
    throw ConfigError(fmt::format("top_k is {}; it must be at least 0, which keeps all", top_k));
  }
  // Logits are float32.
  if (!(repetition_penalty > 0 && std::isnormal(static_cast<float>(repetition_penalty)))) {
    throw ConfigError(fmt::format("repetition_penalty is {}; it must be a finite number above 0",
                                  repetition_penalty));
  }
}

void DistinctTokens::begin(std::size_t vocabulary) {
  // A new vocabulary or a wrapped counter invalidates the marks.
  if (seen_in_.size() != vocabulary || ++row_ == 0) {
    seen_in_.assign(vocabulary, 0);
    row_ = 1;
  }
}

bool DistinctTokens::note(TokenId token) {
  expect(token >= 0 && std::cmp_less(token, seen_in_.size()),
         "a token that is penalised is not of the vocabulary");
  return std::exchange(seen_in_[static_cast<std::size_t>(token)], row_) != row_;
}

void likeliest_tokens(std::span<const float> logits, std::span<LikelyToken> found) {
  constexpr float kNothing = -std::numeric_limits<float>::infinity();
  std::ranges::fill(found, LikelyToken{kNoToken, kNothing});
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] > found.back().log_probability) {
      const auto place =
          std::ranges::upper_bound(found, logits[i], std::greater(), &LikelyToken::log_probability);
      std::move_backward(place, found.end() - 1, found.end());
      *place = {static_cast<TokenId>(i), logits[i]};
    }
  }
  const float largest = found.front().log_probability;
  if (!std::isfinite(largest)) {
    std::ranges::fill(found, LikelyToken{kNoToken, kNothing});
    return;
  }
  constexpr float kNegligible = 20;  // Leaves out at most V · e^−20: 2e-4 with 10^5 tokens.
  double sum = 0;
  for (const float logit : logits) {
    sum += logit > largest - kNegligible ? std::exp(logit - largest) : 0.0F;
  }
  for (LikelyToken& one : found) {
    one.log_probability -= largest + static_cast<float>(std::log(sum));
  }
}

TokenId TokenSampler::choose(std::span<float> logits, const SampledRow& row) {
  expect(!logits.empty(), "a token is chosen of none");
  logits_ = logits;
  const SamplingOptions& options = row.options;
  if (options.penalises()) {
    penalise(row);
  }
  const TokenId largest = find_largest();
  // Next to an infinite logit no other token has any probability.
  if (largest == kNoToken || !options.draws() ||
      !std::isfinite(logits_[static_cast<std::size_t>(largest)])) {
    return largest;
  }
  const RandomStream noise(options.seed, RandomPurpose::token_sampling, 0,
                           static_cast<std::uint64_t>(row.request),
                           static_cast<std::uint64_t>(row.position));
  if (options.top_k == 0 && options.top_p == 1) {
    return choose_of_all(options.temperature, largest, noise);
  }
  keep(options, largest);
  return choose_of_kept(noise);
}

void TokenSampler::penalise(const SampledRow& row) {
  const auto factor = static_cast<float>(row.options.repetition_penalty);
  distinct_.of(row, logits_.size(), [&](TokenId token) {
    float& logit = logits_[static_cast<std::size_t>(token)];
    logit = penalised(logit, factor);
  });
}

TokenId TokenSampler::find_largest() const {
  std::size_t largest = 0;
  bool not_a_number = false;
  for (std::size_t i = 0; i < logits_.size(); ++i) {
    not_a_number |= logits_[i] != logits_[i];
    largest = logits_[i] > logits_[largest] ? i : largest;
  }
  return not_a_number ? kNoToken : static_cast<TokenId>(largest);
}

TokenId TokenSampler::choose_of_all(double temperature, TokenId largest,
                                    const RandomStream& noise) const {
  const double top = logits_[static_cast<std::size_t>(largest)];
  TokenId chosen = largest;
  double best = noise_of_token(noise, largest);
  for (std::size_t begin = 0; begin < logits_.size(); begin += 4) {
    const auto four = logits_.subspan(begin, std::min<std::size_t>(4, logits_.size() - begin));
    // Most tokens are too improbable for any noise; theirs is not computed.
    const double most = (double{*std::ranges::max_element(four)} - top) / temperature;
    if (most + kMostGumbelNoise < best) {
      continue;
    }
    const auto bits = noise.block_at(begin / 4);
    for (std::size_t i = 0; i < four.size(); ++i) {
      const double logit = (double{four[i]} - top) / temperature;
      if (logit + gumbel_bound(bits[i]) < best) {
        continue;
      }
      const double score = logit + gumbel_noise(bits[i]);
      const auto token = static_cast<TokenId>(begin + i);
      if (score > best || (score == best && token < chosen)) {
        best = score;
        chosen = token;
      }
    }
  }
  return chosen;
}

TokenId TokenSampler::choose_of_kept(const RandomStream& noise) const {
  const Candidate* chosen = nullptr;
  double best = 0;
  for (const Candidate& candidate : kept_) {
    const double score = candidate.logit + noise_of_token(noise, candidate.token);
    if (chosen == nullptr || score > best || (score == best && candidate.token < chosen->token)) {
      best = score;
      chosen = &candidate;
    }
  }
  return chosen->token;
}

void TokenSampler::keep(const SamplingOptions& options, TokenId largest) {
  kept_.reserve(logits_.size());
  kept_.clear();
  const double top = logits_[static_cast<std::size_t>(largest)];
  const auto k = static_cast<std::size_t>(options.top_k);
  const bool cuts = k > 0 && k < logits_.size();
  const float least = cuts ? kth_largest(k) : 0.0F;
  for (std::size_t i = 0; i < logits_.size(); ++i) {
    if (!cuts || logits_[i] >= least) {
      const double logit = (double{logits_[i]} - top) / options.temperature;
      kept_.push_back({logit, options.top_p < 1 ? std::exp(logit) : 0, static_cast<TokenId>(i)});
    }
  }
  if (options.top_p < 1) {
    keep_nucleus(options.top_p);
  }
}

float TokenSampler::kth_largest(std::size_t k) {
  largest_.reserve(k);
  largest_.assign(logits_.begin(), logits_.begin() + static_cast<std::ptrdiff_t>(k));
  std::ranges::make_heap(largest_, std::greater<>());
  for (const float logit : logits_.subspan(k)) {
    if (logit > largest_.front()) {
      std::ranges::pop_heap(largest_, std::greater<>());
      largest_.back() = logit;
      std::ranges::push_heap(largest_, std::greater<>());
    }
  }
  return largest_.front();
}

void TokenSampler::keep_nucleus(double top_p) {
  double sum = 0;
  for (const Candidate& candidate : kept_) {
    sum += candidate.weight;
  }
  // Tokens below this share sum to less than (1 − top_p) · sum / 2; the others reach top_p · sum.
  const double least = 0.5 * (1 - top_p) * sum / static_cast<double>(kept_.size());
  std::erase_if(kept_, [least](const Candidate& each) { return each.weight < least; });
  const auto after = [](const Candidate& a, const Candidate& b) {
    return a.logit < b.logit || (a.logit == b.logit && a.token > b.token);
  };
  std::ranges::make_heap(kept_, after);
  std::size_t left = kept_.size();
  for (double mass = 0; left > 0 && mass < top_p * sum;) {
    std::ranges::pop_heap(kept_.begin(), kept_.begin() + static_cast<std::ptrdiff_t>(left), after);
    mass += kept_[--left].weight;
  }
  kept_.erase(kept_.begin(), kept_.begin() + static_cast<std::ptrdiff_t>(left));
}

}  // namespace jforge
