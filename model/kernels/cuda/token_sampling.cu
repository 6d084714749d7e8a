/// Chooses tokens like TokenSampler, the reference (METHOD.md §6.6). A block chooses one row's
/// token.
///
/// Latency is the bound: a row's V logits are read two to four times from the L2 cache, where the
/// product left them. Data sheets suggest 0.05 ms a row, 0.12 with top-k and 0.65 with top-p alone,
/// against 0.8 to 1.7 ms on the host (decoding.md); not measured.

#include <cmath>
#include <cstring>

#include "model/kernels/cuda/cuda_kernel_set_internal.h"
#include "model/kernels/cuda/device_random.h"
#include "model/kernels/cuda/reads_ahead.h"
#include "model/kernels/gumbel_noise.h"

namespace jforge {

namespace {

constexpr std::int64_t kChoiceLanes = 256;
/// Lanes compare tokens as float32.
constexpr std::int64_t kMostVocabulary = 1 << 24;

/// The penalty applies to `penalised` [begin, end), each token once.
struct RowChoice {
  double temperature;  ///< 0: the largest logit.
  double top_p;
  std::uint64_t seed;
  std::uint64_t request;
  std::uint64_t position;
  std::int32_t top_k;  ///< 0: keeps all.
  float penalty;
  std::int32_t penalised_begin;
  std::int32_t penalised_end;
};
static_assert(sizeof(RowChoice) % sizeof(std::uint64_t) == 0);
constexpr std::int64_t kChoiceNumbers = sizeof(RowChoice) / sizeof(std::int32_t);

/// Preserves order; both zeros are equal.
[[nodiscard]] __device__ std::uint32_t order_of(float value) {
  const auto bits = __builtin_bit_cast(std::uint32_t, value + 0.0F);
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000U;
}
[[nodiscard]] __device__ float value_of(std::uint32_t order) {
  return __builtin_bit_cast(float, (order >> 31) != 0 ? order & 0x7FFFFFFFU : ~order);
}

/// Returns the largest c in [low, high] with holds(c). Requires: holds(low), holds is monotone.
template <class Holds>
[[nodiscard]] __device__ std::uint32_t last_that(std::uint32_t low, std::uint32_t high,
                                                 const Holds& holds) {
  while (low < high) {
    const std::uint32_t middle = high - (high - low) / 2;
    if (holds(middle)) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

struct ScoredToken {
  double score;
  std::int64_t token;

  __device__ void meet(const ScoredToken& other) {
    if (other.score > score || (other.score == score && other.token < token)) {
      *this = other;
    }
  }
};

/// Block index = row.
struct ChooseTokens {
  float* logits;  ///< [rows, V]
  std::int64_t vocabulary;
  const RowChoice* choices;
  const std::int32_t* penalised;
  std::int32_t* candidates;  ///< [rows, V] if a row uses top-k or top-p.
  std::int32_t* tokens;

  [[nodiscard]] std::int64_t shared_bytes() const {
    return shared_size<ScoredToken>(kChoiceLanes) + 2 * shared_size<std::uint32_t>(kChoiceLanes);
  }

  /// Equal on every lane.
  struct Row {
    RowChoice choice;
    float* logits;
    float top;             ///< The largest logit.
    std::int64_t largest;  ///< The smallest token that has it.
    std::int32_t* candidates;
    std::int64_t num_candidates;
    std::uint32_t least;  ///< Kept: candidates of higher order,
    std::int64_t last;    ///< and of this order up to this token.

    [[nodiscard]] __device__ double scaled(float logit) const {
      return (static_cast<double>(logit) - static_cast<double>(top)) / choice.temperature;
    }
    [[nodiscard]] __device__ double weight(float logit) const { return exp(scaled(logit)); }
    [[nodiscard]] __device__ bool cuts() const { return choice.top_k > 0 || choice.top_p < 1; }
  };

  __device__ void operator()(BlockGroup& group, std::int64_t index) const {
    auto* const scored = group.shared<ScoredToken>(kChoiceLanes);
    auto* const orders = group.shared<std::uint32_t>(kChoiceLanes);
    auto* const counts = group.shared<std::uint32_t>(kChoiceLanes);
    Row row{};
    row.choice = choices[index];
    row.logits = logits + index * vocabulary;
    penalise(group, row);
    std::int64_t token = kNoToken;
    if (find_largest(group, row, orders)) {
      token = row.largest;
      // Next to an infinite logit no other token has any probability.
      const bool finite = row.top - row.top == 0;
      if (row.choice.temperature > 0 && finite) {
        if (row.cuts()) {
          row.candidates = candidates + index * vocabulary;
          cut(group, row, orders, counts);
        }
        token = draw(group, row, scored);
      }
    }
    group.each([&](std::int64_t lane) {
      if (lane == 0) {
        tokens[index] = static_cast<std::int32_t>(token);
      }
    });
  }

  __device__ void penalise(BlockGroup& group, const Row& row) const {
    group.each([&](std::int64_t lane) {
      for (std::int64_t i = row.choice.penalised_begin + lane; i < row.choice.penalised_end;
           i += group.lanes()) {
        float& logit = row.logits[penalised[i]];
        logit = jforge::penalised(logit, row.choice.penalty);
      }
    });
  }

  /// Visits a lane's share of the row.
  template <class Take>
  __device__ void over_logits(const BlockGroup& group, const Row& row, std::int64_t lane,
                              const Take& take) const {
    read_ahead(
        lane, vocabulary, group.lanes(), [&](std::int64_t i) { return row.logits[i]; }, take);
  }
  /// Visits a lane's share of the candidates.
  template <class Take>
  __device__ static void over_candidates(const BlockGroup& group, const Row& row, std::int64_t lane,
                                         const Take& take) {
    struct Candidate {
      std::int64_t token;
      float logit;
    };
    read_ahead(
        lane, row.num_candidates, group.lanes(),
        [&](std::int64_t i) {
          const std::int64_t token = row.candidates[i];
          return Candidate{token, row.logits[token]};
        },
        [&](std::int64_t /*i*/, const Candidate& candidate) {
          take(candidate.token, candidate.logit);
        });
  }

  /// Returns false for NaN. Sets `orders` to each lane's largest.
  [[nodiscard]] __device__ bool find_largest(BlockGroup& group, Row& row,
                                             std::uint32_t* orders) const {
    struct Best {
      float value;
      std::int64_t token;
      bool nan;
    };
    Best best{};
    group.each([&](std::int64_t lane) {
      Best own{-INFINITY, lane, false};
      over_logits(group, row, lane, [&](std::int64_t i, float value) {
        own.nan = own.nan || value != value;
        if (value > own.value) {
          own.value = value;
          own.token = i;
        }
      });
      best = own;
      orders[lane] = order_of(own.value);
    });
    if (group.largest([&](std::int64_t /*lane*/) { return best.nan ? 1.0F : 0.0F; }) > 0) {
      return false;
    }
    row.top = group.largest([&](std::int64_t /*lane*/) { return best.value; });
    row.largest = static_cast<std::int64_t>(-group.largest([&](std::int64_t /*lane*/) {
      const bool reaches = best.value == row.top && best.token < vocabulary;
      return reaches ? -static_cast<float>(best.token) : -INFINITY;
    }));
    return true;
  }

  /// Applies top-k, then top-p. `orders`: each lane's largest.
  __device__ void cut(BlockGroup& group, Row& row, const std::uint32_t* orders,
                      std::uint32_t* counts) const {
    row.last = vocabulary;
    double sum = 0;
    if (row.choice.top_k > 0) {
      cut_k(group, row, orders, counts);
      sum = row.choice.top_p < 1 ? mass(group, row, row.least) : 0;
    } else {
      sum = group.sum<double>([&](std::int64_t lane) {
        double own = 0;
        over_logits(group, row, lane,
                    [&](std::int64_t /*i*/, float logit) { own += row.weight(logit); });
        return own;
      });
      // Tokens below it sum to less than (1 − top_p) · sum / 2: the rest reaches top_p · sum.
      const double share = 0.5 * (1 - row.choice.top_p) * sum / static_cast<double>(vocabulary);
      collect(group, row, counts, [&](float logit) { return row.weight(logit) >= share; });
    }
    if (row.choice.top_p < 1) {
      cut_nucleus(group, row, row.choice.top_p * sum);
    }
  }

  __device__ void cut_k(BlockGroup& group, Row& row, const std::uint32_t* orders,
                        std::uint32_t* counts) const {
    const auto k = static_cast<std::uint64_t>(row.choice.top_k);
    const std::uint32_t top = order_of(row.top);
    std::uint32_t bound = 0;
    if (row.choice.top_k <= group.lanes()) {
      // The k-th of the lanes' largest bounds the k-th of all from below.
      bound = last_that(0, top, [&](std::uint32_t order) {
        return group.sum<std::uint64_t>(
                   [&](std::int64_t lane) { return std::uint64_t{orders[lane] >= order}; }) >= k;
      });
    }
    collect(group, row, counts, [bound](float logit) { return order_of(logit) >= bound; });
    row.least = last_that(bound, top, [&](std::uint32_t order) {
      return sum_from<std::uint64_t>(group, row, order,
                                     [](float /*logit*/) { return std::uint64_t{1}; }) >= k;
    });
  }

  /// Keeps the most probable until their weights reach `target`.
  __device__ void cut_nucleus(BlockGroup& group, Row& row, double target) const {
    const std::uint32_t top = order_of(row.top);
    const std::uint32_t least = last_that(
        row.least, top, [&](std::uint32_t order) { return mass(group, row, order) >= target; });
    const double above = least == top ? 0.0 : mass(group, row, least + 1);
    row.least = least;
    const auto count_up_to = [&](std::int64_t last) {
      return group.sum<std::uint64_t>([&](std::int64_t lane) {
        std::uint64_t own = 0;
        over_candidates(group, row, lane, [&](std::int64_t token, float logit) {
          own += order_of(logit) == least && token <= last ? 1 : 0;
        });
        return own;
      });
    };
    const std::uint64_t equals = count_up_to(vocabulary);
    // How many equal ones are needed.
    const double needed = ceil((target - above) / row.weight(value_of(least)));
    if (needed < static_cast<double>(equals)) {
      const std::uint64_t some = needed < 1 ? 1 : static_cast<std::uint64_t>(needed);
      // Fewer than `some` precede the last one.
      row.last = last_that(0, static_cast<std::uint32_t>(vocabulary), [&](std::uint32_t end) {
        return count_up_to(static_cast<std::int64_t>(end) - 1) < some;
      });
    }
  }

  template <class Likely>
  __device__ void collect(BlockGroup& group, Row& row, std::uint32_t* counts,
                          const Likely& likely) const {
    group.each([&](std::int64_t lane) {
      std::uint32_t own = 0;
      over_logits(group, row, lane,
                  [&](std::int64_t /*i*/, float logit) { own += likely(logit) ? 1 : 0; });
      counts[lane] = own;
    });
    group.each([&](std::int64_t lane) {
      std::int64_t next = 0;
      for (std::int64_t before = 0; before < lane; ++before) {
        next += counts[before];
      }
      over_logits(group, row, lane, [&](std::int64_t i, float logit) {
        if (likely(logit)) {
          row.candidates[next++] = static_cast<std::int32_t>(i);
        }
      });
    });
    row.num_candidates = static_cast<std::int64_t>(
        group.sum<std::uint64_t>([&](std::int64_t lane) { return std::uint64_t{counts[lane]}; }));
  }

  /// Sums over the candidates from `order` on.
  template <class T, class Term>
  [[nodiscard]] __device__ T sum_from(BlockGroup& group, const Row& row, std::uint32_t order,
                                      const Term& term) const {
    return group.sum<T>([&](std::int64_t lane) {
      T own = 0;
      over_candidates(group, row, lane, [&](std::int64_t /*token*/, float logit) {
        own += order_of(logit) >= order ? term(logit) : T{0};
      });
      return own;
    });
  }
  [[nodiscard]] __device__ double mass(BlockGroup& group, const Row& row,
                                       std::uint32_t order) const {
    return sum_from<double>(group, row, order, [&](float logit) { return row.weight(logit); });
  }

  [[nodiscard]] __device__ std::int64_t draw(BlockGroup& group, const Row& row,
                                             ScoredToken* scored) const {
    const DeviceStream noise(row.choice.seed, RandomPurpose::token_sampling, 0, row.choice.request,
                             row.choice.position);
    const auto words_of = [&](std::int64_t four) {
      return noise.block_at(static_cast<std::uint64_t>(four));
    };
    // Most tokens are too improbable for any noise; theirs is not computed.
    const ScoredToken first{gumbel_noise(words_of(row.largest / 4).words[row.largest % 4]),
                            row.largest};
    const auto consider = [&](ScoredToken& best, float logit, std::int64_t token,
                              const PhiloxWords& words) {
      const double scaled = row.scaled(logit);
      const std::uint32_t bits = words.words[token % 4];
      if (!(scaled + gumbel_bound(bits) < best.score)) {
        best.meet({scaled + gumbel_noise(bits), token});
      }
    };
    group.each([&](std::int64_t lane) {
      ScoredToken best = first;
      if (row.cuts()) {
        for (std::int64_t i = lane; i < row.num_candidates; i += group.lanes()) {
          const std::int64_t token = row.candidates[i];
          const float logit = row.logits[token];
          const std::uint32_t order = order_of(logit);
          if (order > row.least || (order == row.least && token <= row.last)) {
            consider(best, logit, token, words_of(token / 4));
          }
        }
      } else {
        const auto largest_of = [&](std::int64_t four) {
          float most = -INFINITY;
          for (std::int64_t i = 4 * four; i < 4 * four + 4; ++i) {
            const float logit = i < vocabulary ? row.logits[i] : -INFINITY;
            most = logit > most ? logit : most;
          }
          return most;
        };
        const auto improbable = [&](float logit) {
          return row.scaled(logit) + kMostGumbelNoise < best.score;
        };
        // Several groups of four at a time overlap their loads.
        const std::int64_t step = kReadsAhead * group.lanes();
        for (std::int64_t begin = lane; 4 * begin < vocabulary; begin += step) {
          float most = -INFINITY;
          for (int ahead = 0; ahead < kReadsAhead; ++ahead) {
            const float own = largest_of(begin + ahead * group.lanes());
            most = own > most ? own : most;
          }
          if (improbable(most)) {
            continue;
          }
          for (std::int64_t four = begin; four < begin + step; four += group.lanes()) {
            if (4 * four >= vocabulary || improbable(largest_of(four))) {
              continue;
            }
            const PhiloxWords words = words_of(four);
            for (std::int64_t i = 4 * four; i < 4 * four + 4 && i < vocabulary; ++i) {
              consider(best, row.logits[i], i, words);
            }
          }
        }
      }
      scored[lane] = best;
    });
    for (std::int64_t stride = group.lanes() / 2; stride > 0; stride /= 2) {
      group.each([&](std::int64_t lane) {
        if (lane < stride) {
          scored[lane].meet(scored[lane + stride]);
        }
      });
    }
    std::int64_t chosen = 0;
    group.each([&](std::int64_t /*lane*/) { chosen = scored[0].token; });
    return chosen;
  }
};

}  // namespace

void CudaKernelSet::sample_tokens(TensorView logits, std::span<const SampledRow> rows,
                                  TensorView tokens) {
  const std::int64_t m = std::ssize(rows);
  check_sampled(logits, m, tokens);
  if (m == 0) {
    return;
  }
  const std::int64_t vocabulary = logits.dim(1);
  expect(vocabulary <= kMostVocabulary, "tokens are sampled of more than a device's numbers reach");
  sampled_block_.assign(static_cast<std::size_t>(m * kChoiceNumbers), 0);
  bool cuts = false;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const SampledRow& row = rows[i];
    const SamplingOptions& options = row.options;
    RowChoice choice{.temperature = options.temperature,
                     .top_p = options.top_p,
                     .seed = options.seed,
                     .request = static_cast<std::uint64_t>(row.request),
                     .position = static_cast<std::uint64_t>(row.position),
                     .top_k = options.top_k < vocabulary ? options.top_k : 0,
                     .penalty = static_cast<float>(options.repetition_penalty),
                     .penalised_begin = static_cast<std::int32_t>(std::ssize(sampled_block_)),
                     .penalised_end = 0};
    if (options.penalises()) {
      distinct_tokens_.of(row, static_cast<std::size_t>(vocabulary),
                          [this](TokenId token) { sampled_block_.push_back(token); });
    }
    choice.penalised_end = static_cast<std::int32_t>(std::ssize(sampled_block_));
    std::memcpy(sampled_block_.data() + i * kChoiceNumbers, &choice, sizeof choice);
    cuts = cuts || (options.draws() && (choice.top_k > 0 || choice.top_p < 1));
  }
  const std::int32_t* const block =
      sampled_rows_.upload(std::span<const std::int32_t>(sampled_block_));
  queue_.launch(m, kChoiceLanes,
                ChooseTokens{.logits = floats(logits),
                             .vocabulary = vocabulary,
                             .choices = reinterpret_cast<const RowChoice*>(block),
                             .penalised = block,
                             .candidates = cuts ? candidates_.at_least<std::int32_t>(m * vocabulary)
                                                : nullptr,
                             .tokens = indices(tokens)},
                "choose_tokens");
}

}  // namespace jforge
