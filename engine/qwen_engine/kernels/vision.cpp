// What the vision tower computes between its matrix products, besides attention: layer norm,
// rotation, GELU. float32 or bfloat16 in and out, float32 between.
//
// Queries, keys and values lie head by head, [3][heads][rows][size], so that a head's are read in
// a row. With bfloat16 the values of two neighbouring rows are interleaved, [rows / 2][size][2]:
// the dot product instruction takes pairs. A frame has an even number of rows.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "vision_lanes.h"

#ifdef QWEN_X86

namespace {

// x · (1 + tanh(√(2/π) · (x + 0.044715 x³))) / 2, by 1 + tanh(u) = 2 / (1 + e^-2u).
FMA_TARGET inline __m512 gelu16(__m512 x) {
  __m512 inner = _mm512_fmadd_ps(_mm512_mul_ps(x, x), _mm512_set1_ps(-2 * 0.7978845608f * 0.044715f),
                                 _mm512_set1_ps(-2 * 0.7978845608f));
  __m512 below = _mm512_add_ps(_mm512_set1_ps(1.0f), exp16(_mm512_mul_ps(x, inner)));
  return _mm512_div_ps(x, below);
}

template <typename T>
FMA_TARGET void gelu(T* x, long count) {
  for (long i = 0; i < count; i += 16) {
    const __mmask16 mask = first_lanes(count - i);
    store_some(x + i, mask, gelu16(load_some(x + i, mask)));
  }
}

// x += delta unless that is null; out = (x - mean) / deviation · weight + bias.
template <typename T>
FMA_TARGET void layer_norm(T* x, const T* delta, const T* weight, const T* bias, long size,
                           float eps, T* out) {
  __m512 sum = _mm512_setzero_ps();
  for (long i = 0; i < size; i += 16) {
    const __mmask16 mask = first_lanes(size - i);
    __m512 value = load_some(x + i, mask);
    if (delta != nullptr) {
      store_some(x + i, mask, _mm512_add_ps(value, load_some(delta + i, mask)));
      value = load_some(x + i, mask);
    }
    sum = _mm512_add_ps(sum, value);
  }
  const __m512 mean = _mm512_set1_ps(_mm512_reduce_add_ps(sum) / static_cast<float>(size));
  __m512 squares = _mm512_setzero_ps();
  for (long i = 0; i < size; i += 16) {
    const __mmask16 mask = first_lanes(size - i);
    __m512 value = _mm512_maskz_sub_ps(mask, load_some(x + i, mask), mean);
    squares = _mm512_fmadd_ps(value, value, squares);
  }
  const float variance = _mm512_reduce_add_ps(squares) / static_cast<float>(size);
  const __m512 scale = _mm512_set1_ps(1.0f / std::sqrt(variance + eps));
  for (long i = 0; i < size; i += 16) {
    const __mmask16 mask = first_lanes(size - i);
    __m512 value = _mm512_mul_ps(_mm512_sub_ps(load_some(x + i, mask), mean), scale);
    value = _mm512_fmadd_ps(value, load_some(weight + i, mask), load_some(bias + i, mask));
    store_some(out + i, mask, value);
  }
}

// Rotate a head's halves; cos and sin of the second half are those of the first.
template <typename T>
FMA_TARGET void turn(const T* x, const float* cos, const float* sin, long size, T* out) {
  const long half = size / 2;
  for (long i = 0; i < half; i += 16) {
    const __mmask16 mask = first_lanes(half - i);
    __m512 first = load_some(x + i, mask), second = load_some(x + half + i, mask);
    __m512 c = load_some(cos + i, mask), s = load_some(sin + i, mask);
    store_some(out + i, mask, _mm512_fnmadd_ps(second, s, _mm512_mul_ps(first, c)));
    store_some(out + half + i, mask, _mm512_fmadd_ps(first, s, _mm512_mul_ps(second, c)));
  }
}

FMA_TARGET void interleave(const uint16_t* even, const uint16_t* odd, long size, uint16_t* out) {
  for (long i = 0; i < size; i += 16) {
    const __mmask16 mask = first_lanes(size - i);
    __m512i low = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, even + i));
    __m512i high = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, odd + i));
    _mm512_mask_storeu_epi32(out + 2 * i, mask, _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
  }
}

// Two rows of qkv [rows][3][heads][size] to their places.
template <typename T>
void turn_pair(const T* qkv, const float* cos, const float* sin, long heads, long size, long total,
               T* out) {
  const long width = heads * size, plane = heads * total * size;
  for (long head = 0; head < heads; ++head) {
    T* target = out + head * total * size;
    const T* value = qkv + 2 * width + head * size;
    for (long row = 0; row < 2; ++row) {
      const T* x = qkv + row * 3 * width + head * size;
      turn(x, cos + row * size, sin + row * size, size, target + row * size);
      turn(x + width, cos + row * size, sin + row * size, size, target + plane + row * size);
    }
    if constexpr (std::is_same_v<T, float>) {
      std::memcpy(target + 2 * plane, value, size * sizeof(T));
      std::memcpy(target + 2 * plane + size, value + 3 * width, size * sizeof(T));
    } else {
      interleave(value, value + 3 * width, size, target + 2 * plane);
    }
  }
}

}  // namespace

extern "C" {

// What follows takes float32 where is_wide is 1, else bfloat16.

// x += delta unless that is null; out = layer norm of x. [rows][size].
void qwen_vision_norm(int is_wide, void* x, const void* delta, const void* weight,
                      const void* bias, void* out, long rows, long size, float eps,
                      int num_threads) {
  auto all = [=](auto type) {
    using T = decltype(type);
#pragma omp parallel for schedule(static) num_threads(num_threads)
    for (long row = 0; row < rows; ++row) {
      layer_norm(static_cast<T*>(x) + row * size,
                 delta == nullptr ? nullptr : static_cast<const T*>(delta) + row * size,
                 static_cast<const T*>(weight), static_cast<const T*>(bias), size, eps,
                 static_cast<T*>(out) + row * size);
    }
  };
  is_wide ? all(float{}) : all(uint16_t{});
}

// GELU by tanh, in place.
void qwen_vision_gelu(int is_wide, void* x, long count, int num_threads) {
  constexpr long kStep = 4096;
  auto all = [=](auto type) {
    using T = decltype(type);
#pragma omp parallel for schedule(static) num_threads(num_threads)
    for (long first = 0; first < count; first += kStep) {
      gelu(static_cast<T*>(x) + first, std::min(kStep, count - first));
    }
  };
  is_wide ? all(float{}) : all(uint16_t{});
}

// qkv [rows][3][num_heads][size], queries and keys turned, to rows `first` and on of heads
// [3][num_heads][total][size]; first and rows are even. cos, sin: [rows][size].
void qwen_vision_turn(int is_wide, const void* qkv, const float* cos, const float* sin,
                      void* heads, long rows, long num_heads, long size, long first, long total,
                      int num_threads) {
  auto all = [=](auto type) {
    using T = decltype(type);
#pragma omp parallel for schedule(static) num_threads(num_threads)
    for (long row = 0; row < rows; row += 2) {
      turn_pair(static_cast<const T*>(qkv) + row * 3 * num_heads * size, cos + row * size,
                sin + row * size, num_heads, size, total,
                static_cast<T*>(heads) + (first + row) * size);
    }
  };
  is_wide ? all(float{}) : all(uint16_t{});
}

}  // extern "C"

#endif  // QWEN_X86
