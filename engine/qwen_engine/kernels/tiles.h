// AMX: registers of 16 rows of 64 bytes, and an instruction that multiplies two of them.
//
// Tiles 0 to 3 are sums, 4 and 5 rows of x, 6 and 7 pairs of columns. All are whole: what lies
// behind the last row is read too, and what is computed of it is left. Only with AVX-512; elsewhere
// has_tiles() is false and nothing here is called.

#pragma once

#include "vector.h"

#ifdef QWEN_X86

namespace qwen {

// What a row of x takes, in bfloat16: whole tiles, and a line of the cache more, for rows that lie
// a multiple of 4096 bytes apart would all share its few places.
inline long tile_row_values(long in) { return (in + 31) / 32 * 32 + 32; }

}  // namespace qwen

// Compilers know the tiles from GCC 11 and Clang 12 on.
#if !defined(QWEN_AVX2) && defined(__linux__) && (__GNUC__ >= 11 || defined(__clang__))

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#define TILE_TARGET                                                               \
  __attribute__((target("amx-tile,amx-bf16,avx512f,avx512bw,avx512vl,avx512dq," \
                        "avx512bf16,avx512vbmi,fma")))

namespace qwen {

// Whether the processor has tiles and Linux lets this process use them (since 5.16; it must be
// asked: Documentation/arch/x86/xstate.rst).
inline bool has_tiles() {
  constexpr unsigned kBfloat16Tiles = 1u << 22, kTiles = 1u << 24;  // of edx, leaf 7 (Intel's SDM)
  constexpr long kAskForState = 0x1023, kTileData = 18;
  unsigned a, b, c, d;
  if (!has_dot() || __get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  const bool is_there = (d & kBfloat16Tiles) != 0 && (d & kTiles) != 0;
  return is_there && syscall(SYS_arch_prctl, kAskForState, kTileData) == 0;
}

// A thread's use of tiles, if it has any. Others (oneDNN) give them shapes of their own, so ours are
// set for each piece of work and given up after it.
class Tiles {
 public:
  TILE_TARGET explicit Tiles(bool are_used) : are_used_(are_used) {
    if (!are_used) return;
    alignas(64) Shapes shapes{};
    shapes.palette = 1;
    std::fill_n(shapes.rows, 8, 16);
    std::fill_n(shapes.bytes, 8, 64);
    settle();
    _tile_loadconfig(&shapes);
  }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;
  TILE_TARGET ~Tiles() {
    if (are_used_) _tile_release();
  }

  // What was written before is in memory for tiles that are loaded after, and the other way round:
  // the compiler does not see what they read and write.
  static void settle() { asm volatile("" ::: "memory"); }

 private:
  struct Shapes {  // as LDTILECFG takes it
    uint8_t palette, start_row, reserved[14];
    uint16_t bytes[16];
    uint8_t rows[16];
  };
  bool are_used_;
};

// Sums of rows of x by 32 columns: 16 rows, or kTwo: a second tile of them.
template <bool kTwo>
TILE_TARGET inline void zero_tiles() {
  _tile_zero(0);
  _tile_zero(1);
  if constexpr (kTwo) {
    _tile_zero(2);
    _tile_zero(3);
  }
}

// From or to [rows][32] float32.
template <bool kTwo>
TILE_TARGET inline void load_tiles(const float* sums) {
  _tile_loadd(0, sums, 128);
  _tile_loadd(1, sums + 16, 128);
  if constexpr (kTwo) {
    _tile_loadd(2, sums + 512, 128);
    _tile_loadd(3, sums + 528, 128);
  }
}
template <bool kTwo>
TILE_TARGET inline void store_tiles(float* sums) {
  _tile_stored(0, sums, 128);
  _tile_stored(1, sums + 16, 128);
  if constexpr (kTwo) {
    _tile_stored(2, sums + 512, 128);
    _tile_stored(3, sums + 528, 128);
  }
}

// Add 32 products of each: x: rows of bfloat16, so many bytes apart; w: 16 pairs [32][2].
template <bool kTwo>
TILE_TARGET inline void multiply_tiles(const void* x, long row_bytes, const void* w) {
  const char* rows = static_cast<const char*>(x);
  _tile_loadd(6, w, 128);
  _tile_loadd(4, rows, row_bytes);
  _tile_loadd(7, static_cast<const char*>(w) + 64, 128);
  if constexpr (kTwo) _tile_loadd(5, rows + 16 * row_bytes, row_bytes);
  _tile_dpbf16ps(0, 4, 6);
  _tile_dpbf16ps(1, 4, 7);
  if constexpr (kTwo) {
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
}

}  // namespace qwen

#define QWEN_TILES 1

#else

namespace qwen {

inline bool has_tiles() { return false; }
struct Tiles {
  explicit Tiles(bool) {}
};

}  // namespace qwen

#endif

#endif  // QWEN_X86
