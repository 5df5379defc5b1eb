// Rows between the products of a layer: bfloat16 in and out, float32 between.

#pragma once

#include <cmath>

#include "cache.h"

#ifdef QWEN_X86

namespace {

FMA_TARGET inline float norm_scale(const uint16_t* x, long size, float eps) {
  __m512 squares = _mm512_setzero_ps();
  for (long i = 0; i < size; i += 16) {
    __m512 value = load16(x + i);
    squares = _mm512_fmadd_ps(value, value, squares);
  }
  return 1.0f / std::sqrt(_mm512_reduce_add_ps(squares) / static_cast<float>(size) + eps);
}

FMA_TARGET inline void norm_row(const uint16_t* x, const uint16_t* weight, long size, float eps,
                         uint16_t* out) {
  const __m512 scale = _mm512_set1_ps(norm_scale(x, size, eps));
  for (long i = 0; i < size; i += 16) {
    store16(out + i, _mm512_mul_ps(_mm512_mul_ps(load16(x + i), scale), load16(weight + i)));
  }
}

FMA_TARGET inline void add_row(const uint16_t* delta, long size, uint16_t* x) {
  for (long i = 0; i < size; i += 16) {
    store16(x + i, _mm512_add_ps(load16(x + i), load16(delta + i)));
  }
}

FMA_TARGET inline void gate_row(const uint16_t* gate, const uint16_t* up, long size, uint16_t* out) {
  const __m512 one = _mm512_set1_ps(1.0f);
  for (long i = 0; i < size; i += 16) {
    __m512 value = load16(gate + i);
    __m512 below = _mm512_add_ps(one, exp16(_mm512_sub_ps(_mm512_setzero_ps(), value)));
    store16(out + i, _mm512_mul_ps(_mm512_div_ps(value, below), load16(up + i)));
  }
}

// One head: normalise unless weight is null, rotate its halves, store.
FMA_TARGET inline void turn_head(const uint16_t* x, const uint16_t* weight, const uint16_t* cos,
                          const uint16_t* sin, long size, float eps, uint16_t* out) {
  const long half = size / 2;
  const __m512 scale = _mm512_set1_ps(weight == nullptr ? 1.0f : norm_scale(x, size, eps));
  for (long i = 0; i < half; i += 16) {
    __m512 first = _mm512_mul_ps(load16(x + i), scale);
    __m512 second = _mm512_mul_ps(load16(x + half + i), scale);
    if (weight != nullptr) {
      first = _mm512_mul_ps(first, load16(weight + i));
      second = _mm512_mul_ps(second, load16(weight + half + i));
    }
    __m512 low = _mm512_fnmadd_ps(second, load16(sin + i), _mm512_mul_ps(first, load16(cos + i)));
    __m512 high = _mm512_fmadd_ps(first, load16(sin + half + i),
                                  _mm512_mul_ps(second, load16(cos + half + i)));
    store16(out + i, low);
    store16(out + half + i, high);
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
inline void turn_queries(const Heads& of, const uint16_t* qkv, const uint16_t* cos,
                         const uint16_t* sin, uint16_t* query) {
  for (long head = 0; head < of.heads; ++head) {
    turn_head(qkv + head * of.size, of.q_norm, cos, sin, of.size, of.eps, query + head * of.size);
  }
}

// The keys of a row, normalised and turned, and its values go to their slot.
inline void keep(const Heads& of, const Cache& cache, const uint16_t* qkv, const uint16_t* cos,
                 const uint16_t* sin, long slot) {
  const uint16_t *keys = qkv + of.heads * of.size, *values = keys + of.kv_heads * of.size;
  uint16_t key[kMostHeadSize];
  for (long head = 0; head < of.kv_heads; ++head) {
    const Place place = place_of(cache, slot / cache.block_size, slot % cache.block_size, head);
    turn_head(keys + head * of.size, of.k_norm, cos, sin, of.size, of.eps, key);
    store_head(cache, key, cache.keys, place);
    store_head(cache, values + head * of.size, cache.values, place);
  }
}

}  // namespace

#endif  // QWEN_X86
