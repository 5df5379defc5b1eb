// Causal attention over the block table, bfloat16 in and out, float32 between; the cache in
// bfloat16 or in 8 bits.
//
// One call computes a layer's whole step: each sequence's queries against its own blocks, read
// where they lie. Sequences with one query keep the head's dimensions in the lanes; chunks of a
// prompt have a kernel of their own, attention_chunk.h's.

#include <algorithm>
#include <cmath>

#include "attention_chunk.h"

#ifdef QWEN_X86

namespace {

constexpr int kTile = 256;           // tokens
constexpr int kAhead = 8;            // tokens that are fetched before their turn
constexpr long kSharedTokens = 128;  // that sequences have in common: fewer are not worth it
constexpr long kDecodeRows = 8;      // at most, for a sequence with one query
constexpr long kSmallBytes = 1 << 19;  // of keys and values: less is not worth waking a thread for

FMA_TARGET inline void prefetch_row(const uint8_t* row, long bytes) {
  for (long i = 0; i < bytes; i += 64) {
    _mm_prefetch(reinterpret_cast<const char*>(row) + i, _MM_HINT_T0);
  }
}

template <typename Rows, int kSize, int kHeads>
FMA_TARGET void attend_one(const Layer& layer, const Work& work, long first_head) {
  const Cache& cache = layer.cache;
  const long origin = (work.row * layer.heads + first_head) * kSize;
  constexpr int kParts = kSize / 32;
  Pairs query[kHeads][kParts], sum[kHeads][kParts];
  alignas(64) float scores[kHeads][kTile];
  Place places[kTile];
  const long row_bytes = cache.row_bytes();
  float most[kHeads], total[kHeads];
  const Floats scale = splat(1.0f / std::sqrt(static_cast<float>(kSize)));
  for (int head = 0; head < kHeads; ++head) {
    most[head] = -INFINITY;
    total[head] = 0;
    for (int part = 0; part < kParts; ++part) {
      Pairs loaded = Rows::load_query(layer.query + origin + head * kSize + part * 32);
      query[head][part] = {mul(loaded.even, scale), mul(loaded.odd, scale)};
      sum[head][part] = {zeros(), zeros()};
    }
  }
  for (long start = work.first_token; start < work.context; start += kTile) {
    const long count = std::min<long>(kTile, work.context - start);
    const long padded = (count + 15) / 16 * 16;
    find_places(cache, work, start, count, places);
    for (long token = 0; token < count; ++token) {
      const Place place = places[token];
      prefetch_row(cache.keys + places[std::min(token + kAhead, count - 1)].row, row_bytes);
      Floats dot[kHeads];
      for (int head = 0; head < kHeads; ++head) dot[head] = zeros();
      for (int part = 0; part < kParts; ++part) {
        Pairs k = Rows::load(cache.keys + place.row, part * 32);
        for (int head = 0; head < kHeads; ++head) {
          dot[head] = fmadd(query[head][part].even, k.even, dot[head]);
          dot[head] = fmadd(query[head][part].odd, k.odd, dot[head]);
        }
      }
      for (int head = 0; head < kHeads; ++head) {
        scores[head][token] = reduce_add(dot[head]);
        if (Rows::kIsScaled) scores[head][token] *= scale_at(cache.keys, place) * Rows::kFactor;
      }
    }
    for (long token = 0; token < std::min<long>(kAhead, count); ++token) {
      prefetch_row(cache.values + places[token].row, row_bytes);
    }
    for (int head = 0; head < kHeads; ++head) {
      for (long token = count; token < padded; ++token) scores[head][token] = -INFINITY;
      Floats top = splat(most[head]);
      for (long token = 0; token < padded; token += 16) {
        top = max_of(top, load_floats(scores[head] + token));
      }
      const float now = reduce_max(top);
      const float shrink = std::exp(most[head] - now);
      Floats added = zeros();
      for (long token = 0; token < padded; token += 16) {
        Floats value = load_floats(scores[head] + token);
        value = exp16(sub(value, splat(now)));
        store_floats(scores[head] + token, value);
        added = add(added, value);
      }
      total[head] = total[head] * shrink + reduce_add(added);
      most[head] = now;
      for (int part = 0; part < kParts; ++part) {
        sum[head][part].even = mul(sum[head][part].even, splat(shrink));
        sum[head][part].odd = mul(sum[head][part].odd, splat(shrink));
      }
    }
    for (long token = 0; token < count; ++token) {
      const Place place = places[token];
      prefetch_row(cache.values + places[std::min(token + kAhead, count - 1)].row, row_bytes);
      const float factor = Rows::kIsScaled ? scale_at(cache.values, place) * Rows::kFactor : 1.0f;
      for (int part = 0; part < kParts; ++part) {
        Pairs v = Rows::load(cache.values + place.row, part * 32);
        for (int head = 0; head < kHeads; ++head) {
          Floats share = splat(scores[head][token] * factor);
          sum[head][part].even = fmadd(share, v.even, sum[head][part].even);
          sum[head][part].odd = fmadd(share, v.odd, sum[head][part].odd);
        }
      }
    }
  }
  for (int head = 0; head < kHeads && work.first_token > 0; ++head) {
    const float* state =
        layer.states + (work.row * layer.heads + first_head + head) * (qwen::kStateHead + kSize);
    const float top = std::max(most[head], state[0]);
    const float here = std::exp(most[head] - top), before = std::exp(state[0] - top);
    total[head] = total[head] * here + state[1] * before;
    for (int part = 0; part < kParts; ++part) {
      const Pairs seen = Rows::load_sums(state + qwen::kStateHead + part * 32);
      Pairs& all = sum[head][part];
      all.even = mul(all.even, splat(here));
      all.odd = mul(all.odd, splat(here));
      all.even = fmadd(seen.even, splat(before), all.even);
      all.odd = fmadd(seen.odd, splat(before), all.odd);
    }
  }
  for (int head = 0; head < kHeads; ++head) {
    const Floats share = splat(1.0f / total[head]);
    for (int part = 0; part < kParts; ++part) {
      Rows::store(layer.output + origin + head * kSize + part * 32,
                  mul(sum[head][part].even, share), mul(sum[head][part].odd, share));
    }
  }
}

template <typename Rows, int kSize>
void attend_decode(const Layer& layer, const Work& work) {
  const long group = layer.heads / layer.cache.kv_heads, first = work.kv_head * group;
  long head = 0;
  for (; head + 2 <= group; head += 2) attend_one<Rows, kSize, 2>(layer, work, first + head);
  if (head < group) attend_one<Rows, kSize, 1>(layer, work, first + head);
}

template <typename Rows, bool kDot>
void attend_all(const Layer& layer, const qwen::AttentionStep& step) {
  const long num_decodes = static_cast<long>(step.decodes.size());
  const long num_chunks = static_cast<long>(step.chunks.size());
  const long num_shared = static_cast<long>(step.shared.size());
  if (num_shared + num_chunks > 0) {
    Scratch& scratch = scratch_for(layer.cache.size);
    if (num_shared > 0) {  // their states must be there before the others: a barrier at the end
#pragma omp for schedule(dynamic, 1)
      for (long i = 0; i < num_shared; ++i) {
        attend_chunk<Rows, kDot>(layer, step.shared[i], scratch);
      }
    }
#pragma omp for schedule(dynamic, 1) nowait
    for (long i = 0; i < num_chunks; ++i) attend_chunk<Rows, kDot>(layer, step.chunks[i], scratch);
  }
#pragma omp for schedule(dynamic, 4) nowait
  for (long i = 0; i < num_decodes; ++i) {
    if (layer.cache.size == 128) {
      attend_decode<Rows, 128>(layer, step.decodes[i]);
    } else {
      attend_decode<Rows, 64>(layer, step.decodes[i]);
    }
  }
}

template <typename Rows>
void attend_as(const Layer& layer, const qwen::AttentionStep& step) {
  step.use_dot ? attend_all<Rows, true>(layer, step) : attend_all<Rows, false>(layer, step);
}

}  // namespace

namespace qwen {

namespace {

long num_queries(const Sequences& seqs, long seq) {
  return seqs.starts[seq + 1] - seqs.starts[seq];
}

// How many whole blocks from the first on two sequences have in common, at most `most`; those of
// the step's own tokens are never among them.
long count_common(const Sequences& seqs, long one, long other, long block_size, long most) {
  const int64_t *first = seqs.tables + one * seqs.table_width;
  const int64_t *second = seqs.tables + other * seqs.table_width;
  most = std::min({most, (seqs.contexts[one] - num_queries(seqs, one)) / block_size,
                   (seqs.contexts[other] - num_queries(seqs, other)) / block_size});
  long count = 0;
  while (count < most && first[count] == second[count]) ++count;
  return count;
}

// A run of sequences from `begin` on that have enough in common. One with more rows than that has
// tokens stays alone: to hand on a row's state takes about as long as to convert a token once.
struct SharedRun {
  long end, tokens;
  SharedRun(const Sequences& seqs, long begin, long block_size, long group) : end(begin + 1) {
    long blocks = seqs.table_width;
    for (; end < seqs.count; ++end) {
      const long common = count_common(seqs, begin, end, block_size, blocks);
      const bool is_half = end > begin + 1 && 2 * common < blocks;  // not worth the loss of others
      const long rows = group * std::max(num_queries(seqs, begin), num_queries(seqs, end));
      if (common * block_size < std::max(kSharedTokens, rows) || is_half) break;
      blocks = common;
    }
    tokens = end == begin + 1 ? 0 : blocks * block_size;
  }
};

void add_chunks(Work work, std::vector<Work>& chunks) {
  const long num_rows = work.num_rows;
  for (long first = 0; first < num_rows; first += kPanels * kLanes) {
    work.first_row = first;
    work.num_rows = std::min<long>(kPanels * kLanes, num_rows - first);
    chunks.push_back(work);
  }
}

}  // namespace

AttentionStep plan_attention(const Sequences& seqs, const Cache& cache, long heads, bool use_dot) {
  AttentionStep step{{}, {}, {}, heads, use_dot, {}};
  const long group = heads / cache.kv_heads;
  long run_end = 0, run_tokens = 0;
  for (long seq = 0; seq < seqs.count; ++seq) {
    const long queries = num_queries(seqs, seq);
    Work work{seqs.starts[seq], seqs.tables + seq * seqs.table_width, seqs.contexts[seq],
              queries, 0, 0, queries * group};
    if (seq >= run_end) {
      const SharedRun run(seqs, seq, cache.block_size, group);
      run_end = run.end;
      run_tokens = run.tokens;
      Work shared = work;
      shared.context = run_tokens;
      shared.num_rows = (seqs.starts[run.end] - work.row) * group;
      shared.is_shared = true;
      for (long head = 0; head < cache.kv_heads && run_tokens > 0; ++head) {
        shared.kv_head = head;
        add_chunks(shared, step.shared);
      }
    }
    work.first_token = run_tokens;
    for (work.kv_head = 0; work.kv_head < cache.kv_heads; ++work.kv_head) {
      if (queries == 1 && group <= kDecodeRows) {
        step.decodes.push_back(work);
      } else {
        add_chunks(work, step.chunks);
      }
    }
  }
  if (!step.shared.empty()) {
    step.states.reset(new float[seqs.starts[seqs.count] * heads * (kStateHead + cache.size)]);
  }
  std::reverse(step.chunks.begin(), step.chunks.end());  // the last see most: longest work first
  return step;
}

void attend(const Cache& cache, const AttentionStep& step, const uint16_t* query,
            uint16_t* output) {
  const Layer layer{cache, query, output, step.heads, step.states.get()};
  if (cache.format == kBfloat16) {
    attend_as<Bfloat16Rows>(layer, step);
  } else if (cache.format == kInt8) {
    attend_as<Int8Rows>(layer, step);
  } else {
    attend_as<Fp8Rows>(layer, step);
  }
}

}  // namespace qwen

extern "C" {

// Attend [tokens][heads][size] to each sequence's own blocks; sizes 64 and 128.
// use_dot: only where qwen_kernels() names `dot`.
// tables: [num_seqs][table_width]; starts: [num_seqs + 1] rows of the queries; format: cache.h's.
void qwen_attend(const uint16_t* query, uint8_t* keys, uint8_t* values, uint16_t* output,
                 const int64_t* tables, long table_width, const int64_t* starts,
                 const int64_t* contexts, long num_seqs, long heads, long kv_heads, long size,
                 long block_size, int format, int use_dot, int num_threads) {
  const Cache cache{keys, values, kv_heads, block_size, size, format};
  const qwen::Sequences sequences{tables, starts, contexts, table_width, num_seqs};
  const auto step = qwen::plan_attention(sequences, cache, heads, use_dot);
  long tokens = 0;
  for (long seq = 0; seq < num_seqs; ++seq) tokens += contexts[seq];
  const bool is_small =
      step.chunks.empty() && 2 * tokens * kv_heads * cache.row_bytes() < kSmallBytes;
#pragma omp parallel num_threads(is_small ? 1 : num_threads)
  qwen::attend(cache, step, query, output);
}

}  // extern "C"

#endif  // QWEN_X86
