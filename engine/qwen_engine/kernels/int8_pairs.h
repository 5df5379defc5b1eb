// Int8 of a packed panel, widened in registers to float32 or to pairs of bfloat16.

#pragma once

#include "panels.h"

#ifdef QWEN_X86

namespace {

// 16 int8 as float32.
FMA_TARGET inline Floats load_int8(const int8_t* source) {
  Bytes bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(source));
  return to_floats(widen_bytes(bytes));
}

#ifdef QWEN_AVX2

struct Int8Pairs {
  // 64 int8 as 32 pairs.
  FMA_TARGET void widen(const int8_t* from, Words& one, Words& other) const {
    one = to_pairs(load_int8(from), load_int8(from + 16));
    other = to_pairs(load_int8(from + 32), load_int8(from + 48));
  }
  static FMA_TARGET void order(Words&, Words&) {}
};

#else

// A magnitude below 128 finds the two bytes of its bfloat16 in tables of that size: six
// instructions for 64 int8 where a conversion by way of float32 takes fourteen. A Zen 4 core widens
// and multiplies 35 GB/s from its cache so, not 24: more than memory gives it. The compiler works
// the tables out.
class Int8Pairs {
 public:
  DOT_TARGET Int8Pairs() {
    alignas(64) uint8_t first[128], second[128];
    for (int magnitude = 0; magnitude < 128; ++magnitude) {
      const float value = static_cast<float>(magnitude);
      uint32_t bits;
      std::memcpy(&bits, &value, 4);
      first[magnitude] = bits >> 16 & 0xff;
      second[magnitude] = bits >> 24;
    }
    for (int half = 0; half < 2; ++half) {
      first_[half] = load_words(first + 64 * half);
      second_[half] = load_words(second + 64 * half);
    }
  }

  // 64 int8, none of them -128, as 32 pairs: of each 8 in line `one` gets 4, `other` the rest.
  DOT_TARGET void widen(const int8_t* from, Words& one, Words& other) const {
    const Words values = load_words(from), magnitudes = _mm512_abs_epi8(values);
    const Words first = _mm512_permutex2var_epi8(first_[0], magnitudes, first_[1]);
    Words second = _mm512_permutex2var_epi8(second_[0], magnitudes, second_[1]);
    second = _mm512_ternarylogic_epi32(second, values, _mm512_set1_epi8(-128), kOrAnd);
    one = _mm512_unpacklo_epi8(first, second);
    other = _mm512_unpackhi_epi8(first, second);
  }

  // Bring such pairs, or sums of them, into the columns' order.
  static DOT_TARGET void order(Words& one, Words& other) {
    const Words low = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
    const Words high = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
    const Words first = _mm512_permutex2var_epi64(one, low, other);
    other = _mm512_permutex2var_epi64(one, high, other);
    one = first;
  }

 private:
  static constexpr int kOrAnd = 0xf8;  // a | (b & c)
  Words first_[2], second_[2];
};

#endif

}  // namespace

#endif  // QWEN_X86
