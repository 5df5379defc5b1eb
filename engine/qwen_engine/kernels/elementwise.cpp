// What lies between the products of a layer, each pass over the rows made once: bfloat16 in and
// out, float32 between.

#include "elementwise.h"

#include <algorithm>
#include <cmath>

#ifdef QWEN_X86

namespace {

constexpr long kValuesPerThread = 1 << 16;  // fewer are not worth waking a thread for

int threads_for(long values, int num_threads) {
  const long useful = values / kValuesPerThread + 1;
  return useful < num_threads ? static_cast<int>(useful) : num_threads;
}

constexpr long kSearched = 1024;  // values at a time, of which the largest is looked for again

// Where a row's largest value is: the first of equals, and NaN before all others.
FMA_TARGET long largest_of(const uint16_t* x, long size) {
  float most = -INFINITY;
  long place = 0;
  for (long start = 0; start < size; start += kSearched) {
    const long end = std::min(start + kSearched, size), whole = end - (end - start) % 32;
    Floats tops = splat(-INFINITY);
    Mask odd = none();
    for (long i = start; i < whole; i += 32) {
      const Pairs values = load_pairs(x + i);
      odd = either(odd, either(is_nan(values.even), is_nan(values.odd)));
      tops = max_of(tops, max_of(values.even, values.odd));
    }
    float top = reduce_max(tops);
    bool has_nan = any(odd);
    for (long i = whole; i < end; ++i) {
      const float value = to_float(x[i]);
      has_nan = has_nan || std::isnan(value);
      top = std::max(top, value);
    }
    if (!has_nan && top <= most) continue;
    most = top;
    place = start;
    while (has_nan ? !std::isnan(to_float(x[place])) : to_float(x[place]) != top) ++place;
    if (has_nan) return place;
  }
  return place;
}

}  // namespace

extern "C" {

// places[row]: of the largest of `size` values.
void qwen_largest(const uint16_t* x, long rows, long size, int64_t* places, int num_threads) {
#pragma omp parallel for schedule(static) num_threads(threads_for(rows * size, num_threads))
  for (long row = 0; row < rows; ++row) places[row] = largest_of(x + row * size, size);
}

// x += delta unless that is null; out = x / rms(x) · weight. Rows of `size`, a multiple of 16.
void qwen_norm(uint16_t* x, const uint16_t* delta, const uint16_t* weight, uint16_t* out,
               long rows, long size, float eps, int num_threads) {
  const auto add_some = has_dot() ? add_row<true> : add_row<false>;
  const auto norm_some = has_dot() ? norm_row<true> : norm_row<false>;
#pragma omp parallel for schedule(static) num_threads(threads_for(rows * size, num_threads))
  for (long row = 0; row < rows; ++row) {
    if (delta != nullptr) add_some(delta + row * size, size, x + row * size);
    norm_some(x + row * size, weight, size, eps, out + row * size);
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
// q_norm, k_norm: weights or null; cos, sin: [rows][size]. size: a multiple of 32, at most 512; format: cache.h's.
void qwen_heads(const uint16_t* qkv, const uint16_t* q_norm, const uint16_t* k_norm,
                const uint16_t* cos, const uint16_t* sin, const int64_t* slots, uint16_t* query,
                uint8_t* keys, uint8_t* values, long rows, long heads, long kv_heads, long size,
                long block_size, int format, float eps, int num_threads) {
  const Cache cache{keys, values, kv_heads, block_size, size, format};
  const Heads of{q_norm, k_norm, heads, kv_heads, size, eps};
  const long width = (heads + 2 * kv_heads) * size;
  const auto turn = has_dot() ? turn_queries<true> : turn_queries<false>;
  const auto keep_some = has_dot() ? keep<true> : keep<false>;
#pragma omp parallel for schedule(static) num_threads(threads_for(rows * width, num_threads))
  for (long row = 0; row < rows; ++row) {
    const uint16_t *c = cos + row * size, *s = sin + row * size;
    turn(of, qkv + row * width, c, s, query + row * heads * size);
    keep_some(of, cache, qkv + row * width, c, s, slots[row]);
  }
}

}  // extern "C"

#endif  // QWEN_X86
