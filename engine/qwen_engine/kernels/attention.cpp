// Causal attention over the block table, bfloat16 in and out, float32 between; the cache in
// bfloat16 or in 8 bits.
//
// One call computes a layer's whole step: each sequence's queries against its own blocks, read
// where they lie. Two kernels: sequences with one query keep the head's dimensions in the lanes;
// chunks of a prompt keep 32 query rows in the lanes, so that softmax runs down the lanes and
// both products are the same small matrix kernel. Softmax is online over tiles of tokens
// (arXiv 2205.14135), so memory does not grow with the context.

#include <algorithm>
#include <cmath>
#include <vector>

#include "cache.h"

#ifdef QWEN_X86

namespace {

constexpr int kTile = 256;         // tokens
constexpr int kLanes = 32;         // query rows of a panel
constexpr int kPanels = 8;         // that share a converted tile
constexpr long kDecodeRows = 8;    // at most, for a sequence with one query
constexpr int kMaxRows = 12;       // of the matrix kernel, as in gemm.cpp

struct Work {  // queries of one sequence and key head
  const uint16_t* query;  // of the sequence's first row: [rows][heads][size]
  uint16_t* output;
  const int64_t* table;
  long context, num_queries, heads, kv_head, first_row, num_rows;
};

inline Place place_of(const Cache& cache, const Work& work, long token) {
  return place_of(cache, work.table[token / cache.block_size], token % cache.block_size,
                  work.kv_head);
}

// ---- one query ----

template <typename Rows, int kSize, int kHeads>
FMA_TARGET void attend_one(const Cache& cache, const Work& work, long first_head) {
  constexpr int kParts = kSize / 32;
  Pairs query[kHeads][kParts], sum[kHeads][kParts];
  alignas(64) float scores[kHeads][kTile];
  float most[kHeads], total[kHeads];
  const __m512 scale = _mm512_set1_ps(1.0f / std::sqrt(static_cast<float>(kSize)));
  for (int head = 0; head < kHeads; ++head) {
    most[head] = -INFINITY;
    total[head] = 0;
    for (int part = 0; part < kParts; ++part) {
      Pairs loaded = Rows::load_query(work.query + (first_head + head) * kSize + part * 32);
      query[head][part] = {_mm512_mul_ps(loaded.even, scale), _mm512_mul_ps(loaded.odd, scale)};
      sum[head][part] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
    }
  }
  for (long start = 0; start < work.context; start += kTile) {
    const long count = std::min<long>(kTile, work.context - start);
    const long padded = (count + 15) / 16 * 16;
    for (long token = 0; token < count; ++token) {
      const Place place = place_of(cache, work, start + token);
      __m512 dot[kHeads];
      for (int head = 0; head < kHeads; ++head) dot[head] = _mm512_setzero_ps();
      for (int part = 0; part < kParts; ++part) {
        Pairs k = Rows::load(cache.keys + place.row, part * 32);
        for (int head = 0; head < kHeads; ++head) {
          dot[head] = _mm512_fmadd_ps(query[head][part].even, k.even, dot[head]);
          dot[head] = _mm512_fmadd_ps(query[head][part].odd, k.odd, dot[head]);
        }
      }
      for (int head = 0; head < kHeads; ++head) {
        scores[head][token] = _mm512_reduce_add_ps(dot[head]);
        if (Rows::kIsScaled) scores[head][token] *= scale_at(cache.keys, place) * Rows::kFactor;
      }
    }
    for (int head = 0; head < kHeads; ++head) {
      for (long token = count; token < padded; ++token) scores[head][token] = -INFINITY;
      __m512 top = _mm512_set1_ps(most[head]);
      for (long token = 0; token < padded; token += 16) {
        top = _mm512_max_ps(top, _mm512_load_ps(scores[head] + token));
      }
      const float now = _mm512_reduce_max_ps(top);
      const float shrink = std::exp(most[head] - now);
      __m512 added = _mm512_setzero_ps();
      for (long token = 0; token < padded; token += 16) {
        __m512 value = _mm512_load_ps(scores[head] + token);
        value = exp16(_mm512_sub_ps(value, _mm512_set1_ps(now)));
        _mm512_store_ps(scores[head] + token, value);
        added = _mm512_add_ps(added, value);
      }
      total[head] = total[head] * shrink + _mm512_reduce_add_ps(added);
      most[head] = now;
      for (int part = 0; part < kParts; ++part) {
        sum[head][part].even = _mm512_mul_ps(sum[head][part].even, _mm512_set1_ps(shrink));
        sum[head][part].odd = _mm512_mul_ps(sum[head][part].odd, _mm512_set1_ps(shrink));
      }
    }
    for (long token = 0; token < count; ++token) {
      const Place place = place_of(cache, work, start + token);
      const float factor = Rows::kIsScaled ? scale_at(cache.values, place) * Rows::kFactor : 1.0f;
      for (int part = 0; part < kParts; ++part) {
        Pairs v = Rows::load(cache.values + place.row, part * 32);
        for (int head = 0; head < kHeads; ++head) {
          __m512 share = _mm512_set1_ps(scores[head][token] * factor);
          sum[head][part].even = _mm512_fmadd_ps(share, v.even, sum[head][part].even);
          sum[head][part].odd = _mm512_fmadd_ps(share, v.odd, sum[head][part].odd);
        }
      }
    }
  }
  for (int head = 0; head < kHeads; ++head) {
    const __m512 share = _mm512_set1_ps(1.0f / total[head]);
    for (int part = 0; part < kParts; ++part) {
      Rows::store(work.output + (first_head + head) * kSize + part * 32,
                  _mm512_mul_ps(sum[head][part].even, share),
                  _mm512_mul_ps(sum[head][part].odd, share));
    }
  }
}

template <typename Rows, int kSize>
void attend_decode(const Cache& cache, const Work& work) {
  const long group = work.heads / cache.kv_heads, first = work.kv_head * group;
  long head = 0;
  for (; head + 2 <= group; head += 2) attend_one<Rows, kSize, 2>(cache, work, first + head);
  if (head < group) attend_one<Rows, kSize, 1>(cache, work, first + head);
}

// ---- chunks of a prompt ----

// y[row] = (y[row] · scale) + Σ_k x[row · row_step + k · step] · w[k], 32 lanes each.
template <int kRows>
FMA_TARGET void multiply(const float* x, long row_step, long step, const float* w, long count,
                         const float* scale, float* y) {
  __m512 sums[kRows][2];
  for (int row = 0; row < kRows; ++row) sums[row][0] = sums[row][1] = _mm512_setzero_ps();
  for (long k = 0; k < count; ++k, w += kLanes, x += step) {
    __m512 low = _mm512_loadu_ps(w), high = _mm512_loadu_ps(w + 16);
    for (int row = 0; row < kRows; ++row) {
      __m512 value = _mm512_set1_ps(x[row * row_step]);
      sums[row][0] = _mm512_fmadd_ps(value, low, sums[row][0]);
      sums[row][1] = _mm512_fmadd_ps(value, high, sums[row][1]);
    }
  }
  for (int row = 0; row < kRows; ++row, y += kLanes) {
    for (int half = 0; half < 2; ++half) {
      __m512 value = sums[row][half];
      if (scale != nullptr) {
        __m512 before = _mm512_loadu_ps(y + 16 * half);
        value = _mm512_fmadd_ps(before, _mm512_loadu_ps(scale + 16 * half), value);
      }
      _mm512_storeu_ps(y + 16 * half, value);
    }
  }
}

using Multiply = void (*)(const float*, long, long, const float*, long, const float*, float*);
constexpr Multiply kMultiply[] = {nullptr,      multiply<1>, multiply<2>,  multiply<3>,
                                  multiply<4>,  multiply<5>, multiply<6>,  multiply<7>,
                                  multiply<8>,  multiply<9>, multiply<10>, multiply<11>,
                                  multiply<12>};

void multiply_rows(const float* x, long row_step, long step, const float* w, long count,
                   const float* scale, float* y, long rows) {
  for (long row = 0; row < rows; row += kMaxRows) {
    const long some = std::min<long>(kMaxRows, rows - row);
    kMultiply[some](x + row * row_step, row_step, step, w, count, scale, y + row * kLanes);
  }
}

struct Scratch {
  std::vector<float> keys, values, scores, query, sums;
  float most[kPanels][kLanes], total[kPanels][kLanes];
  int32_t position[kPanels][kLanes];  // of the token that the row belongs to
  explicit Scratch(long size)
      : keys(kTile * size), values(kTile * size), scores(kTile * kLanes),
        query(kPanels * size * kLanes), sums(kPanels * size * kLanes) {}
};

const uint16_t* query_row(const Cache& cache, const Work& work, long row) {
  const long group = work.heads / cache.kv_heads;
  return work.query + (row / group * work.heads + work.kv_head * group + row % group) * cache.size;
}

void load_queries(const Cache& cache, const Work& work, Scratch& scratch) {
  const float scale = 1.0f / std::sqrt(static_cast<float>(cache.size));
  const long group = work.heads / cache.kv_heads;
  std::fill(scratch.query.begin(), scratch.query.end(), 0.0f);
  std::fill(scratch.sums.begin(), scratch.sums.end(), 0.0f);
  for (long index = 0; index < kPanels * kLanes; ++index) {
    const long panel = index / kLanes, lane = index % kLanes;
    const long row = work.first_row + std::min(index, work.num_rows - 1);
    scratch.most[panel][lane] = -INFINITY;
    scratch.total[panel][lane] = 0;
    scratch.position[panel][lane] =
        static_cast<int32_t>(work.context - work.num_queries + row / group);
    if (index >= work.num_rows) continue;
    const uint16_t* source = query_row(cache, work, row);
    float* target = scratch.query.data() + panel * cache.size * kLanes + lane;
    for (long i = 0; i < cache.size; ++i) target[i * kLanes] = to_float(source[i]) * scale;
  }
}

// Turn a panel's scores of a tile into shares; scale says by what earlier sums shrink.
FMA_TARGET void soften(Scratch& scratch, long panel, long start, long count, float* scale) {
  for (int half = 0; half < kLanes; half += 16) {
    float* scores = scratch.scores.data() + half;
    const __m512i position = _mm512_loadu_si512(scratch.position[panel] + half);
    const long sure = scratch.position[panel][half];  // positions rise with the lanes
    __m512 before = _mm512_loadu_ps(scratch.most[panel] + half), most = before;
    for (long token = 0; token < count; ++token) {
      __m512 score = _mm512_loadu_ps(scores + token * kLanes);
      if (start + token > sure) {
        __mmask16 is_seen = _mm512_cmpge_epi32_mask(
            position, _mm512_set1_epi32(static_cast<int32_t>(start + token)));
        score = _mm512_mask_mov_ps(_mm512_set1_ps(-INFINITY), is_seen, score);
        _mm512_storeu_ps(scores + token * kLanes, score);
      }
      most = _mm512_max_ps(most, score);
    }
    __m512 added = _mm512_setzero_ps();
    for (long token = 0; token < count; ++token) {
      __m512 share = exp16(_mm512_sub_ps(_mm512_loadu_ps(scores + token * kLanes), most));
      _mm512_storeu_ps(scores + token * kLanes, share);
      added = _mm512_add_ps(added, share);
    }
    const __m512 shrink = exp16(_mm512_sub_ps(before, most));
    __m512 total = _mm512_loadu_ps(scratch.total[panel] + half);
    _mm512_storeu_ps(scratch.total[panel] + half, _mm512_fmadd_ps(total, shrink, added));
    _mm512_storeu_ps(scratch.most[panel] + half, most);
    _mm512_storeu_ps(scale + half, shrink);
  }
}

void store_sums(const Cache& cache, const Work& work, Scratch& scratch) {
  for (long index = 0; index < work.num_rows; ++index) {
    const long panel = index / kLanes, lane = index % kLanes;
    const float* sums = scratch.sums.data() + panel * cache.size * kLanes + lane;
    const float share = 1.0f / scratch.total[panel][lane];
    long place = query_row(cache, work, work.first_row + index) - work.query;
    uint16_t* target = work.output + place;
    for (long i = 0; i < cache.size; ++i) {
      target[i] = from_float(sums[i * kLanes] * share);
    }
  }
}

template <typename Rows>
void attend_chunk(const Cache& cache, const Work& work, Scratch& scratch) {
  const long num_panels = (work.num_rows + kLanes - 1) / kLanes;
  load_queries(cache, work, scratch);
  const long seen = scratch.position[num_panels - 1][kLanes - 1] + 1;
  for (long start = 0; start < seen; start += kTile) {
    const long count = std::min<long>(kTile, seen - start);
    for (long token = 0; token < count; ++token) {
      const Place place = place_of(cache, work, start + token);
      const float key_scale = Rows::kIsScaled ? scale_at(cache.keys, place) : 1.0f;
      const float value_scale = Rows::kIsScaled ? scale_at(cache.values, place) : 1.0f;
      Rows::widen(cache.keys + place.row, cache.size, key_scale,
                  scratch.keys.data() + token * cache.size);
      Rows::widen(cache.values + place.row, cache.size, value_scale,
                  scratch.values.data() + token * cache.size);
    }
    for (long panel = 0; panel < num_panels; ++panel) {
      const long some = std::min<long>(count, scratch.position[panel][kLanes - 1] + 1 - start);
      if (some <= 0) continue;
      float scale[kLanes];
      const float* query = scratch.query.data() + panel * cache.size * kLanes;
      multiply_rows(scratch.keys.data(), cache.size, 1, query, cache.size, nullptr,
                    scratch.scores.data(), some);
      soften(scratch, panel, start, some, scale);
      multiply_rows(scratch.values.data(), 1, cache.size, scratch.scores.data(), some, scale,
                    scratch.sums.data() + panel * cache.size * kLanes, cache.size);
    }
  }
  store_sums(cache, work, scratch);
}

// Compute all of a step's work.
template <typename Rows>
void attend_all(const Cache& cache, const std::vector<Work>& decodes,
                const std::vector<Work>& chunks, int num_threads) {
  const long num_decodes = static_cast<long>(decodes.size());
  const long num_chunks = static_cast<long>(chunks.size());
#pragma omp parallel num_threads(num_threads)
  {
    if (num_chunks > 0) {
      Scratch scratch(cache.size);
#pragma omp for schedule(dynamic, 1) nowait
      for (long i = 0; i < num_chunks; ++i) attend_chunk<Rows>(cache, chunks[i], scratch);
    }
#pragma omp for schedule(dynamic, 4)
    for (long i = 0; i < num_decodes; ++i) {
      if (cache.size == 128) {
        attend_decode<Rows, 128>(cache, decodes[i]);
      } else {
        attend_decode<Rows, 64>(cache, decodes[i]);
      }
    }
  }
}

}  // namespace

extern "C" {

// Attend [tokens][heads][size] to each sequence's own blocks; sizes 64 and 128.
// tables: [num_seqs][table_width]; starts: [num_seqs + 1] rows of the queries; format: cache.h's.
void qwen_attend(const uint16_t* query, uint8_t* keys, uint8_t* values, uint16_t* output,
                 const int64_t* tables, long table_width, const int64_t* starts,
                 const int64_t* contexts, long num_seqs, long heads, long kv_heads, long size,
                 long block_size, int format, int num_threads) {
  const Cache cache{keys, values, kv_heads, block_size, size, format};
  std::vector<Work> decodes, chunks;
  for (long seq = 0; seq < num_seqs; ++seq) {
    const long num_queries = starts[seq + 1] - starts[seq], row = starts[seq] * heads * size;
    const long num_rows = num_queries * (heads / kv_heads);
    for (long head = 0; head < kv_heads; ++head) {
      Work work{query + row, output + row, tables + seq * table_width, contexts[seq],
                num_queries, heads,        head,                       0,
                num_rows};
      if (num_queries == 1 && num_rows <= kDecodeRows) {
        decodes.push_back(work);
        continue;
      }
      for (long first = 0; first < num_rows; first += kPanels * kLanes) {
        work.first_row = first;
        work.num_rows = std::min<long>(kPanels * kLanes, num_rows - first);
        chunks.push_back(work);
      }
    }
  }
  std::reverse(chunks.begin(), chunks.end());  // the last see most: the longest work first
  auto attend = format == kBfloat16 ? attend_all<Bfloat16Rows>
                : format == kInt8   ? attend_all<Int8Rows>
                                    : attend_all<Fp8Rows>;
  attend(cache, decodes, chunks, num_threads);
}

}  // extern "C"

#endif  // QWEN_X86
