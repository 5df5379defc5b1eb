// 16 lanes of 32 bits in one register of AVX-512; lanes_avx2.h has the same functions.

#pragma once

#include <immintrin.h>

#include <cstdint>

#define FMA_TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,fma,prfchw")))
#define DOT_TARGET \
  __attribute__((  \
      target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx512vbmi,fma,prfchw")))
#define LANES FMA_TARGET inline

namespace {

using Floats = __m512;
using Words = __m512i;   // 32 bits each, or pairs of bfloat16, the first in the lower half
using Shorts = __m256i;  // 16 bits each
using Bytes = __m128i;
using Mask = __mmask16;
using First = __mmask16;  // how many lanes count

constexpr int kRegisters = 32;    // of Floats
constexpr int kRowsAtOnce = 12;   // of a matrix kernel: 24 sums, 4 weights, the rest scratch

inline bool has_lanes() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}
// Of the processors with AVX512-BF16 Cooper Lake alone lacks AVX512-VBMI, which int8 takes.
inline bool has_dot() {
  return has_lanes() && __builtin_cpu_supports("avx512bf16") &&
         __builtin_cpu_supports("avx512vbmi");
}
inline bool multiplies_pairs() { return has_dot(); }

LANES Floats zeros() { return _mm512_setzero_ps(); }
LANES Floats splat(float x) { return _mm512_set1_ps(x); }
LANES Words splat_word(int x) { return _mm512_set1_epi32(x); }
LANES Floats splat_pair(double x) { return _mm512_castpd_ps(_mm512_set1_pd(x)); }  // two floats
LANES Floats load_floats(const float* x) { return _mm512_loadu_ps(x); }
LANES Words load_words(const void* x) { return _mm512_loadu_si512(x); }
LANES void store_floats(float* to, Floats x) { _mm512_storeu_ps(to, x); }
LANES void store_words(void* to, Words x) { _mm512_storeu_si512(to, x); }

LANES Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
LANES Floats sub(Floats a, Floats b) { return _mm512_sub_ps(a, b); }
LANES Floats mul(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
LANES Floats div(Floats a, Floats b) { return _mm512_div_ps(a, b); }
LANES Floats fmadd(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
LANES Floats fnmadd(Floats a, Floats b, Floats c) { return _mm512_fnmadd_ps(a, b, c); }
LANES Floats fmsub(Floats a, Floats b, Floats c) { return _mm512_fmsub_ps(a, b, c); }
LANES Floats max_of(Floats a, Floats b) { return _mm512_max_ps(a, b); }  // of NaN: b
LANES Floats min_of(Floats a, Floats b) { return _mm512_min_ps(a, b); }
LANES Floats abs_of(Floats x) { return _mm512_abs_ps(x); }
LANES Floats round_even(Floats x) { return _mm512_roundscale_ps(x, 0); }
LANES Floats times_power(Floats x, Floats n) { return _mm512_scalef_ps(x, n); }  // x · 2^n
LANES float reduce_add(Floats x) { return _mm512_reduce_add_ps(x); }
LANES float reduce_max(Floats x) { return _mm512_reduce_max_ps(x); }

LANES Words bits_of(Floats x) { return _mm512_castps_si512(x); }
LANES Floats floats_of(Words x) { return _mm512_castsi512_ps(x); }
LANES Words and_words(Words a, Words b) { return _mm512_and_si512(a, b); }
LANES Words or_words(Words a, Words b) { return _mm512_or_si512(a, b); }
LANES Words add_words(Words a, Words b) { return _mm512_add_epi32(a, b); }
LANES Words sub_words(Words a, Words b) { return _mm512_sub_epi32(a, b); }
LANES Words shift_left(Words x, int n) { return _mm512_slli_epi32(x, n); }
LANES Words shift_right(Words x, int n) { return _mm512_srli_epi32(x, n); }

LANES Words widen(Shorts x) { return _mm512_cvtepu16_epi32(x); }
LANES Words widen_bytes(Bytes x) { return _mm512_cvtepi8_epi32(x); }  // with their sign
LANES Floats widen_halves(Shorts x) { return _mm512_cvtph_ps(x); }    // float16
LANES Shorts narrow(Words x) { return _mm512_cvtepi32_epi16(x); }     // the lower halves
LANES Shorts first_shorts(Words x) { return _mm512_castsi512_si256(x); }  // of 32
LANES Shorts last_shorts(Words x) { return _mm512_extracti64x4_epi64(x, 1); }
LANES Bytes narrow_to_bytes(Words x) { return _mm512_cvtepi32_epi8(x); }
LANES Floats to_floats(Words x) { return _mm512_cvtepi32_ps(x); }
LANES Words to_words(Floats x) { return _mm512_cvtps_epi32(x); }  // rounded to even

LANES Mask is_nan(Floats x) { return _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q); }
LANES Mask is_less(Words a, Words b) { return _mm512_cmplt_epi32_mask(a, b); }
LANES Words select(Mask where, Words yes, Words no) { return _mm512_mask_mov_epi32(no, where, yes); }
LANES Floats select(Mask where, Floats yes, Floats no) { return _mm512_mask_mov_ps(no, where, yes); }
LANES bool any(Mask mask) { return mask != 0; }
LANES Mask none() { return 0; }
LANES Mask either(Mask a, Mask b) { return a | b; }

// What lies at even and at odd places of 32 values.
LANES Words even_places() {
  return _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
}
LANES Floats evens(Floats low, Floats high) {
  return _mm512_permutex2var_ps(low, even_places(), high);
}
LANES Floats odds(Floats low, Floats high) {
  return _mm512_permutex2var_ps(low, add_words(even_places(), splat_word(1)), high);
}

// The first lanes only; the others are read as 0 and not written.
LANES First first_lanes(long count) {
  return static_cast<First>(count >= 16 ? 0xffff : (1u << count) - 1);
}
LANES Floats load_some(const float* x, First lanes) { return _mm512_maskz_loadu_ps(lanes, x); }
LANES Words load_some_words(const void* x, First lanes) {
  return _mm512_maskz_loadu_epi32(lanes, x);
}
LANES Shorts load_some_shorts(const uint16_t* x, First lanes) {
  return _mm256_maskz_loadu_epi16(lanes, x);
}
LANES void store_some(float* to, First lanes, Floats x) { _mm512_mask_storeu_ps(to, lanes, x); }
LANES void store_some_words(void* to, First lanes, Words x) {
  _mm512_mask_storeu_epi32(to, lanes, x);
}
LANES void store_some_shorts(uint16_t* to, First lanes, Shorts x) {
  _mm256_mask_storeu_epi16(to, lanes, x);
}
LANES Floats keep_first(First lanes, Floats x) { return _mm512_maskz_mov_ps(lanes, x); }

// sum + the products of pairs of bfloat16.
DOT_TARGET inline Floats dot(Floats sum, Words a, Words b) {
  return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
}
// 32 bfloat16 in order, rounded to even.
DOT_TARGET inline Words to_pairs(Floats low, Floats high) {
  return reinterpret_cast<Words>(_mm512_cvtne2ps_pbh(high, low));
}

// Rows of 16 words become columns.
LANES void transpose(Words rows[16]) {
  Words other[16];
  for (int i = 0; i < 16; i += 2) {
    other[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
    other[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    for (int j = 0; j < 2; ++j) {
      rows[i + 2 * j] = _mm512_unpacklo_epi64(other[i + j], other[i + j + 2]);
      rows[i + 2 * j + 1] = _mm512_unpackhi_epi64(other[i + j], other[i + j + 2]);
    }
  }
  for (int i = 0; i < 4; ++i) {
    for (int j = 0; j < 16; j += 8) {
      other[i + j] = _mm512_shuffle_i32x4(rows[i + j], rows[i + j + 4], 0x88);
      other[i + j + 4] = _mm512_shuffle_i32x4(rows[i + j], rows[i + j + 4], 0xdd);
    }
  }
  for (int i = 0; i < 8; ++i) {
    rows[i] = _mm512_shuffle_i32x4(other[i], other[i + 8], 0x88);
    rows[i + 8] = _mm512_shuffle_i32x4(other[i], other[i + 8], 0xdd);
  }
}

}  // namespace
