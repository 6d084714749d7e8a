#pragma once

/// Row-wise, softmax, loss and optimizer loops (linkage: see vector_product_internal.h).

#include "model/kernels/cpu/vector_int8_internal.h"
#include "model/kernels/cpu/vector_kernels_internal.h"
#include "model/kernels/cpu/vector_pairs_internal.h"
#include "model/kernels/cpu/vector_product_internal.h"

namespace {

using jforge::AdamWStep;
using jforge::kKeyTile;
using jforge::SoftmaxState;

// No standard library here: its inline functions would be shared with baseline code.
constexpr float kMinusInfinity = -__builtin_inff();

/// Adds the lanes as a tree: halves, quarters, pairs.
inline float reduce_add(Vec a) {
  const __m256 eight = _mm256_add_ps(low_half(a), high_half(a));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

inline float reduce_maximum(Vec a) {
  const __m256 eight = _mm256_max_ps(low_half(a), high_half(a));
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

inline float first_lane(Vec a) { return _mm_cvtss_f32(_mm256_castps256_ps128(low_half(a))); }

/// e^x within 2 ulps: Cody–Waite reduction by ln 2, then Cephes' polynomial for expf. Subnormal
/// results are 0, arguments above 88 saturate, NaN stays NaN.
inline Vec exponential(Vec x) {
  const Vec lowest = broadcast(-87.33654F);
  const Vec clamped = minimum(broadcast(88.02F), maximum(lowest, x));
  const Vec n = round_to_integer(clamped * broadcast(1.44269504F));
  const Vec r = fma(n, broadcast(2.12194440e-4F), fma(n, broadcast(-0.693359375F), clamped));
  Vec y = broadcast(1.9875691500e-4F);
  y = fma(y, r, broadcast(1.3981999507e-3F));
  y = fma(y, r, broadcast(8.3334519073e-3F));
  y = fma(y, r, broadcast(4.1665795894e-2F));
  y = fma(y, r, broadcast(1.6666665459e-1F));
  y = fma(y, r, broadcast(5.0000001201e-1F));
  y = fma(y, r * r, r) + broadcast(1.0F);
  return zero_below(x, lowest, y * power_of_two(n));
}

template <class Body>
inline void for_vectors(std::int64_t count, Body body) {
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    body(i, kLanes);
  }
  if (i < count) {
    body(i, count - i);
  }
}

inline Vec load_lanes(const float* p, std::int64_t lanes) {
  return lanes == kLanes ? load(p) : load_first(p, lanes, zero());
}
inline void store_lanes(float* p, Vec a, std::int64_t lanes) {
  if (lanes == kLanes) {
    store(p, a);
  } else {
    store_first(p, a, lanes);
  }
}

float softmax_step(float* scores, std::int64_t visible, SoftmaxState& state) {
  // Hidden scores in the last vector become probabilities of 0.
  std::int64_t end = visible;
  for (; end % kLanes != 0; ++end) {
    scores[end] = kMinusInfinity;
  }
  Vec highest = load(scores);
  for (std::int64_t t = kLanes; t < end; t += kLanes) {
    highest = maximum(highest, load(scores + t));
  }
  const float tile_maximum = reduce_maximum(highest);
  const float now = tile_maximum > state.maximum ? tile_maximum : state.maximum;
  const float factor = first_lane(exponential(broadcast(state.maximum) - broadcast(now)));
  Vec sums = load(state.sums) * broadcast(factor);
  for (std::int64_t t = 0; t < end; t += kLanes) {
    const Vec p = exponential(load(scores + t) - broadcast(now));
    store(scores + t, p);
    sums = sums + p;
  }
  for (std::int64_t t = end; t < kKeyTile; t += kLanes) {
    store(scores + t, zero());
  }
  store(state.sums, sums);
  state.maximum = now;
  return factor;
}

float softmax_sum(const SoftmaxState& state) { return reduce_add(load(state.sums)); }

void softmax_backward(float* scores, float* dp, std::int64_t visible, float log_sum_exp,
                      float delta) {
  for (std::int64_t t = 0; t < kKeyTile; t += kLanes) {
    const std::int64_t left = visible - t;
    const std::int64_t lanes = left < 0 ? 0 : (left < kLanes ? left : kLanes);
    const Vec p =
        select_first(exponential(load(scores + t) - broadcast(log_sum_exp)), zero(), lanes);
    const Vec ds = select_first(p * (load(dp + t) - broadcast(delta)), zero(), lanes);
    store(scores + t, p);
    store(dp + t, ds);
  }
}

void scale(float* x, float factor, std::int64_t count) {
  for_vectors(count, [=](std::int64_t i, std::int64_t lanes) {
    store_lanes(x + i, load_lanes(x + i, lanes) * broadcast(factor), lanes);
  });
}

void divide(const float* x, float divisor, float* y, std::int64_t count) {
  for_vectors(count, [=](std::int64_t i, std::int64_t lanes) {
    store_lanes(y + i, load_lanes(x + i, lanes) / broadcast(divisor), lanes);
  });
}

void add(const float* x, float* y, std::int64_t count) {
  for_vectors(count, [=](std::int64_t i, std::int64_t lanes) {
    store_lanes(y + i, load_lanes(y + i, lanes) + load_lanes(x + i, lanes), lanes);
  });
}

/// The order of addition depends only on `count`.
template <class Term>
inline float ordered_sum(std::int64_t count, Term accumulate) {
  Vec sums[4] = {zero(), zero(), zero(), zero()};
  std::int64_t i = 0;
  for (; i + 4 * kLanes <= count; i += 4 * kLanes) {
    for (int j = 0; j < 4; ++j) {
      sums[j] = accumulate(i + j * kLanes, kLanes, sums[j]);
    }
  }
  for (int j = 0; i < count; ++j, i += kLanes) {
    sums[j] = accumulate(i, count - i < kLanes ? count - i : kLanes, sums[j]);
  }
  return reduce_add((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

float dot(const float* x, const float* y, std::int64_t count) {
  return ordered_sum(count, [=](std::int64_t i, std::int64_t lanes, Vec sum) {
    return fma(load_lanes(x + i, lanes), load_lanes(y + i, lanes), sum);
  });
}

void rms_apply(const float* x, const float* weight, float inverse_rms, float* y,
               std::int64_t count) {
  for_vectors(count, [=](std::int64_t i, std::int64_t lanes) {
    store_lanes(y + i,
                load_lanes(x + i, lanes) * broadcast(inverse_rms) * load_lanes(weight + i, lanes),
                lanes);
  });
}

float rms_projection(const float* dy, const float* weight, const float* x, std::int64_t count) {
  return ordered_sum(count, [=](std::int64_t i, std::int64_t lanes, Vec sum) {
    return fma(load_lanes(dy + i, lanes) * load_lanes(weight + i, lanes), load_lanes(x + i, lanes),
               sum);
  });
}

void rms_backward(const float* dy, const float* weight, const float* x, float inverse_rms,
                  float factor, float* dx, std::int64_t count) {
  for_vectors(count, [=](std::int64_t i, std::int64_t lanes) {
    const Vec direct =
        broadcast(inverse_rms) * (load_lanes(dy + i, lanes) * load_lanes(weight + i, lanes));
    const Vec change = fma(broadcast(-factor), load_lanes(x + i, lanes), direct);
    store_lanes(dx + i, load_lanes(dx + i, lanes) + change, lanes);
  });
}

inline void rotate_by(float* low, float* high, const float* cosines, const float* sines, float sign,
                      std::int64_t count) {
  for_vectors(count, [=](std::int64_t i, std::int64_t lanes) {
    const Vec a = load_lanes(low + i, lanes);
    const Vec b = load_lanes(high + i, lanes);
    const Vec c = load_lanes(cosines + i, lanes);
    const Vec s = load_lanes(sines + i, lanes) * broadcast(sign);
    store_lanes(low + i, a * c - b * s, lanes);
    store_lanes(high + i, b * c + a * s, lanes);
  });
}

void rotate(float* low, float* high, const float* cosines, const float* sines, std::int64_t count) {
  rotate_by(low, high, cosines, sines, 1.0F, count);
}

void rotate_back(float* low, float* high, const float* cosines, const float* sines,
                 std::int64_t count) {
  rotate_by(low, high, cosines, sines, -1.0F, count);
}

inline Vec sigmoid(Vec x) { return broadcast(1.0F) / (broadcast(1.0F) + exponential(zero() - x)); }

void swiglu(const float* gate, const float* up, float* y, std::int64_t count) {
  for_vectors(count, [=](std::int64_t i, std::int64_t lanes) {
    const Vec g = load_lanes(gate + i, lanes);
    store_lanes(y + i, g * sigmoid(g) * load_lanes(up + i, lanes), lanes);
  });
}

void swiglu_backward(const float* dy, const float* gate, const float* up, float* gate_gradient,
                     float* up_gradient, std::int64_t count) {
  for_vectors(count, [=](std::int64_t i, std::int64_t lanes) {
    const Vec g = load_lanes(gate + i, lanes);
    const Vec u = load_lanes(up + i, lanes);
    const Vec d = load_lanes(dy + i, lanes);
    const Vec s = sigmoid(g);
    const Vec slope = s * fma(g, broadcast(1.0F) - s, broadcast(1.0F));
    store_lanes(up_gradient + i, d * (g * s), lanes);
    store_lanes(gate_gradient + i, d * u * slope, lanes);
  });
}

float maximum_of(const float* x, std::int64_t count) {
  Vec highest = broadcast(kMinusInfinity);
  for_vectors(count, [&](std::int64_t i, std::int64_t lanes) {
    highest = maximum(highest, load_first(x + i, lanes, broadcast(kMinusInfinity)));
  });
  return reduce_maximum(highest);
}

std::int64_t first_maximum(const float* x, std::int64_t count, float* value) {
  // x − x is 0 for finite numbers and NaN otherwise, so one cheap test finds the special cases.
  Vec strange = zero();
  Vec highest = broadcast(kMinusInfinity);
  for_vectors(count, [&](std::int64_t i, std::int64_t lanes) {
    const Vec a = load_first(x + i, lanes, broadcast(kMinusInfinity));
    const Vec finite = load_lanes(x + i, lanes);
    highest = maximum(highest, a);
    strange = strange + (finite - finite);
  });
  *value = reduce_maximum(highest);
  if (reduce_add(strange) != 0.0F) {
    for (std::int64_t i = 0; i < count; ++i) {
      if (x[i] != x[i]) {
        return -1;
      }
    }
    *value = kMinusInfinity;
    for (std::int64_t i = 0; i < count; ++i) {
      *value = x[i] > *value ? x[i] : *value;
    }
  }
  std::int64_t index = 0;
  while (index + 1 < count && x[index] != *value) {
    ++index;
  }
  return index;
}

/// Sums blocks of 512 elements in float, the blocks in double.
template <class Term>
inline double blocked_sum(std::int64_t count, Term term) {
  constexpr std::int64_t kBlock = 512;
  double total = 0;
  for (std::int64_t begin = 0; begin < count; begin += kBlock) {
    const std::int64_t size = count - begin < kBlock ? count - begin : kBlock;
    Vec sums = zero();
    for_vectors(size,
                [&](std::int64_t i, std::int64_t lanes) { sums = sums + term(begin + i, lanes); });
    total += static_cast<double>(reduce_add(sums));
  }
  return total;
}

double exp_sum(const float* x, std::int64_t count, float shift) {
  return blocked_sum(count, [=](std::int64_t i, std::int64_t lanes) {
    return exponential(load_first(x + i, lanes, broadcast(kMinusInfinity)) - broadcast(shift));
  });
}

double divergence(float* student, const float* teacher, std::int64_t count, float student_log_sum,
                  float teacher_log_sum, float weight) {
  return blocked_sum(count, [=](std::int64_t i, std::int64_t lanes) {
    const Vec log_t = load_lanes(teacher + i, lanes) - broadcast(teacher_log_sum);
    const Vec log_s = load_lanes(student + i, lanes) - broadcast(student_log_sum);
    const Vec p_t = select_first(exponential(log_t), zero(), lanes);
    const Vec p_s = exponential(log_s);
    store_lanes(student + i, broadcast(weight) * (p_s - p_t), lanes);
    return p_t * (log_t - log_s);
  });
}

void softmax_scaled(float* x, std::int64_t count, float log_sum, float weight) {
  for_vectors(count, [=](std::int64_t i, std::int64_t lanes) {
    store_lanes(x + i,
                broadcast(weight) * exponential(load_lanes(x + i, lanes) - broadcast(log_sum)),
                lanes);
  });
}

double sum_of_squares(const float* x, std::int64_t count) {
  double sums[8] = {};
  std::int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    for (int j = 0; j < 8; ++j) {
      const double value = static_cast<double>(x[i + j]);
      sums[j] += value * value;
    }
  }
  for (int j = 0; i < count; ++i, ++j) {
    sums[j] += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  }
  return ((sums[0] + sums[4]) + (sums[2] + sums[6])) + ((sums[1] + sums[5]) + (sums[3] + sums[7]));
}

void adamw(const AdamWStep& step, const float* gradient, float* parameter, float* first_moment,
           float* second_moment, std::int64_t count) {
  for_vectors(count, [=, &step](std::int64_t i, std::int64_t lanes) {
    const Vec g = load_lanes(gradient + i, lanes) * broadcast(step.gradient_scale);
    const Vec m = fma(broadcast(1.0F - step.beta1), g,
                      broadcast(step.beta1) * load_lanes(first_moment + i, lanes));
    const Vec v = fma(broadcast(1.0F - step.beta2) * g, g,
                      broadcast(step.beta2) * load_lanes(second_moment + i, lanes));
    const Vec denominator =
        fma(sqrt(v), broadcast(step.inverse_sqrt_correction2), broadcast(step.epsilon));
    const Vec decayed = load_lanes(parameter + i, lanes) * broadcast(step.decay_factor);
    store_lanes(first_moment + i, m, lanes);
    store_lanes(second_moment + i, v, lanes);
    store_lanes(parameter + i, decayed - broadcast(step.step_size) * m / denominator, lanes);
  });
}

constexpr jforge::VectorKernels make_vector_kernels() {
  return {.tile_product = tile_product,
          .transpose_keys = transpose_keys,
          .pair_product = pair_product,
          .group_product = group_product,
          .pair_columns = pair_columns,
          .transpose = transpose_steps,
          .widen = widen_row,
          .round = round_row,
          .quantise = quantise<false>,
          .quantise_columns = quantise_columns,
          .int8_product = int8_product,
          .softmax_step = softmax_step,
          .softmax_sum = softmax_sum,
          .softmax_backward = softmax_backward,
          .scale = scale,
          .divide = divide,
          .add = add,
          .dot = dot,
          .rms_apply = rms_apply,
          .rms_projection = rms_projection,
          .rms_backward = rms_backward,
          .rotate = rotate,
          .rotate_back = rotate_back,
          .swiglu = swiglu,
          .swiglu_backward = swiglu_backward,
          .maximum = maximum_of,
          .first_maximum = first_maximum,
          .exp_sum = exp_sum,
          .divergence = divergence,
          .softmax_scaled = softmax_scaled,
          .sum_of_squares = sum_of_squares,
          .adamw = adamw};
}

}  // namespace
