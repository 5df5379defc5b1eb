// A product of rows of x with packed weights, as the work of a team of threads.
//
// Every thread of an OpenMP team calls these with the same arguments; the loops inside share the
// work out. gemm.cpp and int8.cpp have the panels' layouts, products.cpp goes over them. x is
// packed first, in groups of rows, so that a kernel finds what it multiplies side by side.

#pragma once

#include <algorithm>
#include <atomic>

#include "tiles.h"

#ifdef QWEN_X86

namespace qwen {

// library.py counts on the numbers.
enum Way { kFma, kDot, kTile, kInt8Fma, kInt8Dot, kWidenedFma, kWidenedDot, kWidenedTile };

inline bool is_dot(Way way) { return way == kDot || way == kInt8Dot || way == kWidenedDot; }
inline bool is_tile(Way way) { return way == kTile || way == kWidenedTile; }
inline bool is_int8(Way way) { return way >= kInt8Fma; }
inline bool is_widened(Way way) { return way >= kWidenedFma; }

constexpr long kTileBlock = 64;  // rows that a panel is multiplied by at once: four tiles

struct Weight {          // [out, in], out a multiple of kPanel
  const void* values;    // packed; with int8 the scales are among them
  const uint16_t* bias;  // or null
  long out, in;
};

// Rows in blocks of nearly equal size, each at most what the way's kernel takes.
struct Blocks {
  long num_rows, most, count;
  Blocks(long rows, Way way) : Blocks(rows, most_rows(way)) {}
  long start(long index) const { return num_rows * index / count; }
  int size(long index) const { return static_cast<int>(start(index + 1) - start(index)); }

  // In what groups rows are packed: a tile's lie one by one.
  static Blocks packed(long rows, Way way) { return {rows, is_tile(way) ? 1 : most_rows(way)}; }

 private:
  Blocks(long rows, long at_once)
      : num_rows(rows), most(at_once), count((rows + at_once - 1) / at_once) {}
  static long most_rows(Way way) {
    if (is_tile(way)) return kTileBlock;
    return way == kInt8Fma ? std::min(6, kRowsAtOnce) : kRowsAtOnce;
  }
};

// What a packed row takes, in float32.
inline long packed_width(long in, Way way) {
  if (is_tile(way)) return tile_row_values(in) / 2;
  return is_dot(way) ? in / 2 : in;
}

// Bring some rows of x, `stride` apart, into the form that the way's kernels take.
void pack_block(const uint16_t* x, long stride, int rows, long in, Way way, float* packed);

// Pack all rows of x; a barrier at the end.
void pack(const uint16_t* x, long stride, long rows, long in, Way way, float* packed);

// Numbers pieces of work as a team's threads take them.
using Counter = std::atomic<long>;

// One thread's place in the team's work. It takes a piece before it works on the one it has, and so
// knows what it will read next. Numbers run on from one product to the next.
class Turn {
 public:
  explicit Turn(Counter& counter) : counter_(counter), taken_(counter++) {}

  // The number of a piece of these `count` that is this thread's to do; -1: no more of them.
  long take(long count) {
    const long mine = taken_ - origin_;
    if (mine >= count) {
      origin_ += count;
      return -1;
    }
    taken_ = counter_++;
    return mine;
  }

  // What `take` will return.
  long next() const { return taken_ - origin_; }

 private:
  Counter& counter_;
  long taken_, origin_ = 0;
};

// y[row * stride + column] = x · Wᵀ + bias. Threads return when no work is left to begin: a barrier
// must follow.
void multiply(const float* packed, long rows, const Weight& weight, Way way, uint16_t* y,
              long stride, Turn& turn);

// The same with a weight of gate's rows, then up's: silu(gate) · up, each rounded to bfloat16 as if
// it had been stored, is packed for a product the same way. Not in packed's place.
void multiply_gated(const float* packed, long rows, const Weight& weight, Way way, float* gated,
                    Turn& turn);

// A panel's part: rows of the blocks `begin` to `end`.
struct PanelWork {
  const float* packed;
  const Weight* weight;
  Way way;
  const Blocks* blocks;
  long begin, end;

  long first_row() const { return blocks->start(begin); }
  long num_rows() const { return blocks->start(end) - first_row(); }
};

// Where a panel's columns of a block go, in the rows [out / 2] that are packed for the next product.
float* columns_of_block(const PanelWork& work, long block, long panel, float* gated);

// y: of the work's first row and the panel's first column.
void multiply_bfloat16(const PanelWork& work, long panel, long next, uint16_t* y, long stride);

// The same panel of gate and of up, for kDot: 16 columns of each at once, gated when summed.
void multiply_gated_dot(const PanelWork& work, long panel, long next, float* gated);

// room: [kPanel · in], only for widened ways.
void multiply_int8(const PanelWork& work, long panel, long next, uint16_t* room, uint16_t* y,
                   long stride);

}  // namespace qwen

#endif  // QWEN_X86
