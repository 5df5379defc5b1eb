// Matrix products of few or many rows with bfloat16 weights, for CPUs with AVX-512.
//
// Owns the packed layout and its kernels; called through ctypes by native.py. Knows no Python and
// no torch: plain pointers, OpenMP for threads (the runtime that torch has loaded, one pool).
//
// Layout: 32 rows of W [out, in] are one panel, [in / 2][32][2]; a panel takes exactly the bytes
// of its 32 rows, so packing works in place and no second copy of the weights ever exists.
//
// Two kernels read it: `fma` widens the weights to float32 in registers (a shift, a mask) and
// multiplies there; `dot` uses the bfloat16 dot product instruction. Which is faster differs
// threefold between processors; native.py's caller measures.

#include <vector>

#include "panels.h"

extern "C" {

// Bit 0: `fma` runs on this processor, bit 1: `dot` does.
int qwen_kernels() {
#ifdef QWEN_X86
  __builtin_cpu_init();
  bool fma = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  bool dot = fma && __builtin_cpu_supports("avx512bf16");
  return (fma ? 1 : 0) | (dot ? 2 : 0);
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

// y [rows, out] = x [rows, in] · Wᵀ + bias, all bfloat16 but the sums. scratch: rows × in floats.
void qwen_linear(const uint16_t* x, long x_stride, const uint16_t* w, const uint16_t* bias,
                 uint16_t* y, long rows, long out, long in, int use_dot, float* scratch,
                 int num_threads) {
  const Blocks blocks(rows);
  const Kernel* kernels = use_dot ? kDot : kFma;
  const long width = use_dot ? in / 2 : in;
  const long per_chunk = kChunkBytes / (width * 4 * kMaxRows) + 1;  // blocks
  const long num_chunks = (blocks.count + per_chunk - 1) / per_chunk;
  const long num_panels = out / kPanel;
  const long grain = num_panels / (8 * num_threads) + 1;
#pragma omp parallel num_threads(num_threads)
  {
#pragma omp for schedule(static)
    for (long block = 0; block < blocks.count; ++block) {
      long first = blocks.start(block);
      pack_rows(x + first * x_stride, x_stride, blocks.size(block), in, use_dot,
                scratch + first * width);
    }
    for (long chunk = 0; chunk < num_chunks; ++chunk) {
      const long begin = chunk * per_chunk;
      const long end = begin + per_chunk < blocks.count ? begin + per_chunk : blocks.count;
#pragma omp for schedule(dynamic, grain) nowait
      for (long panel = 0; panel < num_panels; ++panel) {
        const uint16_t* weights = w + panel * kPanel * in;
        for (long block = begin; block < end; ++block) {
          long first = blocks.start(block);
          Output output{y + first * out + panel * kPanel, out,
                        bias == nullptr ? nullptr : bias + panel * kPanel, nullptr};
          const uint16_t* next = weights + (panel + 1 < num_panels ? kPanel * in : 0);
          fetch_ahead(output, next, in, 4 * kPanel, block - begin, end - begin);
          kernels[blocks.size(block)](scratch + first * width, weights, in, output);
        }
      }
    }
  }
}

#endif

}  // extern "C"
