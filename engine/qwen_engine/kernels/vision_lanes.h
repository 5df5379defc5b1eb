// Rows of float32 or bfloat16 in lanes of float32, also where fewer than 16 are left.

#pragma once

#include "vector.h"

#ifdef QWEN_X86

namespace {

inline __mmask16 first_lanes(long count) {
  return static_cast<__mmask16>(count >= 16 ? 0xffff : (1u << count) - 1);
}

FMA_TARGET inline __m512 load_some(const float* x, __mmask16 mask) {
  return _mm512_maskz_loadu_ps(mask, x);
}

FMA_TARGET inline __m512 load_some(const uint16_t* x, __mmask16 mask) {
  __m512i wide = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, x));
  return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}

FMA_TARGET inline void store_some(float* x, __mmask16 mask, __m512 value) {
  _mm512_mask_storeu_ps(x, mask, value);
}

FMA_TARGET inline void store_some(uint16_t* x, __mmask16 mask, __m512 value) {
  _mm256_mask_storeu_epi16(x, mask, to_bfloat16(value));
}

}  // namespace

#endif  // QWEN_X86
