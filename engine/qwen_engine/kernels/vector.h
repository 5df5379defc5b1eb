// What the kernels share: the instruction sets they are compiled for, bfloat16, exp.
//
// Every function names its own target, so the library loads anywhere; qwen_kernels() says what
// the processor runs.

#pragma once

#include <cstdint>
#include <cstring>

#if defined(__x86_64__) && defined(__GNUC__)
#define QWEN_X86 1
#include <immintrin.h>
#include <omp.h>

#define FMA_TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,fma")))
#define DOT_TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,fma")))

namespace {

inline float to_float(uint16_t value) {
  uint32_t bits = static_cast<uint32_t>(value) << 16;
  float result;
  std::memcpy(&result, &bits, 4);
  return result;
}

// Round to nearest even, in the upper half of each lane; NaN stays NaN.
FMA_TARGET inline __m512i rounded_bits(__m512 value) {
  __m512i bits = _mm512_castps_si512(value);
  __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  __m512i sum = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  __mmask16 is_nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
  return _mm512_mask_mov_epi32(sum, is_nan, _mm512_set1_epi32(0x7fc00000));
}

FMA_TARGET inline __m256i to_bfloat16(__m512 value) {
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded_bits(value), 16));
}

FMA_TARGET inline void store16(uint16_t* target, __m512 value) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(target), to_bfloat16(value));
}

FMA_TARGET inline __m512 load16(const uint16_t* source) {
  __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}

// 32 values at once, those at even places and those at odd places.
struct Pairs {
  __m512 even, odd;
};

FMA_TARGET inline Pairs load_pairs(const uint16_t* source) {
  __m512i bits = _mm512_loadu_si512(source);
  __m512i mask = _mm512_set1_epi32(static_cast<int>(0xffff0000));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(bits, 16)),
          _mm512_castsi512_ps(_mm512_and_si512(bits, mask))};
}

// Pairs of bfloat16, the first of each in the lower half.
FMA_TARGET inline __m512i side_by_side(__m512 even, __m512 odd) {
  __m512i mask = _mm512_set1_epi32(static_cast<int>(0xffff0000));
  return _mm512_or_si512(_mm512_srli_epi32(rounded_bits(even), 16),
                         _mm512_and_si512(rounded_bits(odd), mask));
}

FMA_TARGET inline void store_pairs(uint16_t* target, __m512 even, __m512 odd) {
  _mm512_storeu_si512(target, side_by_side(even, odd));
}

// Rows of 16 values of 32 bits become columns.
FMA_TARGET inline void transpose(__m512i rows[16]) {
  __m512i other[16];
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

// e^x by 2^n · p(r), |r| ≤ ln 2 / 2, the coefficients of Cephes' expf: within 2 units in the last
// place. Below -87 the result is that of -87, about 1e-38.
FMA_TARGET inline __m512 exp16(__m512 x) {
  x = _mm512_min_ps(_mm512_max_ps(x, _mm512_set1_ps(-87.0f)), _mm512_set1_ps(88.0f));
  __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504088896341f)), 0);
  __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);
  r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);
  __m512 p = _mm512_set1_ps(1.9875691500e-4f);
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.3981999507e-3f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(8.3334519073e-3f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(4.1665795894e-2f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.6666665459e-1f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.0000001201e-1f));
  p = _mm512_fmadd_ps(_mm512_mul_ps(p, r), r, _mm512_add_ps(r, _mm512_set1_ps(1.0f)));
  return _mm512_scalef_ps(p, n);
}

}  // namespace

#endif  // x86
