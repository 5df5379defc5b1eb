// Products of some rows with one panel of packed bfloat16 weights: 32 output columns at once.
//
// gemm.cpp goes over the panels of bfloat16 weights, int8.cpp over panels that it widens first. The
// layout is in gemm.cpp.

#pragma once

#include "vector.h"

namespace {

constexpr long kPanel = 32;            // output rows side by side
constexpr int kMaxRows = 12;           // of x at once: 24 accumulators, 4 weights, the rest scratch
constexpr long kChunkBytes = 3 << 17;  // of packed x: half of a 1 MiB L2 cache, the panel beside it

}  // namespace

#ifdef QWEN_X86

namespace {

struct Output {
  uint16_t* y;           // at the first of the panel's columns
  long stride;           // of y, in elements
  const uint16_t* bias;  // of the panel, or null
  const float* scale;    // of the panel, or null: what each column's sum is multiplied by
  const char* ahead = nullptr;  // what is needed next, or null: fetched on the way,
  long ahead_step = 0;          // so many bytes of it with each pair of k
};

// The panel after this one comes from memory while this one's blocks of rows are computed, an equal
// part during each. Otherwise the first block waits for memory and the others for arithmetic: on
// two Zen 5 cores 16 rows took the sum of both times.
// pair_bytes: what a pair of k takes of a panel.
inline void fetch_ahead(Output& out, const void* next, long in, long pair_bytes, long block,
                        long num_blocks) {
  const long bytes = in / 2 * pair_bytes;
  out.ahead = static_cast<const char*>(next) + bytes * block / num_blocks;
  out.ahead_step = (pair_bytes + num_blocks - 1) / num_blocks;
}

// Scale and bias, where there are any.
FMA_TARGET inline void finish_row(const Output& out, __m512& low, __m512& high) {
  if (out.scale != nullptr) {
    low = _mm512_mul_ps(low, _mm512_loadu_ps(out.scale));
    high = _mm512_mul_ps(high, _mm512_loadu_ps(out.scale + 16));
  }
  if (out.bias != nullptr) {
    low = _mm512_add_ps(low, load16(out.bias));
    high = _mm512_add_ps(high, load16(out.bias + 16));
  }
}

FMA_TARGET inline void store_row(const Output& out, long row, __m512 low, __m512 high) {
  finish_row(out, low, high);
  store16(out.y + row * out.stride, low);
  store16(out.y + row * out.stride + 16, high);
}

DOT_TARGET inline void store_dot_row(const Output& out, long row, __m512 low, __m512 high) {
  finish_row(out, low, high);
  _mm512_storeu_si512(out.y + row * out.stride,
                      reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low)));
}

inline void prefetch_weights(const uint16_t* w, const char* ahead) {
  _mm_prefetch(reinterpret_cast<const char*>(w) + 2048, _MM_HINT_T0);
  _mm_prefetch(reinterpret_cast<const char*>(w) + 2112, _MM_HINT_T0);
  _mm_prefetch(ahead, _MM_HINT_T1);
  _mm_prefetch(ahead + 64, _MM_HINT_T1);
}

// x: [in][kRows] float32; w: one panel. Two accumulators a row.
template <int kRows>
FMA_TARGET void fma_panel(const float* x, const uint16_t* w, long in, const Output& out) {
  __m512 sums[kRows][2];
  for (int row = 0; row < kRows; ++row) sums[row][0] = sums[row][1] = _mm512_setzero_ps();
  const __m512i mask = _mm512_set1_epi32(static_cast<int>(0xffff0000));
  const char* ahead = out.ahead;
  for (long k = 0; k < in; k += 2, w += 2 * kPanel, x += 2 * kRows, ahead += out.ahead_step) {
    prefetch_weights(w, ahead);
    __m512i low = _mm512_loadu_si512(w), high = _mm512_loadu_si512(w + kPanel);
    __m512 even_low = _mm512_castsi512_ps(_mm512_slli_epi32(low, 16));
    __m512 even_high = _mm512_castsi512_ps(_mm512_slli_epi32(high, 16));
    for (int row = 0; row < kRows; ++row) {
      __m512 value = _mm512_set1_ps(x[row]);
      sums[row][0] = _mm512_fmadd_ps(value, even_low, sums[row][0]);
      sums[row][1] = _mm512_fmadd_ps(value, even_high, sums[row][1]);
    }
    __m512 odd_low = _mm512_castsi512_ps(_mm512_and_si512(low, mask));
    __m512 odd_high = _mm512_castsi512_ps(_mm512_and_si512(high, mask));
    for (int row = 0; row < kRows; ++row) {
      __m512 value = _mm512_set1_ps(x[kRows + row]);
      sums[row][0] = _mm512_fmadd_ps(value, odd_low, sums[row][0]);
      sums[row][1] = _mm512_fmadd_ps(value, odd_high, sums[row][1]);
    }
  }
  for (int row = 0; row < kRows; ++row) store_row(out, row, sums[row][0], sums[row][1]);
}

// x: [in / 2][kRows] pairs of bfloat16.
template <int kRows>
DOT_TARGET void dot_panel(const float* pairs, const uint16_t* w, long in, const Output& out) {
  const int32_t* x = reinterpret_cast<const int32_t*>(pairs);
  __m512 sums[kRows][2];
  for (int row = 0; row < kRows; ++row) sums[row][0] = sums[row][1] = _mm512_setzero_ps();
  const char* ahead = out.ahead;
  for (long k = 0; k < in; k += 2, w += 2 * kPanel, x += kRows, ahead += out.ahead_step) {
    prefetch_weights(w, ahead);
    __m512bh low = reinterpret_cast<__m512bh>(_mm512_loadu_si512(w));
    __m512bh high = reinterpret_cast<__m512bh>(_mm512_loadu_si512(w + kPanel));
    for (int row = 0; row < kRows; ++row) {
      __m512bh value = reinterpret_cast<__m512bh>(_mm512_set1_epi32(x[row]));
      sums[row][0] = _mm512_dpbf16_ps(sums[row][0], value, low);
      sums[row][1] = _mm512_dpbf16_ps(sums[row][1], value, high);
    }
  }
  for (int row = 0; row < kRows; ++row) store_dot_row(out, row, sums[row][0], sums[row][1]);
}

using Kernel = void (*)(const float*, const uint16_t*, long, const Output&);

constexpr Kernel kFmas[] = {nullptr,       fma_panel<1>,  fma_panel<2>,  fma_panel<3>, fma_panel<4>,
                           fma_panel<5>,  fma_panel<6>,  fma_panel<7>,  fma_panel<8>, fma_panel<9>,
                           fma_panel<10>, fma_panel<11>, fma_panel<12>};
constexpr Kernel kDots[] = {nullptr,       dot_panel<1>,  dot_panel<2>,  dot_panel<3>, dot_panel<4>,
                           dot_panel<5>,  dot_panel<6>,  dot_panel<7>,  dot_panel<8>, dot_panel<9>,
                           dot_panel<10>, dot_panel<11>, dot_panel<12>};

}  // namespace

#endif  // QWEN_X86
