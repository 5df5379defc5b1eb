// What the kernels share: bfloat16 and exp, in lanes of 32 bits.
//
// The sources are compiled twice, for AVX-512 and, with QWEN_AVX2, for AVX2. Every function names
// its own target, so both libraries load anywhere; qwen_kernels() says what the processor runs.

#pragma once

#include <cstdint>
#include <cstring>

#if defined(__x86_64__) && defined(__GNUC__)
#define QWEN_X86 1
#include <omp.h>
#ifdef QWEN_AVX2
#include "lanes_avx2.h"
#else
#include "lanes_avx512.h"
#endif

namespace {

// In how many parts of 16 lanes, of `all`, a matrix kernel with so many rows computes at once.
constexpr int parts_at_once(int rows, int all) {
  while (all > 1 && (rows + 1) * all + 1 > kRegisters) all /= 2;
  return all;
}

inline float to_float(uint16_t value) {
  uint32_t bits = static_cast<uint32_t>(value) << 16;
  float result;
  std::memcpy(&result, &bits, 4);
  return result;
}

LANES Words upper_halves(Words x) { return and_words(x, splat_word(static_cast<int>(0xffff0000))); }

// Round to nearest even, in the upper half of each lane; NaN stays NaN.
LANES Words rounded_bits(Floats value) {
  Words bits = bits_of(value);
  Words odd = and_words(shift_right(bits, 16), splat_word(1));
  Words sum = add_words(bits, add_words(odd, splat_word(0x7fff)));
  return select(is_nan(value), splat_word(0x7fc00000), sum);
}

LANES Shorts to_bfloat16(Floats value) { return narrow(shift_right(rounded_bits(value), 16)); }

LANES void store16(uint16_t* target, Floats value) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(target), to_bfloat16(value));
}

LANES Floats to_wide(Shorts bits) { return floats_of(shift_left(widen(bits), 16)); }

LANES Floats load16(const uint16_t* source) {
  return to_wide(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(source)));
}

#ifdef QWEN_AVX2
// 32 bfloat16 in order, rounded to even.
LANES Words to_pairs(Floats low, Floats high) { return {to_bfloat16(low), to_bfloat16(high)}; }
#endif

// kDot: by the instruction for it, which comes with that for products, and takes denormals for 0.
template <bool kDot>
DOT_TARGET inline void store_rounded(uint16_t* target, Floats value) {
  const Shorts rounded = kDot ? first_shorts(to_pairs(value, value)) : to_bfloat16(value);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(target), rounded);
}

// 32 values at once, those at even places and those at odd places.
struct Pairs {
  Floats even, odd;
};

LANES Pairs split(Words pairs) {
  return {floats_of(shift_left(pairs, 16)), floats_of(upper_halves(pairs))};
}

LANES Pairs load_pairs(const uint16_t* source) { return split(load_words(source)); }

// Pairs of bfloat16, the first of each in the lower half.
LANES Words side_by_side(Floats even, Floats odd) {
  return or_words(shift_right(rounded_bits(even), 16), upper_halves(rounded_bits(odd)));
}

LANES void store_pairs(uint16_t* target, Floats even, Floats odd) {
  store_words(target, side_by_side(even, odd));
}

// e^x by 2^n · p(r), |r| ≤ ln 2 / 2, the coefficients of Cephes' expf: within 2 units in the last
// place. Below -87 the result is that of -87, about 1e-38.
LANES Floats exp16(Floats x) {
  x = min_of(max_of(x, splat(-87.0f)), splat(88.0f));
  Floats n = round_even(mul(x, splat(1.44269504088896341f)));
  Floats r = fnmadd(n, splat(0.693359375f), x);
  r = fnmadd(n, splat(-2.12194440e-4f), r);
  Floats p = splat(1.9875691500e-4f);
  p = fmadd(p, r, splat(1.3981999507e-3f));
  p = fmadd(p, r, splat(8.3334519073e-3f));
  p = fmadd(p, r, splat(4.1665795894e-2f));
  p = fmadd(p, r, splat(1.6666665459e-1f));
  p = fmadd(p, r, splat(5.0000001201e-1f));
  p = fmadd(mul(p, r), r, add(r, splat(1.0f)));
  return times_power(p, n);
}

LANES Floats silu(Floats x) { return div(x, add(splat(1.0f), exp16(sub(zeros(), x)))); }

}  // namespace

#endif  // x86
