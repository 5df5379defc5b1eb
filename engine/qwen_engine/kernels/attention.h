// A step's attention: which work there is, the same for every layer, and a team's share in it.

#pragma once

#include <cstdint>
#include <vector>

#include "cache.h"

namespace qwen {

struct Work {  // queries of one sequence and key head
  long row;    // of the sequence's first query
  const int64_t* table;
  long context, num_queries, kv_head, first_row, num_rows;
};

struct AttentionStep {
  std::vector<Work> decodes, chunks;
  long heads;
  bool use_dot;
};

struct Sequences {
  const int64_t *tables, *starts, *contexts;  // as qwen_attend has them
  long table_width, count;
};

AttentionStep plan_attention(const Sequences& sequences, long heads, long kv_heads, bool use_dot);

#ifdef QWEN_X86
// Attend [tokens][heads][size]; every thread of a team calls it, and a barrier must follow.
void attend(const Cache& cache, const AttentionStep& step, const uint16_t* query, uint16_t* output);
#endif

}  // namespace qwen
