// The KV cache as the kernels see it: where a token's head lies and how its values are written.
//
// attention.cpp reads it, elementwise.cpp writes it. In 8 bits a block has its values first,
// [block_size][kv_heads][size], and a bfloat16 scale of each [block_size][kv_heads] behind them:
// what layers/attention/eight_bit.py says, to the bit.

#pragma once

#include <cmath>

#include "vector.h"

namespace qwen {

enum Format { kBfloat16 = 0, kInt8 = 1, kFp8 = 2 };

struct Cache {
  uint8_t *keys, *values;
  long kv_heads, block_size, size;
  int format;

  long row_bytes() const { return format == kBfloat16 ? 2 * size : size; }
  long values_bytes() const { return block_size * kv_heads * row_bytes(); }
  long block_bytes() const {
    return values_bytes() + (format == kBfloat16 ? 0 : 2 * block_size * kv_heads);
  }
};

// Where a head of a token lies in keys and in values.
struct Place {
  long row, scale;  // bytes from the beginning
};

inline Place place_of(const Cache& cache, long block, long offset, long head) {
  const long start = block * cache.block_bytes(), index = offset * cache.kv_heads + head;
  return {start + index * cache.row_bytes(), start + cache.values_bytes() + 2 * index};
}

}  // namespace qwen

#ifdef QWEN_X86

namespace {

using qwen::Cache, qwen::Format, qwen::Place, qwen::place_of;
using qwen::kBfloat16, qwen::kFp8, qwen::kInt8;

inline float scale_at(const uint8_t* part, const Place& place) {
  uint16_t bits;
  std::memcpy(&bits, part + place.scale, 2);
  return to_float(bits);
}

inline uint16_t from_float(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  bits = value != value ? 0x7fc00000 : bits + 0x7fff + ((bits >> 16) & 1);
  return static_cast<uint16_t>(bits >> 16);
}

// ---- reading: 32 values at once, in the order that suits the format, or 16 in plain order ----

struct Bfloat16Rows {
  static constexpr bool kIsScaled = false;
  static constexpr float kFactor = 1.0f;
  FMA_TARGET static Pairs load(const uint8_t* row, long i) {
    return load_pairs(reinterpret_cast<const uint16_t*>(row) + i);
  }
  FMA_TARGET static Pairs load_query(const uint16_t* query) { return load_pairs(query); }
  FMA_TARGET static void store(uint16_t* target, Floats first, Floats second) {
    store_pairs(target, first, second);
  }
  FMA_TARGET static Pairs load_sums(const float* sums) {
    const Floats low = load_floats(sums), high = load_floats(sums + 16);
    return {evens(low, high), odds(low, high)};
  }
  FMA_TARGET static Floats widen(const uint8_t* row, long i) {
    return load16(reinterpret_cast<const uint16_t*>(row) + i);
  }
  FMA_TARGET static Shorts narrow(const uint8_t* row, long i) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row + 2 * i));
  }
};

// 8 bits: the first 16 and the last 16; kFactor times the scale makes them what they stand for.
template <typename Values>
struct EightBitRows {
  static constexpr bool kIsScaled = true;
  static constexpr float kFactor = Values::kFactor;
  FMA_TARGET static Pairs load(const uint8_t* row, long i) {
    return {Values::load(row + i), Values::load(row + i + 16)};
  }
  FMA_TARGET static Pairs load_query(const uint16_t* query) {
    return {load16(query), load16(query + 16)};
  }
  FMA_TARGET static void store(uint16_t* target, Floats first, Floats second) {
    store16(target, first);
    store16(target + 16, second);
  }
  FMA_TARGET static Pairs load_sums(const float* sums) {
    return {load_floats(sums), load_floats(sums + 16)};
  }
  FMA_TARGET static Floats widen(const uint8_t* row, long i) { return Values::load(row + i); }
  FMA_TARGET static Shorts narrow(const uint8_t* row, long i) {  // exact: at most 7 bits
    return to_bfloat16(Values::load(row + i));
  }
};

struct Int8Values {
  static constexpr float kFactor = 1.0f;
  FMA_TARGET static Floats load(const uint8_t* source) {
    Bytes bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(source));
    return to_floats(widen_bytes(bytes));
  }
};

// e4m3's bits, shifted, are those of a float16 a 256th as large.
struct Fp8Values {
  static constexpr float kFactor = 256.0f;
  FMA_TARGET static Floats load(const uint8_t* source) {
    Bytes bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(source));
    Shorts wide = _mm256_cvtepi8_epi16(bytes);
    Shorts rest = _mm256_and_si256(_mm256_slli_epi16(wide, 7), _mm256_set1_epi16(0x3f80));
    Shorts sign = _mm256_and_si256(wide, _mm256_set1_epi16(static_cast<short>(0x8000)));
    return widen_halves(_mm256_or_si256(rest, sign));
  }
};

using Int8Rows = EightBitRows<Int8Values>;
using Fp8Rows = EightBitRows<Fp8Values>;

// ---- writing ----

// Round to nearest even; |value| ≤ 448. Below 2^-6 in steps of 2^-9, float32's at 2^14.
FMA_TARGET inline Bytes to_e4m3(Floats value) {
  Words bits = bits_of(value);
  Words size = and_words(bits, splat_word(0x7fffffff));
  Words sign = and_words(shift_right(bits, 24), splat_word(0x80));
  Words odd = and_words(shift_right(size, 20), splat_word(1));
  Words up = add_words(size, add_words(odd, splat_word(0x7ffff)));
  Words code = sub_words(shift_right(up, 20), splat_word(120 << 3));
  Floats moved = add(floats_of(size), splat(16384.0f));
  Words tiny = sub_words(bits_of(moved), splat_word(0x46800000));
  Mask is_tiny = is_less(size, splat_word(0x3c800000));
  code = or_words(select(is_tiny, tiny, code), sign);
  return narrow_to_bytes(code);
}

// Write a head in 8 bits; size: a multiple of 16.
FMA_TARGET inline void store_eight_bit(const uint16_t* x, long size, Format format, uint8_t* part,
                                       const Place& place) {
  const float largest = format == kInt8 ? 127.0f : 448.0f;
  Floats most = zeros();
  Mask unknown = none();
  for (long i = 0; i < size; i += 16) {
    Floats value = load16(x + i);
    unknown = either(unknown, is_nan(value));
    most = max_of(most, abs_of(value));
  }
  const uint16_t bits = from_float(any(unknown) ? NAN : reduce_max(most) / largest);
  const float scale = to_float(bits);
  std::memcpy(part + place.scale, &bits, 2);
  uint8_t* row = part + place.row;
  if (!(scale > 0 && scale < INFINITY)) {
    std::memset(row, 0, size);
    return;
  }
  for (long i = 0; i < size; i += 16) {
    Floats value = div(load16(x + i), splat(scale));
    value = max_of(value, splat(-largest));
    value = min_of(value, splat(largest));
    Bytes bytes = format == kInt8 ? narrow_to_bytes(to_words(value)) : to_e4m3(value);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(row + i), bytes);
  }
}

}  // namespace

#endif  // QWEN_X86
