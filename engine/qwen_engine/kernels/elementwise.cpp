// What lies between the products of a layer, each pass over the rows made once: bfloat16 in and
// out, float32 between.

#include <cmath>
#include <vector>

#include "cache.h"

#ifdef QWEN_X86

namespace {

constexpr long kValuesPerThread = 1 << 16;  // fewer are not worth waking a thread for

int threads_for(long values, int num_threads) {
  const long useful = values / kValuesPerThread + 1;
  return useful < num_threads ? static_cast<int>(useful) : num_threads;
}

FMA_TARGET float norm_scale(const uint16_t* x, long size, float eps) {
  __m512 squares = _mm512_setzero_ps();
  for (long i = 0; i < size; i += 16) {
    __m512 value = load16(x + i);
    squares = _mm512_fmadd_ps(value, value, squares);
  }
  return 1.0f / std::sqrt(_mm512_reduce_add_ps(squares) / static_cast<float>(size) + eps);
}

FMA_TARGET void norm_row(const uint16_t* x, const uint16_t* weight, long size, float eps,
                         uint16_t* out) {
  const __m512 scale = _mm512_set1_ps(norm_scale(x, size, eps));
  for (long i = 0; i < size; i += 16) {
    store16(out + i, _mm512_mul_ps(_mm512_mul_ps(load16(x + i), scale), load16(weight + i)));
  }
}

FMA_TARGET void add_row(const uint16_t* delta, long size, uint16_t* x) {
  for (long i = 0; i < size; i += 16) {
    store16(x + i, _mm512_add_ps(load16(x + i), load16(delta + i)));
  }
}

FMA_TARGET void gate_row(const uint16_t* gate, const uint16_t* up, long size, uint16_t* out) {
  const __m512 one = _mm512_set1_ps(1.0f);
  for (long i = 0; i < size; i += 16) {
    __m512 value = load16(gate + i);
    __m512 below = _mm512_add_ps(one, exp16(_mm512_sub_ps(_mm512_setzero_ps(), value)));
    store16(out + i, _mm512_mul_ps(_mm512_div_ps(value, below), load16(up + i)));
  }
}

// One head: normalise unless weight is null, rotate its halves, store.
FMA_TARGET void turn_head(const uint16_t* x, const uint16_t* weight, const uint16_t* cos,
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

void store_head(const Cache& cache, const uint16_t* x, uint8_t* part, const Place& place) {
  if (cache.format == kBfloat16) {
    std::memcpy(part + place.row, x, cache.size * 2);
  } else {
    store_eight_bit(x, cache.size, static_cast<Format>(cache.format), part, place);
  }
}

}  // namespace

extern "C" {

// x += delta unless that is null; out = x / rms(x) · weight. Rows of `size`, a multiple of 16.
void qwen_norm(uint16_t* x, const uint16_t* delta, const uint16_t* weight, uint16_t* out,
               long rows, long size, float eps, int num_threads) {
#pragma omp parallel for schedule(static) num_threads(threads_for(rows * size, num_threads))
  for (long row = 0; row < rows; ++row) {
    if (delta != nullptr) add_row(delta + row * size, size, x + row * size);
    norm_row(x + row * size, weight, size, eps, out + row * size);
  }
}

// out = silu(gate) · up, with gate and up side by side in x.
void qwen_gate(const uint16_t* x, uint16_t* out, long rows, long size, int num_threads) {
#pragma omp parallel for schedule(static) num_threads(threads_for(rows * size, num_threads))
  for (long row = 0; row < rows; ++row) {
    gate_row(x + row * 2 * size, x + row * 2 * size + size, size, out + row * size);
  }
}

// qkv [rows][heads + 2 · kv_heads][size] → query, and keys and values in their slots.
// q_norm, k_norm: weights or null; cos, sin: [rows][size]. size: a multiple of 32; format: cache.h's.
void qwen_heads(const uint16_t* qkv, const uint16_t* q_norm, const uint16_t* k_norm,
                const uint16_t* cos, const uint16_t* sin, const int64_t* slots, uint16_t* query,
                uint8_t* keys, uint8_t* values, long rows, long heads, long kv_heads, long size,
                long block_size, int format, float eps, int num_threads) {
  const Cache cache{keys, values, kv_heads, block_size, size, format};
  const long width = (heads + 2 * kv_heads) * size;
#pragma omp parallel for schedule(static) num_threads(threads_for(rows * width, num_threads))
  for (long row = 0; row < rows; ++row) {
    const uint16_t* x = qkv + row * width;
    const uint16_t *c = cos + row * size, *s = sin + row * size;
    for (long head = 0; head < heads; ++head) {
      turn_head(x + head * size, q_norm, c, s, size, eps, query + (row * heads + head) * size);
    }
    std::vector<uint16_t> key(size);
    for (long head = 0; head < kv_heads; ++head) {
      const Place place = place_of(cache, slots[row] / block_size, slots[row] % block_size, head);
      turn_head(x + (heads + head) * size, k_norm, c, s, size, eps, key.data());
      store_head(cache, key.data(), keys, place);
      store_head(cache, x + (heads + kv_heads + head) * size, values, place);
    }
  }
}

}  // extern "C"

#endif  // QWEN_X86
