#pragma once

/// Where kernels say which tokens are chosen and how, and what chooses them.

#include <cstdint>
#include <vector>

#include "model/kernels/cuda/device_queue.h"
#include "model/kernels/token_sampler.h"
#include "runtime/tensor/tensor_view.h"

namespace jforge {

/// A SampledRow on the device. What its penalty falls on lies in two arrays of tokens, where they
/// may occur again. All zero: the largest logit.
struct RowChoice {
  double temperature;  ///< 0: the largest logit.
  double top_p;
  std::uint64_t seed;
  std::uint64_t request;
  std::uint64_t position;
  std::int32_t top_k;
  float penalty;
  std::int32_t text_begin;
  std::int32_t text_size;
  std::int32_t alternative_begin;
  std::int32_t alternative_size;
};
static_assert(sizeof(RowChoice) % sizeof(std::uint64_t) == 0);
inline constexpr std::int64_t kChoiceNumbers = sizeof(RowChoice) / sizeof(std::int32_t);

/// But for the text.
[[nodiscard]] RowChoice row_choice(const SamplingOptions& options, std::uint64_t request,
                                   std::int64_t position);

/// How the tokens of some rows are chosen, in memory of the device.
struct TokenChoices {
  const RowChoice* rows = nullptr;
  const std::int32_t* text = nullptr;          ///< That RowChoice::text_begin counts in,
  const std::int32_t* alternatives = nullptr;  ///< and alternative_begin.
  bool cuts = false;                           ///< Whether any row has a top-k or top-p,
  bool penalises = false;                      ///< or a penalty.

  /// A row is to be chosen by these options, too.
  void note(const SamplingOptions& options) noexcept {
    cuts = cuts || (options.draws() && (options.top_k > 0 || options.top_p < 1));
    penalises = penalises || options.penalises();
  }
};

/// Chooses tokens as KernelSet::sample_tokens() says. Keeps the memory that choosing needs: it
/// grows to the largest call and is reused.
class TokenChooser {
 public:
  TokenChooser(DeviceQueue& queue, MemoryAccount& account)
      : queue_(queue), candidates_(account), seen_(account) {}

  /// tokens[i], int32 [m], of logits row i, float32 [m, V], which are overwritten; m rows of
  /// `choices`. Throws InternalError for other shapes.
  void choose(const TensorView& logits, const TokenChoices& choices, const TensorView& tokens);
  void release_memory() {
    candidates_.release();
    seen_.release();
  }
  /// Appends where its memory is, which launches name.
  void append_memory(std::vector<const void*>& places) const {
    places.insert(places.end(), {candidates_.data(), seen_.data()});
  }

 private:
  DeviceQueue& queue_;
  DeviceScratch candidates_;
  DeviceScratch seen_;
};

}  // namespace jforge
