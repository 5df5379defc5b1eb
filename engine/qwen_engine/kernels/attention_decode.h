// Attention of a sequence's one query, with the head's dimensions in the lanes.

#pragma once

#include <algorithm>
#include <cmath>

#include "attention_panel.h"

#ifdef QWEN_X86

namespace {

constexpr int kDecodeTile = 256;  // tokens
constexpr int kAhead = 8;         // tokens that are fetched before their turn

template <_mm_hint kHint>
FMA_TARGET inline void prefetch_row(const uint8_t* row, long bytes) {
  for (long i = 0; i < bytes; i += 64) {
    _mm_prefetch(reinterpret_cast<const char*>(row) + i, kHint);
  }
}

// Fetch a token's row into the first cache, and what is needed after all these tokens into the
// second. Rows lie too far apart for the processor to see what comes next.
FMA_TARGET inline void fetch_rows(const uint8_t* soon, const uint8_t* later, long bytes) {
  prefetch_row<_MM_HINT_T0>(soon, bytes);
  prefetch_row<_MM_HINT_T1>(later, bytes);
}

// later: how many bytes behind these rows those are that the thread needs next.
template <typename Rows, int kSize, int kHeads>
FMA_TARGET void attend_one(const Layer& layer, const Work& work, long first_head, long later) {
  const Cache& cache = layer.cache;
  const long origin = layer.place(work.row, first_head);
  constexpr int kParts = kSize / 32;
  Pairs query[kHeads][kParts], sum[kHeads][kParts];
  alignas(64) float scores[kHeads][kDecodeTile];
  Place places[kDecodeTile];
  const long row_bytes = cache.row_bytes();
  float most[kHeads], total[kHeads];
  const Floats scale = splat(1.0f / std::sqrt(static_cast<float>(kSize)));
  for (int head = 0; head < kHeads; ++head) {
    most[head] = -INFINITY;
    total[head] = 0;
    for (int part = 0; part < kParts; ++part) {
      Pairs loaded = Rows::load_query(layer.query + origin + head * kSize + part * 32);
      query[head][part] = {mul(loaded.even, scale), mul(loaded.odd, scale)};
      sum[head][part] = {zeros(), zeros()};
    }
  }
  for (long start = work.first_token; start < work.context; start += kDecodeTile) {
    const long count = std::min<long>(kDecodeTile, work.context - start);
    const long padded = (count + 15) / 16 * 16;
    find_places(cache, work, start, count, places);
    for (long token = 0; token < count; ++token) {
      const Place place = places[token];
      fetch_rows(cache.keys + places[std::min(token + kAhead, count - 1)].row,
                 cache.keys + place.row + later, row_bytes);
      Floats dot[kHeads];
      for (int head = 0; head < kHeads; ++head) dot[head] = zeros();
      for (int part = 0; part < kParts; ++part) {
        Pairs k = Rows::load(cache.keys + place.row, part * 32);
        for (int head = 0; head < kHeads; ++head) {
          dot[head] = fmadd(query[head][part].even, k.even, dot[head]);
          dot[head] = fmadd(query[head][part].odd, k.odd, dot[head]);
        }
      }
      for (int head = 0; head < kHeads; ++head) {
        scores[head][token] = reduce_add(dot[head]);
        if (Rows::kIsScaled) scores[head][token] *= scale_at(cache.keys, place) * Rows::kFactor;
      }
    }
    for (long token = 0; token < std::min<long>(kAhead, count); ++token) {
      prefetch_row<_MM_HINT_T0>(cache.values + places[token].row, row_bytes);
    }
    for (int head = 0; head < kHeads; ++head) {
      for (long token = count; token < padded; ++token) scores[head][token] = -INFINITY;
      Floats top = splat(most[head]);
      for (long token = 0; token < padded; token += 16) {
        top = max_of(top, load_floats(scores[head] + token));
      }
      const float now = reduce_max(top);
      const float shrink = std::exp(most[head] - now);
      Floats added = zeros();
      for (long token = 0; token < padded; token += 16) {
        Floats value = load_floats(scores[head] + token);
        value = exp16(sub(value, splat(now)));
        store_floats(scores[head] + token, value);
        added = add(added, value);
      }
      total[head] = total[head] * shrink + reduce_add(added);
      most[head] = now;
      for (int part = 0; part < kParts; ++part) {
        sum[head][part].even = mul(sum[head][part].even, splat(shrink));
        sum[head][part].odd = mul(sum[head][part].odd, splat(shrink));
      }
    }
    for (long token = 0; token < count; ++token) {
      const Place place = places[token];
      fetch_rows(cache.values + places[std::min(token + kAhead, count - 1)].row,
                 cache.values + place.row + later, row_bytes);
      const float factor = Rows::kIsScaled ? scale_at(cache.values, place) * Rows::kFactor : 1.0f;
      for (int part = 0; part < kParts; ++part) {
        Pairs v = Rows::load(cache.values + place.row, part * 32);
        for (int head = 0; head < kHeads; ++head) {
          Floats share = splat(scores[head][token] * factor);
          sum[head][part].even = fmadd(share, v.even, sum[head][part].even);
          sum[head][part].odd = fmadd(share, v.odd, sum[head][part].odd);
        }
      }
    }
  }
  for (int head = 0; head < kHeads && work.first_token > 0; ++head) {
    const float* state = layer.state(work.row, first_head + head);
    const float top = std::max(most[head], state[0]);
    const float here = std::exp(most[head] - top), before = std::exp(state[0] - top);
    total[head] = total[head] * here + state[1] * before;
    for (int part = 0; part < kParts; ++part) {
      const Pairs seen = Rows::load_sums(state + qwen::kStateHead + part * 32);
      Pairs& all = sum[head][part];
      all.even = mul(all.even, splat(here));
      all.odd = mul(all.odd, splat(here));
      all.even = fmadd(seen.even, splat(before), all.even);
      all.odd = fmadd(seen.odd, splat(before), all.odd);
    }
  }
  for (int head = 0; head < kHeads; ++head) {
    const Floats share = splat(1.0f / total[head]);
    for (int part = 0; part < kParts; ++part) {
      Rows::store(layer.output + origin + head * kSize + part * 32,
                  mul(sum[head][part].even, share), mul(sum[head][part].odd, share));
    }
  }
}

// The work after this one is mostly the next key head of the same tokens.
template <typename Rows, int kSize>
void attend_decode(const Layer& layer, const Work& work) {
  const long group = layer.heads / layer.cache.kv_heads, first = work.kv_head * group;
  for (long head = 0; head < group; head += 2) {
    const long later = head + 2 < group ? 0 : layer.cache.row_bytes();
    if (head + 2 <= group) {
      attend_one<Rows, kSize, 2>(layer, work, first + head, later);
    } else {
      attend_one<Rows, kSize, 1>(layer, work, first + head, later);
    }
  }
}

}  // namespace

#endif  // QWEN_X86
