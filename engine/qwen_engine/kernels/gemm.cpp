// Matrix products of few or many rows with bfloat16 weights, for CPUs with AVX-512 or AVX2.
//
// Owns the packed layout and its kernels; called through ctypes by library.py. Knows no Python and
// no torch: plain pointers, OpenMP for threads (the runtime that torch has loaded, one pool).
//
// Layout: 32 rows of W [out, in] are one panel, [in / 2][32][2]; a panel takes exactly the bytes
// of its 32 rows, so packing works in place and no second copy of the weights ever exists.
//
// Three kernels read it: `fma` widens the weights to float32 in registers (a shift, a mask) and
// multiplies there; `dot` uses the bfloat16 dot product instruction, `tile` AMX. Which is faster
// differs threefold between processors; library.py's caller measures.

#include <vector>

#include "tile_panel.h"

#ifdef QWEN_X86

namespace qwen {

void multiply_bfloat16(const PanelWork& work, long panel, long next, uint16_t* y, long stride) {
  const Weight& weight = *work.weight;
  const long width = packed_width(weight.in, work.way), size = kPanel * weight.in;
  const uint16_t* values = static_cast<const uint16_t*>(weight.values);
  const long origin = work.first_row(), count = work.end - work.begin;
  for (long block = work.begin; block < work.end; ++block) {
    const long first = work.blocks->start(block);
    Output output{y + (first - origin) * stride, stride,
                  weight.bias == nullptr ? nullptr : weight.bias + panel * kPanel, nullptr};
    fetch_ahead(output, values + panel * size, values + next * size, weight.in, 4 * kPanel,
                block - work.begin, count, work.way != kFma);
    multiply_block(work, work.blocks->size(block), work.packed + first * width,
                   values + panel * size, output);
  }
}

void multiply_gated_dot(const PanelWork& work, long panel, long next, float* gated) {
  const Weight& weight = *work.weight;
  const long width = packed_width(weight.in, kDot), size = kPanel * weight.in;
  const long num_panels = weight.out / kPanel / 2, count = work.end - work.begin;
  const uint16_t* values = static_cast<const uint16_t*>(weight.values);
  for (long block = work.begin; block < work.end; ++block) {
    const long first = work.blocks->start(block);
    const int rows = work.blocks->size(block);
    uint16_t both[kRowsAtOnce * kPanel];
    for (long column = 0; column < kPanel; column += 16) {
      const long begin = panel * kPanel + column;
      Output output{both + column, kPanel, weight.bias == nullptr ? nullptr : weight.bias + begin,
                    nullptr};
      output.far = num_panels * size;
      output.far_column = num_panels * kPanel;
      output.is_gated = true;
      const uint16_t *w = values + panel * size + 2 * column,
                     *after = values + (column == 0 ? next : num_panels + next) * size;
      fetch_ahead(output, w, after, weight.in, 4 * kPanel, block - work.begin, count, false);
      kDots[rows](work.packed + first * width, w, weight.in, output);
    }
    pack_block(both, kPanel, rows, kPanel, kDot, columns_of_block(work, block, panel, gated));
  }
}

}  // namespace qwen

#endif  // QWEN_X86

extern "C" {

// Bit 0: `fma` runs on this processor, bit 1: `dot` does, bit 2: what multiplies pairs does, if
// without an instruction for it, bit 3: `tile` does.
int qwen_kernels() {
#ifdef QWEN_X86
  return (has_lanes() ? 1 : 0) | (has_dot() ? 2 : 0) | (multiplies_pairs() ? 4 : 0) |
         (qwen::has_tiles() ? 8 : 0);
#else
  return 0;
#endif
}

// Bring every panel of source [out, in] into the layout, or back; target may be the source.
void qwen_pack(const uint16_t* source, long out, long in, int back, uint16_t* target,
               int num_threads) {
#pragma omp parallel num_threads(num_threads)
  {
    std::vector<uint16_t> panel(kPanel * in);
#pragma omp for schedule(static)
    for (long index = 0; index < out / kPanel; ++index) {
      std::memcpy(panel.data(), source + index * kPanel * in, kPanel * in * 2);
      uint16_t* to = target + index * kPanel * in;
      for (long k = 0; k < in; k += 2) {
        for (long row = 0; row < kPanel; ++row) {
          long flat = row * in + k, packed = (k / 2 * kPanel + row) * 2;
          std::memcpy(to + (back ? flat : packed), panel.data() + (back ? packed : flat), 4);
        }
      }
    }
  }
}

#ifdef QWEN_X86

// y [rows, out] = x [rows, in] · Wᵀ + bias, all bfloat16 but the sums; way: one of qwen::Way.
// scratch: library.py's scratch_values().
void qwen_linear(const uint16_t* x, long x_stride, const void* w, const uint16_t* bias, uint16_t* y,
                 long rows, long out, long in, int way, float* scratch, int num_threads) {
  const qwen::Way chosen = static_cast<qwen::Way>(way);
  const qwen::Weight weight{w, bias, out, in};
  qwen::Counter counter{0};
#pragma omp parallel num_threads(num_threads)
  {
    qwen::Turn turn(counter);
    qwen::pack(x, x_stride, rows, in, chosen, scratch);
    qwen::multiply(scratch, rows, weight, chosen, y, out, turn);
  }
}

#endif

}  // extern "C"
