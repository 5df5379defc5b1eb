// Rows between the products of a layer: bfloat16 in and out, float32 between. kDot: as
// `store_rounded` has it.

#pragma once

#include <cmath>

#include "cache.h"

#ifdef QWEN_X86

namespace {

FMA_TARGET inline float norm_scale(const uint16_t* x, long size, float eps) {
  Floats squares = zeros();
  for (long i = 0; i < size; i += 16) {
    Floats value = load16(x + i);
    squares = fmadd(value, value, squares);
  }
  return 1.0f / std::sqrt(reduce_add(squares) / static_cast<float>(size) + eps);
}

template <bool kDot>
DOT_TARGET inline void norm_row(const uint16_t* x, const uint16_t* weight, long size, float eps,
                                uint16_t* out) {
  const Floats scale = splat(norm_scale(x, size, eps));
  for (long i = 0; i < size; i += 16) {
    store_rounded<kDot>(out + i, mul(mul(load16(x + i), scale), load16(weight + i)));
  }
}

template <bool kDot>
DOT_TARGET inline void add_row(const uint16_t* delta, long size, uint16_t* x) {
  for (long i = 0; i < size; i += 16) {
    store_rounded<kDot>(x + i, add(load16(x + i), load16(delta + i)));
  }
}

FMA_TARGET inline void gate_row(const uint16_t* gate, const uint16_t* up, long size, uint16_t* out) {
  for (long i = 0; i < size; i += 16) {
    store16(out + i, mul(silu(load16(gate + i)), load16(up + i)));
  }
}

// One head: normalise unless weight is null, rotate its halves, store.
template <bool kDot>
DOT_TARGET inline void turn_head(const uint16_t* x, const uint16_t* weight, const uint16_t* cos,
                                 const uint16_t* sin, long size, float eps, uint16_t* out) {
  const long half = size / 2;
  const Floats scale = splat(weight == nullptr ? 1.0f : norm_scale(x, size, eps));
  for (long i = 0; i < half; i += 16) {
    Floats first = mul(load16(x + i), scale);
    Floats second = mul(load16(x + half + i), scale);
    if (weight != nullptr) {
      first = mul(first, load16(weight + i));
      second = mul(second, load16(weight + half + i));
    }
    Floats low = fnmadd(second, load16(sin + i), mul(first, load16(cos + i)));
    Floats high = fmadd(first, load16(sin + half + i), mul(second, load16(cos + half + i)));
    store_rounded<kDot>(out + i, low);
    store_rounded<kDot>(out + half + i, high);
  }
}

inline void store_head(const Cache& cache, const uint16_t* x, uint8_t* part, const Place& place) {
  if (cache.format == kBfloat16) {
    std::memcpy(part + place.row, x, cache.size * 2);
  } else {
    store_eight_bit(x, cache.size, static_cast<Format>(cache.format), part, place);
  }
}

constexpr long kMostHeadSize = 512;

struct Heads {
  const uint16_t *q_norm, *k_norm;  // weights, or null
  long heads, kv_heads, size;       // size: a multiple of 32
  float eps;
};

// The queries of a row of qkv: normalised and turned.
template <bool kDot>
inline void turn_queries(const Heads& of, const uint16_t* qkv, const uint16_t* cos,
                         const uint16_t* sin, uint16_t* query) {
  for (long head = 0; head < of.heads; ++head) {
    const long first = head * of.size;
    turn_head<kDot>(qkv + first, of.q_norm, cos, sin, of.size, of.eps, query + first);
  }
}

// The keys of a row, normalised and turned, and its values go to their slot.
template <bool kDot>
inline void keep(const Heads& of, const Cache& cache, const uint16_t* qkv, const uint16_t* cos,
                 const uint16_t* sin, long slot) {
  const uint16_t *keys = qkv + of.heads * of.size, *values = keys + of.kv_heads * of.size;
  uint16_t key[kMostHeadSize];
  for (long head = 0; head < of.kv_heads; ++head) {
    const Place place = place_of(cache, slot / cache.block_size, slot % cache.block_size, head);
    turn_head<kDot>(keys + head * of.size, of.k_norm, cos, sin, of.size, of.eps, key);
    store_head(cache, key, cache.keys, place);
    store_head(cache, values + head * of.size, cache.values, place);
  }
}

}  // namespace

#endif  // QWEN_X86
