// Products of some rows with one panel of packed bfloat16 weights: 32 output columns at once.
//
// gemm.cpp goes over the panels of bfloat16 weights, int8.cpp over panels that it widens first. The
// layout is in gemm.cpp.

#pragma once

#include "vector.h"

namespace {

constexpr long kPanel = 32;  // output rows side by side

}  // namespace

#ifdef QWEN_X86

namespace {

struct Output {
  uint16_t* y;           // at the first of the panel's columns
  long stride;           // of y, in elements
  const uint16_t* bias;  // of the panel, or null
  const float* scale;    // of the panel, or null: what each column's sum is multiplied by
  const char* ahead = nullptr;  // what is needed later, or null: fetched on the way,
  long ahead_step = 0;          // so many bytes of it with each pair of k
  // Where the second 16 columns lie behind the first, in w and in the bias. Gated: the first are
  // gate's, the second up's, and y has 16 columns.
  long far = kPanel, far_column = 16;
  bool is_gated = false;
};

// What comes from memory while a block of rows is computed. pair_bytes: what a pair of k takes of a
// panel.
//
// Several blocks: the panel after this one, an equal part during each. Otherwise the first block
// waits for memory and the others for arithmetic: on two Zen 5 cores 16 rows took the sum of both.
//
// A single block of a kernel that reads the panel once (`is_once`): what lies a fixed way ahead, on
// into the panel behind, which mostly is the next. Those cores read 13 % more a second than with
// the whole next panel fetched beside: 68 GiB of the 70 that a sum reads.
inline void fetch_ahead(Output& out, const void* panel, const void* next, long in, long pair_bytes,
                        long block, long num_blocks, bool is_once) {
  constexpr long kDistance = 4096;
  if (num_blocks == 1 && is_once) {
    out.ahead = static_cast<const char*>(panel) + kDistance;
  } else {
    out.ahead = static_cast<const char*>(next) + in / 2 * pair_bytes * block / num_blocks;
  }
  out.ahead_step = (pair_bytes + num_blocks - 1) / num_blocks;
}

// Scale and bias of 16 columns, where there are any.
LANES Floats finish(const Output& out, long column, Floats sums) {
  if (out.scale != nullptr) sums = mul(sums, load_floats(out.scale + column));
  if (out.bias != nullptr) sums = add(sums, load16(out.bias + column));
  return sums;
}

LANES void store_columns(const Output& out, long row, long column, Floats sums) {
  store16(out.y + row * out.stride + column, finish(out, column, sums));
}

DOT_TARGET inline void store_dot_row(const Output& out, long row, Floats low, Floats high) {
  uint16_t* target = out.y + row * out.stride;
  const Words both = to_pairs(finish(out, 0, low), finish(out, out.far_column, high));
  if (!out.is_gated) return store_words(target, both);
  const Floats gate = to_wide(first_shorts(both)), up = to_wide(last_shorts(both));
  store_rounded<true>(target, mul(silu(gate), up));
}

inline void prefetch_pair(const char* ahead) {
  _mm_prefetch(ahead, _MM_HINT_T0);
  _mm_prefetch(ahead + 64, _MM_HINT_T0);
}

// x: [in][kRows] float32; w: one panel, of which `kParts` times 16 columns from `column` on.
template <int kRows, int kParts>
FMA_TARGET inline void fma_columns(const float* x, const uint16_t* w, long in, const Output& out,
                                   long column) {
  Floats sums[kRows][kParts];
  for (auto& row : sums) {
    for (Floats& sum : row) sum = zeros();
  }
  const char* ahead = out.ahead;
  for (long k = 0; k < in; k += 2, w += 2 * kPanel, x += 2 * kRows, ahead += out.ahead_step) {
    prefetch_pair(reinterpret_cast<const char*>(w) + 2048);  // parts go over the panel again
    _mm_prefetch(ahead, _MM_HINT_T1);
    _mm_prefetch(ahead + 64, _MM_HINT_T1);
    Floats weights[kParts];
    for (int part = 0; part < kParts; ++part) {
      weights[part] = floats_of(shift_left(load_words(w + 2 * (column + 16 * part)), 16));
    }
    for (int row = 0; row < kRows; ++row) {
      const Floats value = splat(x[row]);
      for (int part = 0; part < kParts; ++part) {
        sums[row][part] = fmadd(value, weights[part], sums[row][part]);
      }
    }
    // Read a second time, from the L1 cache: to keep the pairs would take registers that the sums
    // need. The compiler must not see that it is the same address, or it keeps them all the same.
    const uint16_t* again = w;
    asm("" : "+r"(again));
    for (int part = 0; part < kParts; ++part) {
      weights[part] = floats_of(upper_halves(load_words(again + 2 * (column + 16 * part))));
    }
    for (int row = 0; row < kRows; ++row) {
      const Floats value = splat(x[kRows + row]);
      for (int part = 0; part < kParts; ++part) {
        sums[row][part] = fmadd(value, weights[part], sums[row][part]);
      }
    }
  }
  for (int row = 0; row < kRows; ++row) {
    for (int part = 0; part < kParts; ++part) {
      store_columns(out, row, column + 16 * part, sums[row][part]);
    }
  }
}

template <int kRows>
FMA_TARGET void fma_panel(const float* x, const uint16_t* w, long in, const Output& out) {
  constexpr int kParts = parts_at_once(kRows, kPanel / 16);
  for (long column = 0; column < kPanel; column += 16 * kParts) {
    fma_columns<kRows, kParts>(x, w, in, out, column);
  }
}

// x: [in / 2][kRows] pairs of bfloat16.
template <int kRows>
DOT_TARGET void dot_panel(const float* pairs, const uint16_t* w, long in, const Output& out) {
  const int32_t* x = reinterpret_cast<const int32_t*>(pairs);
  Floats sums[kRows][2];
  for (int row = 0; row < kRows; ++row) sums[row][0] = sums[row][1] = zeros();
  const char* ahead = out.ahead;
  for (long k = 0; k < in; k += 2, w += 2 * kPanel, x += kRows, ahead += out.ahead_step) {
    prefetch_pair(ahead);
    const Words low = load_words(w), high = load_words(w + out.far);
    for (int row = 0; row < kRows; ++row) {
      const Words value = splat_word(x[row]);
      sums[row][0] = dot(sums[row][0], value, low);
      sums[row][1] = dot(sums[row][1], value, high);
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
