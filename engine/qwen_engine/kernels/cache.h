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
  FMA_TARGET static void store(uint16_t* target, __m512 first, __m512 second) {
    store_pairs(target, first, second);
  }
  FMA_TARGET static Pairs load_sums(const float* sums) {
    const __m512i even =
        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
    __m512 low = _mm512_loadu_ps(sums), high = _mm512_loadu_ps(sums + 16);
    return {_mm512_permutex2var_ps(low, even, high), _mm512_permutex2var_ps(low, odd, high)};
  }
  FMA_TARGET static __m512 widen(const uint8_t* row, long i) {
    return load16(reinterpret_cast<const uint16_t*>(row) + i);
  }
  FMA_TARGET static __m256i narrow(const uint8_t* row, long i) {
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
  FMA_TARGET static void store(uint16_t* target, __m512 first, __m512 second) {
    store16(target, first);
    store16(target + 16, second);
  }
  FMA_TARGET static Pairs load_sums(const float* sums) {
    return {_mm512_loadu_ps(sums), _mm512_loadu_ps(sums + 16)};
  }
  FMA_TARGET static __m512 widen(const uint8_t* row, long i) { return Values::load(row + i); }
  FMA_TARGET static __m256i narrow(const uint8_t* row, long i) {  // exact: at most 7 bits
    return to_bfloat16(Values::load(row + i));
  }
};

struct Int8Values {
  static constexpr float kFactor = 1.0f;
  FMA_TARGET static __m512 load(const uint8_t* source) {
    __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(source));
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
  }
};

// e4m3's bits, shifted, are those of a float16 a 256th as large.
struct Fp8Values {
  static constexpr float kFactor = 256.0f;
  FMA_TARGET static __m512 load(const uint8_t* source) {
    __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(source));
    __m256i wide = _mm256_cvtepi8_epi16(bytes);
    __m256i rest = _mm256_and_si256(_mm256_slli_epi16(wide, 7), _mm256_set1_epi16(0x3f80));
    __m256i sign = _mm256_and_si256(wide, _mm256_set1_epi16(static_cast<short>(0x8000)));
    return _mm512_cvtph_ps(_mm256_or_si256(rest, sign));
  }
};

using Int8Rows = EightBitRows<Int8Values>;
using Fp8Rows = EightBitRows<Fp8Values>;

// ---- writing ----

// Round to nearest even; |value| ≤ 448. Below 2^-6 in steps of 2^-9, float32's at 2^14.
FMA_TARGET inline __m128i to_e4m3(__m512 value) {
  __m512i bits = _mm512_castps_si512(value);
  __m512i size = _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff));
  __m512i sign = _mm512_and_si512(_mm512_srli_epi32(bits, 24), _mm512_set1_epi32(0x80));
  __m512i odd = _mm512_and_si512(_mm512_srli_epi32(size, 20), _mm512_set1_epi32(1));
  __m512i up = _mm512_add_epi32(size, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7ffff)));
  __m512i code = _mm512_sub_epi32(_mm512_srli_epi32(up, 20), _mm512_set1_epi32(120 << 3));
  __m512 moved = _mm512_add_ps(_mm512_castsi512_ps(size), _mm512_set1_ps(16384.0f));
  __m512i tiny = _mm512_sub_epi32(_mm512_castps_si512(moved), _mm512_set1_epi32(0x46800000));
  __mmask16 is_tiny = _mm512_cmplt_epi32_mask(size, _mm512_set1_epi32(0x3c800000));
  code = _mm512_or_si512(_mm512_mask_mov_epi32(code, is_tiny, tiny), sign);
  return _mm512_cvtepi32_epi8(code);
}

// Write a head in 8 bits; size: a multiple of 16.
FMA_TARGET inline void store_eight_bit(const uint16_t* x, long size, Format format, uint8_t* part,
                                       const Place& place) {
  const float largest = format == kInt8 ? 127.0f : 448.0f;
  __m512 most = _mm512_setzero_ps();
  __mmask16 is_nan = 0;
  for (long i = 0; i < size; i += 16) {
    __m512 value = load16(x + i);
    is_nan |= _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
    most = _mm512_max_ps(most, _mm512_abs_ps(value));
  }
  const uint16_t bits = from_float(is_nan ? NAN : _mm512_reduce_max_ps(most) / largest);
  const float scale = to_float(bits);
  std::memcpy(part + place.scale, &bits, 2);
  uint8_t* row = part + place.row;
  if (!(scale > 0 && scale < INFINITY)) {
    std::memset(row, 0, size);
    return;
  }
  for (long i = 0; i < size; i += 16) {
    __m512 value = _mm512_div_ps(load16(x + i), _mm512_set1_ps(scale));
    value = _mm512_max_ps(value, _mm512_set1_ps(-largest));
    value = _mm512_min_ps(value, _mm512_set1_ps(largest));
    __m128i bytes =
        format == kInt8 ? _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(value)) : to_e4m3(value);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(row + i), bytes);
  }
}

}  // namespace

#endif  // QWEN_X86
