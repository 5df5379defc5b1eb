// The small matrix product of a prompt's attention, for scores and for sums.

#pragma once

#include <algorithm>

#include "vector.h"

#ifdef QWEN_X86

namespace {

constexpr int kChunkTile = 128;  // tokens: keys, or values, and a panel's scores fit the L1 cache
constexpr int kLanes = 32;       // query rows of a panel
constexpr int kPanels = 8;       // that share a converted tile

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

}  // namespace

#endif  // QWEN_X86
