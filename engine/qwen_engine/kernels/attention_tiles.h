// The small matrix product of attention by AMX: y [rows][32 lanes] of rows of pairs of bfloat16 and
// pairs in the lanes, as attention_product.h has it.
//
// Tiles are whole: 16 rows and 16 pairs. What is written beyond `rows` and read beyond `pairs` must
// be memory of the caller's, and pairs beyond must be 0 on one side and finite on the other.

#pragma once

#include "attention.h"
#include "attention_product.h"

#ifdef QWEN_X86

namespace {

using qwen::Way;

constexpr long kMostTokens = qwen::tile_tokens(qwen::kTile),
               kMostPanels = qwen::most_panels(qwen::kTile);

// How far apart rows of pairs of tokens lie that tiles read: rows of a tile in places of the cache
// of their own.
constexpr long kPairStride = kMostTokens / 2 + 16;

// Up to a multiple of what a tile holds.
constexpr long whole_tiles(long count) { return (count + 15) / 16 * 16; }

#ifdef QWEN_TILES

// y [rows][32] = x · w, or with kAdds y += x · w. x: [rows][pairs], so many bytes apart; w:
// [pairs][32].
template <bool kAdds, bool kTwo>
TILE_TARGET inline void tile_rows(const float* x, long row_bytes, const float* w, long pairs,
                                  float* y) {
  if constexpr (kAdds) {
    qwen::load_tiles<kTwo>(y);
  } else {
    qwen::zero_tiles<kTwo>();
  }
  for (long pair = 0; pair < pairs; pair += 16) {
    qwen::multiply_tiles<kTwo>(x + pair, row_bytes, w + pair * kLanes);
  }
  qwen::store_tiles<kTwo>(y);
}

template <bool kAdds>
TILE_TARGET void multiply_by_tiles(const float* x, long row_bytes, const float* w, long pairs,
                                   float* y, long rows) {
  qwen::Tiles::settle();
  long row = 0;
  for (; row + 16 < rows; row += 32) {
    tile_rows<kAdds, true>(x + row * row_bytes / 4, row_bytes, w, pairs, y + row * kLanes);
  }
  if (row < rows) {
    tile_rows<kAdds, false>(x + row * row_bytes / 4, row_bytes, w, pairs, y + row * kLanes);
  }
  qwen::Tiles::settle();
}

#else

template <bool kAdds>
void multiply_by_tiles(const float*, long, const float*, long, float*, long) {}

#endif

// Up to 16 rows of pairs [num_pairs][size] become columns of target, its rows `stride` apart; pairs
// that are missing are 0.
FMA_TARGET inline void turn_pairs(const float* pairs, long num_pairs, long size, long stride,
                                  float* target) {
  for (long i = 0; i < size; i += 16) {
    const First wanted = first_lanes(size - i);
    Words rows[16];
    for (long pair = 0; pair < 16; ++pair) {
      rows[pair] =
          pair < num_pairs ? load_some_words(pairs + pair * size + i, wanted) : splat_word(0);
    }
    transpose(rows);
    for (long k = 0; k < 16; ++k) store_words(target + (i + k) * stride, rows[k]);
  }
}

// Lanes of y [rows][32] multiplied by `scale`: mostly nothing to do, for that is 1 in all.
FMA_TARGET inline void scale_rows(float* y, long rows, const float* scale) {
  if (std::all_of(scale, scale + kLanes, [](float by) { return by == 1.0f; })) return;
  const Floats low = load_floats(scale), high = load_floats(scale + 16);
  for (float* row = y; row < y + rows * kLanes; row += kLanes) {
    store_floats(row, mul(load_floats(row), low));
    store_floats(row + 16, mul(load_floats(row + 16), high));
  }
}

// scores [count][32] of keys, `units` of 32 bits each, with a panel's queries; for kTile whole tiles.
template <Way kWay>
void multiply_keys(const float* keys, long units, const float* query, long count, float* scores) {
  if constexpr (kWay == qwen::kTile) {
    multiply_by_tiles<false>(keys, 4 * units, query, units, scores, count);
  } else {
    multiply_rows<kWay == qwen::kDot>(keys, units, 1, query, units, nullptr, scores, count);
  }
}

// A panel's sums [size][32] shrink, and `count` tokens' shares of their values are added; values as
// the cache has them, in pairs for kDot, or for kTile as `turn_pairs` leaves them.
template <Way kWay>
void add_values(const float* values, long size, long count, float* shares, const float* shrink,
                float* sums) {
  constexpr long kPair = kWay == qwen::kFma ? 1 : 2;
  const long units = (count + kPair - 1) / kPair;
  if constexpr (kWay == qwen::kTile) {
    const long pairs = whole_tiles(units);
    std::fill(shares + units * kLanes, shares + pairs * kLanes, 0.0f);
    scale_rows(sums, size, shrink);
    multiply_by_tiles<true>(values, 4 * kPairStride, shares, pairs, sums, size);
  } else {
    multiply_rows<kWay == qwen::kDot>(values, 1, size, shares, units, shrink, sums, size);
  }
}

}  // namespace

#endif  // QWEN_X86
