// In what pieces a product is shared out among a team's threads.

#pragma once

#include <algorithm>
#include <vector>

#include "products.h"

#ifdef QWEN_X86

namespace qwen {

// Panels of the weight by blocks of x.
struct Piece {
  long panel, panels_end, block, blocks_end;
};

// A product's pieces: large ones first, so that threads seldom write side by side, and small ones
// at last, so that none waits long for another. Panel by panel in turns, two Zen 5 cores took 16
// rows through all layers in 98 ms, in pieces in 34.
//
// Two panels at least, for processors fetch lines by twos, also those that another has written;
// what is then still too much is shared out by blocks: each has lines of its own.
class Pieces {
 public:
  // per_chunk: blocks at once; `is_splittable`: a panel may be gone over twice.
  Pieces(long num_panels, long num_blocks, long per_chunk, bool is_splittable)
      : num_panels_(num_panels), share_(3L * omp_get_num_threads()) {
    list_.clear();
    for (long begin = 0; begin < num_blocks; begin += per_chunk) {
      const long end = std::min(begin + per_chunk, num_blocks);
      add_chunk(begin, end, is_splittable && end == num_blocks);
    }
  }

  long count() const { return static_cast<long>(list_.size()); }
  const Piece& operator[](long index) const { return list_[index]; }

 private:
  void add_chunk(long begin, long end, bool is_split) {
    for (long panel = 0, size; panel < num_panels_; panel += size) {
      const long left = num_panels_ - panel;
      size = std::min(left, std::max(2L, left / share_ * 2));
      const bool is_small = left < share_;
      if (is_split && is_small) {
        add_split(panel, panel + size, begin, end);
      } else {
        list_.push_back({panel, panel + size, begin, end});
      }
    }
  }

  // Few panels, by blocks of x: as many as are a thread's share of what is left.
  void add_split(long panel, long panels_end, long begin, long end) {
    const long behind = (num_panels_ - panels_end) * (end - begin), size = panels_end - panel;
    for (long block = begin, some; block < end; block += some) {
      some = std::max(1L, (behind + size * (end - block)) / (share_ * size));
      list_.push_back({panel, panels_end, block, std::min(block + some, end)});
    }
  }

  long num_panels_, share_;
  static thread_local std::vector<Piece> list_;  // memory that a thread keeps
};

inline thread_local std::vector<Piece> Pieces::list_;

}  // namespace qwen

#endif  // QWEN_X86
