// A block of rows with a panel of bfloat16 weights, by whichever kernel: AMX's is here.

#pragma once

#include "panels.h"
#include "products.h"

#ifdef QWEN_X86

namespace {

#ifdef QWEN_TILES

// x: [rows][tile_row_values(in)].
template <bool kTwo>
TILE_TARGET void tile_panel(const uint16_t* x, int rows, const uint16_t* w, long in,
                            const Output& out) {
  const long row_bytes = 2 * qwen::tile_row_values(in);
  const char* ahead = out.ahead;
  qwen::zero_tiles<kTwo>();
  long k = 0;
  for (; k + 32 <= in; k += 32, x += 32, w += 32 * kPanel) {
    qwen::multiply_tiles<kTwo>(x, row_bytes, w);
    for (const char* end = ahead + 16 * out.ahead_step; ahead < end; ahead += 64) {
      _mm_prefetch(ahead, _MM_HINT_T1);
    }
  }
  if (k < in) {  // the rest, filled up: behind it lies another panel
    alignas(64) uint16_t rest[32 * kPanel] = {};
    std::memcpy(rest, w, 2 * (in - k) * kPanel);
    qwen::Tiles::settle();
    qwen::multiply_tiles<kTwo>(x, row_bytes, rest);
  }
  alignas(64) float sums[qwen::kTileRows * kPanel];
  qwen::store_tiles<kTwo>(sums);
  qwen::Tiles::settle();
  for (int row = 0; row < rows; ++row) {
    const float* values = sums + row * kPanel;
    store_dot_row(out, row, load_floats(values), load_floats(values + 16));
  }
}

inline void multiply_by_tiles(const qwen::PanelWork& work, int rows, const float* x,
                              const uint16_t* panel, const Output& out) {
  const uint16_t* values = reinterpret_cast<const uint16_t*>(x);
  work.tiles->shape(rows);
  if (rows > 16) {
    tile_panel<true>(values, rows, panel, work.weight->in, out);
  } else {
    tile_panel<false>(values, rows, panel, work.weight->in, out);
  }
}

#else

inline void multiply_by_tiles(const qwen::PanelWork&, int, const float*, const uint16_t*,
                              const Output&) {}

#endif

// x: the block, as it was packed for the way; panel: bfloat16.
inline void multiply_block(const qwen::PanelWork& work, int rows, const float* x,
                           const uint16_t* panel, const Output& out) {
  if (is_tile(work.way)) {
    multiply_by_tiles(work, rows, x, panel, out);
  } else {
    (is_dot(work.way) ? kDots : kFmas)[rows](x, panel, work.weight->in, out);
  }
}

}  // namespace

#endif  // QWEN_X86
