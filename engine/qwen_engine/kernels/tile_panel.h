// A block of rows with a panel of bfloat16 weights, by whichever kernel: AMX's is here.

#pragma once

#include <algorithm>

#include "panels.h"
#include "products.h"

#ifdef QWEN_X86

namespace {

#ifdef QWEN_TILES

// Of k, at a time, where there are more than two tiles of rows: so for the second half of them the
// panel's part comes from the first cache. An Intel Xeon took 384 rows of 1,024 at 2.6 TFLOP/s a
// core, not at 2.0.
constexpr long kTileDepth = 256;

// What a block of rows is multiplied by.
struct TilePanel {
  const uint16_t *values, *rest;  // rest: k beyond whole tiles, filled up: behind lies another panel
  long in, whole;                 // whole: k that fill tiles
  long ahead_step;                // as Output has it, for each half of the rows
};

// Add k from begin to end to sums [16 or 32][32]; x: [rows][tile_row_values(in)].
template <bool kTwo>
TILE_TARGET inline void tile_part(const TilePanel& panel, const uint16_t* x, long begin, long end,
                                  const char* ahead, float* sums) {
  const long row_bytes = 2 * qwen::tile_row_values(panel.in);
  begin == 0 ? qwen::zero_tiles<kTwo>() : qwen::load_tiles<kTwo>(sums);
  for (long k = begin; k < std::min(end, panel.whole); k += 32) {
    qwen::multiply_tiles<kTwo>(x + k, row_bytes, panel.values + k * kPanel);
    for (const char* stop = ahead + 16 * panel.ahead_step; ahead < stop; ahead += 64) {
      _mm_prefetch(ahead, _MM_HINT_T1);
    }
  }
  if (end > panel.whole) qwen::multiply_tiles<kTwo>(x + panel.whole, row_bytes, panel.rest);
  qwen::store_tiles<kTwo>(sums);
}

TILE_TARGET inline void multiply_by_tiles(const float* packed, int rows, const uint16_t* w, long in,
                                          const Output& out) {
  constexpr long kHalf = qwen::kTileBlock / 2;
  alignas(64) float sums[qwen::kTileBlock * kPanel];
  alignas(64) uint16_t rest[32 * kPanel] = {};
  const long whole = in / 32 * 32, depth = rows <= kHalf ? in : kTileDepth;
  std::memcpy(rest, w + whole * kPanel, 2 * (in - whole) * kPanel);
  const long step = rows <= kHalf ? out.ahead_step : (out.ahead_step + 1) / 2;
  const TilePanel panel{w, rest, in, whole, step};
  const uint16_t *x = reinterpret_cast<const uint16_t*>(packed),
                 *second = x + kHalf * qwen::tile_row_values(in);
  qwen::Tiles::settle();
  const char* ahead = out.ahead;
  for (long k = 0; k < in; k += depth) {
    const long end = std::min(in, k + depth);
    const auto first_part = rows <= 16 ? tile_part<false> : tile_part<true>;
    first_part(panel, x, k, end, ahead, sums);
    ahead += (end - k) / 2 * step;
    if (rows <= kHalf) continue;
    const auto second_part = rows <= kHalf + 16 ? tile_part<false> : tile_part<true>;
    second_part(panel, second, k, end, ahead, sums + kHalf * kPanel);
    ahead += (end - k) / 2 * step;
  }
  qwen::Tiles::settle();
  for (int row = 0; row < rows; ++row) {
    const float* values = sums + row * kPanel;
    store_dot_row(out, row, load_floats(values), load_floats(values + 16));
  }
}

#else

inline void multiply_by_tiles(const float*, int, const uint16_t*, long, const Output&) {}

#endif

// x: the block, as it was packed for the way; panel: bfloat16.
inline void multiply_block(const qwen::PanelWork& work, int rows, const float* x,
                           const uint16_t* panel, const Output& out) {
  if (is_tile(work.way)) {
    multiply_by_tiles(x, rows, panel, work.weight->in, out);
  } else {
    (is_dot(work.way) ? kDots : kFmas)[rows](x, panel, work.weight->in, out);
  }
}

}  // namespace

#endif  // QWEN_X86
