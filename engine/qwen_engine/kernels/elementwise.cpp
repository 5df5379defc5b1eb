// What lies between the products of a layer, each pass over the rows made once: bfloat16 in and
// out, float32 between.

#include "elementwise.h"

#ifdef QWEN_X86

namespace {

constexpr long kValuesPerThread = 1 << 16;  // fewer are not worth waking a thread for

int threads_for(long values, int num_threads) {
  const long useful = values / kValuesPerThread + 1;
  return useful < num_threads ? static_cast<int>(useful) : num_threads;
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
// q_norm, k_norm: weights or null; cos, sin: [rows][size]. size: a multiple of 32, at most 512; format: cache.h's.
void qwen_heads(const uint16_t* qkv, const uint16_t* q_norm, const uint16_t* k_norm,
                const uint16_t* cos, const uint16_t* sin, const int64_t* slots, uint16_t* query,
                uint8_t* keys, uint8_t* values, long rows, long heads, long kv_heads, long size,
                long block_size, int format, float eps, int num_threads) {
  const Cache cache{keys, values, kv_heads, block_size, size, format};
  const Heads of{q_norm, k_norm, heads, kv_heads, size, eps};
  const long width = (heads + 2 * kv_heads) * size;
#pragma omp parallel for schedule(static) num_threads(threads_for(rows * width, num_threads))
  for (long row = 0; row < rows; ++row) {
    const uint16_t *c = cos + row * size, *s = sin + row * size;
    turn_queries(of, qkv + row * width, c, s, query + row * heads * size);
    keep(of, cache, qkv + row * width, c, s, slots[row]);
  }
}

}  // extern "C"

#endif  // QWEN_X86
