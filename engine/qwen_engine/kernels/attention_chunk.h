// Attention of a prompt's chunk: 32 query rows in the lanes, so that softmax runs down the lanes
// and both products are the same small matrix kernel. Softmax is online over tiles of tokens
// (arXiv 2205.14135), so memory does not grow with the context.
//
// With the bfloat16 dot product instruction or AMX (kDot, kTile) the kernel multiplies pairs: of a
// head's dimensions for the scores, of tokens for the sums, and shares are rounded to bfloat16
// first, as FlashAttention-2 does (arXiv 2307.08691). With kFma everything between is float32.
//
// Values of the cache enter unscaled, exact in bfloat16 also from 8 bits; a token's scales go to
// its scores and to its shares.

#pragma once

#include <algorithm>

#include "attention_panel.h"

#ifdef QWEN_X86

namespace {

// Two tokens' values side by side; of an odd number the last has none beside it.
template <typename Rows>
FMA_TARGET void pair_values(const uint8_t* first, const uint8_t* second, long size,
                            uint16_t* pairs) {
  for (long i = 0; i < size; i += 16) {
    Words both = widen(Rows::narrow(first, i));
    if (second != nullptr) both = or_words(both, shift_left(widen(Rows::narrow(second, i)), 16));
    store_words(pairs + 2 * i, both);
  }
}

// Bring a tile's values into rows of pairs, one for each of the head's dimensions.
template <typename Rows>
FMA_TARGET void turn_values(const Cache& cache, const Place* places, long count, float* values) {
  const long size = cache.size;
  float* pairs = values + size * kPairStride;
  for (long first = 0; first < count; first += 32) {
    const long some = std::min(32L, count - first);
    for (long token = first; token < first + some; token += 2) {
      const uint8_t* second = token + 1 == count ? nullptr : cache.values + places[token + 1].row;
      pair_values<Rows>(cache.values + places[token].row, second, size,
                        reinterpret_cast<uint16_t*>(pairs + (token - first) / 2 * size));
    }
    turn_pairs(pairs, (some + 1) / 2, size, kPairStride, values + first / 2);
  }
}

// Bring a tile's keys and values into the form that the products take.
template <typename Rows, Way kWay>
FMA_TARGET void load_tile(const Cache& cache, const Work& work, long start, long count,
                          Scratch& scratch) {
  const long size = cache.size;
  uint16_t* narrow_keys = reinterpret_cast<uint16_t*>(scratch.keys.data());
  uint16_t* narrow_values = reinterpret_cast<uint16_t*>(scratch.values.data());
  Place places[qwen::tile_tokens(kWay)];
  find_places(cache, work, start, count, places);
  for (long token = 0; token < count; ++token) {
    const Place place = places[token];
    const uint8_t *key = cache.keys + place.row, *value = cache.values + place.row;
    if constexpr (Rows::kIsScaled) {
      const float share = Rows::kFactor / std::sqrt(static_cast<float>(size));
      scratch.key_factor[token] = share * scale_at(cache.keys, place);
      scratch.value_factor[token] = Rows::kFactor * scale_at(cache.values, place);
    }
    if constexpr (kWay != qwen::kFma) {
      for (long i = 0; i < size; i += 16) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(narrow_keys + token * size + i),
                            Rows::narrow(key, i));
      }
      if (kWay == qwen::kTile || token % 2 == 1) continue;
      const bool is_last = token + 1 == count;
      const uint8_t* second = is_last ? nullptr : cache.values + places[token + 1].row;
      pair_values<Rows>(value, second, size, narrow_values + token * size);
    } else {
      for (long i = 0; i < size; i += 16) {
        store_floats(scratch.keys.data() + token * size + i, Rows::widen(key, i));
        store_floats(scratch.values.data() + token * size + i, Rows::widen(value, i));
      }
    }
  }
  if constexpr (kWay == qwen::kTile) {
    turn_values<Rows>(cache, places, count, scratch.values.data());
  }
}

// Give a panel's scores their tokens' scales, and hide what lies behind a row's own token.
template <typename Rows>
FMA_TARGET void prepare_scores(Scratch& scratch, long panel, long start, long count) {
  for (int half = 0; half < kLanes; half += 16) {
    float* scores = scratch.scores.data() + half;
    for (long token = 0; Rows::kIsScaled && token < count; ++token) {
      float* score = scores + token * kLanes;
      store_floats(score, mul(load_floats(score), splat(scratch.key_factor[token])));
    }
    const Words position = load_words(scratch.position[panel] + half);
    const long sure = scratch.position[panel][half];  // positions rise with the lanes
    for (long token = std::max(0L, sure + 1 - start); token < count; ++token) {
      float* score = scores + token * kLanes;
      const Words here = splat_word(static_cast<int32_t>(start + token));
      store_floats(score, select(is_less(position, here), splat(-INFINITY), load_floats(score)));
    }
  }
}

template <typename Rows, Way kWay>
void attend_chunk(const Layer& layer, const Work& work, Scratch& scratch) {
  constexpr bool kPairs = kWay != qwen::kFma;
  constexpr long kTokens = qwen::tile_tokens(kWay);
  const Cache& cache = layer.cache;
  const long size = cache.size, num_panels = (work.num_rows + kLanes - 1) / kLanes;
  for (long panel = 0; panel < num_panels; ++panel) {
    load_panel<kPairs>(layer, work, panel, scratch);
    if (work.first_token > 0) load_states<Rows>(layer, work, panel, scratch);
  }
  const long seen = scratch.position[num_panels - 1][kLanes - 1] + 1;
  for (long start = work.first_token; start < seen; start += kTokens) {
    const long count = std::min(kTokens, seen - start);
    load_tile<Rows, kWay>(cache, work, start, count, scratch);
    for (long panel = 0; panel < num_panels; ++panel) {
      const long some = std::min<long>(count, scratch.position[panel][kLanes - 1] + 1 - start);
      if (some <= 0) continue;
      float shrink[kLanes], *scores = scratch.scores.data();
      multiply_keys<kWay>(scratch.keys.data(), kPairs ? size / 2 : size,
                          scratch.query.data() + panel * size * kLanes, some, scores);
      prepare_scores<Rows>(scratch, panel, start, some);
      to_shares<kPairs, Rows::kIsScaled>(scores, some, score_scale<Rows>(size),
                                         scratch.most[panel], scratch.total[panel], shrink,
                                         scratch.value_factor);
      add_values<kWay>(scratch.values.data(), size, some, scores, shrink,
                       scratch.sums.data() + panel * size * kLanes);
    }
  }
  for (long panel = 0; panel < num_panels; ++panel) {
    if (work.is_shared) {
      store_states<Rows>(layer, work, panel, scratch);
    } else {
      store_panel(layer, work, panel, scratch);
    }
  }
}

}  // namespace

#endif  // QWEN_X86
