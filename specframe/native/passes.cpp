// Forward passes of Llama-like decoders over weights of 4, 8, 16 or 32 bits, for processors.
//
// Nothing here depends on how many rows are computed at once: a row's sums are added in one order, whatever its
// neighbours. A node of a tree so gets the very bits that it would get in a text decoded token by token.

#include <new>

#include "abi.h"
#include "attention.h"
#include "team.h"
#include "topk.h"

namespace {

int64_t tile_count(const Weight& w) { return (w.outputs + TILE - 1) / TILE; }
int64_t tile_bytes(const Weight& w) { return w.inputs / BLOCK * block_bytes(w.bits); }

// The slot of a node's own entry: of 8 bits, after the newest tokens, which are in whole numbers.
int64_t own_slot(const Batch& b, int64_t slot) { return b.bits == 8 ? b.slots + RECENT + slot - b.base : slot; }
// The first slot that a token at a position sees in whole numbers.
int64_t first_unrounded(int64_t position) { return std::max<int64_t>(position / SPAN - 1, 0) * SPAN; }
int64_t list_count(const Batch& b) { return b.listed ? b.list_layers * b.list_heads : 1; }
// The number of the list of a layer and a head of keys.
int64_t list_of(const Batch& b, int64_t layer, int64_t head) {
  return b.listed ? layer % b.list_layers * b.list_heads + head % b.list_heads : 0;
}

// What `count` queries from `first` on see by a list, of a row's nodes in turns of `sharing`.
View view_of(const Batch& b, int64_t list, int64_t row, int64_t first, int64_t count, int64_t sharing) {
  const int64_t high = (first + count - 1) / sharing;  // the last node
  View view;
  const auto look = [&](int64_t slot, auto sees) {
    float mask[LANE] = {};
    int64_t all = 0;
    for (int64_t q = 0; q < count; ++q) all += (mask[q] = sees((first + q) / sharing));
    if (all == count && view.masks.empty()) view.add(slot);
    else if (all) view.add(slot, mask);
  };
  // The committed slots, and which nodes see each; null: all do.
  const uint8_t* visible = b.sees || b.listed ? nullptr : b.visible + row * b.nodes * b.width;
  const auto committed = [&](auto visit) {
    if (b.listed) {
      const int64_t* slots = b.listed + ((list / b.list_heads * b.rows + row) * b.list_heads + list % b.list_heads) * b.list_slots;
      for (int64_t k = 0; k < b.list_slots && slots[k] >= 0; ++k) visit(slots[k]);
    } else {
      const int64_t end = b.sees ? b.length[row] : b.bits == 8 ? b.base : b.width;
      for (int64_t slot = 0; slot < end; ++slot) visit(slot);
    }
  };
  const auto sees = [&](int64_t node, int64_t slot) { return !visible || visible[node * b.width + slot]; };
  if (b.bits == 8) {
    int64_t whole[LANE], lowest = b.slots;  // a token sees another rounded once that has left its newest ones
    for (int64_t node = first / sharing; node <= high; ++node)
      lowest = std::min(lowest, whole[node - first / sharing] = first_unrounded(b.positions[row * b.nodes + node]));
    const auto from = [&](int64_t node) { return whole[node - first / sharing]; };
    committed([&](int64_t slot) {
      if (slot < lowest && !visible) view.add(slot);
      else look(slot, [&](int64_t node) { return slot < from(node) && sees(node, slot); });
    });
    committed([&](int64_t slot) {
      if (slot >= lowest) look(b.slots + slot % RECENT, [&](int64_t node) { return slot >= from(node) && sees(node, slot); });
    });
  } else {
    committed([&](int64_t slot) {
      if (visible) look(slot, [&](int64_t node) { return sees(node, slot); });
      else view.add(slot);
    });
  }
  if (b.sees) {
    const uint8_t* tree = b.sees + row * b.nodes * b.nodes;
    for (int64_t j = 0; j <= high; ++j)
      look(own_slot(b, b.base + j), [&](int64_t node) { return j <= node && tree[node * b.nodes + j]; });
  } else if (b.listed || b.bits == 8) {
    const int64_t begin = b.listed ? b.base : 0, width = b.width - begin;
    const uint8_t* path = b.visible + row * b.nodes * width;
    for (int64_t slot = b.base; slot < b.width; ++slot)
      look(own_slot(b, slot), [&](int64_t node) { return path[node * width + slot - begin]; });
  }
  view.close();
  return view;
}

constexpr int64_t DEEP = 8;  // layers from which on a pass takes longer than the start of a thread

// How a weight is multiplied with so many rows: some of them at a time, with one tile or two.
struct Turns {
  const Weight& w;
  const Codes& x;
  int64_t rows, both, group, count;  // tiles and rows at once, and how often
  bool registers = false;            // those of AMX
  int64_t configured = 0;            // rows of these

  Turns(const Weight& weight, const Codes& codes, int64_t all, int threads) : w(weight), x(codes), rows(all) {
#ifdef AMX
    registers = w.bits == 16 && has_tiles();
#endif
    both = !registers && tile_count(w) >= 4 * threads && with_two(w.bits, rows, 1) ? 2 : 1;
    const int64_t alone = w.bits == 32 ? TOGETHER_SINGLES : w.bits == 16 ? TOGETHER : GROUP;
    group = registers ? MANY : equal_share(rows, both > 1 ? GROUP_OF_TWO : alone);
    count = (rows + group - 1) / group;
  }

  ~Turns() {
#ifdef AMX
    if (configured) _tile_release();
#endif
  }

  // Calls `use(row, tile, products)` with each row's products with `tiles` tiles that stand at `data`; `following` are
  // multiplied next.
  template <typename Use>
  void run(const uint8_t* data, int64_t tiles, const uint8_t* following, Use use) {
    const int64_t blocks = w.inputs / BLOCK;
    for (int64_t turn = 0; turn < count; ++turn) {
      const int64_t row = turn * group, some = std::min(group, rows - row);
      const Ahead ahead = Ahead{following}.of(turn, count, tiles * tile_bytes(w));
      alignas(64) float found[2 * MANY][TILE];
#ifdef AMX
      if (registers && some != configured) configure(configured = some);
#endif
      if (tiles > 1) with_two(w.bits, rows, some)(data, ahead, blocks, x, row, found);
      else if (w.bits == 32) SINGLES[some - 1](data, ahead, blocks, x, row, found);
      else if (w.bits == 16) multiply_halves(data, ahead, blocks, x, row, some, registers, found);
      else (w.bits == 4 ? CODES<4> : CODES<8>)[some - 1](data, ahead, blocks, x, row, found);
      for (int64_t tile = 0; tile < tiles; ++tile)
        for (int64_t r = 0; r < some; ++r) use(row + r, tile, found[tile * MANY + r]);
    }
  }
};

// Where a thread's share of a weight begins.
inline const uint8_t* beginning(const Weight& w, const Worker& worker) {
  return w.data + tile_count(w) * worker.id / worker.threads * tile_bytes(w);
}

// out [M, stride] = x W^T + bias, or that added to it; to be called by all threads of a team. `next` is the weight that is
// multiplied after this one, or null: its beginning is fetched at the end.
void multiply(Worker& worker, const Weight& w, const Weight* next, const Codes& x, int64_t rows, float* out,
              int64_t stride, bool add) {
  Turns turns(w, x, rows, worker.threads);
  const int64_t tiles = tile_count(w), parts = (tiles + turns.both - 1) / turns.both;
  const int64_t last = parts * (worker.id + 1) / worker.threads - 1;  // of this thread
  worker.share(parts, [&](int64_t part) {
    const int64_t first = part * turns.both, here = std::min(turns.both, tiles - first);
    const uint8_t *data = w.data + first * tile_bytes(w), *behind = data + here * tile_bytes(w);
    for (int64_t row = 0; row < std::min(rows, turns.group); ++row)  // the results' places, which another core may have
      for (int64_t tile = first; tile < first + here; ++tile) __builtin_prefetch(out + row * stride + tile * TILE, 1);
    const uint8_t* following = part < last ? behind : next ? beginning(*next, worker) : data;
    turns.run(data, here, following, [&](int64_t row, int64_t tile, const float* from) {
      const int64_t start = (first + tile) * TILE, width = std::min(TILE, w.outputs - start);
      float* to = out + row * stride + start;
      for (int64_t i = 0; i < width; ++i) {
        const float value = w.bias ? from[i] + w.bias[start + i] : from[i];
        to[i] = add ? to[i] + value : value;
      }
    });
  });
}

// out [M, N] = silu(gate) * up, of products with a weight of 2 N outputs: the gates, and then what they let through. A thread
// multiplies and rounds a block of both, so that no other has to ask for the products; `room` has 4 TILE floats for each row.
void gate(Worker& worker, const Weight& w, const Weight& next, const Codes& x, int64_t rows, Codes& out, float* room) {
  Turns turns(w, x, rows, worker.threads);
  const int64_t half = w.outputs / 2, bytes = tile_bytes(w), blocks = half / BLOCK;
  const int64_t last = blocks * (worker.id + 1) / worker.threads - 1;  // of this thread
  worker.share(blocks, [&](int64_t block) {
    const uint8_t *gates = w.data + 2 * block * bytes, *ups = gates + half / TILE * bytes;
    const uint8_t* behind = block < last ? gates + 2 * bytes : beginning(next, worker);
    for (int64_t first = 0; first < 4; first += turns.both) {
      const auto at = [&](int64_t tile) { return tile < 2 ? gates + tile * bytes : tile < 4 ? ups + (tile - 2) * bytes : behind; };
      turns.run(at(first), turns.both, at(first + turns.both), [&](int64_t row, int64_t tile, const float* from) {
        std::memcpy(room + ((first + tile) * rows + row) * TILE, from, TILE * sizeof(float));
      });
    }
    for (int64_t row = 0; row < rows; ++row) {
      alignas(64) float values[BLOCK];
      for (int64_t i = 0; i < BLOCK; i += LANE) {  // silu(x) = x / (1 + exp(-x))
        const float* from = room + (i / TILE * rows + row) * TILE + i % TILE;
        Lane x = *reinterpret_cast<const Lane*>(from), up = *reinterpret_cast<const Lane*>(from + 2 * rows * TILE);
        if (w.bias) {
          x += *reinterpret_cast<const Lane*>(w.bias + block * BLOCK + i);
          up += *reinterpret_cast<const Lane*>(w.bias + half + block * BLOCK + i);
        }
        const Lane small = exponential(x < 0.f ? x : -x), product = x * up * (x < 0.f ? small : Lane{} + 1.f);
        *reinterpret_cast<Lane*>(values + i) = product / (small + 1.f);
      }
      out.set(row, values, BLOCK, block * BLOCK);
    }
  });
}

// Without a weight nothing is normalized; a width is a multiple of 16.
inline void normalize(const float* from, const float* weight, float epsilon, int64_t width, float* to) {
  if (!weight) {
    std::memcpy(to, from, width * sizeof(float));
    return;
  }
  Lane squares = {};
  for (int64_t i = 0; i < width; i += LANE) {
    const Lane part = *reinterpret_cast<const Lane*>(from + i);
    squares += part * part;
  }
  const float factor = 1.f / std::sqrt(sum(squares) / width + epsilon);
  for (int64_t i = 0; i < width; ++i) to[i] = from[i] * factor * weight[i];
}

inline void rotate(float* head, const float* cosine, const float* sine, int64_t rotary) {
  const int64_t half = rotary / 2;
  for (int64_t i = 0; i < half; ++i) {
    const float a = head[i], b = head[half + i];
    head[i] = a * cosine[i] - b * sine[i];
    head[half + i] = b * cosine[i] + a * sine[i];
  }
}

}  // namespace

// out [M, outputs] = x [M, inputs] W^T + bias. Returns 0, or 1 where there is no memory.
extern "C" int specframe_multiply(const Weight* w, const float* x, int64_t rows, float* out) try {
  Codes codes(rows, w->inputs, w->bits);
  Team team(omp_get_max_threads());
  Helpers::run(team, [&](Worker& worker) {
    worker.share(rows, [&](int64_t row) { codes.set(row, x + row * w->inputs, w->inputs); });
    multiply(worker, *w, nullptr, codes, rows, out, w->outputs, false);
  });
  return 0;
} catch (const std::bad_alloc&) {
  return 1;
}

// The `count` largest of each row of logits [M, width], largest first and of equal ones the earlier first, as
// log-probabilities, and the columns where they stand; `count` is `width` at most.
extern "C" void specframe_rank(const float* logits, int64_t rows, int64_t width, int64_t count, float* values, int64_t* columns) {
  for (int64_t row = 0; row < rows; ++row)
    rank(logits + row * width, width, count, values + row * count, columns + row * count);
}

// The root mean square norms of rows, [M, width], as modules of bfloat16 (`halves`) or float32 round them. Row i has weight
// i % kinds of [kinds, width].
extern "C" void specframe_normalize(const float* from, const float* weights, float epsilon, int64_t rows, int64_t width,
                                    int64_t kinds, int64_t halves, float* to) {
  const auto round = [&](float value) { return halves ? widen(narrow(value)) : value; };
  for (int64_t row = 0; row < rows; ++row, from += width, to += width) {
    Lane squares = {};
    for (int64_t i = 0; i < width; i += LANE) {
      const Lane part = *reinterpret_cast<const Lane*>(from + i);
      squares += part * part;
    }
    const float factor = 1.f / std::sqrt(sum(squares) / width + epsilon);
    const float* weight = weights + row % kinds * width;
    for (int64_t i = 0; i < width; ++i) to[i] = round(round(from[i] * factor) * weight[i]);
  }
}

// Runs the layers over `hidden` [M, width], in place, and writes keys and values into the cache. `ending` is the final norm's
// weight, or null: without that norm. `taps` [layers] are where a layer's output is copied to, [M, width] each, or null.
// `runs` [layers] says what of a layer runs, its attention (1), its MLP (2), or both; null: all of all.
// Returns 0, or 1 where there is no memory; nothing has then been written.
extern "C" int specframe_decode(const DecoderSizes* shape, const Layer* layers, const Batch* batch, void* cache, float* hidden,
                                const float* ending, void* const* taps, const uint8_t* runs) try {
  const DecoderSizes s = *shape;
  const Batch b = *batch;
  const int64_t rows = b.rows * b.nodes, queries = s.heads * s.head_size, keys = s.kv_heads * s.head_size;
  const int64_t line = queries + 2 * keys, most = b.width + b.list_slots + RECENT, wide = std::max(layers[0].qkv.inputs, queries);
  const auto with_memory = [&](int64_t layer, int64_t row, int64_t head, auto use) {
    const int64_t all = b.cache_rows * s.kv_heads, at = row * s.kv_heads + head, first = 2 * layer * all + at;
    const auto of = [&](auto* numbers) {
      const int64_t each = b.slots * s.head_size;
      use(Numbers<std::remove_pointer_t<decltype(numbers)>>{numbers + first * each, numbers + (first + all) * each, s.head_size});
    };
    if (b.bits == 32) return of(static_cast<float*>(cache));
    if (b.bits == 16) return of(static_cast<uint16_t*>(cache));
    const int64_t half = b.slots * s.head_size / 2, lower = 2 * s.layers * all * half, each = b.recent * s.head_size;
    const uint8_t *keys = b.planes + first * half, *values = keys + all * half;
    float* whole = static_cast<float*>(cache) + first * each;
    use(Planes{keys, keys + lower, values, values + lower, b.key_scales + (layer * all + at) * b.slots / SPAN * 2 * s.head_size,
               b.value_scales + (layer * all + at) * b.slots * 2, whole, whole + all * each, s.head_size, b.slots, b.upper != 0});
  };
  Codes codes(rows, wide, layers[0].qkv.bits), inner(rows, s.mlp, layers[0].qkv.bits);
  std::unique_ptr<float[]> qkv(new float[rows * line]), attended(new float[rows * queries]);
  const int64_t sharing = s.heads / s.kv_heads, asking = b.nodes * sharing;  // queries of a key, and of a row's nodes
  const int threads = omp_get_max_threads();  // as many as PyTorch's
  int64_t together = LANE;
  while (together > 1 && b.rows * s.kv_heads * ((asking + together - 1) / together) < threads) together /= 2;
  const int64_t groups = (asking + together - 1) / together;  // of each row
  std::vector<View> views(list_count(b) * b.rows * groups);
  // Of a thread: an attention's weights, a row's values, and products with a gate.
  const int64_t each = (most + 2 * LANE) * LANE + wide + 4 * TILE * rows;
  const std::unique_ptr<float[]> scratch(new float[threads * each]);
  if (threads > 1 && s.layers >= DEEP) end_busy_threads();
  Team team(threads);
  std::atomic<bool> full{false};  // no exception leaves a thread of the team
  Helpers::run(team, [&](Worker& worker) {
    float* const shares = scratch.get() + worker.id * each;
    float *const values = shares + (most + 2 * LANE) * LANE, *const room = values + wide;
    worker.share(list_count(b) * b.rows * groups, [&](int64_t at) {
      if (full) return;
      const int64_t list = at / (b.rows * groups), row = at / groups % b.rows, first = at % groups * together;
      try {
        views[at] = view_of(b, list, row, first, std::min(together, asking - first), sharing);
      } catch (const std::bad_alloc&) {
        full = true;
      }
    });
    for (int64_t l = 0; l < (full ? 0 : s.layers); ++l) {
      const Layer& layer = layers[l];
      if (!runs || runs[l] & 1) {
        worker.share(rows, [&](int64_t row) {
          float *state = hidden + row * s.width, *normed = values + (b.embeddings ? s.width : 0);
          normalize(state, layer.attention_norm, s.epsilon, s.width, normed);
          if (b.embeddings) normalize(b.embeddings + row * s.width, layer.token_norm, s.epsilon, s.width, values);
          if (layer.normed_residual) std::memcpy(state, normed, s.width * sizeof(float));
          codes.set(row, values, layer.qkv.inputs);
        });
        multiply(worker, layer.qkv, &layer.output, codes, rows, qkv.get(), line, false);
        worker.share(rows, [&](int64_t row) {
          float* at = qkv.get() + row * line;
          const int64_t first = b.first + row / b.nodes, slot = b.sees ? b.base + row % b.nodes : b.places[row];
          const int64_t turn = b.positions[row] * (s.rotary / 2);
          for (int64_t h = 0; h < s.heads + s.kv_heads; ++h) {
            float* head = at + h * s.head_size;
            const float* norm = h < s.heads ? layer.query_norm : layer.key_norm;
            if (norm) normalize(head, norm, s.epsilon, s.head_size, head);
            rotate(head, b.cosine + turn, b.sine + turn, s.rotary);
          }
          if (b.queries && b.queries[l]) std::memcpy(b.queries[l] + row * queries, at, queries * sizeof(float));
          for (int64_t h = 0; h < s.kv_heads; ++h) {
            const float* key = at + queries + h * s.head_size;
            with_memory(l, first, h, [&](const auto& memory) { memory.put(own_slot(b, slot), key, key + keys); });
          }
        });
        worker.share(b.rows * s.kv_heads * groups, [&](int64_t item) {
          const int64_t at = item % (b.rows * groups), row = at / groups, h = item / (b.rows * groups);
          const int64_t first = at % groups * together, count = std::min(together, asking - first);
          const float* query[LANE];
          float* out[LANE];
          for (int64_t q = 0; q < count; ++q) {
            const int64_t node = row * b.nodes + (first + q) / sharing, head = h * sharing + (first + q) % sharing;
            query[q] = qkv.get() + node * line + head * s.head_size;
            out[q] = attended.get() + node * queries + head * s.head_size;
          }
          const View& view = views[list_of(b, l, h) * b.rows * groups + at];
          with_memory(l, b.first + row, h, [&](const auto& memory) { attend(query, out, count, s.scale, memory, view, shares); });
        });
        worker.share(rows, [&](int64_t row) {
          codes.set(row, attended.get() + row * queries, queries);
        });
        multiply(worker, layer.output, &layer.gate_up, codes, rows, hidden, s.width, true);
      }
      if (!runs || runs[l] & 2) {
        worker.share(rows, [&](int64_t row) {
          normalize(hidden + row * s.width, layer.mlp_norm, s.epsilon, s.width, values);
          codes.set(row, values, s.width);
        });
        gate(worker, layer.gate_up, layer.down, codes, rows, inner, room);
        multiply(worker, layer.down, l + 1 < s.layers ? &layers[l + 1].qkv : nullptr, inner, rows, hidden, s.width, true);
      }
      if (taps[l])
        worker.share(rows, [&](int64_t row) {
          const float* from = hidden + row * s.width;
          if (b.tap_bits == 16)
            for (int64_t i = 0; i < s.width; ++i) static_cast<uint16_t*>(taps[l])[row * s.width + i] = narrow(from[i]);
          else
            std::memcpy(static_cast<float*>(taps[l]) + row * s.width, from, s.width * sizeof(float));
        });
    }
    if (ending && !full)
      worker.share(rows, [&](int64_t row) {
        normalize(hidden + row * s.width, ending, s.epsilon, s.width, hidden + row * s.width);
      });
  });
  return full;
} catch (const std::bad_alloc&) {
  return 1;
}

#include "slots.h"
#include "votes.h"
#include "screen.h"
#include "lstm.h"   // which calls these functions, and
#include "draft.h"  // which calls all
