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

struct Frame {  // one head of one frame; rows are counted in units of 32 bits
  const float *keys, *values;
  long num_keys, units, size;
};

struct Panels {  // what a thread keeps of its queries, and of a tile that AMX reads
  std::vector<float> query, sums, scores, keys, values;
  float most[kMostPanels][kLanes], total[kMostPanels][kLanes];
};

// 32 rows of queries into the lanes; what is missing repeats the last. Beyond `units`, whole tiles of
// zeros.
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
      for (long k = 0; k < 16; ++k) store_words(target + (i + k) * kLanes + half, block[k]);
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

// A tile's keys and values in the form that AMX takes.
FMA_TARGET void load_tile(const Frame& frame, long start, long count, Panels& panels) {
  const long units = frame.units, wide = whole_tiles(units);
  for (long key = 0; key < count; ++key) {
    const float* row = frame.keys + (start + key) * units;
    float* target = panels.keys.data() + key * wide;
    std::fill(std::copy(row, row + units, target), target + wide, 0.0f);
  }
  for (long pair = 0; pair < count / 2; pair += 16) {
    turn_pairs(frame.values + (start / 2 + pair) * frame.size, std::min(16L, count / 2 - pair),
               frame.size, kPairStride, panels.values.data() + pair);
  }
}

Panels& panels_for(const Frame& frame) {
  thread_local Panels panels;
  const long units = whole_tiles(frame.units), size = whole_tiles(frame.size);
  panels.query.resize(kMostPanels * units * kLanes);
  panels.sums.assign(kMostPanels * size * kLanes, 0.0f);
  panels.scores.resize(kMostTokens * kLanes);
  panels.keys.resize(kMostTokens * units);
  panels.values.resize(kPairStride * size);
  return panels;
}

template <typename T, Way kWay>
void attend_rows(const Frame& frame, const float* queries, long num_rows, T* output, long stride) {
  constexpr bool kIsTile = kWay == qwen::kTile;
  constexpr long kTokens = qwen::tile_tokens(kWay), kPair = kWay == qwen::kFma ? 1 : 2;
  Panels& panels = panels_for(frame);
  const long units = frame.units, wide = whole_tiles(units), size = frame.size;
  const long count = (num_rows + kLanes - 1) / kLanes;
  for (long panel = 0; panel < count; ++panel) {
    load_queries(queries + panel * kLanes * units, num_rows - panel * kLanes, units,
                 panels.query.data() + panel * wide * kLanes);
    std::fill_n(panels.most[panel], kLanes, -INFINITY);
    std::fill_n(panels.total[panel], kLanes, 0.0f);
  }
  const float scale = 1.0f / std::sqrt(static_cast<float>(size));
  for (long start = 0; start < frame.num_keys; start += kTokens) {
    const long some = std::min(kTokens, frame.num_keys - start);
    if constexpr (kIsTile) load_tile(frame, start, some, panels);
    const float *keys = kIsTile ? panels.keys.data() : frame.keys + start * units,
                *values = kIsTile ? panels.values.data() : frame.values + start / kPair * size;
    for (long panel = 0; panel < count; ++panel) {
      float shrink[kLanes], *scores = panels.scores.data();
      multiply_keys<kWay>(keys, kIsTile ? wide : units,
                          panels.query.data() + panel * wide * kLanes, some, scores);
      to_shares<kWay != qwen::kFma, false>(scores, some, scale, panels.most[panel],
                                           panels.total[panel], shrink);
      add_values<kWay>(values, size, some, scores, shrink,
                       panels.sums.data() + panel * whole_tiles(size) * kLanes);
    }
  }
  for (long panel = 0; panel < count; ++panel) {
    store_sums(panels.sums.data() + panel * whole_tiles(size) * kLanes, panels.total[panel], size,
               num_rows - panel * kLanes, output + panel * kLanes * stride, stride);
  }
}

// heads: [3][num_heads][total][size]; queries first … first + rows see the frames from row `seen`
// on, each of frame_rows; a frame's queries see that frame. output: [rows][num_heads · size].
template <typename T>
struct Frames {
  const T* heads;
  T* output;
  long num_heads, total, size, first, rows, seen, frame_rows;

  long queries() const { return std::min(rows, frame_rows); }  // of one frame
  long panels() const { return (queries() + kLanes - 1) / kLanes; }
};

// Attend for one of so many nearly equal blocks of whole panels, of one head and frame.
template <typename T, Way kWay>
void attend_block(const Frames<T>& of, long block, long num_blocks, long head, long index) {
  constexpr long kPerUnit = 4 / sizeof(T);
  const long size = of.size, plane = of.num_heads * of.total * size;
  const long begin = of.panels() * block / num_blocks * kLanes;
  const long end = std::min(of.panels() * (block + 1) / num_blocks * kLanes, of.queries());
  const T* of_head = of.heads + head * of.total * size;
  const T* keys = of_head + plane + (of.seen + index * of.frame_rows) * size;
  const long row = index * of.queries() + begin;
  const Frame frame{reinterpret_cast<const float*>(keys),
                    reinterpret_cast<const float*>(keys + plane), of.frame_rows, size / kPerUnit,
                    size};
  attend_rows<T, kWay>(frame, reinterpret_cast<const float*>(of_head + (of.first + row) * size),
                       end - begin, of.output + (row * of.num_heads + head) * size,
                       of.num_heads * size);
}

template <typename T, Way kWay>
void attend_frames(const Frames<T>& of, int num_threads) {
  const long most = qwen::most_panels(kWay), num_blocks = (of.panels() + most - 1) / most;
  const long num_frames = of.rows / of.queries();
#pragma omp parallel num_threads(num_threads)
  {
    const qwen::Tiles tiles(kWay == qwen::kTile);
#pragma omp for schedule(dynamic, 1)
    for (long item = 0; item < num_frames * of.num_heads * num_blocks; ++item) {
      const long head = item / num_blocks;
      attend_block<T, kWay>(of, item % num_blocks, num_blocks, head % of.num_heads,
                            head / of.num_heads);
    }
  }
}

}  // namespace

extern "C" {

// Queries `first` … first + rows see their frames, of frame_rows each, from row `seen` on: whole
// frames, or a part of one. way: of qwen::Way, kFma for float32 and one of the others for bfloat16:
// kDot only where qwen_kernels() says that pairs are multiplied. output: [rows][num_heads · size].
void qwen_vision_attend(int way, const void* heads, void* output, long num_heads, long total,
                        long size, long first, long rows, long seen, long frame_rows,
                        int num_threads) {
  auto all = [=](auto type, auto chosen) {
    using T = decltype(type);
    const Frames<T> frames{static_cast<const T*>(heads), static_cast<T*>(output), num_heads, total,
                           size, first, rows, seen, frame_rows};
    attend_frames<T, decltype(chosen)::value>(frames, num_threads);
  };
  if (way == qwen::kTile) {
    all(uint16_t{}, std::integral_constant<Way, qwen::kTile>{});
  } else if (way == qwen::kDot) {
    all(uint16_t{}, std::integral_constant<Way, qwen::kDot>{});
  } else {
    all(float{}, std::integral_constant<Way, qwen::kFma>{});
  }
}

}  // extern "C"

#endif  // QWEN_X86
