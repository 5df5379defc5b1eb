// Products of rows with packed weights: how x is packed, and how panels are shared out.

#include "products.h"

#include <unistd.h>

#include <algorithm>
#include <vector>

#include "elementwise.h"
#include "panels.h"

#ifdef QWEN_X86

namespace qwen {

namespace {

// [rows][in] → [in / 2][rows] pairs, or with kWide [in][rows] float32; 16 pairs of all rows at once.
template <bool kWide>
FMA_TARGET void turn_rows(const uint16_t* x, long stride, int rows, long in, float* packed) {
  const First wanted = first_lanes(rows);
  const long num_pairs = in / 2, whole = rows == 1 ? 0 : num_pairs / 16 * 16;
  for (long pair = 0; pair < whole; pair += 16) {
    Words lanes[16];
    for (int row = 0; row < 16; ++row) {
      lanes[row] = load_words(x + std::min(row, rows - 1) * stride + 2 * pair);
    }
    transpose(lanes);
    for (int i = 0; i < 16; ++i) {
      if constexpr (kWide) {
        float* even = packed + 2 * (pair + i) * rows;
        store_some_words(even, wanted, shift_left(lanes[i], 16));
        store_some_words(even + rows, wanted, upper_halves(lanes[i]));
      } else {
        store_some_words(packed + (pair + i) * rows, wanted, lanes[i]);
      }
    }
  }
  for (int row = 0; row < rows; ++row) {
    for (long pair = whole; pair < num_pairs; ++pair) {
      const uint16_t* both = x + row * stride + 2 * pair;
      if constexpr (kWide) {
        packed[2 * pair * rows + row] = to_float(both[0]);
        packed[(2 * pair + 1) * rows + row] = to_float(both[1]);
      } else {
        std::memcpy(packed + pair * rows + row, both, 4);
      }
    }
  }
}

// [rows][in] → [in / 2][rows][2] float32.
void widen_pairs(const uint16_t* x, long stride, int rows, long in, float* packed) {
  for (int row = 0; row < rows; ++row) {
    for (long k = 0; k < in; ++k) {
      packed[(k / 2 * rows + row) * 2 + k % 2] = to_float(x[row * stride + k]);
    }
  }
}

// A core's second cache; 1 MiB where the system does not say.
long l2_bytes() {
#ifdef _SC_LEVEL2_CACHE_SIZE
  static const long found = sysconf(_SC_LEVEL2_CACHE_SIZE);
  if (found > 0) return std::clamp(found, 1L << 18, 1L << 21);
#endif
  return 1 << 20;
}

// Memory that a thread keeps.
uint16_t* room_for(long size) {
  thread_local std::vector<uint16_t> room;
  if (static_cast<long>(room.size()) < size) room.resize(size);
  return room.data();
}

// A product's panels in pieces: large ones first, so that threads seldom write side by side, and
// small ones at last, so that none waits long for another. Panel by panel in turns, two Zen 5 cores
// took 16 rows through all layers in 98 ms, in pieces in 34.
class Pieces {
 public:
  explicit Pieces(long num_panels) : num_panels_(num_panels), share_(3 * omp_get_num_threads()) {
    for (long panel = 0; panel < num_panels; panel += size(panel)) ++count_;
  }

  long count() const { return count_; }

  // The first panel of a piece; of the one after the last: all panels.
  long start(long piece) const {
    long panel = 0;
    while (piece-- > 0) panel += size(panel);
    return panel;
  }

 private:
  // Two panels at least: processors fetch lines by twos, also those that another has written.
  long size(long panel) const {
    const long left = num_panels_ - panel;
    return std::min(left, std::max(2L, left / share_ * 2));
  }

  long num_panels_, share_, count_ = 0;
};

void multiply_panel(const PanelWork& work, long panel, long next, uint16_t* y, long stride) {
  if (is_int8(work.way)) {
    multiply_int8(work, panel, next, y, stride);
  } else {
    multiply_bfloat16(work, panel, next, y, stride);
  }
}

// [rows][in], filled up with zeros.
void pack_tile_rows(const uint16_t* x, long stride, int rows, long in, float* packed) {
  const long width = tile_row_values(in);
  uint16_t* to = reinterpret_cast<uint16_t*>(packed);
  for (int row = 0; row < rows; ++row, to += width) {
    std::memcpy(to, x + row * stride, 2 * in);
    std::fill(to + in, to + width, 0);
  }
}

}  // namespace

void pack_block(const uint16_t* x, long stride, int rows, long in, Way way, float* packed) {
  if (is_tile(way)) {
    pack_tile_rows(x, stride, rows, in, packed);
  } else if (is_dot(way)) {
    turn_rows<false>(x, stride, rows, in, packed);
  } else if (way == kInt8Fma) {
    widen_pairs(x, stride, rows, in, packed);
  } else {
    turn_rows<true>(x, stride, rows, in, packed);
  }
}

void pack(const uint16_t* x, long stride, long rows, long in, Way way, float* packed) {
  const Blocks blocks = Blocks::packed(rows, way);
#pragma omp for schedule(static)
  for (long block = 0; block < blocks.count; ++block) {
    const long first = blocks.start(block);
    pack_block(x + first * stride, stride, blocks.size(block), in, way,
               packed + first * packed_width(in, way));
  }
}

void multiply(const float* packed, long rows, const Weight& weight, Way way, bool is_gated,
              uint16_t* y, long stride, Turn& turn) {
  const Blocks blocks(rows, way);
  const long row_bytes = packed_width(weight.in, way) * 4;
  // Blocks of x that stay in the second cache, beside a panel and the one that comes after it.
  const long per_chunk = l2_bytes() * 3 / 8 / (row_bytes * blocks.most) + 1;
  const long num_chunks = (blocks.count + per_chunk - 1) / per_chunk;
  const long num_panels = weight.out / kPanel / (is_gated ? 2 : 1);
  const long chunk_rows = std::min<long>(rows, per_chunk * blocks.most);
  const long wide = is_widened(way) ? kPanel * weight.in : 0;
  uint16_t* room = room_for(wide + (is_gated ? chunk_rows * 2 * kPanel : 0));
  uint16_t* both = room + wide;
  const Pieces pieces(num_panels);
  const Tiles tiles(is_tile(way));
  const long num_pieces = num_chunks * pieces.count();
  for (long piece; (piece = turn.take(num_pieces)) >= 0;) {
    const long chunk = piece / pieces.count(), part = piece % pieces.count();
    const long begin = chunk * per_chunk, end = std::min(begin + per_chunk, blocks.count);
    const long first = blocks.start(begin), some = blocks.start(end) - first;
    const PanelWork work{packed, &weight, way, &blocks, begin, end, room};
    const long last = pieces.start(part + 1) - 1;
    const long after = pieces.start(std::min(turn.next(), num_pieces - 1) % pieces.count());
    for (long panel = pieces.start(part); panel <= last; ++panel) {
      const long next = panel < last ? panel + 1 : after;
      uint16_t* target = y + first * stride + panel * kPanel;
      if (!is_gated) {
        multiply_panel(work, panel, next, target, stride);
        continue;
      }
      multiply_panel(work, panel, num_panels + panel, both, 2 * kPanel);
      multiply_panel(work, num_panels + panel, next, both + kPanel, 2 * kPanel);
      for (long row = 0; row < some; ++row) {
        const uint16_t* gate = both + row * 2 * kPanel;
        gate_row(gate, gate + kPanel, kPanel, target + row * stride);
      }
    }
  }
}

}  // namespace qwen

#endif  // QWEN_X86
