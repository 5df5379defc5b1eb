// Matrix products with int8 weights, a scale for each output column; x stays bfloat16.
//
// A row of W is `in` int8 and the float32 scale behind them. 32 rows are one panel, as in gemm.cpp:
// first [in / 2][32][2] int8, then [32] scales; so packing works in place here too.
//
// Few rows of x are bound by memory, and the weights are widened in registers: `fma` to float32,
// `dot` to bfloat16, which holds every int8 exactly. For many rows a panel is widened once, into
// the cache, and the kernels for bfloat16 take it from there. The scale comes last, to the sums.

#include <algorithm>
#include <vector>

#include "int8_pairs.h"
#include "tile_panel.h"

#ifdef QWEN_X86

namespace {

inline void prefetch(const int8_t* w, const char* ahead) {
  _mm_prefetch(reinterpret_cast<const char*>(w) + 2048, _MM_HINT_T0);
  _mm_prefetch(ahead, _MM_HINT_T1);
}

// x: [in / 2][kRows][2] float32, at most 6 rows. Lanes are pairs of k for 8 columns: a panel has 4
// such parts.
template <int kRows>
FMA_TARGET void fma_int8(const float* rows, const int8_t* values, long in, const Output& out) {
  constexpr int kParts = parts_at_once(kRows, 4);
  Floats all[kRows][4];
  for (int first = 0; first < 4; first += kParts) {
    Floats sums[kRows][kParts];
    for (auto& row : sums) {
      for (Floats& sum : row) sum = zeros();
    }
    const char* ahead = out.ahead;
    const float* x = rows;
    const int8_t* w = values;
    for (long k = 0; k < in; k += 2, w += 2 * kPanel, x += 2 * kRows, ahead += out.ahead_step) {
      prefetch(w, ahead);
      Floats weights[kParts];
      for (int part = 0; part < kParts; ++part) weights[part] = load_int8(w + 16 * (first + part));
      for (int row = 0; row < kRows; ++row) {
        double pair;
        std::memcpy(&pair, x + 2 * row, 8);
        const Floats value = splat_pair(pair);
        for (int part = 0; part < kParts; ++part) {
          sums[row][part] = fmadd(value, weights[part], sums[row][part]);
        }
      }
    }
    for (int row = 0; row < kRows; ++row) {
      for (int part = 0; part < kParts; ++part) all[row][first + part] = sums[row][part];
    }
  }
  for (int row = 0; row < kRows; ++row) {
    for (int half = 0; half < 2; ++half) {
      const Floats one = all[row][2 * half], other = all[row][2 * half + 1];
      store_columns(out, row, 16 * half, add(evens(one, other), odds(one, other)));
    }
  }
}

// x: [in / 2][kRows] pairs of bfloat16.
template <int kRows>
DOT_TARGET void dot_int8(const float* pairs, const int8_t* w, long in, const Output& out) {
  const int32_t* x = reinterpret_cast<const int32_t*>(pairs);
  Floats sums[kRows][2];
  for (int row = 0; row < kRows; ++row) sums[row][0] = sums[row][1] = zeros();
  const Int8Pairs pairs_of;
  const char* ahead = out.ahead;
  for (long k = 0; k < in; k += 2, w += 2 * kPanel, x += kRows, ahead += out.ahead_step) {
    _mm_prefetch(ahead, _MM_HINT_T0);
    Words one, other;
    pairs_of.widen(w, one, other);
    for (int row = 0; row < kRows; ++row) {
      const Words value = splat_word(x[row]);
      sums[row][0] = dot(sums[row][0], value, one);
      sums[row][1] = dot(sums[row][1], value, other);
    }
  }
  for (int row = 0; row < kRows; ++row) {
    Words low = bits_of(sums[row][0]), high = bits_of(sums[row][1]);
    Int8Pairs::order(low, high);
    store_dot_row(out, row, floats_of(low), floats_of(high));
  }
}

using Int8Kernel = void (*)(const float*, const int8_t*, long, const Output&);

constexpr Int8Kernel kFmaInt8[] = {nullptr,     fma_int8<1>, fma_int8<2>, fma_int8<3>,
                                   fma_int8<4>, fma_int8<5>, fma_int8<6>};
constexpr Int8Kernel kDotInt8[] = {nullptr,      dot_int8<1>,  dot_int8<2>, dot_int8<3>,
                                   dot_int8<4>,  dot_int8<5>,  dot_int8<6>, dot_int8<7>,
                                   dot_int8<8>,  dot_int8<9>,  dot_int8<10>, dot_int8<11>,
                                   dot_int8<12>};

// A panel's values as bfloat16 in the same order, multiplied by `factors` [32][2] if there are any.
FMA_TARGET void widen_panel(const int8_t* w, long in, const float* factors, uint16_t* target) {
  for (long k = 0; k < in * kPanel; k += 2 * kPanel) {
    for (long i = 0; i < 2 * kPanel; i += 16) {
      Floats value = load_int8(w + k + i);
      if (factors != nullptr) value = mul(value, load_floats(factors + i));
      store16(target + k + i, value);
    }
  }
}

// The same without factors, by Int8Pairs.
DOT_TARGET void widen_panel_to_pairs(const int8_t* w, long in, uint16_t* target) {
  const Int8Pairs pairs_of;
  for (long k = 0; k < in * kPanel; k += 2 * kPanel) {
    Words low, high;
    pairs_of.widen(w + k, low, high);
    Int8Pairs::order(low, high);
    store_words(target + k, low);
    store_words(target + k + kPanel, high);
  }
}

struct Panel {
  const int8_t* values;
  const float* scales;
  Panel(const int8_t* w, long in, long index) {
    values = w + index * kPanel * (in + 4);
    scales = reinterpret_cast<const float*>(values + kPanel * in);
  }
};

}  // namespace

namespace qwen {

void multiply_int8(const PanelWork& work, long panel, long next, uint16_t* room, uint16_t* y,
                   long stride) {
  const Weight& weight = *work.weight;
  const int8_t* all = static_cast<const int8_t*>(weight.values);
  const Panel one(all, weight.in, panel), following(all, weight.in, next);
  const Int8Kernel* direct = is_dot(work.way) ? kDotInt8 : kFmaInt8;
  if (work.way == kWidenedFma) widen_panel(one.values, weight.in, nullptr, room);
  else if (is_widened(work.way)) widen_panel_to_pairs(one.values, weight.in, room);
  const long origin = work.first_row(), count = work.end - work.begin;
  for (long block = work.begin; block < work.end; ++block) {
    const long first = work.blocks->start(block);
    const float* rows = work.packed + first * packed_width(weight.in, work.way);
    Output output{y + (first - origin) * stride, stride,
                  weight.bias == nullptr ? nullptr : weight.bias + panel * kPanel, one.scales};
    fetch_ahead(output, one.values, following.values, weight.in, 2 * kPanel, block - work.begin,
                count, work.way == kInt8Dot);
    if (is_widened(work.way)) {
      multiply_block(work, work.blocks->size(block), rows, room, output);
    } else {
      direct[work.blocks->size(block)](rows, one.values, weight.in, output);
    }
  }
}

}  // namespace qwen

extern "C" {

// Bring every panel of w [out][in + 4] into the layout, or back, in place.
void qwen_int8_pack(int8_t* w, long out, long in, int back, int num_threads) {
  const long size = kPanel * (in + 4);
#pragma omp parallel num_threads(num_threads)
  {
    std::vector<int8_t> panel(size);
#pragma omp for schedule(static)
    for (long index = 0; index < out / kPanel; ++index) {
      int8_t* to = w + index * size;
      std::memcpy(panel.data(), to, size);
      for (long row = 0; row < kPanel; ++row) {
        for (long k = 0; k < in; k += 2) {
          long flat = row * (in + 4) + k, packed = (k / 2 * kPanel + row) * 2;
          std::memcpy(to + (back ? flat : packed), panel.data() + (back ? packed : flat), 2);
        }
        long flat = row * (in + 4) + in, packed = kPanel * in + row * 4;
        std::memcpy(to + (back ? flat : packed), panel.data() + (back ? packed : flat), 4);
      }
    }
  }
}

// Write a packed w as bfloat16 [out][in].
void qwen_int8_unpack(const int8_t* w, long out, long in, uint16_t* target, int num_threads) {
#pragma omp parallel num_threads(num_threads)
  {
    std::vector<uint16_t> wide(kPanel * in);
#pragma omp for schedule(static)
    for (long index = 0; index < out / kPanel; ++index) {
      const Panel panel(w, in, index);
      float factors[2 * kPanel];
      for (long i = 0; i < 2 * kPanel; ++i) factors[i] = panel.scales[i / 2];
      widen_panel(panel.values, in, factors, wide.data());
      for (long row = 0; row < kPanel; ++row) {
        uint16_t* to = target + (index * kPanel + row) * in;
        for (long k = 0; k < in; k += 2) {
          std::memcpy(to + k, wide.data() + (k / 2 * kPanel + row) * 2, 4);
        }
      }
    }
  }
}

}  // extern "C"

#endif  // QWEN_X86
