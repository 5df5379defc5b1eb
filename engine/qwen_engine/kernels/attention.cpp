// Causal attention over the block table, bfloat16 in and out, float32 between; the cache in
// bfloat16 or in 8 bits.
//
// One call computes a layer's whole step: each sequence's queries against its own blocks, read
// where they lie. attention_decode.h is for sequences with one query, attention_chunk.h for chunks of
// a prompt.

#include <algorithm>

#include "attention_chunk.h"
#include "attention_decode.h"

#ifdef QWEN_X86

namespace {

constexpr long kSharedTokens = 128;  // that sequences have in common: fewer are not worth it
constexpr long kDecodeRows = 8;      // at most, for a sequence with one query
constexpr long kSmallBytes = 1 << 19;  // of keys and values: less is not worth waking a thread for

template <typename Rows, Way kWay>
void attend_all(const Layer& layer, const qwen::AttentionStep& step) {
  const long num_decodes = static_cast<long>(step.decodes.size());
  const long num_chunks = static_cast<long>(step.chunks.size());
  const long num_shared = static_cast<long>(step.shared.size());
  if (num_shared + num_chunks > 0) {
    Scratch& scratch = scratch_for(layer.cache.size);
    const qwen::Tiles tiles(kWay == qwen::kTile);
    if (num_shared > 0) {  // their states must be there before the others: a barrier at the end
#pragma omp for schedule(dynamic, 1)
      for (long i = 0; i < num_shared; ++i) {
        attend_chunk<Rows, kWay>(layer, step.shared[i], scratch);
      }
    }
#pragma omp for schedule(dynamic, 1) nowait
    for (long i = 0; i < num_chunks; ++i) attend_chunk<Rows, kWay>(layer, step.chunks[i], scratch);
  }
  // Key heads that one thread takes in turn: it fetches the next one's rows on the way.
  const long fair = num_decodes / (2L * omp_get_num_threads());
  const long at_once = std::clamp(fair, 1L, layer.cache.kv_heads);
#pragma omp for schedule(dynamic, at_once) nowait
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
  if (step.way == qwen::kTile) {
    attend_all<Rows, qwen::kTile>(layer, step);
  } else if (step.way == qwen::kDot) {
    attend_all<Rows, qwen::kDot>(layer, step);
  } else {
    attend_all<Rows, qwen::kFma>(layer, step);
  }
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

void add_chunks(Work work, long rows, std::vector<Work>& chunks) {
  const long num_rows = work.num_rows;
  for (long first = 0; first < num_rows; first += rows) {
    work.first_row = first;
    work.num_rows = std::min(rows, num_rows - first);
    chunks.push_back(work);
  }
}

}  // namespace

AttentionStep plan_attention(const Sequences& seqs, const Cache& cache, long heads, Way way,
                             int num_threads) {
  AttentionStep step{{}, {}, {}, heads, way, {}};
  const long group = heads / cache.kv_heads;
  // Rows that share converted tiles: many, but no fewer pieces than keep all threads busy.
  const long fair = seqs.starts[seqs.count] * heads / (4 * num_threads) / kLanes;
  const long rows = std::clamp(fair, std::min(8L, most_panels(way)), most_panels(way)) * kLanes;
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
        add_chunks(shared, rows, step.shared);
      }
    }
    work.first_token = run_tokens;
    for (work.kv_head = 0; work.kv_head < cache.kv_heads; ++work.kv_head) {
      if (queries == 1 && group <= kDecodeRows) {
        step.decodes.push_back(work);
      } else {
        add_chunks(work, rows, step.chunks);
      }
    }
  }
  if (!step.shared.empty()) {
    step.states.reset(new float[seqs.starts[seqs.count] * heads * (kStateHead + cache.size)]);
  }
  std::reverse(step.chunks.begin(), step.chunks.end());  // the last see most: longest work first
  return step;
}

void attend(const Cache& cache, const AttentionStep& step, const uint16_t* query, uint16_t* output,
            long stride) {
  const Layer layer{cache, query, output, stride, step.heads, step.states.get()};
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
// way: of qwen::Way, one that qwen_kernels() names.
// tables: [num_seqs][table_width]; starts: [num_seqs + 1] rows of the queries; format: cache.h's.
void qwen_attend(const uint16_t* query, uint8_t* keys, uint8_t* values, uint16_t* output,
                 const int64_t* tables, long table_width, const int64_t* starts,
                 const int64_t* contexts, long num_seqs, long heads, long kv_heads, long size,
                 long block_size, int format, int way, int num_threads) {
  const Cache cache{keys, values, kv_heads, block_size, size, format};
  const qwen::Sequences sequences{tables, starts, contexts, table_width, num_seqs};
  const auto step = qwen::plan_attention(sequences, cache, heads, static_cast<qwen::Way>(way),
                                         num_threads);
  long tokens = 0;
  for (long seq = 0; seq < num_seqs; ++seq) tokens += contexts[seq];
  const bool is_small =
      step.chunks.empty() && 2 * tokens * kv_heads * cache.row_bytes() < kSmallBytes;
#pragma omp parallel num_threads(is_small ? 1 : num_threads)
  qwen::attend(cache, step, query, output, heads * size);
}

}  // extern "C"

#endif  // QWEN_X86
