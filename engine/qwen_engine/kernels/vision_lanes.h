// Rows of bfloat16 in lanes of float32, also where fewer than 16 are left; lanes_*.h has float32.

#pragma once

#include "vector.h"

#ifdef QWEN_X86

namespace {

LANES Floats load_some(const uint16_t* x, First lanes) {
  return floats_of(shift_left(widen(load_some_shorts(x, lanes)), 16));
}

LANES void store_some(uint16_t* x, First lanes, Floats value) {
  store_some_shorts(x, lanes, to_bfloat16(value));
}

}  // namespace

#endif  // QWEN_X86
