// Layers of the decoder one after another, in one call and by one team of threads.
//
// What lies between two barriers is one pass over the rows. The kernels are the other files'; this
// one knows their order, and that of the last layer only some rows are wanted: of the others it
// needs keys and values alone.

#include <algorithm>
#include <cstring>
#include <vector>

#include "attention.h"
#include "elementwise.h"
#include "products.h"

#ifdef QWEN_X86

namespace {

using qwen::Blocks;
using qwen::Way;
using qwen::Weight;

// The three structs are those of stack.py.
struct LayerParts {
  const uint16_t *attention_norm, *feed_forward_norm, *q_norm, *k_norm;  // the last two: or null
  Weight qkv, output, gate_up, down;
  uint8_t *keys, *values;
};

struct Shape {
  long hidden, inner, heads, kv_heads, head_size, block_size, format, attention_way;
  double eps, head_eps;

  long query() const { return heads * head_size; }
  long qkv() const { return query() + 2 * kv_heads * head_size; }
  long widest() const { return std::max({hidden, inner, query(), 64L}); }
};

// How far apart rows of so many values lie: as in tiles, so that those need no packing.
inline long stride_of(long size) { return qwen::tile_row_values(size); }

struct Step {
  uint16_t* hidden;  // [rows][hidden]: in, and out where wanted rows move to the front
  const uint16_t *cos, *sin;
  const int64_t *slots, *tables, *starts, *contexts, *wanted;  // wanted: rows, rising; or null: all
  long rows, table_width, num_seqs, num_wanted, way, narrow_way;
  uint16_t* room;  // rows × qwen_room's
  // Added to what the first layers give, a tap for each: [places][tap_stride], a tap of `hidden`
  // values after the other; `tapped`: a row's place, or -1.
  const uint16_t* taps;
  const int64_t* tapped;
  long tap_stride, num_taps;
};

// What layers hand on within a step, one after another in Step::room.
struct Room {
  float* packed;
  uint16_t *delta, *query, *qkv;  // attention's output takes its queries' place
  float* inner;                   // packed, in qkv's place: never needed at once
  Room(const Shape& shape, const Step& step) {
    packed = reinterpret_cast<float*>(step.room);
    delta = step.room + 2 * step.rows * shape.widest();
    query = delta + step.rows * stride_of(shape.hidden);
    qkv = query + step.rows * stride_of(shape.query());
    inner = reinterpret_cast<float*>(qkv);
  }
};

// The sequences that the wanted rows belong to, each with one query.
class Narrowed {
 public:
  explicit Narrowed(const Step& step) {
    long seq = 0;
    for (long i = 0; i < step.num_wanted; ++i) {
      while (step.starts[seq + 1] <= step.wanted[i]) ++seq;
      contexts_.push_back(step.contexts[seq] - (step.starts[seq + 1] - 1 - step.wanted[i]));
      const int64_t* table = step.tables + seq * step.table_width;
      tables_.insert(tables_.end(), table, table + step.table_width);
    }
    for (long i = 0; i <= step.num_wanted; ++i) starts_.push_back(i);
    sequences = {tables_.data(), starts_.data(), contexts_.data(), step.table_width,
                 step.num_wanted};
  }
  qwen::Sequences sequences;

 private:
  std::vector<int64_t> contexts_, tables_, starts_;
};

// One thread's view of the work; all threads of the team call the same functions in turn. kDot: of
// elementwise.h.
template <bool kDot>
class Member {
 public:
  Member(const Shape& shape, const Step& step, qwen::Counter& counter)
      : shape_(shape), step_(step), room_(shape, step), rows_(step.rows),
        way_(static_cast<Way>(step.way)), normed_(kRowsAtOnce * shape.hidden), turn_(counter) {}

  void run_layer(const LayerParts& layer, const qwen::AttentionStep& attention, long index) {
    norm(layer.attention_norm, index > 0, index - 1);
    multiply(room_.packed, layer.qkv, room_.qkv, stride_of(shape_.qkv()));
    turn(layer, true, true);
    finish_layer(layer, attention);
  }

  // The last layer: keys and values of all rows, the rest of the wanted ones.
  void run_narrowing(const LayerParts& layer, const qwen::AttentionStep& attention, long index) {
    norm(layer.attention_norm, index > 0, index - 1);
    multiply(room_.packed, rows_of(layer.qkv, shape_.query(), shape_.qkv()),
             room_.qkv + shape_.query(), stride_of(shape_.qkv()));
    turn(layer, false, true);
    narrow();
    if (rows_ == 0) return;
    norm(layer.attention_norm, false, -1);
    multiply(room_.packed, rows_of(layer.qkv, 0, shape_.query()), room_.qkv,
             stride_of(shape_.qkv()));
    turn(layer, true, false);
    finish_layer(layer, attention);
  }

  // Add what the last layer, `index`, left.
  void finish(long index) {
#pragma omp for schedule(static)
    for (long row = 0; row < rows_; ++row) add(row, index);
  }

 private:
  uint16_t* hidden(long row) const { return step_.hidden + row * shape_.hidden; }

  // The token that a row is of.
  long token(long row) const { return is_narrow_ ? step_.wanted[row] : row; }

  // Add delta to a row and, where it is tapped and there is such a tap, that.
  void add(long row, long tap) {
    const long size = shape_.hidden;
    add_row<kDot>(room_.delta + row * stride_of(size), size, hidden(row));
    const long place = tap >= 0 && tap < step_.num_taps ? step_.tapped[token(row)] : -1;
    if (place < 0) return;
    add_row<kDot>(step_.taps + place * step_.tap_stride + tap * size, size, hidden(row));
  }

  Cache cache(const LayerParts& layer) const {
    return {layer.keys, layer.values, shape_.kv_heads, shape_.block_size, shape_.head_size,
            static_cast<int>(shape_.format)};
  }

  // Some of a weight's rows, from whole panels.
  Weight rows_of(const Weight& weight, long begin, long end) const {
    const long row_bytes = qwen::is_int8(way_) ? weight.in + 4 : 2 * weight.in;
    const char* values = static_cast<const char*>(weight.values) + begin * row_bytes;
    return {values, weight.bias == nullptr ? nullptr : weight.bias + begin, end - begin, weight.in};
  }

  void multiply(const float* packed, const Weight& weight, uint16_t* y, long stride) {
    qwen::multiply(packed, rows_, weight, way_, y, stride, turn_);
#pragma omp barrier
  }

  // Rows of the room in the form that products take.
  const float* packed(const uint16_t* x, long size) const {
    if (is_tile(way_)) return reinterpret_cast<const float*>(x);
    qwen::pack(x, stride_of(size), rows_, size, way_, room_.packed);
    return room_.packed;
  }

  // Add delta and a tap to the rows, normalise them and pack the result.
  void norm(const uint16_t* weight, bool has_delta, long tap) {
    const Blocks blocks = Blocks::packed(rows_, way_);
    const long size = shape_.hidden;
#pragma omp for schedule(static)
    for (long block = 0; block < blocks.count; ++block) {
      const long first = blocks.start(block);
      float* target = room_.packed + first * qwen::packed_width(size, way_);
      uint16_t* normed =
          is_tile(way_) ? reinterpret_cast<uint16_t*>(target) : normed_.data();
      for (int row = 0; row < blocks.size(block); ++row) {
        if (has_delta) add(first + row, tap);
        norm_row<kDot>(hidden(first + row), weight, size, static_cast<float>(shape_.eps),
                       normed + row * size);
      }
      if (is_tile(way_)) continue;
      qwen::pack_block(normed, size, blocks.size(block), size, way_, target);
    }
  }

  void turn(const LayerParts& layer, bool has_queries, bool has_keys) {
    const Heads heads{layer.q_norm, layer.k_norm, shape_.heads, shape_.kv_heads,
                      shape_.head_size, static_cast<float>(shape_.head_eps)};
#pragma omp for schedule(static)
    for (long row = 0; row < rows_; ++row) {
      const uint16_t* cos = step_.cos + token(row) * shape_.head_size;
      const uint16_t* sin = step_.sin + token(row) * shape_.head_size;
      const uint16_t* qkv = room_.qkv + row * stride_of(shape_.qkv());
      uint16_t* query = room_.query + row * stride_of(shape_.query());
      if (has_queries) turn_queries<kDot>(heads, qkv, cos, sin, query);
      if (has_keys) keep<kDot>(heads, cache(layer), qkv, cos, sin, step_.slots[token(row)]);
    }
  }

  void narrow() {
#pragma omp single
    for (long i = 0; i < step_.num_wanted; ++i) {
      std::memmove(hidden(i), hidden(step_.wanted[i]), 2 * shape_.hidden);
    }
    rows_ = step_.num_wanted;
    way_ = static_cast<Way>(step_.narrow_way);
    is_narrow_ = true;
  }

  // From attention on; leaves what is to be added in room_.delta.
  void finish_layer(const LayerParts& layer, const qwen::AttentionStep& attention) {
    const long query = stride_of(shape_.query());
    qwen::attend(cache(layer), attention, room_.query, room_.query, query);
#pragma omp barrier
    multiply(packed(room_.query, shape_.query()), layer.output, room_.delta,
             stride_of(shape_.hidden));
    norm(layer.feed_forward_norm, true, -1);
    qwen::multiply_gated(room_.packed, rows_, layer.gate_up, way_, room_.inner, turn_);
#pragma omp barrier
    multiply(room_.inner, layer.down, room_.delta, stride_of(shape_.hidden));
  }

  const Shape& shape_;
  const Step& step_;
  const Room room_;
  long rows_;
  Way way_;
  bool is_narrow_ = false;
  std::vector<uint16_t> normed_;
  qwen::Turn turn_;
};

struct Layers {
  const LayerParts* parts;
  long count;
  qwen::AttentionStep all, last;  // last: of the wanted rows, where the last layer narrows
  bool is_narrowed;
};

template <bool kDot>
void run_layers(const Shape& shape, const Step& step, const Layers& layers, int num_threads) {
  qwen::Counter counter{0};
#pragma omp parallel num_threads(num_threads)
  {
    Member<kDot> member(shape, step, counter);
    for (long index = 0; index < layers.count; ++index) {
      if (layers.is_narrowed && index + 1 == layers.count) {
        member.run_narrowing(layers.parts[index], layers.last, index);
      } else {
        member.run_layer(layers.parts[index], layers.all, index);
      }
    }
    member.finish(layers.count - 1);
  }
}

}  // namespace

extern "C" {

// The values of Step::room that a row takes.
long qwen_room(const Shape* shape) {
  return 2 * shape->widest() + stride_of(shape->hidden) + stride_of(shape->query()) +
         stride_of(std::max(shape->qkv(), 2 * shape->inner));
}

// Run all layers; wanted rows narrow the last of them.
void qwen_layers(const Shape* shape, const LayerParts* layers, const Step* step, long count,
                 int num_threads) {
  const qwen::Sequences all{step->tables, step->starts, step->contexts, step->table_width,
                            step->num_seqs};
  const bool is_narrowed = step->wanted != nullptr;
  const Way way = static_cast<Way>(shape->attention_way);
  const Cache cache{nullptr, nullptr, shape->kv_heads, shape->block_size, shape->head_size,
                    static_cast<int>(shape->format)};
  const Narrowed narrowed(is_narrowed ? *step : Step{});
  const Layers run{layers, count, qwen::plan_attention(all, cache, shape->heads, way, num_threads),
                   is_narrowed ? qwen::plan_attention(narrowed.sequences, cache, shape->heads, way,
                                                      num_threads)
                               : qwen::AttentionStep{},
                   is_narrowed};
  (has_dot() ? run_layers<true> : run_layers<false>)(*shape, *step, run, num_threads);
}

}  // extern "C"

#endif  // QWEN_X86
