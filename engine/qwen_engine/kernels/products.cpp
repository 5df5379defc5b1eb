// Products of rows with packed weights: how x is packed, and how panels are shared out.

#include "products.h"

#include <unistd.h>

#include <algorithm>
#include <vector>

#include "elementwise.h"
#include "panels.h"
#include "pieces.h"

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
    // Lines that other cores have read: to have them for writing takes as long as a miss.
    constexpr long kAhead = 4 * 16, kSize = kWide ? 2 : 1;  // pairs; what one is packed in
    const float* ahead = packed + kSize * (pair + kAhead) * rows;
    for (long i = 0; i < kSize * 16 * rows; i += 16) __builtin_prefetch(ahead + i, 1);
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

// What a product takes of room_for: a panel, for widened ways.
long room_values(const Weight& weight, Way way) { return is_widened(way) ? kPanel * weight.in : 0; }

void multiply_panel(const PanelWork& work, long panel, long next, uint16_t* room, uint16_t* y,
                    long stride) {
  if (is_int8(work.way)) {
    multiply_int8(work, panel, next, room, y, stride);
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

float* columns_of_block(const PanelWork& work, long block, long panel, float* gated) {
  const long first = work.blocks->start(block), columns = packed_width(kPanel, work.way);
  return gated + first * packed_width(work.weight->out / 2, work.way) +
         panel * columns * work.blocks->size(block);
}

namespace {

// Share a product out; `compute` does a panel of a piece, and is told which one comes next.
template <typename Compute>
void share_out(const float* packed, long rows, const Weight& weight, Way way, long num_panels,
               Turn& turn, const Compute& compute) {
  const Blocks blocks(rows, way);
  const long row_bytes = packed_width(weight.in, way) * 4;
  // Blocks of x that stay in the second cache, beside a panel and the one that comes after it.
  const long per_chunk = l2_bytes() * 3 / 8 / (row_bytes * blocks.most) + 1;
  const Pieces pieces(num_panels, blocks.count, per_chunk, !is_widened(way));
  const Tiles tiles(is_tile(way));
  const long last = pieces.count() - 1;
  for (long index; (index = turn.take(last + 1)) >= 0;) {
    const Piece& piece = pieces[index];
    const long after = pieces[std::min(turn.next(), last)].panel;
    const PanelWork work{packed, &weight, way, &blocks, piece.block, piece.blocks_end};
    for (long panel = piece.panel; panel < piece.panels_end; ++panel) {
      compute(work, panel, panel + 1 < piece.panels_end ? panel + 1 : after);
    }
  }
}

// Some rows of silu(gate) · up, the two side by side in `both`, over what was gate.
void gate_rows(long rows, uint16_t* both) {
  for (uint16_t* gate = both; gate < both + rows * 2 * kPanel; gate += 2 * kPanel) {
    gate_row(gate, gate + kPanel, kPanel, gate);
  }
}

// A panel's columns go where the next product takes them from. x: [rows][2 · kPanel], of which the
// first half.
void pack_columns(const uint16_t* x, const PanelWork& work, long panel, float* gated) {
  if (is_tile(work.way)) {
    const long width = 2 * packed_width(work.weight->out / 2, work.way);
    uint16_t* to = reinterpret_cast<uint16_t*>(gated) + work.first_row() * width + panel * kPanel;
    for (long row = 0; row < work.num_rows(); ++row) {
      std::memcpy(to + row * width, x + row * 2 * kPanel, 2 * kPanel);
    }
    return;
  }
  for (long block = work.begin; block < work.end; ++block) {
    const int rows = work.blocks->size(block);
    float* target = columns_of_block(work, block, panel, gated);
    pack_block(x, 2 * kPanel, rows, kPanel, work.way, target);
    x += rows * 2 * kPanel;
  }
}

}  // namespace

void multiply(const float* packed, long rows, const Weight& weight, Way way, uint16_t* y,
              long stride, Turn& turn) {
  uint16_t* room = room_for(room_values(weight, way));
  share_out(packed, rows, weight, way, weight.out / kPanel, turn,
            [&](const PanelWork& work, long panel, long next) {
              uint16_t* target = y + work.first_row() * stride + panel * kPanel;
              multiply_panel(work, panel, next, room, target, stride);
            });
}

void multiply_gated(const float* packed, long rows, const Weight& weight, Way way, float* gated,
                    Turn& turn) {
  const long num_panels = weight.out / kPanel / 2;
  if (way == kDot && Blocks(rows, way).count > 1) {  // one block would read halves of lines
    share_out(packed, rows, weight, way, num_panels, turn,
              [&](const PanelWork& work, long panel, long next) {
                multiply_gated_dot(work, panel, next, gated);
              });
    return;
  }
  const long wide = room_values(weight, way);
  uint16_t *room = room_for(wide + rows * 2 * kPanel), *both = room + wide;
  share_out(packed, rows, weight, way, num_panels, turn,
            [&](const PanelWork& work, long panel, long next) {
              multiply_panel(work, panel, num_panels + panel, room, both, 2 * kPanel);
              multiply_panel(work, num_panels + panel, next, room, both + kPanel, 2 * kPanel);
              gate_rows(work.num_rows(), both);
              pack_columns(both, work, panel, gated);
            });
}

}  // namespace qwen

#endif  // QWEN_X86
