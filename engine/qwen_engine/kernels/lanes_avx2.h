// 16 lanes of 32 bits in two registers of AVX2; lanes_avx512.h has the same functions.
//
// A quarter of the room for sums, see the constants. There is no instruction for products of
// bfloat16, so `dot` widens them first.

#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#define FMA_TARGET __attribute__((target("avx2,fma,f16c,prfchw")))
#define DOT_TARGET FMA_TARGET
#define LANES FMA_TARGET inline

namespace {

struct Floats {
  __m256 low, high;
};
struct Words {  // 32 bits each, or pairs of bfloat16, the first in the lower half
  __m256i low, high;
};
using Shorts = __m256i;  // 16 bits each
using Bytes = __m128i;
struct Mask {
  __m256i low, high;
};
using First = long;  // how many lanes count

constexpr int kRegisters = 8;    // of Floats
constexpr int kRowsAtOnce = 5;   // of a matrix kernel: with 6 the compiler runs out of registers

inline bool has_lanes() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("f16c");
}
inline bool has_dot() { return false; }
inline bool multiplies_pairs() { return has_lanes(); }

LANES Floats zeros() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
LANES Floats splat(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
LANES Words splat_word(int x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
LANES Floats splat_pair(double x) {  // two floats
  const __m256 both = _mm256_castpd_ps(_mm256_set1_pd(x));
  return {both, both};
}
LANES Floats load_floats(const float* x) { return {_mm256_loadu_ps(x), _mm256_loadu_ps(x + 8)}; }
LANES Words load_words(const void* x) {
  const __m256i* from = static_cast<const __m256i*>(x);
  return {_mm256_loadu_si256(from), _mm256_loadu_si256(from + 1)};
}
LANES void store_floats(float* to, Floats x) {
  _mm256_storeu_ps(to, x.low);
  _mm256_storeu_ps(to + 8, x.high);
}
LANES void store_words(void* to, Words x) {
  _mm256_storeu_si256(static_cast<__m256i*>(to), x.low);
  _mm256_storeu_si256(static_cast<__m256i*>(to) + 1, x.high);
}

LANES Floats add(Floats a, Floats b) {
  return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
}
LANES Floats sub(Floats a, Floats b) {
  return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)};
}
LANES Floats mul(Floats a, Floats b) {
  return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
}
LANES Floats div(Floats a, Floats b) {
  return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)};
}
LANES Floats fmadd(Floats a, Floats b, Floats c) {
  return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
LANES Floats fnmadd(Floats a, Floats b, Floats c) {
  return {_mm256_fnmadd_ps(a.low, b.low, c.low), _mm256_fnmadd_ps(a.high, b.high, c.high)};
}
LANES Floats fmsub(Floats a, Floats b, Floats c) {
  return {_mm256_fmsub_ps(a.low, b.low, c.low), _mm256_fmsub_ps(a.high, b.high, c.high)};
}
LANES Floats max_of(Floats a, Floats b) {  // of NaN: b
  return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)};
}
LANES Floats min_of(Floats a, Floats b) {
  return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)};
}
LANES Floats round_even(Floats x) {
  constexpr int kHow = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(x.low, kHow), _mm256_round_ps(x.high, kHow)};
}
LANES float reduce_add(Floats x) {
  const __m256 eight = _mm256_add_ps(x.low, x.high);
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  four = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
}
LANES float reduce_max(Floats x) {
  const __m256 eight = _mm256_max_ps(x.low, x.high);
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  four = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
}

LANES Words bits_of(Floats x) { return {_mm256_castps_si256(x.low), _mm256_castps_si256(x.high)}; }
LANES Floats floats_of(Words x) {
  return {_mm256_castsi256_ps(x.low), _mm256_castsi256_ps(x.high)};
}
LANES Words and_words(Words a, Words b) {
  return {_mm256_and_si256(a.low, b.low), _mm256_and_si256(a.high, b.high)};
}
LANES Words or_words(Words a, Words b) {
  return {_mm256_or_si256(a.low, b.low), _mm256_or_si256(a.high, b.high)};
}
LANES Words add_words(Words a, Words b) {
  return {_mm256_add_epi32(a.low, b.low), _mm256_add_epi32(a.high, b.high)};
}
LANES Words sub_words(Words a, Words b) {
  return {_mm256_sub_epi32(a.low, b.low), _mm256_sub_epi32(a.high, b.high)};
}
LANES Words shift_left(Words x, int n) {
  return {_mm256_slli_epi32(x.low, n), _mm256_slli_epi32(x.high, n)};
}
LANES Words shift_right(Words x, int n) {
  return {_mm256_srli_epi32(x.low, n), _mm256_srli_epi32(x.high, n)};
}

LANES Words widen(Shorts x) {
  return {_mm256_cvtepu16_epi32(_mm256_castsi256_si128(x)),
          _mm256_cvtepu16_epi32(_mm256_extracti128_si256(x, 1))};
}
LANES Words widen_bytes(Bytes x) {  // with their sign
  return {_mm256_cvtepi8_epi32(x), _mm256_cvtepi8_epi32(_mm_unpackhi_epi64(x, x))};
}
LANES Floats widen_halves(Shorts x) {  // float16
  return {_mm256_cvtph_ps(_mm256_castsi256_si128(x)),
          _mm256_cvtph_ps(_mm256_extracti128_si256(x, 1))};
}
LANES Shorts narrow(Words x) {  // the lower halves
  x = and_words(x, splat_word(0xffff));
  return _mm256_permute4x64_epi64(_mm256_packus_epi32(x.low, x.high), 0xd8);
}
LANES Shorts first_shorts(Words x) { return x.low; }  // of 32
LANES Shorts last_shorts(Words x) { return x.high; }
LANES Bytes narrow_to_bytes(Words x) {
  const Shorts shorts = narrow(and_words(x, splat_word(0xff)));
  return _mm_packus_epi16(_mm256_castsi256_si128(shorts), _mm256_extracti128_si256(shorts, 1));
}
LANES Floats to_floats(Words x) { return {_mm256_cvtepi32_ps(x.low), _mm256_cvtepi32_ps(x.high)}; }
LANES Words to_words(Floats x) {  // rounded to even
  return {_mm256_cvtps_epi32(x.low), _mm256_cvtps_epi32(x.high)};
}
LANES Floats abs_of(Floats x) { return floats_of(and_words(bits_of(x), splat_word(0x7fffffff))); }
LANES Floats times_power(Floats x, Floats n) {  // x · 2^n, -126 ≤ n ≤ 127
  const Words power = shift_left(add_words(to_words(n), splat_word(127)), 23);
  return mul(x, floats_of(power));
}

LANES Mask is_nan(Floats x) {
  return {_mm256_castps_si256(_mm256_cmp_ps(x.low, x.low, _CMP_UNORD_Q)),
          _mm256_castps_si256(_mm256_cmp_ps(x.high, x.high, _CMP_UNORD_Q))};
}
LANES Mask is_less(Words a, Words b) {
  return {_mm256_cmpgt_epi32(b.low, a.low), _mm256_cmpgt_epi32(b.high, a.high)};
}
LANES Words select(Mask where, Words yes, Words no) {
  return {_mm256_blendv_epi8(no.low, yes.low, where.low),
          _mm256_blendv_epi8(no.high, yes.high, where.high)};
}
LANES Floats select(Mask where, Floats yes, Floats no) {
  return floats_of(select(where, bits_of(yes), bits_of(no)));
}
LANES Mask none() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
LANES Mask either(Mask a, Mask b) {
  return {_mm256_or_si256(a.low, b.low), _mm256_or_si256(a.high, b.high)};
}
LANES bool any(Mask mask) {
  const __m256i both = _mm256_or_si256(mask.low, mask.high);
  return !_mm256_testz_si256(both, both);
}

// What lies at even and at odd places of 32 values.
LANES __m256 in_order(__m256 x) {  // what a shuffle within halves leaves
  return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(x), 0xd8));
}
LANES Floats evens(Floats low, Floats high) {
  return {in_order(_mm256_shuffle_ps(low.low, low.high, 0x88)),
          in_order(_mm256_shuffle_ps(high.low, high.high, 0x88))};
}
LANES Floats odds(Floats low, Floats high) {
  return {in_order(_mm256_shuffle_ps(low.low, low.high, 0xdd)),
          in_order(_mm256_shuffle_ps(high.low, high.high, 0xdd))};
}

// The first lanes only; the others are read as 0 and not written.
LANES First first_lanes(long count) { return count < 16 ? count : 16; }
LANES Words load_some_words(const void* x, First lanes) {
  if (lanes == 16) return load_words(x);
  uint32_t some[16] = {};
  std::memcpy(some, x, 4 * lanes);
  return load_words(some);
}
LANES Floats load_some(const float* x, First lanes) { return floats_of(load_some_words(x, lanes)); }
LANES Shorts load_some_shorts(const uint16_t* x, First lanes) {
  if (lanes == 16) return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x));
  uint16_t some[16] = {};
  std::memcpy(some, x, 2 * lanes);
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(some));
}
LANES void store_some_words(void* to, First lanes, Words x) {
  uint32_t all[16];
  store_words(lanes == 16 ? to : all, x);
  if (lanes < 16) std::memcpy(to, all, 4 * lanes);
}
LANES void store_some(float* to, First lanes, Floats x) { store_some_words(to, lanes, bits_of(x)); }
LANES void store_some_shorts(uint16_t* to, First lanes, Shorts x) {
  uint16_t all[16];
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(lanes == 16 ? to : all), x);
  if (lanes < 16) std::memcpy(to, all, 2 * lanes);
}
LANES Floats keep_first(First lanes, Floats x) {
  const Words places = {_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7),
                        _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15)};
  return select(is_less(places, splat_word(static_cast<int>(lanes))), x, zeros());
}

// Rows of 8 words become columns.
LANES void transpose_eight(__m256i rows[8]) {
  __m256i other[8];
  for (int i = 0; i < 8; i += 2) {
    other[i] = _mm256_unpacklo_epi32(rows[i], rows[i + 1]);
    other[i + 1] = _mm256_unpackhi_epi32(rows[i], rows[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    for (int j = 0; j < 2; ++j) {
      rows[i + 2 * j] = _mm256_unpacklo_epi64(other[i + j], other[i + j + 2]);
      rows[i + 2 * j + 1] = _mm256_unpackhi_epi64(other[i + j], other[i + j + 2]);
    }
  }
  for (int i = 0; i < 4; ++i) {
    other[i] = _mm256_permute2x128_si256(rows[i], rows[i + 4], 0x20);
    other[i + 4] = _mm256_permute2x128_si256(rows[i], rows[i + 4], 0x31);
  }
  for (int i = 0; i < 8; ++i) rows[i] = other[i];
}

// Rows of 16 words become columns.
LANES void transpose(Words rows[16]) {
  __m256i corners[4][8];  // upper left, lower left, upper right, lower right
  for (int i = 0; i < 8; ++i) {
    corners[0][i] = rows[i].low;
    corners[1][i] = rows[i + 8].low;
    corners[2][i] = rows[i].high;
    corners[3][i] = rows[i + 8].high;
  }
  for (auto& corner : corners) transpose_eight(corner);
  for (int i = 0; i < 8; ++i) {
    rows[i] = {corners[0][i], corners[1][i]};
    rows[i + 8] = {corners[2][i], corners[3][i]};
  }
}

// sum + the products of pairs of bfloat16.
LANES Floats dot(Floats sum, Words a, Words b) {
  const Words upper = splat_word(static_cast<int>(0xffff0000));
  sum = fmadd(floats_of(shift_left(a, 16)), floats_of(shift_left(b, 16)), sum);
  return fmadd(floats_of(and_words(a, upper)), floats_of(and_words(b, upper)), sum);
}

}  // namespace
