// The small matrix product of a prompt's attention, for scores and for sums.

#pragma once

#include <algorithm>

#include "vector.h"

#ifdef QWEN_X86

namespace {

constexpr int kChunkTile = 128;  // tokens: keys, or values, and a panel's scores fit the L1 cache
constexpr int kLanes = 32;       // query rows of a panel
constexpr int kPanels = 8;       // that share a converted tile
constexpr int kMaxRows = 12;     // of the matrix kernel, as in gemm.cpp

// y[row] = (y[row] · scale) + Σ_k x[row · row_step + k · step] · w[k], 32 lanes each; with kDot
// x and w hold pairs of bfloat16.
template <bool kDot, int kRows>
DOT_TARGET void multiply(const float* x, long row_step, long step, const float* w, long count,
                         const float* scale, float* y) {
  __m512 sums[kRows][2];
  for (int row = 0; row < kRows; ++row) sums[row][0] = sums[row][1] = _mm512_setzero_ps();
  for (long k = 0; k < count; ++k, w += kLanes, x += step) {
    __m512 low = _mm512_loadu_ps(w), high = _mm512_loadu_ps(w + 16);
    for (int row = 0; row < kRows; ++row) {
      __m512 value = _mm512_set1_ps(x[row * row_step]);
      if constexpr (kDot) {
        __m512bh pairs = reinterpret_cast<__m512bh>(value);
        sums[row][0] = _mm512_dpbf16_ps(sums[row][0], pairs, reinterpret_cast<__m512bh>(low));
        sums[row][1] = _mm512_dpbf16_ps(sums[row][1], pairs, reinterpret_cast<__m512bh>(high));
      } else {
        sums[row][0] = _mm512_fmadd_ps(value, low, sums[row][0]);
        sums[row][1] = _mm512_fmadd_ps(value, high, sums[row][1]);
      }
    }
  }
  for (int row = 0; row < kRows; ++row, y += kLanes) {
    for (int half = 0; half < 2; ++half) {
      __m512 value = sums[row][half];
      if (scale != nullptr) {
        __m512 before = _mm512_loadu_ps(y + 16 * half);
        value = _mm512_fmadd_ps(before, _mm512_loadu_ps(scale + 16 * half), value);
      }
      _mm512_storeu_ps(y + 16 * half, value);
    }
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
  for (long row = 0; row < rows; row += kMaxRows) {
    const long some = std::min<long>(kMaxRows, rows - row);
    kMultiply<kDot>[some](x + row * row_step, row_step, step, w, count, scale, y + row * kLanes);
  }
}

}  // namespace

#endif  // QWEN_X86
