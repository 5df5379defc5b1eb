// What attention of many rows is made of, a prompt's and a picture's: the small matrix product, for
// scores and for sums, and softmax down the lanes. attention_tiles.h has the product by AMX.

#pragma once

#include <algorithm>
#include <cmath>

#include "vector.h"

#ifdef QWEN_X86

namespace {

constexpr int kLanes = 32;  // query rows of a panel

// y[row] = (y[row] · scale) + Σ_k x[row · row_step + k · step] · w[k], 16 · kParts lanes of 32; with
// kDot x and w hold pairs of bfloat16.
template <bool kDot, int kRows, int kParts>
DOT_TARGET inline void multiply_lanes(const float* x, long row_step, long step, const float* w,
                                      long count, const float* scale, float* y) {
  Floats sums[kRows][kParts];
  for (auto& row : sums) {
    for (Floats& sum : row) sum = zeros();
  }
  for (long k = 0; k < count; ++k, w += kLanes, x += step) {
    Floats lanes[kParts];
    for (int part = 0; part < kParts; ++part) lanes[part] = load_floats(w + 16 * part);
    for (int row = 0; row < kRows; ++row) {
      const Floats value = splat(x[row * row_step]);
      for (int part = 0; part < kParts; ++part) {
        Floats& sum = sums[row][part];
        if constexpr (kDot) {
          sum = dot(sum, bits_of(value), bits_of(lanes[part]));
        } else {
          sum = fmadd(value, lanes[part], sum);
        }
      }
    }
  }
  for (int row = 0; row < kRows; ++row, y += kLanes) {
    for (int part = 0; part < kParts; ++part) {
      Floats value = sums[row][part];
      if (scale != nullptr) {
        const Floats before = load_floats(y + 16 * part);
        value = fmadd(before, load_floats(scale + 16 * part), value);
      }
      store_floats(y + 16 * part, value);
    }
  }
}

template <bool kDot, int kRows>
DOT_TARGET void multiply(const float* x, long row_step, long step, const float* w, long count,
                         const float* scale, float* y) {
  constexpr int kParts = parts_at_once(kRows, kLanes / 16);
  for (int lane = 0; lane < kLanes; lane += 16 * kParts) {
    multiply_lanes<kDot, kRows, kParts>(x, row_step, step, w + lane, count,
                                        scale == nullptr ? nullptr : scale + lane, y + lane);
  }
}

using Multiply = void (*)(const float*, long, long, const float*, long, const float*, float*);
template <bool kDot>
constexpr Multiply kMultiply[] = {
    nullptr,           multiply<kDot, 1>, multiply<kDot, 2>,  multiply<kDot, 3>,
    multiply<kDot, 4>, multiply<kDot, 5>, multiply<kDot, 6>,  multiply<kDot, 7>,
    multiply<kDot, 8>, multiply<kDot, 9>, multiply<kDot, 10>, multiply<kDot, 11>,
    multiply<kDot, 12>};

template <bool kDot>
void multiply_rows(const float* x, long row_step, long step, const float* w, long count,
                   const float* scale, float* y, long rows) {
  for (long row = 0; row < rows; row += kRowsAtOnce) {
    const long some = std::min<long>(kRowsAtOnce, rows - row);
    kMultiply<kDot>[some](x + row * row_step, row_step, step, w, count, scale, y + row * kLanes);
  }
}

constexpr float kLogE = 1.44269504088896341f;

// 2^x for x ≤ 0 by Taylor's terms of 2^r, |r| ≤ 1/2: to 2e-7 of it, or where the result is rounded
// to bfloat16 anyway to 4e-5.
template <bool kRough>
FMA_TARGET inline Floats exp2_16(Floats x) {
  x = max_of(x, splat(-126.0f));
  Floats n = round_even(x);
  Floats r = sub(x, n);
  Floats p = splat(9.6181291076e-3f);
  if constexpr (!kRough) {
    p = splat(1.5403530393e-4f);
    p = fmadd(p, r, splat(1.3333558146e-3f));
    p = fmadd(p, r, splat(9.6181291076e-3f));
  }
  p = fmadd(p, r, splat(5.5504108665e-2f));
  p = fmadd(p, r, splat(2.4022650696e-1f));
  p = fmadd(p, r, splat(6.9314718056e-1f));
  p = fmadd(p, r, splat(1.0f));
  return times_power(p, n);
}

// Scores [count][32] become shares, with kDot pairs of them: 2^x of what they are above the largest.
// An odd count is filled up. most, total: of each row so far, `most` as the scores are, which are
// multiplied by `scale`; `shrink` says by what earlier sums shrink.
// factors: with kIsScaled, what each token's share is multiplied by once it is counted.
template <bool kDot, bool kIsScaled>
FMA_TARGET void to_shares(float* scores, long count, float scale, float* most, float* total,
                          float* shrink, const float* factors = nullptr) {
  const Floats factor = splat(scale * kLogE);
  for (int half = 0; half < kLanes; half += 16) {
    float* x = scores + half;
    if (count % 2 == 1) store_floats(x + count * kLanes, splat(-INFINITY));
    Floats before = load_floats(most + half), now = before;
    for (long key = 0; key < count; ++key) now = max_of(now, load_floats(x + key * kLanes));
    const Floats offset = mul(now, factor);
    Floats added = zeros();
    for (long key = 0; key < count; key += 2) {
      Floats even = load_floats(x + key * kLanes), odd = load_floats(x + (key + 1) * kLanes);
      even = exp2_16<kDot>(fmsub(even, factor, offset));
      odd = exp2_16<kDot>(fmsub(odd, factor, offset));
      added = add(added, add(even, odd));
      if constexpr (kIsScaled) {
        even = mul(even, splat(factors[key]));
        odd = mul(odd, splat(factors[std::min(key + 1, count - 1)]));
      }
      if constexpr (kDot) {  // over scores already read
        const Words half_up = splat_word(0x8000);
        Words low = add_words(bits_of(even), half_up);
        Words high = add_words(bits_of(odd), half_up);
        low = or_words(shift_right(low, 16), upper_halves(high));
        store_words(x + key / 2 * kLanes, low);
      } else {
        store_floats(x + key * kLanes, even);
        store_floats(x + (key + 1) * kLanes, odd);
      }
    }
    const Floats less = exp2_16<kDot>(fmsub(before, factor, offset));
    store_floats(total + half, fmadd(load_floats(total + half), less, added));
    store_floats(most + half, now);
    store_floats(shrink + half, less);
  }
}

}  // namespace

#endif  // QWEN_X86
