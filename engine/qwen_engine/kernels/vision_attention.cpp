// Attention within a frame, of the vision tower. float32 or bfloat16 in and out, float32 between.
//
// Queries, keys and values lie as qwen_vision_turn puts them. 32 query rows are in the lanes, as in
// attention_chunk.h, whose matrix kernel it shares.

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <vector>

#include "attention_chunk.h"
#include "vision_lanes.h"

#ifdef QWEN_X86

namespace {

constexpr long kQueryPanels = 8;  // of 32 queries, that share a tile of keys and values
constexpr long kKeyTile = 128;    // keys

struct Frame {  // one head of one frame; rows are counted in units of 32 bits
  const float *keys, *values;
  long num_keys, units, size;
};

struct Panels {  // what a thread keeps of its queries
  std::vector<float> query, sums, scores;
  float most[kQueryPanels][kLanes], total[kQueryPanels][kLanes];
};

// 32 rows of queries into the lanes; what is missing repeats the last.
FMA_TARGET void load_queries(const float* rows, long num_rows, long units, float* target) {
  for (long half = 0; half < kLanes; half += 16) {
    for (long i = 0; i < units; i += 16) {
      const First mask = first_lanes(units - i);
      Words block[16];
      for (long lane = 0; lane < 16; ++lane) {
        const float* row = rows + std::min(half + lane, num_rows - 1) * units;
        block[lane] = load_some_words(row + i, mask);
      }
      transpose(block);
      for (long k = 0; k < std::min<long>(16, units - i); ++k) {
        store_words(target + (i + k) * kLanes + half, block[k]);
      }
    }
  }
}

// Sums [size][32] divided by their totals, to rows of the output.
template <typename T>
FMA_TARGET void store_sums(const float* sums, const float* total, long size, long num_rows,
                           T* output, long stride) {
  for (long half = 0; half < kLanes && half < num_rows; half += 16) {
    const Floats share = div(splat(1.0f), load_floats(total + half));
    for (long i = 0; i < size; i += 16) {
      Words block[16];
      for (long k = 0; k < 16; ++k) {  // what is beyond the head is read but not stored
        const float* row = sums + std::min(i + k, size - 1) * kLanes + half;
        block[k] = bits_of(mul(load_floats(row), share));
      }
      transpose(block);
      for (long lane = 0; lane < std::min<long>(16, num_rows - half); ++lane) {
        store_some(output + (half + lane) * stride + i, first_lanes(size - i),
                   floats_of(block[lane]));
      }
    }
  }
}

template <typename T>
void attend_rows(const Frame& frame, const float* queries, long num_rows, T* output, long stride) {
  constexpr bool kDot = !std::is_same_v<T, float>;
  constexpr long kPair = kDot ? 2 : 1;
  thread_local Panels panels;
  const long units = frame.units, size = frame.size;
  panels.query.resize(kQueryPanels * units * kLanes);
  panels.sums.assign(kQueryPanels * size * kLanes, 0.0f);
  panels.scores.resize(kKeyTile * kLanes);
  const long count = (num_rows + kLanes - 1) / kLanes;
  for (long panel = 0; panel < count; ++panel) {
    load_queries(queries + panel * kLanes * units, num_rows - panel * kLanes, units,
                 panels.query.data() + panel * units * kLanes);
    std::fill_n(panels.most[panel], kLanes, -INFINITY);
    std::fill_n(panels.total[panel], kLanes, 0.0f);
  }
  const float scale = 1.0f / std::sqrt(static_cast<float>(size));
  for (long start = 0; start < frame.num_keys; start += kKeyTile) {
    const long some = std::min(kKeyTile, frame.num_keys - start);
    for (long panel = 0; panel < count; ++panel) {
      float shrink[kLanes];
      multiply_rows<kDot>(frame.keys + start * units, units, 1,
                          panels.query.data() + panel * units * kLanes, units, nullptr,
                          panels.scores.data(), some);
      to_shares<kDot, false>(panels.scores.data(), some, scale, panels.most[panel],
                             panels.total[panel], shrink);
      multiply_rows<kDot>(frame.values + start / kPair * size, 1, size, panels.scores.data(),
                          some / kPair, shrink, panels.sums.data() + panel * size * kLanes, size);
    }
  }
  for (long panel = 0; panel < count; ++panel) {
    store_sums(panels.sums.data() + panel * size * kLanes, panels.total[panel], size,
               num_rows - panel * kLanes, output + panel * kLanes * stride, stride);
  }
}

// heads: [3][num_heads][total][size]; queries first … first + rows see the frames from row `seen`
// on, each of frame_rows; a frame's queries see that frame. output: [rows][num_heads · size].
template <typename T>
void attend_frames(const T* heads, long num_heads, long total, long size, long first, long rows,
                   long seen, long frame_rows, T* output, int num_threads) {
  constexpr long kPerUnit = 4 / sizeof(T);
  const long plane = num_heads * total * size, units = size / kPerUnit;
  const long block = kQueryPanels * kLanes;
  const long in_frame = std::min(rows, frame_rows);  // queries of one frame
  const long num_frames = rows / in_frame, num_blocks = (in_frame + block - 1) / block;
#pragma omp parallel for schedule(dynamic, 1) num_threads(num_threads)
  for (long item = 0; item < num_frames * num_heads * num_blocks; ++item) {
    const long part = item % num_blocks, head = item / num_blocks % num_heads;
    const long index = item / num_blocks / num_heads;
    // nearly equal blocks of whole panels
    const long panels = (in_frame + kLanes - 1) / kLanes;
    const long begin = panels * part / num_blocks * kLanes;
    const long end = std::min(panels * (part + 1) / num_blocks * kLanes, in_frame);
    const T* of_head = heads + head * total * size;
    const T* frame = of_head + (seen + index * frame_rows) * size;
    const long row = index * in_frame + begin;
    attend_rows(Frame{reinterpret_cast<const float*>(frame + plane),
                      reinterpret_cast<const float*>(frame + 2 * plane), frame_rows, units, size},
                reinterpret_cast<const float*>(of_head + (first + row) * size), end - begin,
                output + row * num_heads * size + head * size, num_heads * size);
  }
}

}  // namespace

extern "C" {

// Queries `first` … first + rows see their frames, of frame_rows each, from row `seen` on: whole
// frames, or a part of one. bfloat16 only where qwen_kernels() says that pairs are multiplied.
// output: [rows][num_heads · size].
void qwen_vision_attend(int is_wide, const void* heads, void* output, long num_heads, long total,
                        long size, long first, long rows, long seen, long frame_rows,
                        int num_threads) {
  auto all = [=](auto type) {
    using T = decltype(type);
    attend_frames(static_cast<const T*>(heads), num_heads, total, size, first, rows, seen,
                  frame_rows, static_cast<T*>(output), num_threads);
  };
  is_wide ? all(float{}) : all(uint16_t{});
}

}  // extern "C"

#endif  // QWEN_X86
