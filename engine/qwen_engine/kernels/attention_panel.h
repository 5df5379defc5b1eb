// What attention of a chunk keeps of its query rows, a panel of 32 at a time: how it begins
// and what becomes of it.

#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "attention_tiles.h"

#ifdef QWEN_X86

namespace {

using qwen::Work;

// A layer's part of a step: its cache, and where [tokens][heads][size] are, `stride` apart.
struct Layer {
  const Cache& cache;
  const uint16_t* query;
  uint16_t* output;
  long stride, heads;
  float* states;  // see AttentionStep

  long place(long token, long head) const { return token * stride + head * cache.size; }
  float* state(long token, long head) const {
    return states + (token * heads + head) * (qwen::kStateHead + cache.size);
  }
};

// Write where `count` tokens from `start` on lie.
inline void find_places(const Cache& cache, const Work& work, long start, long count,
                        Place* places) {
  long block = start / cache.block_size, offset = start % cache.block_size;
  for (long token = 0; token < count; ++token) {
    places[token] = place_of(cache, work.table[block], offset, work.kv_head);
    if (++offset == cache.block_size) offset = 0, ++block;
  }
}

// Memory that a thread keeps: fresh pages at each layer would cost more than short prompts do.
struct Scratch {
  std::vector<float> keys, values, scores, query, sums;
  float key_factor[kMostTokens], value_factor[kMostTokens];
  float most[kMostPanels][kLanes], total[kMostPanels][kLanes];
  int32_t position[kMostPanels][kLanes];  // of the token that the row belongs to
  explicit Scratch(long size)
      : keys(kMostTokens * size), values((kPairStride + 16) * size),
        scores(kMostTokens * kLanes), query(kMostPanels * size * kLanes),
        sums(kMostPanels * size * kLanes) {}
};

Scratch& scratch_for(long size) {
  thread_local Scratch scratch(0);
  if (static_cast<long>(scratch.keys.size()) != kMostTokens * size) scratch = Scratch(size);
  return scratch;
}

// The token and the head that a row of the work is of.
struct RowOf {
  long token, head;
  RowOf(const Layer& layer, const Work& work, long row) {
    const long group = layer.heads / layer.cache.kv_heads;
    token = work.row + row / group;
    head = work.kv_head * group + row % group;
  }
};

inline long place_of_row(const Layer& layer, const Work& work, long row) {
  const RowOf of(layer, work, row);
  return layer.place(of.token, of.head);
}

inline float* state_of(const Layer& layer, const Work& work, long row) {
  const RowOf of(layer, work, row);
  return layer.state(of.token, of.head);
}

// What scores of keys of one format are multiplied by in `to_shares`; those with scales of their own
// have been before.
template <typename Rows>
float score_scale(long size) {
  return Rows::kIsScaled ? 1.0f : Rows::kFactor / std::sqrt(static_cast<float>(size));
}

// Begin a panel from the states of its rows.
template <typename Rows>
FMA_TARGET inline void load_states(const Layer& layer, const Work& work, long panel,
                                   Scratch& scratch) {
  const float scale = score_scale<Rows>(layer.cache.size);
  const long size = layer.cache.size;
  float* sums = scratch.sums.data() + panel * size * kLanes;
  for (long half = 0; half < kLanes; half += 16) {
    const float* sources[16];
    for (long lane = 0; lane < 16; ++lane) {
      const long row = std::min(panel * kLanes + half + lane, work.num_rows - 1);
      sources[lane] = state_of(layer, work, work.first_row + row);
      scratch.most[panel][half + lane] = sources[lane][0] / scale;
      scratch.total[panel][half + lane] = sources[lane][1];
    }
    for (long i = 0; i < size; i += 16) {
      Words rows[16];
      for (long k = 0; k < 16; ++k) rows[k] = load_words(sources[k] + qwen::kStateHead + i);
      transpose(rows);
      for (long k = 0; k < 16; ++k) store_words(sums + (i + k) * kLanes + half, rows[k]);
    }
  }
}

// Begin a panel: its rows' queries into the lanes, nothing seen yet.
template <bool kPairs>
FMA_TARGET void load_panel(const Layer& layer, const Work& work, long panel, Scratch& scratch) {
  const long group = layer.heads / layer.cache.kv_heads, size = layer.cache.size;
  const uint16_t* sources[kLanes];
  for (long lane = 0; lane < kLanes; ++lane) {  // what is missing repeats the last row
    const long row = work.first_row + std::min(panel * kLanes + lane, work.num_rows - 1);
    sources[lane] = layer.query + place_of_row(layer, work, row);
    scratch.most[panel][lane] = -INFINITY;
    scratch.total[panel][lane] = 0;
    const long unseen = work.is_shared ? 1 : work.num_queries - row / group;
    scratch.position[panel][lane] = static_cast<int32_t>(work.context - unseen);
  }
  float* target = scratch.query.data() + panel * size * kLanes;
  std::fill_n(scratch.sums.begin() + panel * size * kLanes, size * kLanes, 0.0f);
  for (long half = 0; half < kLanes; half += 16) {
    for (long i = 0; i < size; i += 32) {
      Words rows[16];
      for (long lane = 0; lane < 16; ++lane) {
        rows[lane] = load_words(sources[half + lane] + i);
      }
      transpose(rows);
      for (long pair = 0; pair < 16; ++pair) {
        if constexpr (kPairs) {
          store_words(target + (i / 2 + pair) * kLanes + half, rows[pair]);
        } else {
          float* even = target + (i + 2 * pair) * kLanes + half;
          store_words(even, shift_left(rows[pair], 16));
          store_words(even + kLanes, upper_halves(rows[pair]));
        }
      }
    }
  }
}

FMA_TARGET void store_panel(const Layer& layer, const Work& work, long panel, Scratch& scratch) {
  const long size = layer.cache.size, first = panel * kLanes;
  const float* sums = scratch.sums.data() + panel * size * kLanes;
  for (long half = 0; half < kLanes; half += 16) {
    const Floats share = div(splat(1.0f), load_floats(scratch.total[panel] + half));
    for (long i = 0; i < size; i += 32) {
      Words rows[16];
      for (long pair = 0; pair < 16; ++pair) {
        const float* even = sums + (i + 2 * pair) * kLanes + half;
        rows[pair] = side_by_side(mul(load_floats(even), share),
                                  mul(load_floats(even + kLanes), share));
      }
      transpose(rows);
      for (long lane = 0; lane < 16 && first + half + lane < work.num_rows; ++lane) {
        const long row = work.first_row + first + half + lane;
        store_words(layer.output + place_of_row(layer, work, row) + i, rows[lane]);
      }
    }
  }
}

// What rows have seen so far, for whoever goes on from there.
template <typename Rows>
FMA_TARGET void store_states(const Layer& layer, const Work& work, long panel, Scratch& scratch) {
  const float scale = score_scale<Rows>(layer.cache.size);
  const long size = layer.cache.size, first = panel * kLanes;
  const float* sums = scratch.sums.data() + panel * size * kLanes;
  for (long half = 0; half < kLanes; half += 16) {
    float* targets[16];
    const long count = std::min<long>(16, work.num_rows - first - half);
    for (long lane = 0; lane < count; ++lane) {
      targets[lane] = state_of(layer, work, work.first_row + first + half + lane);
      targets[lane][0] = scratch.most[panel][half + lane] * scale;
      targets[lane][1] = scratch.total[panel][half + lane];
    }
    for (long i = 0; i < size; i += 16) {
      Words rows[16];
      for (long k = 0; k < 16; ++k) rows[k] = load_words(sums + (i + k) * kLanes + half);
      transpose(rows);
      for (long lane = 0; lane < count; ++lane) {
        store_words(targets[lane] + qwen::kStateHead + i, rows[lane]);
      }
    }
  }
}

}  // namespace

#endif  // QWEN_X86
