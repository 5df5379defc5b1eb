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
FMA_TARGET inline Floats gelu16(Floats x) {
  Floats inner = fmadd(mul(x, x), splat(-2 * 0.7978845608f * 0.044715f),
                       splat(-2 * 0.7978845608f));
  Floats below = add(splat(1.0f), exp16(mul(x, inner)));
  return div(x, below);
}

template <typename T>
FMA_TARGET void gelu(T* x, long count) {
  for (long i = 0; i < count; i += 16) {
    const First mask = first_lanes(count - i);
    store_some(x + i, mask, gelu16(load_some(x + i, mask)));
  }
}

// x += delta unless that is null; out = (x - mean) / deviation · weight + bias.
template <typename T>
FMA_TARGET void layer_norm(T* x, const T* delta, const T* weight, const T* bias, long size,
                           float eps, T* out) {
  Floats sum = zeros();
  for (long i = 0; i < size; i += 16) {
    const First mask = first_lanes(size - i);
    Floats value = load_some(x + i, mask);
    if (delta != nullptr) {
      store_some(x + i, mask, add(value, load_some(delta + i, mask)));
      value = load_some(x + i, mask);
    }
    sum = add(sum, value);
  }
  const Floats mean = splat(reduce_add(sum) / static_cast<float>(size));
  Floats squares = zeros();
  for (long i = 0; i < size; i += 16) {
    const First mask = first_lanes(size - i);
    Floats value = keep_first(mask, sub(load_some(x + i, mask), mean));
    squares = fmadd(value, value, squares);
  }
  const float variance = reduce_add(squares) / static_cast<float>(size);
  const Floats scale = splat(1.0f / std::sqrt(variance + eps));
  for (long i = 0; i < size; i += 16) {
    const First mask = first_lanes(size - i);
    Floats value = mul(sub(load_some(x + i, mask), mean), scale);
    value = fmadd(value, load_some(weight + i, mask), load_some(bias + i, mask));
    store_some(out + i, mask, value);
  }
}

// Rotate a head's halves; cos and sin of the second half are those of the first.
template <typename T>
FMA_TARGET void turn(const T* x, const float* cos, const float* sin, long size, T* out) {
  const long half = size / 2;
  for (long i = 0; i < half; i += 16) {
    const First mask = first_lanes(half - i);
    Floats first = load_some(x + i, mask), second = load_some(x + half + i, mask);
    Floats c = load_some(cos + i, mask), s = load_some(sin + i, mask);
    store_some(out + i, mask, fnmadd(second, s, mul(first, c)));
    store_some(out + half + i, mask, fmadd(first, s, mul(second, c)));
  }
}

FMA_TARGET void interleave(const uint16_t* even, const uint16_t* odd, long size, uint16_t* out) {
  for (long i = 0; i < size; i += 16) {
    const First mask = first_lanes(size - i);
    Words low = widen(load_some_shorts(even + i, mask));
    Words high = widen(load_some_shorts(odd + i, mask));
    store_some_words(out + 2 * i, mask, or_words(low, shift_left(high, 16)));
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
