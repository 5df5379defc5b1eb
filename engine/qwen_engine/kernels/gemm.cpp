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

#include "vector.h"

namespace {

constexpr long kPanel = 32;            // output rows side by side
constexpr int kMaxRows = 12;           // of x at once: 24 accumulators, 4 weights, the rest scratch
constexpr long kChunkBytes = 1 << 20;  // of packed x that should stay in the L2 cache

}  // namespace

#ifdef QWEN_X86

namespace {

struct Output {
  uint16_t* y;           // at the first of the panel's columns
  long stride;           // of y, in elements
  const uint16_t* bias;  // of the panel, or null
};

FMA_TARGET inline void store_row(const Output& out, long row, __m512 low, __m512 high) {
  if (out.bias != nullptr) {
    __m512i bias = _mm512_loadu_si512(out.bias);
    low = _mm512_add_ps(low, _mm512_castsi512_ps(_mm512_slli_epi32(
        _mm512_cvtepu16_epi32(_mm512_castsi512_si256(bias)), 16)));
    high = _mm512_add_ps(high, _mm512_castsi512_ps(_mm512_slli_epi32(
        _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(bias, 1)), 16)));
  }
  uint16_t* y = out.y + row * out.stride;
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(y), to_bfloat16(low));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(y + 16), to_bfloat16(high));
}

// x: [in][kRows] float32; w: one panel. Two accumulators a row.
template <int kRows>
FMA_TARGET void fma_panel(const float* x, const uint16_t* w, long in, const Output& out) {
  __m512 sums[kRows][2];
  for (int row = 0; row < kRows; ++row) sums[row][0] = sums[row][1] = _mm512_setzero_ps();
  const __m512i mask = _mm512_set1_epi32(static_cast<int>(0xffff0000));
  for (long k = 0; k < in; k += 2, w += 2 * kPanel, x += 2 * kRows) {
    _mm_prefetch(reinterpret_cast<const char*>(w) + 2048, _MM_HINT_T0);
    _mm_prefetch(reinterpret_cast<const char*>(w) + 2112, _MM_HINT_T0);
    __m512i low = _mm512_loadu_si512(w), high = _mm512_loadu_si512(w + kPanel);
    __m512 even_low = _mm512_castsi512_ps(_mm512_slli_epi32(low, 16));
    __m512 even_high = _mm512_castsi512_ps(_mm512_slli_epi32(high, 16));
    for (int row = 0; row < kRows; ++row) {
      __m512 value = _mm512_set1_ps(x[row]);
      sums[row][0] = _mm512_fmadd_ps(value, even_low, sums[row][0]);
      sums[row][1] = _mm512_fmadd_ps(value, even_high, sums[row][1]);
    }
    __m512 odd_low = _mm512_castsi512_ps(_mm512_and_si512(low, mask));
    __m512 odd_high = _mm512_castsi512_ps(_mm512_and_si512(high, mask));
    for (int row = 0; row < kRows; ++row) {
      __m512 value = _mm512_set1_ps(x[kRows + row]);
      sums[row][0] = _mm512_fmadd_ps(value, odd_low, sums[row][0]);
      sums[row][1] = _mm512_fmadd_ps(value, odd_high, sums[row][1]);
    }
  }
  for (int row = 0; row < kRows; ++row) store_row(out, row, sums[row][0], sums[row][1]);
}

// x: [in / 2][kRows] pairs of bfloat16.
template <int kRows>
DOT_TARGET void dot_panel(const float* pairs, const uint16_t* w, long in, const Output& out) {
  const int32_t* x = reinterpret_cast<const int32_t*>(pairs);
  __m512 sums[kRows][2];
  for (int row = 0; row < kRows; ++row) sums[row][0] = sums[row][1] = _mm512_setzero_ps();
  for (long k = 0; k < in; k += 2, w += 2 * kPanel, x += kRows) {
    _mm_prefetch(reinterpret_cast<const char*>(w) + 2048, _MM_HINT_T0);
    _mm_prefetch(reinterpret_cast<const char*>(w) + 2112, _MM_HINT_T0);
    __m512bh low = reinterpret_cast<__m512bh>(_mm512_loadu_si512(w));
    __m512bh high = reinterpret_cast<__m512bh>(_mm512_loadu_si512(w + kPanel));
    for (int row = 0; row < kRows; ++row) {
      __m512bh value = reinterpret_cast<__m512bh>(_mm512_set1_epi32(x[row]));
      sums[row][0] = _mm512_dpbf16_ps(sums[row][0], value, low);
      sums[row][1] = _mm512_dpbf16_ps(sums[row][1], value, high);
    }
  }
  for (int row = 0; row < kRows; ++row) store_row(out, row, sums[row][0], sums[row][1]);
}

using Kernel = void (*)(const float*, const uint16_t*, long, const Output&);

constexpr Kernel kFma[] = {nullptr,       fma_panel<1>,  fma_panel<2>,  fma_panel<3>, fma_panel<4>,
                           fma_panel<5>,  fma_panel<6>,  fma_panel<7>,  fma_panel<8>, fma_panel<9>,
                           fma_panel<10>, fma_panel<11>, fma_panel<12>};
constexpr Kernel kDot[] = {nullptr,       dot_panel<1>,  dot_panel<2>,  dot_panel<3>, dot_panel<4>,
                           dot_panel<5>,  dot_panel<6>,  dot_panel<7>,  dot_panel<8>, dot_panel<9>,
                           dot_panel<10>, dot_panel<11>, dot_panel<12>};

// Rows in blocks of nearly equal size, each at most kMaxRows.
struct Blocks {
  long num_rows, count;
  explicit Blocks(long rows) : num_rows(rows), count((rows + kMaxRows - 1) / kMaxRows) {}
  long start(long index) const { return num_rows * index / count; }
  int size(long index) const { return static_cast<int>(start(index + 1) - start(index)); }
};

// [rows][in] → [in][rows] float32, or [in / 2][rows] pairs.
void pack_rows(const uint16_t* x, long stride, int rows, long in, bool as_pairs, float* packed) {
  for (int row = 0; row < rows; ++row) {
    const uint16_t* source = x + row * stride;
    if (as_pairs) {
      for (long k = 0; k < in; k += 2) std::memcpy(packed + k / 2 * rows + row, source + k, 4);
    } else {
      for (long k = 0; k < in; ++k) packed[k * rows + row] = to_float(source[k]);
    }
  }
}

}  // namespace

#endif  // QWEN_X86

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
                        bias == nullptr ? nullptr : bias + panel * kPanel};
          kernels[blocks.size(block)](scratch + first * width, weights, in, output);
        }
      }
    }
  }
}

#endif

}  // extern "C"
