// A step's attention: which work there is, the same for every layer, and a team's share in it.

#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "cache.h"
#include "products.h"

namespace qwen {

struct Work {  // queries of one sequence and key head
  long row;    // of the sequence's first query
  const int64_t* table;
  long context, num_queries, kv_head, first_row, num_rows;
  long first_token = 0;    // what is before it others of the step see too
  bool is_shared = false;  // queries of many sequences, each of which sees the whole context
};

// Sequences that begin with the same blocks attend to those together, `shared`, and go on from the
// states that this leaves: softmax is put together from parts (arXiv 2402.05099).
struct AttentionStep {
  std::vector<Work> decodes, chunks, shared;
  long heads;
  Way way;  // kFma, kDot or kTile: how chunks multiply
  std::unique_ptr<float[]> states;  // [row][head][kStateHead + size]
};

// Tokens of a tile, which is converted once for some panels of 32 rows: so many keys, or values, and
// a panel's scores fit the L1 cache. By AMX longer sums are worth more.
constexpr long tile_tokens(Way way) { return way == kTile ? 256 : 128; }
constexpr long most_panels(Way way) { return way == kTile ? 16 : 8; }

constexpr long kStateHead = 16;  // before the sums: the largest score, and the sum of shares

struct Sequences {
  const int64_t *tables, *starts, *contexts;  // as qwen_attend has them
  long table_width, count;
};

// cache: only its shape counts.
AttentionStep plan_attention(const Sequences& sequences, const Cache& cache, long heads, Way way,
                             int num_threads);

#ifdef QWEN_X86
// Attend [tokens][heads][size], tokens `stride` values apart; every thread of a team calls it, and a
// barrier must follow. The output may take the queries' place.
void attend(const Cache& cache, const AttentionStep& step, const uint16_t* query, uint16_t* output,
            long stride);
#endif

}  // namespace qwen
